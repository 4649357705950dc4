"""The identity that a node keeps."""

from pathlib import Path

from node_agent.membership import Identity, IdentityFile

IDENTITY = Identity(node_id="n", credential="c", control_token="t", gateway_url="http://g", join_token_sha256="")


def test_an_identity_is_kept_for_its_gateway_only(tmp_path: Path) -> None:
    file = IdentityFile(tmp_path)
    assert file.load("http://g") is None
    file.save(IDENTITY)
    assert file.load("http://g") == IDENTITY
    assert file.load("http://other") is None
    assert (tmp_path / "identity.json").stat().st_mode & 0o777 == 0o600


def test_a_damaged_identity_is_none(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{")
    assert IdentityFile(tmp_path).load("http://g") is None
