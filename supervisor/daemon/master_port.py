"""Whether the port that a job names for its rank 0 can be its own, as far as this supd knows."""

import os
from collections.abc import Mapping

from protocol.errors import About, Problem
from protocol.job import JobSpec
from supervisor.shell.free_ports import bound_port
from supervisor.shell.port_holder import port_holder

_KEY = "rendezvous.master_port"
_ABOUT = About(("rendezvous", "master_port"))


def port_problems(spec: JobSpec, peer_port: int, taken: Mapping[int, str]) -> list[Problem]:
    """`peer_port` is where supd listens for runners; `taken` are the ports of other runs, and whose.

    One that supd has chosen for a run counts too, though that run may not have bound it yet.
    """
    port = spec.rendezvous.master_port
    if isinstance(port, str) or (port != peer_port and port not in taken):
        return []
    what, hint = "on which this supd listens for runners", "supd's own is [listen] peer in supd.toml"
    if port in taken:
        what, hint = f"of {taken[port]}, which is active on this node", f"or stop that one: supctl stop {taken[port]}"
    message = f"`{_KEY}` is the port {what}"
    return [Problem("J406", _KEY, str(port), message, f'write "auto", or another; {hint}', about=_ABOUT)]


def foreign_problems(host: str, port: int) -> list[Problem]:
    """What keeps a rank 0 from listening on this port of `host`, which is no run's; blocks where something does."""
    try:
        bound_port(host, port)
    except OSError as exc:
        why = (os.strerror(exc.errno) if exc.errno else str(exc)).lower()
        message = f"`{_KEY}` cannot be had on {host}: {why}: {port_holder(port)}"
        return [Problem("J406", _KEY, str(port), message, 'free it, name another, or write "auto"', about=_ABOUT)]
    return []
