"""Processes in sandboxes as sessions: events in order, spooled to disk, readable from any point."""
