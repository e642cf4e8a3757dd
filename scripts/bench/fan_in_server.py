"""The supd at which somebody follows a fleet's output: its coordinator with a run, its control socket, and everything
else that a supd has loaded. Only the node table is a stand-in, which knows where each log server listens.

    fan_in_server.py FOLDER NODES NPROC

Reads the log servers' ports, by number of their node, from FOLDER/ports.json. Says `PORT RUN` once it listens.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import uvloop
from members_server import FLEET, HOST, lines, nobody_else_leads, node_name

import supervisor.daemon.app  # noqa: F401  # for what it loads
from protocol.coordinator_events import RosterNode
from protocol.fleet_events import NodeRecord
from protocol.job import JobSpec, RunTable, Submitter, TopologyTable
from protocol.messages.control import NodeStatus
from protocol.messages.member import Hello
from protocol.timing import DEFAULTS
from supervisor.daemon.control import Control
from supervisor.daemon.desk import Desk
from supervisor.daemon.door import Door
from supervisor.daemon.fetch import Fetcher
from supervisor.daemon.jobs import Jobs
from supervisor.daemon.journal import Journal
from supervisor.daemon.members import Members
from supervisor.daemon.starting import Starting
from supervisor.shell.config import load_config
from supervisor.shell.dial import Dialer
from supervisor.shell.log_setup import set_up_log
from supervisor.shell.tls import client_context, server_context


class Table:
    """Where the log servers are."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._records = {
            node_name(number): NodeRecord(
                name=node_name(number), identity=str(number), incarnation=1, address=HOST, port=port, joined=number
            )
            for number, port in enumerate(ports)
        }

    def status(self) -> Sequence[NodeStatus]:
        """Nobody asks for it here: the run is young, and its ranks are where they were."""
        return ()

    def record_of(self, node: str) -> NodeRecord | None:
        """Of one."""
        return self._records.get(node)


async def serve(folder: Path, nodes: int, nproc: int) -> None:
    """Until stdin ends."""
    config = load_config(folder / "supd.toml", os.environ)
    journal = Journal(folder / "journal.db")
    jobs = Jobs(
        journal,
        folder / "logs",
        await journal.next_epoch(),
        on_wanted=lambda run, nodes: None,
        on_unlinked=lambda node: None,
        on_seated=lambda: None,
        on_blamed=lambda node: None,
        on_epoch=lambda epoch: None,
        before_epoch=nobody_else_leads,
        timing=DEFAULTS,
        keeps_isolated=False,
    )
    door = Door(FLEET, HOST)
    members = Members(jobs, door)
    door.handlers[Hello] = members.take
    table = Table(json.loads((folder / "ports.json").read_text()))
    dialer = Dialer(client_context(folder / "fleet.pem"), lambda _address: None)
    fetcher = Fetcher(table, dialer, FLEET)
    starting = Starting(jobs, journal, None)
    desk = Desk(jobs, starting, cast("Any", table), journal, fetcher, "reader", {})
    role = cast("Any", SimpleNamespace(hosted=SimpleNamespace(desk=desk), where=lambda: None))
    control = Control(role, dialer, config)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in (journal.watch(), jobs.run(await journal.runs()), members.run())]
        tasks.append(group.create_task(control.run(config.control, lambda: None)))
        roster = tuple(RosterNode(name=node_name(i), is_up=True, joined=i) for i in range(nodes))
        jobs.on_roster(lambda: roster)
        await asyncio.sleep(0)
        server = await door.listen(HOST, 0, server_context(folder / "fleet.pem"))
        spec = JobSpec(
            name="bench",
            run=RunTable(script="/bench.py"),
            topology=TopologyTable(nnodes=(nodes, nodes), nproc_per_node=nproc),
        )
        env = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
        submitter = Submitter(
            folder="/", source="bench.toml", python="/usr/bin/python3", env=env, limits={}, umask=0o22, user="bench"
        )
        run = await starting.start(spec, submitter, "bench")
        print(server.sockets[0].getsockname()[1], run, flush=True)
        await (await lines()).read()
        for task in tasks:
            task.cancel()


def main() -> None:
    """One server."""
    set_up_log("info", "json")
    folder, nodes, nproc = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve(folder, nodes, nproc))


if __name__ == "__main__":
    main()
