"""The daemon that grows and shrinks the pool of nodes with demand."""
