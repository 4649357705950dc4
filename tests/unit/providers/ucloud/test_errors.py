"""Each refusal has one meaning, by call, status, words and code."""

import itertools

import pytest

from providers.base import Applied, ErrorKind, Scope
from providers.http import Call, NoAnswerError
from providers.ucloud.errors import SETTLE_SECONDS, Refusal, refused, unanswered, unreadable

K, S = ErrorKind, Scope
NO, MAYBE = Applied.NO, Applied.MAYBE
SUBMIT, TERMINATE, READ, REFRESH = Call.CREATE, Call.CHANGE, Call.READ, Call.SIGN_IN


def said(status: int, why: str = "", code: str = "") -> Refusal:
    return Refusal(status, why, code, is_json=True)


def page(status: int, text: str = "") -> Refusal:
    return Refusal(status, text, is_json=False)


@pytest.mark.parametrize(
    ("call", "refusal", "kind", "applied", "scope"),
    [
        (SUBMIT, said(400, "Bad machine type requested"), K.CONFIG, NO, S.OFFER),
        (SUBMIT, said(400, "The application is not supported on this machine type"), K.CONFIG, NO, S.OFFER),
        (SUBMIT, said(400, "Unknown application"), K.CONFIG, NO, S.POOL),
        (SUBMIT, said(400, "This project is not allowed to use virtual machines"), K.CONFIG, NO, S.POOL),
        (SUBMIT, said(400, "Failed to reach the scheduler"), K.TRANSIENT, NO, S.PROVIDER),
        (SUBMIT, page(400, "<html>"), K.TRANSIENT, NO, S.PROVIDER),
        (TERMINATE, said(400, "Failed to delete VM"), K.TRANSIENT, MAYBE, S.INSTANCE),
        (READ, said(400, "Invalid request supplied"), K.BUG, NO, S.PROVIDER),
        (REFRESH, said(401, "Unauthorized"), K.AUTH, NO, S.PROVIDER),
        (SUBMIT, said(402, "You do not have any valid allocations for 'cpu'"), K.CONFIG, NO, S.PROVIDER),
        (
            SUBMIT,
            said(402, "This workspace has reached the cpu quota.", "NOT_ENOUGH_COMPUTE_CREDITS"),
            K.QUOTA,
            NO,
            S.PROVIDER,
        ),
        (READ, said(403, "Forbidden"), K.AUTH, NO, S.PROVIDER),
        (SUBMIT, said(403, "forbidden"), K.AUTH, NO, S.PROVIDER),
        (READ, said(403, "Bad token supplied"), K.AUTH, NO, S.PROVIDER),
        (SUBMIT, said(403, "Invalid token supplied"), K.AUTH, NO, S.PROVIDER),
        (SUBMIT, said(403, "This project is not allowed to consume resources"), K.CONFIG, NO, S.PROVIDER),
        (SUBMIT, said(403, "This link is already in use with 12"), K.CONFIG, NO, S.POOL),
        (READ, said(403, "Write permission is required"), K.AUTH, NO, S.PROVIDER),
        (READ, page(403, "<html>blocked"), K.TRANSIENT, NO, S.PROVIDER),
        (SUBMIT, said(404, "Service is currently undergoing maintenance."), K.BUSY, NO, S.PROVIDER),
        (TERMINATE, said(404, "service is currently undergoing maintenance."), K.BUSY, NO, S.PROVIDER),
        (TERMINATE, said(404, "Permission denied or job not found (12)"), K.NOT_FOUND, NO, S.INSTANCE),
        (TERMINATE, said(404), K.TRANSIENT, MAYBE, S.INSTANCE),
        (SUBMIT, said(404), K.TRANSIENT, NO, S.PROVIDER),
        (READ, page(404, "404 page not found\n"), K.CONFIG, NO, S.PROVIDER),
        (SUBMIT, said(408), K.TRANSIENT, MAYBE, S.PROVIDER),
        (SUBMIT, said(425), K.TRANSIENT, MAYBE, S.PROVIDER),
        (SUBMIT, said(429), K.RATE_LIMIT, MAYBE, S.PROVIDER),
        (READ, said(429), K.RATE_LIMIT, NO, S.PROVIDER),
        (SUBMIT, said(409, "Duplicate"), K.BUSY, NO, S.PROVIDER),
        (SUBMIT, said(413), K.CONFIG, NO, S.POOL),
        (SUBMIT, said(502), K.TRANSIENT, MAYBE, S.PROVIDER),
        (SUBMIT, said(503, "Service provider is unavailable"), K.TRANSIENT, MAYBE, S.PROVIDER),
        (SUBMIT, page(504, "<html>"), K.TRANSIENT, MAYBE, S.PROVIDER),
        (TERMINATE, said(500, "Internal error"), K.TRANSIENT, MAYBE, S.PROVIDER),
        (READ, page(503), K.TRANSIENT, NO, S.PROVIDER),
        (SUBMIT, page(302), K.BUG, MAYBE, S.PROVIDER),
    ],
)
def test_a_refusal_means(call: Call, refusal: Refusal, kind: ErrorKind, applied: Applied, scope: Scope) -> None:
    error = refused(call, refusal)
    assert (error.kind, error.applied, error.scope) == (kind, applied, scope)


@pytest.mark.parametrize("call", list(Call))
def test_every_status_has_a_meaning_and_reads_change_nothing(call: Call) -> None:
    for status, make in itertools.product(range(100, 600), (said, page)):
        refusal = make(status)
        error = refused(call, refusal)
        if not call.mutates:
            assert error.applied is NO
        elif status >= 500:
            assert error.applied is MAYBE


def test_a_lost_submission_is_not_asked_about_before_it_can_have_come_through() -> None:
    lost = [
        unanswered(SUBMIT, NoAnswerError("reset", sent=True)),
        unreadable(SUBMIT, "no json"),
        refused(SUBMIT, said(502)),
    ]
    assert [error.retry_after for error in lost] == [SETTLE_SECONDS] * 3
    slowed = refused(SUBMIT, Refusal(429, is_json=True, retry_after=300.0))
    assert slowed.retry_after == 300.0
    assert refused(TERMINATE, said(502)).retry_after is None


def test_a_request_never_sent_was_not_applied() -> None:
    assert unanswered(SUBMIT, NoAnswerError("refused", sent=False)).applied is NO


def test_the_servers_words_are_cut_and_kept_on_one_line() -> None:
    message = str(refused(READ, page(503, "<html>\n" + "x" * 5000)))
    assert "\n" not in message
    assert len(message) < 400
