"""Decisions: plain functions over frozen values.  No clock, no database, no network, no logger."""
