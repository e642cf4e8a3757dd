"""TCP ports on which rank 0 can listen now."""

import socket


def bound_port(host: str, port: int) -> int:
    """The port, if rank 0 can listen there now; raises OSError. Old connections (TIME_WAIT) are no hindrance."""
    with _socket(host) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return port


def free_port(host: str, last: int | None) -> int:
    """A TCP port that is free on `host` now, other than `last`; raises OSError."""
    with _socket(host) as first, _socket(host) as second:
        first.bind((host, 0))
        port = int(first.getsockname()[1])
        if port != last:
            return port
        second.bind((host, 0))  # while the first is held: another one
        return int(second.getsockname()[1])


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
