"""Traces that ship with the package, each with the configuration that its figures are for."""
