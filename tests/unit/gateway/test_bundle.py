"""Building the bundle: what it contains, and what happens when it cannot be built."""

import hashlib
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pytest

from gateway.bundle import SCRIPTS, BundleRequest, BundleService, build_bundle
from gateway.errors import ApiError
from gateway.wire.errors import ErrorCode

Pip = Callable[[Sequence[str]], None]


def fake_pip(*scripts: str, wheels: Sequence[str] = ("sandbox_fleet-1.2-py3-none-any.whl",)) -> Pip:
    """Return a pip that builds wheels with these scripts, and downloads one dependency for each Python."""

    def pip(arguments: Sequence[str]) -> None:
        if arguments[0] == "wheel":
            directory = Path(arguments[arguments.index("--wheel-dir") + 1])
            for name in wheels:
                with zipfile.ZipFile(directory / name, "w") as archive:
                    for script in scripts:
                        archive.writestr(f"node_agent/install/{script}", f"# {script}\n")
                    archive.writestr("sandboxes/locks/node.txt", "uvloop==1 --hash=sha256:00\n")
            return
        lock = Path(arguments[arguments.index("--requirement") + 1])
        assert "--require-hashes" in arguments
        assert "uvloop==1" in lock.read_text()
        python = next(word for word in arguments if word.startswith("--python-version=")).partition("=")[2]
        directory = Path(arguments[arguments.index("--dest") + 1])
        tag = f"cp{python.replace('.', '')}"
        (directory / f"uvloop-1-{tag}-{tag}-manylinux2014_x86_64.whl").write_bytes(tag.encode())

    return pip


def wanted(directory: Path) -> BundleRequest:
    return BundleRequest(directory / "bundle", ("3.11", "3.13"), source=directory)


async def test_every_file_is_described(tmp_path: Path) -> None:
    manifest = build_bundle(wanted(tmp_path), lambda _: None, fake_pip(*SCRIPTS))
    assert manifest.version == "1.2"
    assert {item.file: item.python for item in manifest.files} == {
        "install.sh": None,
        "packages.sh": None,
        "requirements.txt": None,
        "sandbox-fleet-node.service": None,
        "sandbox_fleet-1.2-py3-none-any.whl": "py3",
        "uvloop-1-cp311-cp311-manylinux2014_x86_64.whl": "cp311",
        "uvloop-1-cp313-cp313-manylinux2014_x86_64.whl": "cp313",
    }
    service = BundleService(tmp_path / "bundle")
    assert await service.manifest() == manifest
    for item in manifest.files:
        data = (await service.path(item.file)).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (item.sha256, item.size)
    assert hashlib.sha256((await service.path("SHA256SUMS")).read_bytes()).hexdigest() == manifest.sha256


async def test_a_new_bundle_replaces_the_old_one(tmp_path: Path) -> None:
    service = BundleService(tmp_path / "bundle")
    build_bundle(wanted(tmp_path), lambda _: None, fake_pip(*SCRIPTS))
    before = await service.manifest()
    newer = fake_pip(*SCRIPTS, wheels=["sandbox_fleet-1.3-py3-none-any.whl"])
    after = build_bundle(wanted(tmp_path), lambda _: None, newer)
    assert (before.version, await service.manifest()) == ("1.2", after)
    with pytest.raises(ApiError):
        await service.path("sandbox_fleet-1.2-py3-none-any.whl")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize(
    ("pip", "why"),
    [
        (fake_pip("install.sh"), "packages.sh"),
        (fake_pip(wheels=()), "0 wheels"),
        (fake_pip(wheels=["sandbox_fleet-1-py3-none-any.whl", "sandbox_fleet-2-py3-none-any.whl"]), "2 wheels"),
    ],
)
def test_a_failed_build_leaves_the_old_bundle(tmp_path: Path, pip: Pip, why: str) -> None:
    made = build_bundle(wanted(tmp_path), lambda _: None, fake_pip(*SCRIPTS))
    with pytest.raises(click.ClickException, match=why):
        build_bundle(wanted(tmp_path), lambda _: None, pip)
    assert (tmp_path / "bundle/manifest.json").read_text() == made.model_dump_json(indent=1)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_failure_of_pip_is_an_error_of_the_command(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException):
        build_bundle(BundleRequest(tmp_path / "bundle", source=tmp_path / "nothing"), lambda _: None)


async def test_a_bundle_that_is_missing_or_unreadable_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ApiError) as missing:
        await BundleService(tmp_path / "bundle").manifest()
    assert missing.value.code is ErrorCode.NOT_FOUND
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/manifest.json").write_text("{")
    with pytest.raises(ApiError) as unreadable:
        await BundleService(tmp_path / "bundle").manifest()
    assert unreadable.value.code is ErrorCode.NOT_FOUND
