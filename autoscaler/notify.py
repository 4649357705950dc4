"""What systemd is told: that the service is ready, that it lives, that it ends (sd_notify(3))."""

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

log = logging.getLogger(__name__)

READY: Final = "READY=1"
ALIVE: Final = "WATCHDOG=1"
STOPPING: Final = "STOPPING=1"


class Notifier:
    """Tells systemd where it started this process and listens; anywhere else it does nothing."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        micros = environ.get("WATCHDOG_USEC", "")
        self.every = int(micros) / 2e6 if micros.isdecimal() and int(micros) else float("inf")
        """Seconds within which `ALIVE` is to be told; half of what systemd waits for it."""

    def tell(self, words: str) -> None:
        """Sends one state."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(1.0)
                sender.sendto(words.encode(), self._address)
        except OSError as error:
            log.warning("systemd was not told %s: %s", words, error)
