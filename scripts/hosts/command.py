"""The command scripts/local_fleet: a fleet on this machine, with links that can be disturbed."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.hosts.local_fleet import BIN, FleetFailed, LocalFleet
from scripts.hosts.namespaces import HOSTS_MAX, HostsFailed

EPILOG = """\
examples:
  scripts/local_fleet up 3                 nodes a, b, c on 127.0.0.2, .3, .4
  sudo scripts/local_fleet up 3 --netns    nodes with a network and a host name of their own
  eval "$(scripts/local_fleet status)"     supctl talks to node a from now on
  scripts/local_fleet exec b -- supctl nodes
  scripts/local_fleet link c cut           silence; `heal` ends it
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
    return parser


def show(fleet: LocalFleet) -> None:
    """The table for people on stderr, and on stdout what a shell can evaluate."""
    links = fleet.hosts.links() if fleet.hosts else {}
    print(f"{'NODE':<6}{'ADDRESS':<18}{'SUPD':<10}{'LINK':<24}CONTROL", file=sys.stderr)
    for name, node in fleet.nodes.items():
        supd = str(node.pid) if node.is_alive else "ended"
        link = _told(links[name]) if name in links else "-"
        address = f"{node.address}:{fleet.port}"
        print(f"{name:<6}{address:<18}{supd:<10}{link:<24}{fleet.control(name)}", file=sys.stderr)
    first = next(iter(fleet.nodes))
    print(f"export SUPD_ADDR={fleet.control(first)} GLOO_SOCKET_IFNAME={fleet.interface}")
    print(f"export VIRTUAL_ENV={BIN.parent} PATH={BIN}:$PATH")


def _told(link: dict[str, bool | float]) -> str:
    words = [name.replace("_", "-") for name in ("cut_in", "cut_out") if link[name]]
    words = ["cut"] if len(words) == 2 else words
    words += [f"delay {link['delay_ms']:g} ms"] if link["delay_ms"] else []
    words += [f"loss {link['loss_pct']:g} %"] if link["loss_pct"] else []
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
    if (amount is None) == (how in ("delay", "loss")):
        raise FleetFailed(f"link {node} {how}: {'how much?' if amount is None else 'takes no number'}")
    match how:
        case "cut":
            hosts.cut(node)
        case "cut-in" | "cut-out":
            hosts.set_link(node, **{how.replace("-", "_"): True})
        case "delay":
            hosts.set_link(node, delay_ms=amount or 0.0)
        case "loss":
            hosts.set_link(node, loss_pct=amount or 0.0)
        case _:
            hosts.heal(node)
