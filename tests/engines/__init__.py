"""Real engines for tests: a private Docker daemon, images made on this machine, and a look at what is left behind.

The fixtures are registered for every test by ``tests/conftest.py``.  Each test run has a daemon of its own: own data
directory, own socket, stopped by its process id.  It asks for root and for Docker and gVisor on this machine.
"""
