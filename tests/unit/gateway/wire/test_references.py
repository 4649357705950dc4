"""References are read as Docker reads them, and a private host is told by its name."""

import pytest

from gateway.wire.references import (
    ImageId,
    ImageReference,
    host_of,
    is_private_host,
    matches,
    parse_image,
    registry_allowed,
    whole_pattern,
)

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("debian", "docker.io/library/debian:latest"),
        ("debian:12", "docker.io/library/debian:12"),
        ("owner/name", "docker.io/owner/name:latest"),
        ("docker.io/debian", "docker.io/library/debian:latest"),
        ("index.docker.io/debian", "docker.io/library/debian:latest"),
        ("ghcr.io/owner/name:v1", "ghcr.io/owner/name:v1"),
        ("GHCR.io/owner/name:v1", "ghcr.io/owner/name:v1"),
        ("DOCKER.IO/debian", "docker.io/library/debian:latest"),
        ("0", "docker.io/library/0:latest"),
        ("sha256:02a2e59fd8cc", "docker.io/library/sha256:02a2e59fd8cc"),
        ("localhost/name", "localhost/name:latest"),
        ("127.0.0.1:5000/name:t", "127.0.0.1:5000/name:t"),
        ("[::1]:5000/name:t", "[::1]:5000/name:t"),
        (f"debian@{DIGEST}", f"docker.io/library/debian@{DIGEST}"),
        (f"debian:12@{DIGEST}", f"docker.io/library/debian@{DIGEST}"),
    ],
)
def test_a_reference_is_completed_as_docker_does(text: str, normal: str) -> None:
    assert str(ImageReference.parse(text)) == normal


@pytest.mark.parametrize(
    "text", [DIGEST, "0" * 64, "Debian", "debian:", "debian@sha256:12", "a//b", "a b", "host:port/x", "-x.io/a", "/a"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the name of an image"):
        ImageReference.parse(text)


@pytest.mark.parametrize("text", ["0" * 64, "a/" * 128 + "b", f"{DIGEST}\n", "a\n", "", f"a@{DIGEST}0"])
def test_an_id_is_whole_and_says_that_it_is_one(text: str) -> None:
    assert parse_image(DIGEST) == ImageId(DIGEST)
    with pytest.raises(ValueError, match="not the name of an image"):
        parse_image(text)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost.", "a.localhost", "registry", "metadata.google.internal", "nas.local"),
        *("127.0.0.1", "127.1", "0x7f.1", "2130706433", "10.1.2.3", "169.254.169.254", "224.0.0.1", "0.0.0.0"),
        *("::1", "::ffff:10.0.0.1", "fe80::1"),
    ],
)
def test_private_hosts_are_known_by_name(host: str) -> None:
    assert is_private_host(host)


@pytest.mark.parametrize("host", ["docker.io", "ghcr.io", "8.8.8.8", "2606:4700::1111", "registry.example.com"])
def test_public_hosts_are_not_private(host: str) -> None:
    assert not is_private_host(host)


def test_the_host_is_read_off_a_registry() -> None:
    assert [host_of(text) for text in ("a.io", "a.io:5000", "[::1]:5000", "[::1]")] == ["a.io", "a.io", "::1", "::1"]


@pytest.mark.parametrize(
    ("registry", "patterns", "allowed"),
    [
        ("ghcr.io", ("*",), True),
        ("ghcr.io", ("docker.io",), False),
        ("eu.example.com", ("docker.io", "*.example.com"), True),
        ("example.com.evil.io", ("*.example.com", "example.com"), False),
        ("127.0.0.1:5000", ("*",), False),
        ("127.0.0.1:5000", ("127.0.0.1:*", "127.*"), False),
        ("127.0.0.1:5000", ("127.0.0.1:5000",), True),
        ("127.0.0.1:5001", ("127.0.0.1:5000", "127.0.0.1"), False),
        ("registry:5000", ("*",), False),
    ],
)
def test_private_registries_must_be_named_in_full(registry: str, patterns: tuple[str, ...], allowed: bool) -> None:
    assert registry_allowed(registry, patterns) is allowed


def test_only_the_star_is_special_in_a_pattern() -> None:
    assert matches("docker.io/library/*", "docker.io/library/debian:12")
    assert not matches("docker.io/library/*", "dockerxio/library/debian:12")
    assert not matches("docker.io", "docker.io/library/debian:12")


@pytest.mark.parametrize(
    ("pattern", "whole"),
    [
        ("debian:12", "docker.io/library/debian:12"),
        ("Debian", "docker.io/library/debian:latest"),
        ("ghcr.io/owner/name", "ghcr.io/owner/name:latest"),
        (f"h.example/a:1@{DIGEST}", f"h.example/a@{DIGEST}"),
        ("GHCR.io/*", "ghcr.io/*"),
        ("ghcr.io/Owner/*:V*", "ghcr.io/owner/*:V*"),
        ("debian:*", "docker.io/library/debian:*"),
        ("owner/*", "docker.io/owner/*"),
        ("docker.io/debian:*", "docker.io/library/debian:*"),
        ("index.docker.io/owner/*", "docker.io/owner/*"),
    ],
)
def test_a_pattern_that_is_no_part_of_whole_names_is_completed(pattern: str, whole: str) -> None:
    assert whole_pattern(pattern) == whole
    assert whole_pattern(whole) == whole


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "*:1",
        "debian*",
        "*.example.com/*",
        "docker.io/library/*",
        "docker.io/*",
        "host:5000/*",
        "localhost:*",
        DIGEST,
    ],
)
def test_a_pattern_that_may_match_is_left_as_it_is(pattern: str) -> None:
    assert whole_pattern(pattern) == pattern
