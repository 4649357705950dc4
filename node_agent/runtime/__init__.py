"""The engines that run sandboxes, behind one port, and what both of them share."""
