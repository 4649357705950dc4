"""The journal: what was intended and what came of it, in the autoscaler's own database."""
