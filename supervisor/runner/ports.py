"""The TCP port that a node offers for MASTER_PORT: one that is free, or the one that the job names."""

import os

from protocol.errors import Refused
from supervisor.shell.free_ports import bound_port, free_port, own_address
from supervisor.shell.port_holder import port_holder

WAIT_S = 30.0
"""How long an offer may wait for a port: what held it in the last generation is gone by now, or will hardly go."""


class Ports:
    """Finds a port for each offer; `wanted` is `rendezvous.master_port`, `node` this one's name.

    Blocks where there is none: then it looks who has it.
    """

    def __init__(self, wanted: int | str, node: str) -> None:
        self._wanted = wanted
        self._node = node
        self._missed_s: float | None = None  # when there was none for the first time in a row

    def find(self, host: str, last: int | None, now_s: float) -> tuple[int, str]:
        """A port for `host` and "", or 0 and what is waited for; `last` is the last generation's (None: no such).

        Where `host` is no address of this machine, it is one that is free on all its interfaces.

        Raises Refused where it is not worth the wait: a port the job names that is taken before the first generation
        is somebody's, and any other has been missing for WAIT_S.
        """
        try:
            place = own_address(host)
            port = free_port(place, last) if isinstance(self._wanted, str) else bound_port(place, self._wanted)
        except OSError as exc:
            return 0, self._missing(host, exc, last, now_s)
        self._missed_s = None
        return port, ""

    def _missing(self, host: str, exc: OSError, last: int | None, now_s: float) -> str:
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
        holder = port_holder(self._wanted)
        if is_over or last is None:
            message = f"rendezvous.master_port = {self._wanted}: {why} on {host}{after}: {holder}"
            raise Refused("F203", message, hint='free it, name another, or write "auto"')
        return f"port {self._wanted} on {self._node} to be free ({holder})"
