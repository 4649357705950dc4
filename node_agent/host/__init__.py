"""Side effects on the host that both runtimes share: volumes, mounts, cgroups, networks, firewall, images.

Whatever is made here lies under the node's root directory or carries its tag in its name, so that a sweep knows
what is its own and leaves everything else alone.
"""
