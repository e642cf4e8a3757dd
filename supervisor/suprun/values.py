"""The small languages in the values of suprun's options: masks, lists of local ranks, rdzv-conf, endpoints, signals."""

import math
import re
import signal
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from protocol.addresses import is_address, split
from protocol.checks import MAX_DURATION_S
from protocol.job import MAX_NNODES, MAX_NPROC_PER_NODE
from protocol.tables import did_you_mean
from supervisor.suprun.line import BAD_ENDPOINT, BAD_LINE, refused

STDOUT, STDERR = 1, 2
"""Bits of a mask."""

ENDPOINT_PORT = 29400
MASTER_PORT = 29500

NPROC_WORDS = ("auto", "cpu", "gpu", "xpu")

_USED = ("join_timeout", "last_call_timeout", "timeout", "is_host", "store_type")
_UNUSED = {
    "close_timeout": "a rendezvous that is over is over at once",
    "heartbeat_timeout": "a lost node is noticed by the lease of supd",
    "keep_alive_interval": "a lost node is noticed by the lease of supd",
    "keep_alive_max_attempt": "a lost node is noticed by the lease of supd",
    "read_timeout": "there is no TCPStore between the nodes",
    **dict.fromkeys(("protocol", "cert", "key", "cacert"), "there is no etcd"),
}
_RANK = "[0-9]{1,4}"
_MASK = re.compile(rf"(?:{_RANK}:[0-3],)*{_RANK}:[0-3]")
_YES, _NO = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")


class Mask(msgspec.Struct, frozen=True):
    """What of each local rank's streams is meant: bits STDOUT and STDERR."""

    everywhere: int = 0
    ranks: dict[int, int] = {}  # local ranks that are named; others are `everywhere`

    def of(self, local_rank: int) -> int:
        """The bits of one local rank."""
        return self.ranks.get(local_rank, self.everywhere)

    @property
    def is_empty(self) -> bool:
        """Whether it means nothing."""
        return not self.everywhere and not any(self.ranks.values())


def mask(option: str, text: str) -> Mask:
    """`3`, or `0:3,1:1`: a mask for all local ranks, or for those named. Raises Refused."""
    if re.fullmatch("[0-3]", text):
        return Mask(int(text))
    if not _MASK.fullmatch(text):
        message = f"{option} is 0, 1, 2 or 3, or like 0:3,1:1 (LOCAL RANK:MASK), not {text!r}"
        raise refused(BAD_LINE, message, f"{option} 3")
    pairs = (pair.split(":") for pair in text.split(","))
    return Mask(0, {int(rank): int(bits) for rank, bits in pairs})


def local_ranks(option: str, text: str) -> tuple[int, ...]:
    """`0,2`: local ranks in order; () for "": all of them. Raises Refused."""
    if not text:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(_RANK, word) for word in words):
        raise refused(BAD_LINE, f"{option} is local ranks with commas between, not {text!r}", f"{option} 0,1")
    return tuple(sorted({int(word) for word in words}))


def nnodes(option: str, text: str) -> tuple[int, int]:
    """`4`, or `2:4`: the least and the most nodes. Raises Refused."""
    numbers = re.fullmatch(r"\s*([0-9]{1,9})\s*(?::\s*([0-9]{1,9})\s*)?", text)
    if not numbers:
        raise refused(BAD_LINE, f"{option} is a number of nodes, or MIN:MAX, not {text!r}", f"{option}=4, or 2:4")
    least, most = int(numbers[1]), int(numbers[2] or numbers[1])
    if least > most:
        message = f"{option} has its least above its most: {least}:{most}"
        raise refused(BAD_LINE, message, f"{option}={most}:{least}")
    if not 1 <= least <= most <= MAX_NNODES:
        raise refused(BAD_LINE, f"{option} is 1 to {MAX_NNODES} nodes, not {text}", f"{option}=1")
    return least, most


def nproc_per_node(option: str, text: str) -> int | str:
    """A number of ranks, or one of NPROC_WORDS. Raises Refused."""
    if text in NPROC_WORDS:
        return text
    number = re.fullmatch(r"\s*\+?([0-9]{1,9})\s*", text)
    if number and 1 <= int(number[1]) <= MAX_NPROC_PER_NODE:
        return int(number[1])
    message = f"{option} is 1 to {MAX_NPROC_PER_NODE} ranks, or one of {', '.join(NPROC_WORDS)}, not {text!r}"
    raise refused(BAD_LINE, message, f"{option}=auto")


class Rendezvous(NamedTuple):
    """What --rdzv-conf says; None: nothing."""

    join_timeout_s: float | None
    last_call_s: float | None
    timeout_s: float | None  # of a static rendezvous
    is_host: bool | None


