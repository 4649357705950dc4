"""Names of sandboxes: the client's own, and the qualified ones behind the gateway's edge."""

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.wire.base import SandboxId
from gateway.wire.tenants import (
    MAX_QUALIFIED_LENGTH,
    QualifiedId,
    is_id,
    is_qualified,
    own_id,
    own_words,
    qualified,
    qualified_by,
    tenant_of,
)

LONGEST = f"{'t' * 32}..{'B' * 64}"


def accepted(kind: object, text: str) -> bool:
    try:
        TypeAdapter(kind).validate_python(text)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("text", ["a", "A.b", "a.", "a._-b", "B" * 64, "9"])
def test_ids_that_a_client_may_choose(text: str) -> None:
    assert is_id(text)
    assert is_qualified(text)
    assert accepted(SandboxId, text)
    for tenant in ("default", "acme"):
        name = qualified(tenant, text)
        assert is_qualified(name)
        assert accepted(QualifiedId, name)
        assert (tenant_of(name), own_id(name)) == (tenant, text)


@pytest.mark.parametrize("text", ["", ".a", "-a", "a..b", "acme..box", "a/b", "a\n", "é", "B" * 65])
def test_ids_that_no_client_may_choose(text: str) -> None:
    assert not is_id(text)
    assert not accepted(SandboxId, text)


@pytest.mark.parametrize("text", ["Acme..box", "..box", "acme..", "a..b..c", "t" * 33 + "..b", "acme.." + "B" * 65])
def test_names_that_nothing_has(text: str) -> None:
    assert not is_qualified(text)


def test_the_longest_name_fits() -> None:
    assert len(LONGEST) == MAX_QUALIFIED_LENGTH
    assert is_qualified(LONGEST)


@pytest.mark.parametrize(
    ("tenant", "text", "meant"),
    [
        ("acme", "box", "acme..box"),
        ("acme", "acme..box", "acme..box"),
        ("default", "box", "box"),
        ("default", "default..box", "box"),
    ],
)
def test_a_client_means_its_own(tenant: str, text: str, meant: str) -> None:
    assert qualified_by(tenant, text) == meant


@pytest.mark.parametrize("tenant", ["default", "acme"])
@pytest.mark.parametrize("text", ["beta..box", "beta..beta..box", "default..acme..box"])
def test_a_client_never_means_anothers(tenant: str, text: str) -> None:
    meant = qualified_by(tenant, text)
    assert tenant_of(meant) == tenant
    assert not is_qualified(meant)
    assert text.endswith(own_id(meant))


SESSION = f"exec-{'0' * 32}.1.acme..box"


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("sandbox acme..box does not run", "sandbox box does not run"),
        ("gave no answer to GET /v1/sandboxes/acme..box/logs", "gave no answer to GET /v1/sandboxes/box/logs"),
        ("'acme..box' and acme..bin", "'box' and bin"),
        ("container sandbox-0a1b2c3d-acme..box-1 is in use", "container sandbox-0a1b2c3d-box-1 is in use"),
        # Whose session ids contain the qualified id, and file names that only look like one.
        (f"session {SESSION} was dropped", f"session {SESSION} was dropped"),
        ("/workspace/x-acme..y", "/workspace/x-acme..y"),
        ("and so on acme...", "and so on acme..."),
        ("beta..box", "beta..box"),
    ],
)
def test_a_tenant_reads_its_own_ids(sentence: str, shown: str) -> None:
    assert own_words("acme", sentence) == shown
