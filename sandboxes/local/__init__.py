"""The whole service on this machine: up, demo, and what they start, supervise and clean up."""
