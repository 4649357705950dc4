"""Cloud plugins: each room here is one cloud behind the port in `providers.base`."""
