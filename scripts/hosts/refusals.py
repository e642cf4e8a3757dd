"""Packets that a firewall in between would send by itself: "this connection is over", "that host takes none".

IPv4 alone (RFC 791, 792, 9293): of anything else they make nothing, which then is silence.
"""

import struct

ICMP, TCP = 1, 6
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
UNREACHABLE, PORT = 3, 3
"""An ICMP type and code: what connect(2) tells as ECONNREFUSED, and an open connection as nothing at all."""

TTL = 64
HEADER_BYTES = 20  # of IPv4 and of TCP, where they have no options
QUOTED_BYTES = 8  # of what a refused packet carries


def resets(packet: bytes) -> tuple[bytes, bytes] | None:
    """For the sender and the receiver of a TCP segment that carries anything; None for all other packets.

    Handshakes are among the others: they pass, and what is said first then ends the connection.
    """
    if not _is_ipv4(packet) or packet[9] != TCP:
        return None
    ip_bytes, total = _header_bytes(packet), int.from_bytes(packet[2:4])
    segment = packet[ip_bytes:total]
    if len(segment) < HEADER_BYTES:
        return None
    source, destination, seq, ack, offset, flags = struct.unpack("!HHIIBB", segment[:14])
    if flags & (SYN | RST) or not (flags & FIN or len(segment) > offset // 16 * 4):
        return None
    sender, receiver = packet[12:16], packet[16:20]
    return (
        _rst(receiver, sender, destination, source, ack, seq),
        _rst(sender, receiver, source, destination, seq, ack),
    )


def unreachable(packet: bytes) -> bytes | None:
    """For the sender of a packet, as if its receiver had no such port; None for errors, which nothing may answer."""
    if not _is_ipv4(packet) or packet[9] == ICMP:
        return None
    body = struct.pack("!BBHI", UNREACHABLE, PORT, 0, 0) + packet[: _header_bytes(packet) + QUOTED_BYTES]
    body = body[:2] + _checksum(body) + body[4:]
    return _ipv4(ICMP, packet[16:20], packet[12:16], body)


def _is_ipv4(packet: bytes) -> bool:
    return len(packet) >= HEADER_BYTES and packet[0] >> 4 == 4 and len(packet) >= _header_bytes(packet)


def _header_bytes(packet: bytes) -> int:
    return packet[0] % 16 * 4


def _rst(sender: bytes, receiver: bytes, source: int, destination: int, seq: int, ack: int) -> bytes:
    segment = struct.pack("!HHIIBBHHH", source, destination, seq, ack, HEADER_BYTES << 2, RST | ACK, 0, 0, 0)
    checked = sender + receiver + struct.pack("!HH", TCP, len(segment)) + segment
    return _ipv4(TCP, sender, receiver, segment[:16] + _checksum(checked) + segment[18:])


def _ipv4(protocol: int, sender: bytes, receiver: bytes, body: bytes) -> bytes:
    head = struct.pack("!BBHHHBBH", 0x45, 0, HEADER_BYTES + len(body), 0, 0, TTL, protocol, 0) + sender + receiver
    return head[:10] + _checksum(head) + head[12:] + body


def _checksum(of: bytes) -> bytes:
    """RFC 1071."""
    total: int = sum(struct.unpack(f"!{(len(of) + 1) // 2}H", of + bytes(len(of) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2)
