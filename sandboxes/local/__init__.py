"""The whole service on this machine: up, demo, and what they start, watch and clean up."""
