"""Free loopback ports for servers that need a fixed one."""

from __future__ import annotations

import random
import socket

LOCALHOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below the ports of outgoing connections."""


def free_port() -> int:
    """Return a port that no process listens on."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOCALHOST, port))
            except OSError:
                continue
        return port
