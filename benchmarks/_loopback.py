"""A place on the loopback where a benchmark's server listens."""

from __future__ import annotations

import socket


def listen() -> tuple[socket.socket, int]:
    """A socket that listens already, so that whoever asks before the server is up waits, and its port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener, listener.getsockname()[1]
