"""Device nodes: what needs none of them."""

from pathlib import Path

from node_agent.host import devices
from node_agent.host.devices import DeviceRule


def test_rule_reads_as_the_devices_controller_takes_it() -> None:
    assert DeviceRule("c", 136, None).line() == "c 136:* rwm"
    assert DeviceRule("b", None, None, "m").line() == "b *:* m"


def test_gpus_of_the_driver_have_rules_of_their_own(tmp_path: Path) -> None:
    listing = tmp_path / "devices"
    listing.write_text(
        "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n  7 loop\n"
    )

    assert [rule.line() for rule in devices.gpu_rules(listing)] == ["c 195:* rwm", "c 511:* rwm"]


def test_files_links_and_pipes_are_no_device_nodes(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "null").symlink_to("/dev/null")
    (tmp_path / "link").symlink_to("/dev")

    assert list(devices.device_nodes(tmp_path)) == []
    devices.remove_hidden_nodes(tmp_path)
    assert (tmp_path / "dev" / "null").is_symlink()
