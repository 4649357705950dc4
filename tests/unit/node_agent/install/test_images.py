"""Images made from this machine's packages."""

import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from node_agent.cli import app
from node_agent.install import images


def test_the_packages_are_what_apt_names_and_nothing_virtual() -> None:
    done = "python3\n  PreDepends: python3-minimal\n  Depends: <awk>\n    mawk\n<awk>\nlibc6\nlibc6\nlibstdc++6\n"
    assert images.closure(done) == ["libc6", "libstdc++6", "python3"]


def test_the_test_image_holds_busybox_and_its_names(tmp_path: Path) -> None:
    images._make(tmp_path / "cache" / "image.tar", images._pack_busybox)
    with tarfile.open(tmp_path / "cache" / "image.tar") as tar:
        assert tar.getmember("bin/busybox").mode & 0o111
        assert tar.getmember("bin/sh").linkname == "busybox"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["image.tar"]


def test_a_failed_image_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    def broken(directory: Path, draft: Path) -> None:
        draft.write_bytes(b"half")
        raise images.ImageBuildError("no")

    with pytest.raises(images.ImageBuildError):
        images._make(tmp_path / "cache" / "image.tar", broken)
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_engine_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["test-image", "--docker", f"unix://{tmp_path}/no.sock", "--cache", str(tmp_path)])
    assert done.exit_code == 1
    assert "Docker engine" in done.output and "Traceback" not in done.output
