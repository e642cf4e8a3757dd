"""Checks of single values that only a supd.toml has (its keys: config.py)."""

import re

from protocol.addresses import (
    EVERYWHERE,
    HOST_FORM,
    PEER_PORT,
    PORT_FORM,
    JoinEntry,
    is_address,
    is_same_host,
    split,
)
from protocol.checks import duration, string, text
from protocol.job import LABEL_MAX_CHARS, LABELS_MAX
from protocol.sizes import SIZE_FORM, size
from protocol.tables import Kind, Spot, accepts, key_text, type_text

JOIN_MAX = 16
"""Entries of `[fleet] join`: the first is the host, the others help to find it."""

LEASE_TIME_MIN_S, LEASE_TIME_MAX_S = 0.1, 3600.0

RUNNER_PORTS_MIN = 8
"""A runner takes one for as long as it lives: one a run on the node, and one more while another takes its place."""

PORT_MIN, PORT_MAX = 1024, 65535
"""Ports below are for root."""

ROOM_MAX_BYTES, ROOM_MAX_PERCENT = 1 << 50, 90

_PERCENT = r"([0-9]{1,3}(?:\.[0-9]{1,3})?)%"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_INTERFACE = r"[^\s/:]{1,15}"  # IFNAMSIZ, netdevice(7); the kernel's dev_valid_name()


@accepts({"type": "string", "pattern": rf"^(?:{HOST_FORM}|\*){PORT_FORM}$"})
def listen_address(at: Spot, value: object) -> object:
    """Where to listen as (host, port); IPv6 stands in brackets, and host "" is all interfaces."""
    if not isinstance(value, str):
        return text(at, value)
    if re.fullmatch(rf"\*{PORT_FORM}", value) and int(value[2:]) <= 65535:
        return "", int(value[2:])
    parts = split(value)
    if parts and parts[1] is not None:
        return parts
    hint = _unbracketed(value) or (
        'write "HOST:PORT", as in "127.0.0.1:29410" or "[::1]:29410"; port 0 is any that is free'
    )
    at.wrong(Kind.ADDRESS, value, "is not an address with a port", hint)
    return None


@accepts({"type": "string", "pattern": rf"^(?:{HOST_FORM}|[0-9A-Fa-f:.]+)$"})
def own_host(at: Spot, value: object) -> object:
    """A name or an address of this node, without a port; IPv6 with brackets or without."""
    if not isinstance(value, str):
        return text(at, value)
    parts = (value, None) if is_address(value) else split(value)
    if parts and parts[1] is None and parts[0] not in EVERYWHERE:
        return parts[0]
    if parts and parts[1] is not None:
        hint = f'write "{parts[0]}": the port is that of `listen.peer`'
    else:
        hint = 'write an address or a name by which peers reach this node, as in "10.0.0.7" or "gpu-07"'
    at.wrong(Kind.ADDRESS, value, "is not a host", hint)
    return None


@accepts({"type": "string", "pattern": f"^{_INTERFACE}$"})
def interface(at: Spot, value: object) -> object:
    """The name of a network interface."""
    if isinstance(value, str) and not re.fullmatch(_INTERFACE, value):
        at.wrong(Kind.TEXT, value, "is not an interface's name", 'write one that `ip link` shows, as in "eth0"')
    return string(at, value)


@accepts({"type": "string", "pattern": "^(?:auto|[0-9]{1,5}-[0-9]{1,5})$"})
def port_range(at: Spot, value: object) -> object:
    """The first and the last port of a range; None for "auto", any that is free."""
    if value == "auto":
        return None
    if not isinstance(value, str):
        return string(at, value)
    ends = re.fullmatch("([0-9]{1,5})-([0-9]{1,5})", value)
    low, high = (int(ends[1]), int(ends[2])) if ends else (0, 0)
    if ends is None:
        at.wrong(Kind.RANGE, value, "is no range of ports", 'write "auto" or "LOW-HIGH", as in "29500-29599"')
    elif low > high:
        at.wrong(Kind.INVERTED, value, "begins above its end", f'write "{high}-{low}"')
    elif low < PORT_MIN or high > PORT_MAX:
        at.wrong(Kind.RANGE, value, f"is not within {PORT_MIN} to {PORT_MAX}", 'write one like "29500-29599"')
    elif high - low + 1 < RUNNER_PORTS_MIN:
        has = f"has {high - low + 1} port{'s' if high > low else ''}, and every runner of the node takes one"
        at.wrong(Kind.RANGE, value, has, f"write a range of at least {RUNNER_PORTS_MIN}, better of 100")
    return low, high


@accepts(duration.json_schema)
def lease_time(at: Spot, value: object) -> object:
    """A duration as seconds, for what a lease lives by."""
    time_s = duration(at, value)
    if isinstance(time_s, float) and not LEASE_TIME_MIN_S <= time_s <= LEASE_TIME_MAX_S:
        at.wrong(Kind.RANGE, value, "is out of range", 'write "100ms" to "1h"')
    return time_s


