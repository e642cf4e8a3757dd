"""What nodes and operators are told of nodes that join, are refused, or go. Pure functions; the rules: fleet.py."""

import math

from protocol.addresses import is_loopback, meant
from protocol.coordinator_events import Note
from protocol.fleet_events import NodeRecord
from protocol.messages.fleet import Join, JoinRefused
from protocol.text import host_port, one_line
from protocol.versions import VERSIONS, agreed

CLOCK_OFF_S = 1.0
"""Clocks that differ by more are told of."""

CLOCK_OFF_MAX_S = 1e10
"""Some 300 years: what a clock may differ that says nonsense."""


def _refused(code: str, message: str, hint: str) -> JoinRefused:
    return JoinRefused(code=code, message=one_line(message), hint=one_line(hint))


def mismatch(host: Join, join: Join) -> JoinRefused | None:
    """Why this node and the host cannot be of one fleet, whoever else is in it (N2)."""
    is_launch = bool(host.launch and join.launch)  # of suprun, whose lines are what its users know
    if is_launch and (other := _other_launch(host, join) or _other_endpoint(host, join)):
        return other
    if join.fleet != host.fleet:
        return _refused(
            "F301",
            f"{at(join)} is of fleet {join.fleet}, and {at(host)} of fleet {host.fleet}",
            "write the same `[fleet] name` on both, or `[fleet] join` of the fleet that is meant",
        )
    if agreed(join.versions) is None:
        return _refused(
            "F302",
            f"{at(join)} speaks {_versions(join.versions)} of the protocol, and {at(host)} {_versions(VERSIONS)}",
            "install the same supd on both",
        )
    if not host.join:
        return _refused(
            "F303",
            f"{at(host)} is a fleet of one, without `[fleet] join`; that of {at(join)} begins with {_first(join)}",
            f"write the same `[fleet] join` on both, {host.node} first",
        )
    if not is_launch and (not join.join or meant(join.join[0]) != meant(host.join[0])):
        return _refused(
            "F303",
            f"`[fleet] join` of {at(join)} begins with {_first(join)}, that of {at(host)} with {_first(host)}",
            "write the same list on every node: its first entry is the node that hosts the coordinator",
        )
    return _other_launch(host, join)


def _other_launch(host: Join, join: Join) -> JoinRefused | None:
    """Nodes of suprun have been told the same, in what they have to be told alike."""
    for what in dict.fromkeys((*host.launch, *join.launch)):
        theirs, ours = join.launch.get(what, "nothing of it"), host.launch.get(what, "nothing of it")
        if theirs != ours:
            return _refused(
                "F320",
                f"{join.node} was started with {what} {theirs}, and {host.node}, where the nodes meet, with {ours}",
                "start suprun with the same line on every node",
            )
    return None


def _other_endpoint(host: Join, join: Join) -> JoinRefused | None:
    """They have met, so that they may spell it as they like; but what is the loopback there is told to the others."""
    if meant(host.join[0]) == meant(join.join[0]) or not (is_loopback(host.address) or host.address == "localhost"):
        return None
    return _refused(
        "F320",
        f"{join.node} was started with the endpoint {join.join[0]}, and {host.node}, which has it, with "
        f"{host.join[0]}: there other nodes would find nobody",
        "name the endpoint by an address that all nodes know, on every node",
    )


def taken(holder: NodeRecord, join: Join) -> JoinRefused:
    """Somebody who answers has this name (N3, N4)."""
    there = f"the node at {where(holder)}, which answers"
    if join.identity != holder.identity:
        message = f"the name {join.node} is taken by {there}; the one at {where(join)} cannot have it as well"
        return _refused("F304", message, "give one of them another name: `[node] name`")
    starts = f"that one is start {holder.incarnation} of it, this one start {join.incarnation}"
    message = f"the state folder of {at(join)} is also in use by {there}: {starts}"
    hint = "a state folder is never copied or shared: move this one away, or name another `[state] dir`"
    return _refused("F304", message, hint)


def seated(holder: NodeRecord, join: Join, run: str) -> JoinRefused:
    """The name's ranks may be alive where its holder was, and that is not here (N5)."""
    there = f"{run} may still run as {join.node} at {where(holder)}, which does not answer"
    if join.identity != holder.identity:
        message = f"{there}; the node at {where(join)} has another state folder"
        hint = f"start supd with the state folder it had, or give this node another name until {run} is over"
        return _refused("F305", message, hint)
    starts = (
        f"that was start {holder.incarnation} of its state folder, the one at {where(join)} is start {join.incarnation}"
    )
    hint = "a state folder is never copied: take this one away; where it is the same one, start supd there again"
    return _refused("F305", f"{there}; {starts}", hint)


