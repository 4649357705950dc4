"""For authors of providers and for tests: the contract suite, and a fake cloud to test against."""
