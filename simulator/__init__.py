"""Plays a demand trace through the real autoscaler, on virtual time, over a cloud and a gateway in memory."""
