"""Ports that runs of this machine mean to use: two of them never get the same, though nobody listens there yet.

A port is held by a socket in the kernel's abstract namespace (unix(7)): it is one for each network namespace, as ports
are, and free again with its process, however that ends.
"""

import errno
import socket
from collections import deque

HELD_MAX = 4
"""Of those that a runner has offered: the coordinator may use one that is a few renewals old."""

_RUN_CHARS = 60
"""Of the end of a run's name, which tells runs apart: an abstract name has room for 107 bytes."""


class PortHold:
    """The ports of one runner."""

    def __init__(self, run: str) -> None:
        self._run = run[-_RUN_CHARS:]
        self._held: deque[tuple[int, list[socket.socket]]] = deque()

    def take(self, port: int, *, is_shared: bool = False) -> bool:
        """Hold this port, and no longer the oldest ones; False: another runner holds it. Raises OSError.

        `is_shared`: a runner of the same run may hold it, too. On one machine that has several nodes (in tests, say)
        all of them are given the port that a job names, and one of them uses it.
        """
        if any(port == held for held, _ in self._held):
            return True
        own: list[socket.socket] = []
        try:
            has_fellow = is_shared and not self._bind(f"{port}@{self._run}", own)
            is_free = has_fellow or self._bind(str(port), own)
        except OSError:
            self._close(own)
            raise
        if not is_free:
            self._close(own)
        elif own:
            self._held.append((port, own))
        while len(self._held) > HELD_MAX:
            self._close(self._held.popleft()[1])
        return is_free

    def close(self) -> None:
        """Hold nothing any more."""
        while self._held:
            self._close(self._held.pop()[1])

    @staticmethod
    def _close(held: list[socket.socket]) -> None:
        for bound in held:
            bound.close()

    @staticmethod
    def _bind(name: str, own: list[socket.socket]) -> bool:
        """Add a socket of this name; False: there is one already."""
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        own.append(bound)
        try:
            bound.bind(f"\0supd-port-{name}")
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise
            own.pop().close()
            return False
        return True
