"""This node's sandboxes: the orders about them, and the table of who is there."""
