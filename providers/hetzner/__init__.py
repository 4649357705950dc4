"""Hetzner Cloud: servers bought by the hour, with unique names."""

from providers.hetzner.provider import HetznerProvider

__all__ = ["HetznerProvider"]
