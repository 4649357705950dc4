"""The blocks that are kept for deletes on a full disk."""

from pathlib import Path

from gateway.store.reserve import SLICES, DiskReserve
from gateway.wire.limits import MIB


def blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_reserve_is_real_blocks_that_only_its_owner_may_read(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path / "reserve", MIB)
    assert reserve.fill()
    assert blocks(tmp_path / "reserve") >= MIB
    assert (tmp_path / "reserve").stat().st_mode & 0o777 == 0o600


def test_it_is_given_up_slice_by_slice_and_taken_back(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path / "reserve", MIB)
    reserve.fill()
    assert reserve.release()
    assert not reserve.is_whole()
    assert blocks(tmp_path / "reserve") == MIB - MIB // SLICES
    given_up = 1
    while reserve.release():
        given_up += 1
    assert (given_up, blocks(tmp_path / "reserve")) == (SLICES, 0)
    assert reserve.fill()
    assert reserve.is_whole()


def test_another_process_gives_up_what_is_there(tmp_path: Path) -> None:
    DiskReserve(tmp_path / "reserve", MIB).fill()
    other = DiskReserve(tmp_path / "reserve")
    assert other.release()
    assert blocks(tmp_path / "reserve") < MIB
    while other.release():
        pass
    assert blocks(tmp_path / "reserve") == 0


def test_without_a_file_there_is_nothing_to_give_up(tmp_path: Path) -> None:
    assert not DiskReserve(tmp_path / "reserve").release()
