"""The addresses of this machine. (How addresses are written: protocol/addresses.py.)"""

import contextlib
import ipaddress
import socket
import struct

from protocol.addresses import parsed

_RTM_NEWADDR, _RTM_GETADDR, _NLMSG_ERROR, _NLMSG_DONE = 20, 22, 2, 3  # rtnetlink(7), netlink(7)
_NLM_F_REQUEST_DUMP = 0x301
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_DUMP_TIMEOUT_S = 5.0


def is_own(address: str) -> bool:
    """Whether it is an address of this machine, in our network namespace.

    The kernel's table decides: a socket can be bound to more (ip(7), ip_nonlocal_bind; the local routes of a load
    balancer's address, which several machines have). Where the table cannot be read, binding has to do.
    """
    wanted = parsed(address)
    if wanted is None or wanted.is_unspecified:
        return False
    if wanted.version == 4 and wanted.is_loopback:
        return True  # all of 127.0.0.0/8 is, RFC 1122, 3.2.1.3
    try:
        return any(parsed(own) == wanted for _, own in _table())
    except OSError:
        return _can_bind(address)


def _can_bind(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def own_addresses(interface: str = "") -> list[str]:
    """The addresses of this machine, or of one interface, for use by others: IPv4 first, no link-local ones.

    Loopback addresses stand last. Empty where they cannot be seen, or there is no such interface.
    """
    try:
        index = socket.if_nametoindex(interface) if interface else 0
        found = [ipaddress.ip_address(text) for number, text in _table() if index in (0, number)]
    except OSError:
        return []
    usable = [address for address in found if not address.is_link_local]
    return [str(address) for address in sorted(usable, key=lambda a: (a.is_loopback, a.version))]


def interfaces() -> list[str]:
    """The names of this machine's network interfaces; empty where they cannot be seen."""
    with contextlib.suppress(OSError):
        return [name for _, name in socket.if_nameindex()]
    return []


def _table() -> list[tuple[int, str]]:
    """Index of interface and address, of all addresses of this machine; raises OSError where nothing is to be seen.

    Asked of the kernel (rtnetlink(7)): an interface may have several addresses, and ioctls tell of one.
    """
    request = struct.pack("=IHHIIBxxx", 20, _RTM_GETADDR, _NLM_F_REQUEST_DUMP, 1, 0, socket.AF_UNSPEC)
    found: list[tuple[int, str]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_DUMP_TIMEOUT_S)
        kernel.send(request)
        while True:
            data = kernel.recv(1 << 16)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind == _NLMSG_DONE:
                    return found
                if kind == _NLMSG_ERROR or length < 16:
                    raise OSError("the kernel lists no addresses")
                if kind == _RTM_NEWADDR:
                    found += _address(data[16:length])
                data = data[_aligned(length) :]


def _address(body: bytes) -> list[tuple[int, str]]:
    """The address in one RTM_NEWADDR; on a point-to-point line IFA_ADDRESS is that of the other side."""
    family, _, _, _, index = struct.unpack_from("=BBBBI", body)
    size = {socket.AF_INET: 4, socket.AF_INET6: 16}.get(family)
    attributes = {}
    at = 8
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        attributes[kind] = body[at + 4 : at + length]
        at += max(_aligned(length), 4)
    raw = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS, b""))
    return [(index, socket.inet_ntop(family, raw))] if len(raw) == size else []


def _aligned(length: int) -> int:
    return (length + 3) & ~3
