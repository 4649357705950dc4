"""The files of ``/etc`` that say who a sandbox is and whom it asks for names: the same on both engines."""

from collections.abc import Sequence

from gateway.wire.sandboxes import SandboxSpec


def hostname(spec: SandboxSpec) -> str:
    """Return the id, as far as a host name may go."""
    return spec.id.replace("_", "-").replace(".", "-").strip("-")[:63] or "sandbox"


def etc_files(spec: SandboxSpec, resolvers: Sequence[str]) -> dict[str, str]:
    """Return the content of each file, by its name.

    A sandbox without network has an empty ``resolv.conf``: it can ask nobody, and is not shown whom its host asks.

    Args:
        spec: of the sandbox.
        resolvers: name servers of sandboxes with a network.
    """
    name = hostname(spec)
    asked = resolvers if spec.network == "bridge" else ()
    return {
        "hostname": f"{name}\n",
        "hosts": f"127.0.0.1\tlocalhost {name}\n::1\tlocalhost ip6-localhost ip6-loopback\n",
        "resolv.conf": "".join(f"nameserver {address}\n" for address in asked),
    }