@accepts({"type": "string", "pattern": f"{SIZE_FORM}|^{_PERCENT}$"})
def room(at: Spot, value: object) -> object:
    """A size, or a share of the whole like "5%", as (bytes, percent), of which one is 0."""
    share = re.fullmatch(_PERCENT, value) if isinstance(value, str) else None
    if share is None:
        return size(0, ROOM_MAX_BYTES)(at, value), 0.0
    percent = float(share[1])
    if percent > ROOM_MAX_PERCENT:
        at.wrong(Kind.RANGE, value, "is out of range", f'write "0%" to "{ROOM_MAX_PERCENT}%"')
    return 0, percent


# --- join --------------------------------------------------------------------------------------------------------

_ENTRY_SCHEMA = {"type": "string", "pattern": f"^(?:{HOST_FORM})(?:{PORT_FORM})?$"}


@accepts({"type": "array", "items": _ENTRY_SCHEMA, "maxItems": JOIN_MAX})
def join(at: Spot, value: object) -> object:
    """The addresses of nodes to ask, as JoinEntries."""
    if not isinstance(value, list):
        hint = f'write ["{value}"]' if isinstance(value, str) and split(value) else 'write ["gpu-01:29410"]'
        at.wrong_type("an array", value, hint)
        return ()
    if len(value) > JOIN_MAX:
        at.wrong(
            Kind.RANGE, len(value), f"has more than {JOIN_MAX} entries", "the first one and one or two more will do"
        )
        return ()
    entries: list[JoinEntry] = []
    for i, item in enumerate(value):
        entry = _entry(at.item(i), item)
        twin = next((e for e in entries if entry and is_same_host(e.host, entry.host) and e.port == entry.port), None)
        if twin:
            at.item(i).wrong(Kind.TEXT, item, f'is the same as "{twin.text}" before it', "keep one of them")
        elif entry:
            entries.append(entry)
    return tuple(entries)


def _entry(at: Spot, value: object) -> JoinEntry | None:
    if not isinstance(value, str):
        text(at, value)
        return None
    parts = split(value)
    if not parts:
        hint = _unbracketed(value) or 'write "HOST" or "HOST:PORT", as in "gpu-01:29410" or "[fd00::1]:29410"'
        at.wrong(Kind.ADDRESS, value, "is not an address", hint)
    elif parts[1] == 0:
        at.wrong(Kind.ADDRESS, value, "has no port to connect to", f"write that node's port, {PEER_PORT} by default")
    elif parts[0] in EVERYWHERE:
        at.wrong(Kind.ADDRESS, value, "is no address of a node", 'write one that the others reach, as in "gpu-01"')
    else:
        port = PEER_PORT if parts[1] is None else parts[1]
        return JoinEntry(parts[0], port, value)
    return None


def _unbracketed(value: str) -> str:
    """How to write an IPv6 address that has no brackets: where does its port begin? "" for anything else."""
    host, _, port = value.rpartition(":")
    with_port = f'"[{host}]:{port}"' if ":" in host and is_address(host) and re.fullmatch("[0-9]{1,5}", port) else ""
    whole = f'"[{value}]"' if ":" in value and is_address(value) else ""
    return f"write {' or '.join(filter(None, (with_port, whole)))}" if with_port or whole else ""


# --- labels ------------------------------------------------------------------------------------------------------


@accepts(
    {
        "type": "object",
        "maxProperties": LABELS_MAX,
        "propertyNames": {"pattern": f"^{_LABEL.pattern}$"},
        "additionalProperties": {"type": "string", "maxLength": LABEL_MAX_CHARS},
    }
)
def labels(at: Spot, value: object) -> object:
    """Strings by name, which jobs can ask for."""
    if not isinstance(value, dict):
        at.wrong_type("a table", value, 'write labels = { rack = "b" }')
        return {}
    if len(value) > LABELS_MAX:
        at.wrong(Kind.RANGE, len(value), f"has more than {LABELS_MAX} labels", "keep those that jobs ask for")
        return {}
    for name, content in value.items():
        label = at.below(name)
        if not _LABEL.fullmatch(name):
            hint = "write 1 to 63 of A-Z, a-z, 0-9, `.`, _, / and -, a letter or digit first"
            label.wrong_key(Kind.TEXT, f"`{key_text(name)}` cannot name a label", hint)
        elif not isinstance(content, str):
            hint = f'put the value in quotes: {key_text(name)} = "…"'
            label.wrong(Kind.TYPE, content, f"must be a string, not {type_text(content)}", hint)
        elif len(content) > LABEL_MAX_CHARS:
            label.wrong(Kind.TEXT, content, f"has more than {LABEL_MAX_CHARS} characters", "write a shorter one")
        else:
            string(label, content)
    return value
