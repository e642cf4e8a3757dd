"""The TCP port that a node offers for MASTER_PORT: one that is free, or the one that the job names."""

import errno
import os

from protocol.errors import Refused
from supervisor.shell.free_ports import bound_port, free_port, own_address
from supervisor.shell.port_hold import PortHold
from supervisor.shell.port_holder import port_holder

WAIT_S = 30.0
"""How long an offer may wait for a port: what held it in the last generation is gone by now, or will hardly go."""


TRIES = 20
"""Ports that are free, but held for other runs, before there is none."""

FOR_ANOTHER = "it is held for another run on this machine"


class _HeldElsewhere(OSError):
    """Nobody listens there, but another run is to use it."""

    def __init__(self) -> None:
        super().__init__(errno.EADDRINUSE, FOR_ANOTHER)


class Ports:
    """Finds a port for each offer, and holds it; `wanted` is `rendezvous.master_port`, `node` this one's name.

    Blocks where there is none: then it looks who has it.
    """

    def __init__(self, wanted: int | str, node: str, hold: PortHold) -> None:
        self._wanted = wanted
        self._node = node
        self._hold = hold
        self._missed_s: float | None = None  # when there was none for the first time in a row

    def find(self, host: str, last: int | None, now_s: float) -> tuple[int, str]:
        """A port for `host` and "", or 0 and what is waited for; `last` is the last generation's (None: no such).

        Where `host` is no address of this machine, it is one that is free on all its interfaces.

        Raises Refused where it is not worth the wait: a port the job names that is taken before the first generation
        is somebody's, and any other has been missing for WAIT_S. One that is held for another run is waited for: that
        may be about to end.
        """
        try:
            port = self._take(own_address(host), last)
        except OSError as exc:
            return 0, self._missing(host, exc, last, now_s)
        self._missed_s = None
        return port, ""

    def _take(self, place: str, last: int | None) -> int:
        if not isinstance(self._wanted, str):
            port = bound_port(place, self._wanted)
            if not self._hold.take(port, is_shared=True):
                raise _HeldElsewhere
            return port
        for _ in range(TRIES):
            port = free_port(place, last)
            if self._hold.take(port):
                return port
        raise _HeldElsewhere

    def _missing(self, host: str, exc: OSError, last: int | None, now_s: float) -> str:
        is_held = isinstance(exc, _HeldElsewhere)
        why = (os.strerror(exc.errno) if exc.errno else str(exc)).lower()
        if self._missed_s is None:
            self._missed_s = now_s
        is_over = now_s >= self._missed_s + WAIT_S
        after = f" after {WAIT_S:g} s" if is_over else ""
        if isinstance(self._wanted, str):
            if is_over:
                hint = "see the range of ports, net.ipv4.ip_local_port_range, and who uses them: ss -tan"
                raise Refused("F204", f"no TCP port can be had on {host}{after}: {why}", hint=hint)
            return f"a free TCP port on {self._node} ({why})"
        holder = FOR_ANOTHER if is_held else port_holder(self._wanted)
        if is_over or (last is None and not is_held):
            message = f"rendezvous.master_port = {self._wanted}: {why} on {host}{after}: {holder}"
            raise Refused("F203", message, hint='free it, name another, or write "auto"')
        return f"port {self._wanted} on {self._node} to be free ({holder})"
