"""Every default and every bound of the public API, in one place.

Sizes are bytes unless the name says MiB; times are seconds.
"""

from typing import Final

MIB: Final = 1024 * 1024

# -- numbers without a narrower bound ---------------------------------------------------------------------------------
MAX_INTEGER: Final = 2**53  # what JSON numbers hold exactly everywhere
MAX_COUNTER: Final = 2**31 - 1  # what an integer column of every database holds

# -- identifiers ------------------------------------------------------------------------------------------------------
ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*\.?$"  # two dots in a row end a tenant's name
MAX_ID_LENGTH: Final = 64
ENV_KEY_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
LABEL_RESERVED_PREFIX: Final = "sandbox-fleet."
MAX_LABELS: Final = 64
MAX_LABEL_LENGTH: Final = 256

# -- bodies -----------------------------------------------------------------------------------------------------------
MAX_JSON_BODY: Final = 16 * MIB  # the public SDK refuses larger ones as well
MAX_FILE_BODY: Final = 16 * 1024 * MIB  # files stream in constant memory; the sandbox's disk is the real bound
MAX_COMMAND_BYTES: Final = 2 * MIB  # sum over argv and env, Linux's own ARG_MAX default
MAX_ARGUMENT_BYTES: Final = (
    128 * 1024 - 1
)  # Linux's MAX_ARG_STRLEN less its NUL; execve refuses a longer one with E2BIG
MAX_ENV_ENTRIES: Final = 4096
MAX_PATH_BYTES: Final = 4095  # Linux's PATH_MAX less its NUL

# -- a sandbox when the spec is silent --------------------------------------------------------------------------------
DEFAULT_CPUS: Final = 1.0
DEFAULT_MEMORY_MB: Final = 1024
DEFAULT_DISK_MB: Final = 4096
DEFAULT_PIDS: Final = 256
DEFAULT_USER: Final = "1000:1000"
DEFAULT_WORKSPACE: Final = "/workspace"
DEFAULT_TMPFS_MB: Final = 64
DEFAULT_RUN_TMPFS_MB: Final = 16
DEFAULT_SHM_MB: Final = 64  # as Docker

MIN_MEMORY_MB: Final = 16
MIN_CPUS: Final = 0.01  # Linux's least quota: 1 ms in 100 ms
MAX_CPUS: Final = 1024.0
MAX_MEMORY_MB: Final = 16 * 1024 * 1024
MIN_DISK_MB: Final = 16
MAX_DISK_MB: Final = 64 * 1024 * 1024
MAX_GPUS: Final = 64
MIN_PIDS: Final = 8  # the first process and its init, an exec, and a file call with its helpers, on every engine
MAX_PIDS: Final = 4_194_304  # Linux's own PID_MAX_LIMIT
MAX_TTL_SECONDS: Final = 366 * 24 * 3600

# -- waiting ----------------------------------------------------------------------------------------------------------
CREATE_WAIT: Final = 25.0  # a longer create continues after a retryable answer; clients in the field give up at 30 s
MAX_LONG_POLL: Final = 20.0  # well below the 30 s at which the public SDK gives up on a call
PENDING_LEASE: Final = 300.0  # a waiting create that nobody retries stops being demand after this

# -- prepared capacity ------------------------------------------------------------------------------------------------
MAX_PREPARED_COUNT: Final = 100  # units of one request
MAX_PREPARED: Final = 1000  # requests of one tenant at once
DEFAULT_PREPARED_TTL: Final = 900  # unclaimed units stop being demand after this
MAX_PREPARED_TTL: Final = 24 * 3600

# -- exec -------------------------------------------------------------------------------------------------------------
EXEC_CHUNK: Final = 64 * 1024  # most bytes in one output event
MAX_EXEC_OUTPUT: Final = 1024 * MIB  # stored per session; further output is counted, dropped and reported
EXEC_OUTPUT_RATE: Final = 16 * MIB  # per second and sandbox, after as much at once; a faster process waits in its write
MAX_EVENTS_PER_READ: Final = 1000
MAX_EVENT_BYTES_PER_READ: Final = 2 * MIB  # escapes turn one byte into six; clients in the field read 16 MiB at most
MAX_STDIN_BUFFER: Final = 16 * MIB
MAX_EXECS_PER_NODE: Final = 512  # one reader thread each; one tenant alone may have 192, and one sandbox 72
EXEC_RETENTION: Final = 3600.0  # a finished session can be read for this long
MIN_EXEC_TIMEOUT: Final = 0.001
MAX_EXEC_TIMEOUT: Final = 7 * 24 * 3600.0

# -- logs and lists ---------------------------------------------------------------------------------------------------
MAX_LOG_CHUNK: Final = 1 * MIB
MAX_LOG_OFFSET: Final = MAX_DISK_MB * MIB  # no log is longer than its disk
DEFAULT_PAGE: Final = 1000
MAX_PAGE: Final = 1000

# -- nodes ------------------------------------------------------------------------------------------------------------
HEARTBEAT_INTERVAL: Final = 5.0
UNREACHABLE_AFTER: Final = 20.0  # without a heartbeat for this long, nothing new is placed there
LOST_AFTER: Final = 300.0  # without a heartbeat for this long, its sandboxes are lost
JOIN_TOKEN_TTL: Final = 3600
MAX_JOIN_TOKEN_TTL: Final = 24 * 3600
MAX_UPTIME: Final = 100 * 366 * 24 * 3600.0

# -- tokens -----------------------------------------------------------------------------------------------------------
MAX_TOKEN_TTL: Final = 100 * 366 * 24 * 3600

# -- networks of sandboxes --------------------------------------------------------------------------------------------
MAX_CONNECTIONS: Final = 2048  # of one sandbox in its host's table; the kernel looks at each of them for a new one
MAX_CONNECTIONS_PER_SECOND: Final = 100  # new ones; a closed connection stays in the table for ten seconds more
MAX_CONNECTIONS_SETTING: Final = 65_535  # the kernel walks all of a sandbox's connections for each new one
MAX_ADDRESS_RANGES: Final = 1000  # of each kind in a node's settings
WIDEST_OPEN_RANGE: Final = 8  # bits of prefix; an exception that opens more is a mistake
