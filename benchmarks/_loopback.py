"""A place on the loopback where a benchmark's server listens."""

from __future__ import annotations

import socket


def listen() -> tuple[socket.socket, int]:
    """A socket that listens already, so that whoever asks before the server is up waits, and its port.

    It names its protocol: asyncio turns Nagle's algorithm off only where it reads TCP there, as it does for a socket
    that it opened itself. Without, each answer of two writes can wait 40 ms for the other side's acknowledgement.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener, listener.getsockname()[1]
