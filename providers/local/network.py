"""A network of its own for each instance: a namespace behind a veth pair, on one bridge per root directory.

The bridge has the first address of the subnet: there the instances reach what listens on this machine.  Cutting the
pair's link plays a partition, and removing the namespace a lost machine.  Every name carries the root's tag, so several
fleets share a machine, and a sweep touches its own only.
"""

import contextlib
import fcntl
import hashlib
import ipaddress
import json
import re
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NETNS: Final = Path("/run/netns")
_MOST: Final = 4096  # three hex digits: an interface's name has 15 characters at most
_SECONDS: Final = 20.0
_TRANSLATION: Final = """
add table ip {table}
delete table ip {table}
table ip {table} {{
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {subnet} oifname != "{table}" masquerade
  }}
}}
"""


class NetworkError(Exception):
    """The network of an instance cannot be made or removed; the message says why."""


@dataclass(frozen=True)
class Namespace:
    """Where one instance lives.  The namespace and the host's end of its veth pair have the same name."""

    name: str
    address: str
    """The instance's own."""
    subnet: str

    def entered(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``command`` inside.  Its mounts stay those of the machine, so that what a node mounts outlives it."""
        return ("nsenter", f"--net={_NETNS / self.name}", "--", *command)

    @property
    def is_there(self) -> bool:
        """Whether the namespace exists."""
        return (_NETNS / self.name).exists()

    def cut(self) -> None:
        """Play a partition: nothing reaches the instance, and it reaches nothing, until `heal`.

        Raises:
            NetworkError: the instance has no network now.
        """
        _ip("link", "set", self.name, "down")

    def heal(self) -> None:
        """End a partition.

        Raises:
            NetworkError: the instance has no network now.
        """
        _ip("link", "set", self.name, "up")


class Network:
    """The bridge of one root directory, and the namespaces on it.

    Args:
        root: the provider's directory; its path gives the tag.
        subnet: private range; the bridge has its first address.
    """

    def __init__(self, root: Path, subnet: str) -> None:
        self._root = root
        self._tag = hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:8]
        self._subnet = ipaddress.IPv4Network(subnet)
        self.bridge = f"lb{self._tag}"

    @property
    def router(self) -> str:
        """The bridge's address: this machine, as the instances see it."""
        return str(self._subnet[1])

    def free(self, taken: Collection[str]) -> Namespace:
        """Return a namespace with a name that is not among ``taken``; nothing is made yet.

        Raises:
            NetworkError: the subnet is full.
        """
        for slot in range(min(_MOST, self._subnet.num_addresses - 3)):
            name = f"lv{self._tag}{slot:03x}"
            if name not in taken:
                return Namespace(name, str(self._subnet[slot + 2]), str(self._subnet))
        raise NetworkError(f"every address of {self._subnet} is taken; set a larger subnet")

    def attach(self, namespace: Namespace) -> None:
        """Make bridge, namespace and veth pair, as far as they are missing.

        Raises:
            NetworkError: a tool is missing, this is not root, or the subnet is in use for something else.
        """
        with self._lock():
            self._ensure_bridge()
            if namespace.is_there and _has_link(namespace.name):
                return
            self._remove(namespace.name)
            _ip("netns", "add", namespace.name)
            _batch(
                f"link add {namespace.name} type veth peer name eth0 netns {namespace.name}",
                f"link set {namespace.name} addrgenmode none master {self.bridge} up",
            )
            _batch(
                "link set lo up",
                "link set eth0 addrgenmode none up",
                f"address add {namespace.address}/{self._subnet.prefixlen} dev eth0",
                f"route add default via {self.router}",
                inside=namespace.name,
            )

    def detach(self, name: str) -> None:
        """Remove a namespace and its veth pair, and after the last one the bridge.  Idempotent.

        Raises:
            NetworkError: the kernel refuses.
        """
        with self._lock():
            self._remove(name)
            if not self._names():
                _nft_delete(self.bridge)
                with contextlib.suppress(NetworkError):  # it was not there
                    _ip("link", "delete", self.bridge)

    def sweep(self, owned: Collection[str]) -> list[str]:
        """Remove the namespaces of this root that no instance owns, and return their names.

        Raises:
            NetworkError: the kernel refuses.
        """
        gone = sorted(self._names() - set(owned))
        for name in gone:
            self.detach(name)
        return gone

    def _names(self) -> set[str]:
        """Return the names of this root's namespaces and host interfaces."""
        pattern = rf"lv{self._tag}[0-9a-f]{{3}}"
        entries = (path for place in (_NETNS, Path("/sys/class/net")) if place.is_dir() for path in place.iterdir())
        return {path.name for path in entries if re.fullmatch(pattern, path.name)}

    @staticmethod
    def _remove(name: str) -> None:
        if _has_link(name):
            with contextlib.suppress(NetworkError):  # it goes with its peer's namespace, maybe just now
                _ip("link", "delete", name)
        if (_NETNS / name).exists():
            _ip("netns", "delete", name)

    def _ensure_bridge(self) -> None:
        if not _has_link(self.bridge):
            self._refuse_overlap()
            _batch(
                f"link add {self.bridge} type bridge",
                f"link set {self.bridge} addrgenmode none",
                f"address add {self.router}/{self._subnet.prefixlen} dev {self.bridge}",
                f"link set {self.bridge} up",
            )
        # What instances send beyond this machine carries its address; nobody out there knows theirs.
        _run(["nft", "-f", "-"], _TRANSLATION.format(table=self.bridge, subnet=self._subnet))
        _allow_forwarding()

    def _refuse_overlap(self) -> None:
        """Raise where this machine routes a part of the subnet elsewhere."""
        for route in json.loads(_ip("-json", "-4", "route", "show") or "[]"):
            if route["dst"] != "default" and ipaddress.IPv4Network(route["dst"], strict=False).overlaps(self._subnet):
                device = route.get("dev", "another interface")
                raise NetworkError(
                    f"this machine has {route['dst']} on {device}; set another subnet than {self._subnet}"
                )

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the root's network: the bridge comes with the first namespace and goes with the last."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._root / ".network.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _has_link(name: str) -> bool:
    return (Path("/sys/class/net") / name).exists()


def _allow_forwarding() -> None:
    switch = Path("/proc/sys/net/ipv4/ip_forward")
    if switch.read_text().strip() != "1":
        switch.write_text("1")


def _nft_delete(table: str) -> None:
    _run(["nft", "-f", "-"], f"add table ip {table}\ndelete table ip {table}\n")


def _ip(*words: str) -> str:
    return _run(["ip", *words])


def _batch(*lines: str, inside: str | None = None) -> str:
    where = ["-netns", inside] if inside is not None else []
    return _run(["ip", *where, "-batch", "-"], "\n".join(lines))


def _run(command: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
