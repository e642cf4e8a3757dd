"""The command scripts/local_fleet: a fleet on this machine, with links that can be disturbed."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.hosts.local_fleet import BIN, FleetFailed, LocalFleet
from scripts.hosts.namespaces import HOSTS_MAX, WHOLE, HostsFailed, both_ways, one_way

EPILOG = """\
examples:
  scripts/local_fleet up 3                 nodes a, b, c on 127.0.0.2, .3, .4
  sudo scripts/local_fleet up 3 --netns    nodes with a network and a host name of their own
  eval "$(scripts/local_fleet status)"     supctl talks to node a from now on
  scripts/local_fleet exec b -- supctl nodes
  scripts/local_fleet link c cut           silence; `heal` ends it
  scripts/local_fleet between a b,c reset  between a and the two others alone; `heal` ends that too
  scripts/local_fleet down
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; `argv` None: this process's."""
    options = _command_line().parse_args(argv)
    folder: Path = options.dir.absolute()
    try:
        match options.command:
            case "up":
                show(LocalFleet.up(folder, options.nodes, in_namespaces=options.netns))
            case "down":
                down(folder)
            case "exec":
                run_there(LocalFleet(folder), options.node, options.argv)
            case "link":
                disturb(LocalFleet(folder), options.node, options.how, options.amount)
            case "between":
                disturb_between(LocalFleet(folder), options.some, options.others, options.how, options.amount)
            case _:
                show(LocalFleet(folder))
    except (FleetFailed, HostsFailed) as exc:
        print(f"local_fleet: error: {exc}", file=sys.stderr)
        return 1
    return 0


def _command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="local_fleet", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = argparse.ArgumentParser(add_help=False)
    usual = Path(f"/tmp/supd-local-fleet-{os.geteuid()}")
    shared.add_argument("--dir", type=Path, default=usual, help=f"all that the fleet keeps (default: {usual})")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", parents=[shared], help="make a fleet, and wait until it has formed")
    up.add_argument("nodes", type=int, metavar="N", help=f"nodes, 1 to {HOSTS_MAX}")
    up.add_argument("--netns", action="store_true", help="in network namespaces instead of on 127.0.0.x; takes root")
    commands.add_parser("down", parents=[shared], help="end all of it; also what a crash has left")
    commands.add_parser("status", parents=[shared], help="the nodes, their supd and their links")
    there = commands.add_parser("exec", parents=[shared], help="run a command on a node")
    there.add_argument("node")
    there.add_argument("argv", nargs="+", metavar="-- COMMAND")
    link = commands.add_parser("link", parents=[shared], help="disturb a node's link (with --netns)")
    link.add_argument("node")
    link.add_argument("how", choices=("cut", "cut-in", "cut-out", "delay", "loss", "heal"))
    link.add_argument("amount", type=float, nargs="?", help="of delay: milliseconds each way; of loss: percent")
    between = commands.add_parser("between", parents=[shared], help="disturb what nodes send each other (with --netns)")
    between.add_argument("some", metavar="NODES", type=_nodes, help="as in: a or a,b")
    between.add_argument("others", metavar="NODES", type=_nodes)
    between.add_argument("how", choices=("cut", "cut-there", "reset", "reject", "delay", "loss", "heal"))
    between.add_argument("amount", type=float, nargs="?", help="of delay: milliseconds each way; of loss: percent")
    return parser


def _nodes(word: str) -> list[str]:
    return word.split(",")


def show(fleet: LocalFleet) -> None:
    """The table for people on stderr, and on stdout what a shell can evaluate."""
    links = fleet.hosts.links() if fleet.hosts else {}
    print(f"{'NODE':<6}{'ADDRESS':<18}{'SUPD':<10}{'LINK':<24}CONTROL", file=sys.stderr)
    for name, node in fleet.nodes.items():
        supd = str(node.pid) if node.is_alive else "ended"
        link = _told(links[name]) if name in links else "-"
        address = f"{node.address}:{fleet.port}"
        print(f"{name:<6}{address:<18}{supd:<10}{link:<24}{fleet.control(name)}", file=sys.stderr)
    for (source, other), path in (fleet.hosts.paths() if fleet.hosts else {}).items():
        print(f"from {source} to {other}: {_told_path(path)}", file=sys.stderr)
    first = next(iter(fleet.nodes))
    print(f"export SUPD_ADDR={fleet.control(first)} GLOO_SOCKET_IFNAME={fleet.interface}")
    print(f"export VIRTUAL_ENV={BIN.parent} PATH={BIN}:$PATH")


def _told(link: dict[str, Any]) -> str:
    words = [name.replace("_", "-") for name in ("cut_in", "cut_out") if link[name]]
    return _words(["cut"] if len(words) == 2 else words, link)


def _told_path(path: dict[str, Any]) -> str:
    return _words([path["fate"]] if path["fate"] != "pass" else [], path)


def _words(words: list[str], where: dict[str, Any]) -> str:
    words += [f"delay {where['delay_ms']:g} ms"] if where["delay_ms"] else []
    words += [f"loss {where['loss_pct']:g} %"] if where["loss_pct"] else []
    return ", ".join(words) or "whole"


def down(folder: Path) -> None:
    """It is no error where there is nothing to end."""
    with contextlib.suppress(OSError):
        folder.rmdir()  # all that `up` has made, if it was killed at once
    if not folder.exists():
        print(f"local_fleet: nothing in {folder}", file=sys.stderr)
        return
    LocalFleet(folder).down()


def run_there(fleet: LocalFleet, node: str, argv: Sequence[str]) -> None:
    """Becomes that command, in this folder."""
    env = fleet.env(node)
    command = fleet.argv(node, *argv)
    try:
        os.execvpe(command[0], command, env)
    except OSError as exc:
        raise FleetFailed(f"cannot run {command[0]}: {exc.strerror}") from exc


def disturb(fleet: LocalFleet, node: str, how: str, amount: float | None) -> None:
    """In effect on return. A delay or a loss is set, a cut is added, and `heal` takes all of it back."""
    hosts = fleet.links()
    number = _amount(f"link {node} {how}", how, amount)
    match how:
        case "cut":
            hosts.cut(node)
        case "cut-in" | "cut-out":
            hosts.set_link(node, **{how.replace("-", "_"): True})
        case "delay":
            hosts.set_link(node, delay_ms=number)
        case "loss":
            hosts.set_link(node, loss_pct=number)
        case _:
            hosts.heal(node)


def disturb_between(
    fleet: LocalFleet, some: Sequence[str], others: Sequence[str], how: str, amount: float | None
) -> None:
    """The same between nodes, in both directions but for `cut-there`."""
    hosts, ends = fleet.links(), both_ways(some, others)
    number = _amount(f"between {','.join(some)} {','.join(others)} {how}", how, amount)
    match how:
        case "cut":
            hosts.set_paths(ends, fate="drop")
        case "cut-there":
            hosts.set_paths(one_way(some, others), fate="drop")
        case "delay":
            hosts.set_paths(ends, delay_ms=number)
        case "loss":
            hosts.set_paths(ends, loss_pct=number)
        case "heal":
            hosts.set_paths(ends, **WHOLE)
        case _:
            hosts.set_paths(ends, fate=how)


def _amount(said: str, how: str, amount: float | None) -> float:
    """How much; raises FleetFailed where that is missing, or makes no sense."""
    if (amount is None) == (how in ("delay", "loss")):
        raise FleetFailed(f"{said}: {'how much?' if amount is None else 'takes no number'}")
    return amount or 0.0
