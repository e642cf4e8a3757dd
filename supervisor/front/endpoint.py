"""Which node coordinates: the one at the endpoint, seen on this machine alone. The order in which nodes start decides
nothing."""

import asyncio
import os
import socket
import zlib

from protocol.errors import Refused
from protocol.exit_code import ExitCode
from protocol.text import host_port
from supervisor.front.console import Console
from supervisor.shell.addresses import is_own
from supervisor.shell.clock import boot_s
from supervisor.shell.names import Names
from supervisor.suprun.plan import LaunchPlan, Mode

AGAIN_S = 0.5
TELL_S = 5.0

NAMES_A_MACHINE = 1000


class Claims:
    """Names that no other suprun of this machine has while this lasts; the kernel gives them back (unix(7))."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, name: str) -> bool:
        """Whether it is ours now."""
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            holder.bind(f"\0suprun-{name}")
        except OSError:
            holder.close()
            return False
        self._held.append(holder)
        return True


async def is_here(plan: LaunchPlan, console: Console, claims: Claims) -> bool:
    """Whether this node coordinates. A name that is not known yet is waited for; raises Refused where it stays so."""
    if plan.is_host is not None:
        if plan.is_host and plan.mode is Mode.STATIC:
            await _tell_if_elsewhere(plan, console)
        return plan.is_host
    names, began_s, told_s = Names(), boot_s(), boot_s()
    while True:
        try:
            addresses = await names.look_up(plan.host)
        except OSError as exc:
            why = f"the endpoint's host {plan.host} is not known: {exc.strerror or exc}"
        else:
            # Of several nodes on one machine the first one coordinates.
            return any(map(is_own, addresses)) and _is_free(plan.port) and claims.take(f"endpoint-{plan.port}")
        if boot_s() - began_s > plan.join_timeout_s:
            hint = "name a node by a name or address that all nodes know: --rdzv-endpoint=HOST:PORT"
            raise Refused("C032", why, hint=hint, exit_code=ExitCode.TIMED_OUT)
        if boot_s() - told_s > TELL_S:
            told_s = boot_s()
            console.tell(f"{why}; it is looked up again")
        await asyncio.sleep(AGAIN_S)


async def _tell_if_elsewhere(plan: LaunchPlan, console: Console) -> None:
    """Node 0 coordinates, whatever the endpoint's address is: it may be one that leads here from elsewhere."""
    try:
        async with asyncio.timeout(AGAIN_S):
            addresses = await Names().look_up(plan.host)
    except (OSError, TimeoutError):
        return
    if not any(map(is_own, addresses)):
        console.tell(f"this node has --node-rank 0, and {plan.host}, where the others look for it, is no address of it")


def _is_free(port: int) -> bool:
    """Whether nobody of this machine listens there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def node_name_of_its_own(plan: LaunchPlan, name: str, claims: Claims) -> str:
    """This node's name in the job: a second node of the job on one machine gets a number behind it. Raises Refused."""
    meeting = zlib.crc32(f"{plan.run_id} {host_port(plan.host, plan.port)}".encode())
    for number in range(1, NAMES_A_MACHINE):
        own = name if number == 1 else f"{name[:58]}-{number}"
        if plan.mode is Mode.STANDALONE or claims.take(f"{os.getuid()}-{meeting:08x}-{own}"):
            return own
    raise Refused("C032", f"{NAMES_A_MACHINE} nodes of this job are on this machine", hint="start fewer")
