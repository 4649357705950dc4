"""Files with which a machine becomes a node; the gateway's bundle carries them beside the wheels."""
