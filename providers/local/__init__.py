"""Node agents as processes on this machine: the embedded provider, and the one that tests boot for real."""
