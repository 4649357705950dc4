"""References and the answers of a Docker engine."""

import os
import threading
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.core.policy import Policy
from gateway.core.policy_check import check
from gateway.wire.closed_ranges import DEFAULT_POLICY, AddressPolicy, IpAddress
from gateway.wire.errors import ErrorCode
from gateway.wire.references import ImageId, matches, parse_image
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import DeathReason
from node_agent.errors import RuntimeFailure
from node_agent.host.firewall import PullFirewall
from node_agent.host.image_budget import ImageBudget, Kind
from node_agent.host.images import EngineImage, Images, addresses_of, architecture

ID = "sha256:" + "a" * 64
DIGEST = "sha256:" + "b" * 64
PUBLIC = frozenset({ip_address("9.9.9.9")})
HOSTS = {
    "inside.example": frozenset({ip_address("10.0.0.7")}),
    "both.example": PUBLIC | {ip_address("::1")},
    "metadata.example": frozenset({ip_address("169.254.169.254")}),
}


class Engine:
    """The few calls of a Docker client that `Images` makes."""

    def __init__(self, *, local: bool, pulls: bool = True, error: str | None = None) -> None:
        self.local = local
        self.pulls = pulls
        self.error = error
        self.pulled: list[tuple[str, str]] = []
        self.inspected: set[str] = set()
        self.tags: list[str] | None = None
        self.platform: dict[str, str] = {}
        self.size_mb = 0
        self.layer_mb = 0
        self.removed: list[str] = []

    def inspect_image(self, reference: str) -> dict[str, Any]:
        self.inspected.add(reference)
        if not self.local:
            raise ImageNotFound(f"no such image: {reference}")
        config = {"Env": ["A=1", "B=x=y", "C="], "Entrypoint": ["/run.sh"], "Cmd": "serve it", "User": "app"}
        digests = ["other/name@sha256:" + "c" * 64, f"r.example:5000/app@{DIGEST}"]
        tags = [reference] if self.tags is None else self.tags
        found = reference if reference.startswith("sha256:") else ID
        return {
            "Id": found,
            "RepoTags": tags,
            "RepoDigests": digests,
            "Config": config,
            "Size": self.size_mb << 20,
            **self.platform,
        }

    def remove_image(self, image_id: str) -> None:
        self.removed.append(image_id)
        self.local = False

    def pull(self, repository: str, *, tag: str, stream: bool, decode: bool) -> Iterator[dict[str, Any]]:
        self.pulled.append((repository, tag))
        if not self.pulls:
            raise NotFound("not found", explanation="manifest unknown")
        if self.error is not None:
            yield {"error": self.error}
        if self.layer_mb:
            yield {"status": "Downloading", "id": "1", "progressDetail": {"current": 1, "total": self.layer_mb << 20}}
        self.local = True
        yield {"status": "done"}


def images(engine: Engine) -> Images:
    return Images(lambda: engine, resolve=lambda host: HOSTS.get(host, PUBLIC))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("text", "whole", "pulled"),
    [
        ("busybox", "docker.io/library/busybox:latest", ("docker.io/library/busybox", "latest")),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim", ("docker.io/library/python", "3.12-slim")),
        ("R.example:5000/a/b", "r.example:5000/a/b:latest", ("r.example:5000/a/b", "latest")),
        ("DOCKER.IO/library/a:c", "docker.io/library/a:c", ("docker.io/library/a", "c")),
        (f"h/a:c@{DIGEST}", f"docker.io/h/a@{DIGEST}", ("docker.io/h/a", DIGEST)),
        ("a" * 12, f"docker.io/library/{'a' * 12}:latest", (f"docker.io/library/{'a' * 12}", "latest")),
    ],
)
def test_the_engine_is_asked_by_the_whole_name(text: str, whole: str, pulled: tuple[str, str]) -> None:
    engine = Engine(local=False)
    images(engine).resolve(text)
    assert (engine.inspected, engine.pulled) == ({whole}, [pulled])


@pytest.mark.parametrize("tags", [[], ["<none>:<none>"], ["app:2", "other.example/library/app:1"]])
def test_an_image_that_does_not_carry_the_name_is_not_taken_for_it(tags: list[str]) -> None:
    engine = Engine(local=True)
    engine.tags = tags
    with pytest.raises(RuntimeFailure) as failure:
        images(engine).resolve("app:1")
    assert failure.value.code is ErrorCode.IMAGE_ERROR
    assert engine.pulled == [("docker.io/library/app", "1")]


def test_an_image_is_found_under_a_familiar_name_and_by_its_digest_and_id() -> None:
    engine = Engine(local=True)
    engine.tags = ["app:1"]
    for text in ("docker.io/library/app:1", f"r.example:5000/app@{DIGEST}", ID):
        assert images(engine).resolve(text).id == ID
    assert engine.pulled == []