def rendezvous(option: str, text: str) -> tuple[Rendezvous, list[str]]:
    """KEY=VALUE with commas between, and a note for each key without effect. Raises Refused."""
    conf: dict[str, str] = {}
    for part in text.strip().split(",") if text.strip() else ():
        key, _, value = (piece.strip() for piece in part.partition("="))
        if not key or not value:
            message = f"{option} is KEY=VALUE with commas between, and {part.strip()!r} is none"
            raise refused(BAD_LINE, message, f"{option} join_timeout=600,last_call_timeout=30")
        conf[key] = value
    if conf.get("store_type", "tcp").lower() != "tcp":
        message = f"{option} wants store_type={conf['store_type']}: nodes find each other over the network only"
        raise refused(BAD_LINE, message, "leave store_type out, and write --rdzv-endpoint HOST:PORT")
    return Rendezvous(
        join_timeout_s=_seconds(option, conf, "join_timeout"),
        last_call_s=_seconds(option, conf, "last_call_timeout", is_zero_allowed=True),
        timeout_s=_seconds(option, conf, "timeout"),
        is_host=_yes_or_no(option, conf, "is_host"),
    ), list(_conf_notes(option, conf))


def _conf_notes(option: str, conf: Mapping[str, str]) -> Iterable[str]:
    for key in conf:
        if key in _UNUSED:
            yield f"{option} {key}: no effect, {_UNUSED[key]}"
        elif key not in _USED:
            near = did_you_mean(key, (*_USED, *_UNUSED))
            yield f"{option} {key}: torchrun has no such key, and it has no effect" + (f"; {near}" if near else "")


def _seconds(option: str, conf: Mapping[str, str], key: str, *, is_zero_allowed: bool = False) -> float | None:
    if key not in conf:
        return None
    try:
        seconds = float(conf[key])
    except ValueError:
        seconds = math.nan
    if not (0 < seconds <= MAX_DURATION_S or (is_zero_allowed and seconds == 0)):
        raise refused(BAD_LINE, f"{option} {key} is seconds up to a year, not {conf[key]!r}", f"{option} {key}=600")
    return seconds


def _yes_or_no(option: str, conf: Mapping[str, str], key: str) -> bool | None:
    word = conf.get(key, "").lower()
    if word in (*_YES, ""):
        return bool(word) or None
    if word not in _NO:
        raise refused(BAD_LINE, f"{option} {key} is true or false, not {conf[key]!r}", f"{option} {key}=true")
    return False


class Endpoint(NamedTuple):
    """Where the node is that coordinates."""

    host: str  # a name or an address, without brackets
    port: int | None  # 0: any that is free


def endpoint(option: str, text: str) -> Endpoint:
    """HOST, HOST:PORT, [ADDRESS] or [ADDRESS]:PORT. Raises Refused."""
    text = text.strip()
    if text.count(":") > 1 and not text.startswith("["):
        if is_address(text.rpartition(":")[0]):
            head, _, tail = text.rpartition(":")
            message = f"{option} {text} may be an IPv6 address, or one with a port"
            raise refused(BAD_ENDPOINT, message, f"{option} [{head}]:{tail}, or {option} [{text}]:{ENDPOINT_PORT}")
        if is_address(text):
            return Endpoint(text, None)
    parts = split(text)
    if parts is None:
        message = f"{option} is HOST[:PORT], an IPv6 address in brackets, not {text!r}"
        raise refused(BAD_ENDPOINT, message, f"{option} node1:{ENDPOINT_PORT}")
    return Endpoint(*parts)


def host(option: str, text: str) -> str:
    """A name or an address, in brackets or not. Raises Refused."""
    if is_address(text.strip().strip("[]")):
        return text.strip().strip("[]")
    found = split(text.strip())
    if found is None or found[1] is not None:
        raise refused(BAD_ENDPOINT, f"{option} is a host without a port, not {text!r}", f"{option} node1")
    return found[0]


def port(option: str, number: int) -> int:
    """1 to 65535. Raises Refused."""
    if not 1 <= number <= 65535:
        raise refused(BAD_ENDPOINT, f"{option} is a port, 1 to 65535, not {number}", f"{option} {MASTER_PORT}")
    return number


def signals(option: str, text: str) -> tuple[tuple[str, ...], list[str]]:
    """Names of signals with commas between, and a note for each that cannot be handled."""
    names: list[str] = []
    notes: list[str] = []
    for word in text.split(","):
        name = word.strip()
        if name not in signal.Signals.__members__:
            near = did_you_mean(name, signal.Signals.__members__, "{}")
            notes.append(f"{option}: {name or 'nothing'} is no signal, and is left out" + (f"; {near}" if near else ""))
        elif name in ("SIGKILL", "SIGSTOP"):
            notes.append(f"{option}: {name} cannot be handled, and is left out")
        elif name not in names:
            names.append(name)
    return tuple(names), notes
