"""Decisions of the node agent: plain functions over frozen values, without a clock, a socket or an engine."""