def test_no_image_is_pulled_by_an_id() -> None:
    engine = Engine(local=False)
    with pytest.raises(RuntimeFailure) as failure:
        images(engine).resolve(ID)
    assert (failure.value.code, engine.pulled) == (ErrorCode.IMAGE_ERROR, [])


NAMES = st.one_of(
    st.sampled_from(
        ["debian", "a" * 64, "a" * 12, "0", ID, "DOCKER.IO/debian", "docker.io/docker.io/a", "a@" + DIGEST]
    ),
    st.from_regex(r"([A-Za-z0-9.:\[\]-]{1,9}/)?[a-z0-9]+([._/-]{1,2}[a-z0-9]+)*(:[\w.]{1,9})?(@sha256:[0-9a-f]{64})?"),
    st.text(alphabet="adockerilbry.:/@-_AD019[]", max_size=24),
)


@given(NAMES, st.sampled_from(["*", "docker.io/*", "docker.io/library/*", "a.io/*"]))
def test_what_a_policy_allowed_is_what_the_engine_is_asked_for(text: str, pattern: str) -> None:
    policy = Policy(images=(pattern,))
    try:
        spec = SandboxSpec.model_validate({"image": text})
    except ValidationError:
        return  # it never gets as far
    if check(spec, policy):
        return
    engine = Engine(local=isinstance(parse_image(text), ImageId))
    images(engine).resolve(text)
    (asked,) = engine.inspected
    assert matches(pattern, asked)
    assert str(parse_image(asked)) == asked
    assert [asked] == ([text] if engine.pulled == [] else [_joined(*pulled) for pulled in engine.pulled])


def _joined(repository: str, tag: str) -> str:
    return f"{repository}{'@' if ':' in tag else ':'}{tag}"


def test_image_that_is_there_is_not_pulled() -> None:
    engine = Engine(local=True)

    image = images(engine).resolve("r.example:5000/app:1")

    assert image == EngineImage(
        id=ID,
        digest=DIGEST,
        env={"A": "1", "B": "x=y", "C": ""},
        entrypoint=("/run.sh",),
        command=("/bin/sh", "-c", "serve it"),
        user="app",
        working_dir="",
    )
    assert engine.pulled == []


@pytest.mark.parametrize(
    ("platform", "named"),
    [
        ({"Os": "linux", "Architecture": "s390x"}, "linux/s390x"),
        ({"Os": "windows", "Architecture": os.uname().machine}, "windows/"),
    ],
)
def test_image_of_another_platform_is_refused_naming_both(platform: dict[str, str], named: str) -> None:
    engine = Engine(local=True)
    engine.platform = platform
    with pytest.raises(RuntimeFailure) as failure:
        images(engine).resolve("r.example:5000/app:1")
    assert (failure.value.code, failure.value.reason) == (ErrorCode.IMAGE_ERROR, DeathReason.IMAGE_ERROR)
    assert named in failure.value.message
    assert f"linux/{architecture(os.uname().machine)}" in failure.value.message


@pytest.mark.parametrize("name", [os.uname().machine, architecture(os.uname().machine), ""])
def test_image_of_this_platform_is_taken_by_any_of_its_names(name: str) -> None:
    engine = Engine(local=True)
    engine.platform = {"Os": "linux", "Architecture": name}
    assert images(engine).resolve("r.example:5000/app:1").id == ID


@pytest.mark.parametrize(
    "host", ["inside.example", "both.example:5000", "metadata.example", "127.0.0.1:5000", "[::1]:5000", "127.1:80"]
)
def test_registry_with_a_closed_address_is_never_asked(host: str) -> None:
    engine = Engine(local=False)
    asked = Images(
        lambda: engine,  # type: ignore[arg-type, return-value]
        resolve=lambda name: HOSTS.get(name) or addresses_of(name),
    )
    with pytest.raises(RuntimeFailure) as failure:
        asked.resolve(f"{host}/app:1")
    assert (failure.value.code, failure.value.reason) == (ErrorCode.IMAGE_ERROR, DeathReason.IMAGE_ERROR)
    assert host in failure.value.message
    assert "open_ranges" in failure.value.message
    assert engine.pulled == []


def test_registry_in_an_opened_range_is_asked() -> None:
    engine = Engine(local=False)
    opened = AddressPolicy(opened=(ip_network("10.0.0.0/24"),))
    images = Images(lambda: engine, opened, resolve=HOSTS.__getitem__)  # type: ignore[arg-type, return-value]
    images.resolve("inside.example/app:1")
    assert engine.pulled == [("inside.example/app", "1")]


def test_registry_that_only_the_engine_may_know_is_left_to_it() -> None:
    def fail(host: str) -> frozenset[IpAddress]:
        raise OSError(f"{host} is unknown")

    engine = Engine(local=False)
    Images(lambda: engine, resolve=fail).resolve("mirrored.example/app:1")  # type: ignore[arg-type, return-value]
    assert engine.pulled == [("mirrored.example/app", "1")]


