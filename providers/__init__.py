"""Cloud plugins: each subpackage is one cloud behind the interface in `providers.base`."""
