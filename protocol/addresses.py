"""Addresses of peers, as they are written in supd.toml and told in a Join. Pure: no name is looked up."""

import ipaddress
import re

from protocol.dataclass import dataclass

PEER_PORT = 29410
"""Where a supd listens for its peers, unless it is told otherwise."""

HOST_CHARS_MAX = 253  # RFC 1035, 2.3.4, as it is written
EVERYWHERE = ("", "0.0.0.0", "::")
"""Hosts to listen on that are no address; "" is all interfaces, IPv4 and IPv6."""

HOST_FORM = r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+"
PORT_FORM = ":[0-9]{1,5}"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class JoinEntry:
    """One address of `[fleet] join`."""

    host: str  # a name or an address as it is written, without brackets
    port: int  # 1 to 65535
    text: str  # as it is written


def split(text: str) -> tuple[str, int | None] | None:
    """Host, without brackets, and port, None where there is none; None for what is no address."""
    match = re.fullmatch(rf"({HOST_FORM})({PORT_FORM})?", text)
    if match is None:
        return None
    is_bracketed, host = text[0] == "[", match[1].strip("[]")
    port = None if match[2] is None else int(match[2][1:])
    is_sound = is_address(host) if is_bracketed else len(host) <= HOST_CHARS_MAX and host.strip("._-") != ""
    return (host, port) if is_sound and (port is None or port <= 65535) else None


def meant(entry: str) -> tuple[Address | str, int | None]:
    """Host and port of an entry of `[fleet] join`, the same for all ways to write it; what is no address is itself."""
    parts = split(entry)
    if parts is None:
        return entry, None
    return _meant_host(parts[0]), PEER_PORT if parts[1] is None else parts[1]


def is_address(host: str) -> bool:
    """Whether it is an IPv4 or IPv6 address, and no name."""
    return parsed(host) is not None


def is_loopback(host: str) -> bool:
    """Whether it is an address that no other machine reaches. A name is not: who knows."""
    address = parsed(host)
    return address is not None and address.is_loopback


def is_same_host(a: str, b: str) -> bool:
    """Whether two names, or two addresses, are the same but for how they are written."""
    return _meant_host(a) == _meant_host(b)


def parsed(host: str) -> Address | None:
    """The address that it is; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _meant_host(host: str) -> Address | str:
    return parsed(host) or host.lower()