def test_nothing_is_pulled_while_the_engine_cannot_be_known(tmp_path: Path) -> None:
    engine = Engine(local=False)
    firewall = PullFirewall("0badcafe", f"unix://{tmp_path}/gone", DEFAULT_POLICY)
    with pytest.raises(RuntimeFailure) as failure:
        Images(lambda: engine, firewall=firewall, resolve=lambda _: PUBLIC).resolve("app:1")  # type: ignore[arg-type, return-value]
    assert (failure.value.code, failure.value.reason, engine.pulled) == (ErrorCode.BUSY, None, [])


def test_nothing_is_kept_of_names_that_nobody_pulls_any_more() -> None:
    engine = Engine(local=False, error="manifest unknown")
    several = images(engine)

    for number in range(50):
        with pytest.raises(RuntimeFailure):
            several.resolve(f"app:{number}")

    assert len(several._pulls) == 0


def test_missing_image_is_pulled_once_for_all_that_wait() -> None:
    engine = Engine(local=False)
    shared = images(engine)
    threads = [threading.Thread(target=shared.resolve, args=("app:2",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert engine.pulled == [("docker.io/library/app", "2")]


@pytest.mark.parametrize(
    ("engine", "cause"),
    [
        (Engine(local=False, pulls=False), "manifest unknown"),
        (Engine(local=False, error="no such host"), "no such host"),
    ],
)
def test_failed_pull_names_image_and_cause(engine: Engine, cause: str) -> None:
    with pytest.raises(RuntimeFailure) as failure:
        images(engine).resolve("app:3")

    assert (failure.value.code, failure.value.reason) == (ErrorCode.IMAGE_ERROR, DeathReason.IMAGE_ERROR)
    assert "app:3" in failure.value.message
    assert cause in failure.value.message


def test_image_that_cannot_be_pulled_may_be_loaded() -> None:
    with pytest.raises(RuntimeFailure, match=r"manifest unknown; load it into .* see docs/operations\.md$"):
        images(Engine(local=False, pulls=False)).resolve("app:3")


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (requests.ConnectionError("refused"), ErrorCode.BUSY, None),
        (requests.ReadTimeout("slow"), ErrorCode.BUSY, None),
        (DockerException("socket is gone"), ErrorCode.BUSY, None),
        (APIError("invalid reference"), ErrorCode.IMAGE_ERROR, DeathReason.IMAGE_ERROR),
    ],
)
@pytest.mark.parametrize("step", ["inspect_image", "pull"])
def test_an_unreachable_engine_is_busy_and_not_an_image_error(
    monkeypatch: pytest.MonkeyPatch, step: str, error: Exception, code: ErrorCode, reason: DeathReason | None
) -> None:
    engine = Engine(local=False)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(engine, step, fail)
    with pytest.raises(RuntimeFailure) as caught:
        images(engine).resolve("busybox")
    assert (caught.value.code, caught.value.reason) == (code, reason)


# -- the budget --------------------------------------------------------------------------------------------------------


def budgeted(engine: Engine, budget: ImageBudget) -> Images:
    return Images(lambda: engine, resolve=lambda _: PUBLIC, budget=budget)  # type: ignore[arg-type, return-value]


def test_what_was_pulled_counts_and_what_was_there_does_not(tmp_path: Path) -> None:
    budget = ImageBudget(tmp_path / "images", 100)
    there = Engine(local=True)
    there.size_mb = 40
    budgeted(there, budget).resolve("r.example:5000/app:1")
    assert budget.stored() == []

    engine = Engine(local=False)
    engine.size_mb = 40
    budgeted(engine, budget).resolve("r.example:5000/app:1")
    assert [(one.kind, one.image_id, one.size_mb) for one in budget.stored()] == [(Kind.PULLED, ID, 40)]


def test_an_image_that_turns_out_too_large_goes_again(tmp_path: Path) -> None:
    budget = ImageBudget(tmp_path / "images", 100)
    engine = Engine(local=False)
    engine.size_mb = 101
    with pytest.raises(RuntimeFailure) as caught:
        budgeted(engine, budget).resolve("r.example:5000/app:1")
    assert (caught.value.code, engine.removed, budget.stored()) == (ErrorCode.IMAGE_ERROR, [ID], [])


def test_a_pull_breaks_off_once_its_layers_are_too_large(tmp_path: Path) -> None:
    engine = Engine(local=False)
    engine.layer_mb = 101
    with pytest.raises(RuntimeFailure) as caught:
        budgeted(engine, ImageBudget(tmp_path / "images", 100)).resolve("r.example:5000/app:1")
    assert (caught.value.code, engine.local) == (ErrorCode.IMAGE_ERROR, False)
