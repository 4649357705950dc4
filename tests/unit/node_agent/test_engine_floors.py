"""Which engines the doctor warns of."""

import pytest

from gateway.wire.system import Verdict
from node_agent import doctor
from node_agent.doctor import Version

RUNC = next(floor.least for floor in doctor.FLOORS if floor.name == "runc")
PRINTED = {
    "runsc": "runsc version {}\nspec: 1.0.2-dev\n",
    "runc": "runc version {}\ncommit: 1\nspec: 1.0.2\n",
    "containerd": "containerd github.com/containerd/containerd {} \n",
    "dockerd": "Docker version {}, build 5d6db84\n",
}
DEBIAN_12 = {
    "runsc": "0.0~20240729.0",
    "runc": "1.1.5+ds1",
    "containerd": "1.6.20~ds1",
    "dockerd": "20.10.24+dfsg1",
}
NEW = {"runsc": "release-20260914.0", "runc": "1.4.0", "containerd": "v2.3.2", "dockerd": "29.1.0"}


@pytest.mark.parametrize(
    ("version", "fixed"),
    [
        ((1, 1, 15), False),
        ((1, 2, 7), False),
        ((1, 2, 8), True),
        ((1, 3, 0), False),
        ((1, 3, 3), True),
        ((1, 4, 0), True),
        ((2, 0, 0), True),
    ],
)
def test_a_version_is_measured_by_its_own_line_of_releases(version: Version, fixed: bool) -> None:
    assert doctor.is_fixed(version, RUNC) is fixed


def test_older_engines_are_told_with_what_to_do_and_newer_are_fine() -> None:
    def verdicts(versions: dict[str, str]) -> list[Verdict]:
        rows = doctor.engine_floors(lambda argv: PRINTED[argv[0]].format(versions[argv[0]]))
        assert all(row.cure for row in rows if row.verdict is not Verdict.OK)
        return [row.verdict for row in rows]

    assert verdicts(DEBIAN_12) == [Verdict.WARNING] * 4
    assert verdicts(NEW) == [Verdict.OK] * 4


def test_what_is_not_installed_has_no_row_and_what_cannot_be_read_is_a_warning() -> None:
    assert doctor.engine_floors(lambda argv: None) == []
    assert {row.verdict for row in doctor.engine_floors(lambda argv: "development build")} == {Verdict.WARNING}
