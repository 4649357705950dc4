"""Programs that only tests run: this machine's own, or those that `setup/borrow.sh` has unpacked in the checkout."""

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

FOLDER: Final = Path(__file__).parents[1] / ".borrowed"


def borrowed(name: str) -> str:
    """Where that program lies; skips the test where there is none, with the reason."""
    places = (os.environ["PATH"], "/usr/sbin", str(FOLDER / "bin"))
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        pytest.skip(_reason(name))
    return found


def _reason(name: str) -> str:
    why = FOLDER / "why"
    reasons = [line for line in why.read_text().splitlines() if line.startswith(f"{name} ")] if why.exists() else []
    return reasons[0] if reasons else f"no {name} on this machine; setup/borrow.sh fetches it without installing it"
