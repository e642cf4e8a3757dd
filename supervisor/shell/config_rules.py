"""What contradicts each other among the sound values of a supd.toml (its keys: config.py)."""

from collections.abc import Mapping
from typing import Any

from protocol.addresses import PEER_PORT
from protocol.errors import About
from protocol.tables import Found, Kind
from protocol.timing import Flaw, Timing, flaws
from supervisor.shell.config_checks import LEASE_TIME_MAX_S

DEFAULT_PEER = ("127.0.0.1", PEER_PORT)
DEFAULT_PEER_OF_FLEET = ("", PEER_PORT)

Table = Mapping[str, Any]


def peer_of(listen: Table, fleet: Table) -> tuple[str, int]:
    """Where we listen for peers."""
    peer: tuple[str, int] = listen.get("peer", DEFAULT_PEER_OF_FLEET if fleet.get("join") else DEFAULT_PEER)
    return peer


def timing_of(lease: Table) -> Timing:
    """The times of a lease."""
    return Timing(**{f"{key}_s": time_s for key, time_s in lease.items() if key != "on_isolation"})


def check_rules(values: Table, found: Found) -> None:
    """Say what is wrong between the values of a file."""
    listen, fleet = values.get("listen", {}), values.get("fleet", {})
    if "advertise" in listen and "interface" in listen:
        message = "`listen.advertise` and `listen.interface` exclude each other"
        about, other = (About(("listen", key), is_key=True) for key in ("interface", "advertise"))
        hint = "keep one: `advertise` names the address itself"
        found.add(Kind.EXCLUSIVE, "listen", "", message, hint, about=about, other=(other, "and here"))
    _, port = peer_of(listen, fleet)
    if fleet.get("join") and port == 0:
        message = "the other nodes of a fleet have to know the port, and `listen.peer` says any that is free"
        hint = f'write a port, as in "*:{PEER_PORT}"'
        found.add(Kind.CONTRADICTION, "listen.peer", "", message, hint, about=About(("listen", "peer")))
    _check_runners(listen, port, found)
    lease = values.get("lease", {})
    if not any(problem.key.startswith("lease.") for problem in found.problems):
        worst: dict[str, Flaw] = {}  # of each time: what heals that heals the others
        for flaw in flaws(timing_of(lease)):
            worst[flaw.key] = max(flaw, worst.get(flaw.key, flaw), key=lambda one: one.least_s)
        for flaw in worst.values():
            _tell(flaw, lease, found)


def _check_runners(listen: Table, peer_port: int, found: Found) -> None:
    low, high = listen.get("runners") or (0, 0)
    if low <= peer_port <= high and peer_port:
        message = f"port {peer_port} of `listen.runners` is that of `listen.peer`"
        hint = "write a range without it"
        about, other = About(("listen", "runners")), About(("listen", "peer"))
        found.add(Kind.CONTRADICTION, "listen.runners", "", message, hint, about=about, other=(other, "and here"))


def _tell(flaw: Flaw, lease: Table, found: Found) -> None:
    """Of two times that do not go together, the one that is too short, or, where that is not in the file, the other."""
    timing = timing_of(lease)
    time_s = getattr(timing, f"{flaw.key}_s")
    message = f"`lease.{flaw.key}` is {time_s:g} s, and has to be at least {flaw.least_s:g} s: {flaw.why}"
    longer = f'`{flaw.key} = "{flaw.least_s:g}s"` or more' if flaw.least_s <= LEASE_TIME_MAX_S else ""
    shorter = f"a shorter `{flaw.other}`" if flaw.other else ""
    hint = f"write {', or '.join(filter(None, (longer, shorter)))}"
    key = flaw.key if flaw.key in lease else flaw.other
    is_other_shown = flaw.key in lease and flaw.other in lease
    found.add(
        Kind.CONTRADICTION,
        f"lease.{flaw.key}",
        "",
        message,
        hint,
        about=About(("lease", key)),
        other=(About(("lease", flaw.other)), "for this one") if is_other_shown else None,
    )
