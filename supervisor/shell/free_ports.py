"""TCP ports on which rank 0 can listen now."""

import errno
import socket

_NOT_OURS = (None, socket.EAI_NONAME, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors that say of an address that it is a name, of an interface that is not here, or none of this machine's."""


def bound_port(host: str, port: int) -> int:
    """The port, if rank 0 can listen there now; raises OSError. Old connections (TIME_WAIT) are no hindrance.

    `host` is an address of this machine, or "" for all of them.
    """
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


def own_address(host: str) -> str:
    """Where on this machine to look for a port that others are to reach at `host`: there, if that is an address of it.

    Else "", all interfaces: a name, or the address of a gateway that passes connections on (NAT).
    """
    try:
        socket.inet_pton(_family(host), host.partition("%")[0])
        with _socket(host) as probe:
            probe.bind((host, 0))
    except OSError as exc:
        if exc.errno in _NOT_OURS:
            return ""
    return host


def _socket(host: str) -> socket.socket:
    """One to be bound to `host`; to all interfaces, if that is "", those with an IPv4 address included."""
    if host or not socket.has_dualstack_ipv6():
        return socket.socket(_family(host))
    both = socket.socket(socket.AF_INET6)
    both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return both


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
