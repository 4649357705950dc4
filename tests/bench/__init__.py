"""Times and memory of the service beside the raw engines, measured in turn in one run.

Absolute times depend on the machine and its load; the ratios are what to look at.  Nothing here is a test.
"""
