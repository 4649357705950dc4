"""Images for tests, made from this machine's static busybox: no registry is asked."""

import hashlib
import io
import json
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

import docker

BUSYBOX = Path("/bin/busybox")
_APPLETS = re.findall(
    r"\w+",
    "sh cat echo sleep true false head tail dd ls id env pwd printf kill ps wc sha256sum mkdir rm touch stat df od yes "
    "nc wget ip ping chmod test seq sort tr readlink mount setsid ln grep",
)
_PASSWD = "root::0:0:root:/root:/bin/sh\nagent:x:1234:1234:agent:/home/agent:/bin/sh\n"
_GROUP = "root:x:0:\nagent:x:1234:\n"


@dataclass(frozen=True)
class TestImages:
    """References of the images that every engine test may use.

    Attributes:
        busybox: a shell, the usual tools, users ``root`` and ``agent`` (1234), ``/data/readme``.
        bare: no shell and no tools: only ``/sleep``, its first process.
    """

    __test__ = False

    busybox: str = "sandbox-test/busybox:1"
    bare: str = "sandbox-test/bare:1"


def import_images(client: docker.APIClient) -> TestImages:
    """Puts the images into the engine behind ``client``."""
    images = TestImages()
    import_image(client, images.busybox, busybox_root(), [])
    import_image(client, images.bare, _bare_root(), ['CMD ["/sleep", "86400"]'])
    return images


def import_image(client: docker.APIClient, reference: str, layer: bytes, changes: list[str]) -> None:
    """Make an image of one layer."""
    repository, _, tag = reference.partition(":")
    client.import_image_from_data(layer, repository=repository, tag=tag, changes=changes)


def load_foreign(client: docker.APIClient, reference: str, architecture: str) -> None:
    """Put an image into the engine whose configuration names another architecture."""
    layer = busybox_root()
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        _file(tar, "layer.tar", layer, 0o644)
        _file(tar, "config.json", json.dumps(config).encode(), 0o644)
        _file(tar, "manifest.json", json.dumps(manifest).encode(), 0o644)
    for line in client.load_image(out.getvalue()):
        assert "error" not in line, line


def busybox_root(*planted: tarfile.TarInfo, more_users: str = "") -> bytes:
    """Return the layer of `TestImages.busybox`.

    Args:
        planted: members without content to add; a regular file gets busybox as its content.
        more_users: lines to add to its passwd file.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("bin", "etc", "data", "tmp", "home", "home/agent", "root"):
            _directory(tar, name)
        _file(tar, "bin/busybox", BUSYBOX.read_bytes(), 0o755)
        for applet in _APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        _file(tar, "etc/passwd", (_PASSWD + more_users).encode(), 0o644)
        _file(tar, "etc/group", _GROUP.encode(), 0o644)
        _file(tar, "data/readme", b"from the image\n", 0o644)
        for entry in planted:
            if entry.isfile():
                _file(tar, entry.name, BUSYBOX.read_bytes(), entry.mode)
            else:
                tar.addfile(entry)
    return out.getvalue()


def _bare_root() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        # busybox picks its applet from the name it is called by.
        _file(tar, "sleep", BUSYBOX.read_bytes(), 0o755)
    return out.getvalue()


def _directory(tar: tarfile.TarFile, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    tar.addfile(entry)


def _file(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))
