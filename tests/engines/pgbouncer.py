"""A PgBouncer in transaction mode before a private PostgreSQL server."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from tests.engines.postgres import Server, free_port, private_directory, unprivileged
from tests.waiting import wait_until

# As few connections as can be, so that consecutive transactions of one client land on different ones.
_SETTINGS = """
[databases]
* = host={server} port={server_port} user=tests
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
logfile = {directory}/log
"""


@contextlib.contextmanager
def pooled(server: Server) -> Iterator[int]:
    """Yield the port of a PgBouncer on the loopback that passes every database of the server on."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no PgBouncer on this machine; setup/packages.sh tests brings it")
    directory, port = private_directory("sft-pgb-"), free_port()
    settings = directory / "pgbouncer.ini"
    values = {"server": server.directory, "server_port": server.port or 5432, "port": port, "directory": directory}
    settings.write_text(_SETTINGS.format(**values))
    process = subprocess.Popen(
        [*unprivileged(), program, "-q", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: process.poll() is not None or _answers(port), 30)
        assert process.poll() is None, (directory / "log").read_text()
        yield port
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(directory, ignore_errors=True)


def url_past(port: int, url: str) -> str:
    """Return the URL of the same database past the pooler on this port."""
    name = url.rpartition("/")[2] if "?" not in url else url.rpartition("?")[0].rpartition("/")[2]
    return f"postgresql+psycopg://tests@127.0.0.1:{port}/{name}"


def _answers(port: int) -> bool:
    try:
        psycopg.connect(host="127.0.0.1", port=port, user="tests", dbname="postgres", connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
