"""What a node's runtimes left on this host: for tests that say "nothing"."""

from pathlib import Path

from sandboxes.local import residue


def of_node(root: Path, tag: str) -> list[str]:
    """A line for each thing of that node on this host, found by its root directory or its tag; not its own files."""
    found = residue.find((str(root), tag))
    return sorted(f"{kind} {thing}" for kind, things in found.items() if kind != residue.FILES for thing in things)
