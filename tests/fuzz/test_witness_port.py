"""Any bytes from anyone at a runner's own port, and at that of the host: at worst that connection ends.

That the word of who is no witness of a runner changes nothing there is checked at each step of machines.member.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from protocol.messages.member import RenewalOf
from protocol.messages.witness import Word, WordWanted
from supervisor.runner import peers
from supervisor.shell.tls import client_context
from tests.e2e.fleet import Fleet, free_port
from tests.fuzz import witness
from tests.runner.test_peers import HOST, NEVER_S, Runner, folder, runners  # noqa: F401  # `folder` is a fixture

LINES = 200
MEMORY_MAX_KIB = 256 * 1024
"""That each may have had at the most. It reads frames of up to 8 MiB, and up to so many bytes a second of each."""


async def test_a_runner_bears_whatever_others_say_to_it_and_hears_its_fellows_meanwhile(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "SPREAD_S", NEVER_S)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with runners(folder, "a", "b") as (a, b):
        a.peers.meet([b.as_witness()])
        tls = client_context(folder / "fleet.pem")
        async with asyncio.TaskGroup() as group:
            say = witness.to_a_runner
            group.create_task(witness.bombard(HOST, a.port, tls, Random("a"), run="j@1", lines=LINES, say=say))
            for number in range(20):
                a.peers.ask_words(WordWanted(number=number, generation=0))
                assert await b.hears() == ("a", "a1", WordWanted(number=number, generation=0))
                b.peers.give_word("a1", Word(number=number, generation=0, is_given=True))
                await _hears_from(a, "b1")
    assert errors == []


async def _hears_from(runner: Runner, fellow: str) -> None:
    """Wait until it hears the fellow; nobody else gets to say anything in the name of the coordinator."""
    while True:
        match await runner.hears():
            case (who, Word()):
                if who == fellow:
                    return
            case (_, _, WordWanted()) | RenewalOf():
                pass
            case said:
                raise AssertionError(f"it takes {said} for the coordinator's")


@pytest.fixture
def fleet(short_dir: Path) -> Iterator[Fleet]:
    """Two nodes whose runners listen at ports that are known."""
    fleet = Fleet(short_dir, 2)
    first = free_port(list(fleet.addresses.values()))
    for supd in fleet.nodes.values():
        text = supd.config.read_text()
        supd.config.write_text(text.replace("[listen]\n", f'[listen]\nrunners = "{first}-{first + 9}"\n'))
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.close()


def test_ranks_go_on_while_their_runners_and_the_host_are_told_anything(fleet: Fleet) -> None:
    run = fleet.host.start_job(fleet.job("train", "sleeper.py"))
    fleet.wait_generation(run, 0)
    before, tls = fleet.ranks(run), client_context(fleet.host.state / "fleet.pem")
    places = [(fleet.addresses["a"], fleet.port, witness.to_the_host)]
    for node, supd in fleet.nodes.items():
        places.append((fleet.addresses[node], listens_at(supd.runner_pids()), witness.to_a_runner))

    async def bombard() -> None:
        async with asyncio.TaskGroup() as group:
            for host, port, say in places:
                group.create_task(witness.bombard(host, port, tls, Random(host), run=run, lines=LINES, say=say))

    asyncio.run(bombard())
    assert [rank["pid"] for rank in fleet.ranks(run)] == [rank["pid"] for rank in before]
    assert fleet.events(run, "incident.opened") == []
    for supd in fleet.nodes.values():
        assert supd.process is not None
        for pid in (supd.process.pid, *supd.runner_pids()):
            assert peak_kib(pid) < MEMORY_MAX_KIB
    fleet.host.supctl("restart", run)
    fleet.wait_generation(run, 1)


def listens_at(pids: list[int]) -> int:
    """The port of the one process among these that listens."""
    ports = [port for pid in pids for port in _ports(pid)]
    assert len(ports) == 1, ports
    return ports[0]


def _ports(pid: int) -> list[int]:
    """proc_pid_net(5)."""
    inodes = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir()}
    rows: list[Any] = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]


def peak_kib(pid: int) -> int:
    """VmHWM: proc_pid_status(5)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