def awaited(holder: NodeRecord, join: Join) -> JoinRefused:
    """The name's holder was there a moment ago, and what lives there is not known yet (N5)."""
    whose = "another state folder" if join.identity != holder.identity else "a copy of its state folder"
    message = f"{join.node} at {where(holder)} may come back; the node at {where(join)} has {whose}"
    return _refused("F304", message, "it tries again, and gets the name of a node that stays away")


def unreached(host: Join, join: Join, why: str) -> JoinRefused:
    """Peers would not reach it either (N1)."""
    return _refused(
        "F306",
        f"{host.node} does not reach {join.node} at {where(join)}: {why}",
        f"open port {join.port} in its firewall, or name an address that peers reach: `[listen] advertise`",
    )


def full(host: Join, join: Join, what: str) -> JoinRefused:
    """No room is left (N8)."""
    message = f"{at(host)} has no room for {at(join)}: {what}"
    return _refused("F307", message, "it tries again; there is room when others have come in, or are gone for good")


def clock_off_s(theirs_s: float, ours_s: float) -> float:
    """How far a clock is ahead, in seconds; below 0: behind."""
    off_s = theirs_s - ours_s
    return round(max(-CLOCK_OFF_MAX_S, min(CLOCK_OFF_MAX_S, off_s)), 3) if math.isfinite(off_s) else CLOCK_OFF_MAX_S


def warnings(host: Join, join: Join, off_s: float) -> tuple[str, ...]:
    """What both sides are told of a node that is taken in (N2, N7)."""
    found = []
    if abs(off_s) > CLOCK_OFF_S:
        way = "ahead of" if off_s > 0 else "behind"
        found.append(f"the clock of {join.node} is {abs(off_s):.1f} s {way} that of {host.node}")
    if not host.launch and [meant(entry) for entry in join.join] != [meant(entry) for entry in host.join]:
        lists = f"{join.node} has {', '.join(join.join)}, and {host.node} {', '.join(host.join)}"
        found.append(one_line(f"`[fleet] join` is not the same everywhere: {lists}"))
    return tuple(found)


# --- events ------------------------------------------------------------------------------------------------------


def refused(join: Join, why: JoinRefused) -> Note:
    """A node was not taken in."""
    return Note(
        "node.refused",
        why.message,
        None,
        {"node": join.node, "address": join.address, "port": join.port, "code": why.code},
    )


def arrived(before: NodeRecord | None, now: NodeRecord, warnings: tuple[str, ...]) -> Note | None:
    """A node is up, of which `before` was kept; None where it has only connected anew."""
    if before is not None and before.identity != now.identity:
        return _replaced(now, f"is in place of the node at {where(before)}, with another state folder", warnings)
    if before is None or before.is_away:
        text = _with(f"{now.name} ({where(now)}) {'joined' if before is None else 'answers again'}", warnings)
        return Note(
            "node.joined",
            text,
            None,
            {"node": now.name, "address": now.address, "port": now.port, "clock_off_s": now.clock_off_s},
        )
    is_same = before.incarnation == now.incarnation
    return None if is_same else _replaced(now, "has a supd that was started again", warnings)


def _replaced(now: NodeRecord, what: str, warnings: tuple[str, ...]) -> Note:
    return Note(
        "node.replaced",
        _with(f"{now.name} ({where(now)}) {what}", warnings),
        None,
        {"node": now.name, "address": now.address, "port": now.port, "clock_off_s": now.clock_off_s},
    )


def left(node: NodeRecord, why: str) -> Note:
    """A node does not answer, and is not expected any more."""
    text = f"{node.name} ({where(node)}) does not answer: {why}"
    return Note("node.left", text, None, {"node": node.name, "address": node.address, "port": node.port})


def _with(text: str, warnings: tuple[str, ...]) -> str:
    return "; ".join((text, *warnings))


# --- words -------------------------------------------------------------------------------------------------------


def where(node: NodeRecord | Join) -> str:
    """`10.0.0.2:29410`, `[fd00::2]:29410`."""
    return host_port(node.address, node.port)


def at(join: Join) -> str:
    """`gpu-02 (10.0.0.2:29410)`."""
    return f"{join.node} ({where(join)})"


def _first(join: Join) -> str:
    return f'"{join.join[0]}"' if join.join else "nothing"


def _versions(numbers: tuple[int, ...]) -> str:
    known = [str(number) for number in sorted(set(numbers))[:10]]
    return f"version{'s' if len(known) > 1 else ''} {', '.join(known)}" if known else "no version"
