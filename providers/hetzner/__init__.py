"""Hetzner Cloud: servers bought by the hour, with unique names."""
