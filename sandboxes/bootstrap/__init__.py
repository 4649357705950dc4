"""Ordering the gateway's own machine, where no gateway is yet."""
