"""Cases H42 to H45, H50, H54 and H56 of the field reports: a node is silent, or gone, and comes back.

What the reports do with Ctrl-C and TERM to a node's daemon ends nothing here: supd can be replaced at any time. A node
is lost where supd, guard, runner and ranks are killed, or stopped, at once. The times of the lease are short.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e.fleet import Fleet, running_fleet
from tests.e2e.supd import TIMEOUT_S, Supd, alive, carriers, wait_for
from tests.e2e.threes import AT_ONCE, Copies
from tests.field.watching import PATIENT, everything, pids, runs_at, send, stays, stopped

GROW = f'extra_nodes = "grow"\n{AT_ONCE}'


@contextmanager
def sleeping(folder: Path, count: int, nnodes: int | str, tables: str = GROW) -> Iterator[tuple[Fleet, str]]:
    """A fleet and a run of sleepers on all of it, all of which have started."""
    with running_fleet(folder, count, config=PATIENT) as fleet:
        run = fleet.host.start_job(fleet.job("train", "sleeper.py", nnodes=nnodes, tables=tables))
        is_on(fleet, run, 0, "abcd"[:count])
        yield fleet, run


def is_on(fleet: Fleet, run: str, generation: int, nodes: str, *, spares: str = "") -> Any:
    """Wait until it runs at this generation, with all ranks, on these nodes, and those stand by; returns its status."""

    def look() -> Any:
        status = fleet.host.status(run)
        assert not status["is_final"], status
        assert (status["generation"] or 0) <= generation, status  # None: the first one has not been given out
        is_there = (status["state"], status["generation"]) == ("running", generation)
        is_whole = is_there and status["ranks_running"] == status["ranks"]
        return status if is_whole and (status["nodes"], status["spares"]) == (list(nodes), list(spares)) else None

    return wait_for(f"generation {generation} on {nodes}", look)


def state_of(fleet: Fleet, name: str) -> str:
    return next(str(node["state"]) for node in fleet.host.json("nodes")["nodes"] if node["node"] == name)


def comes_back(fleet: Fleet, name: str) -> None:
    """Its supd is started, as after a boot, and belongs to the fleet again."""
    process = fleet[name].process
    assert process is not None
    process.wait(60)
    fleet[name].start()
    fleet.wait_joined(*fleet.nodes)


def launches(fleet: Fleet, run: str) -> list[int]:
    """The generations that have been given out."""
    return [event["generation"] for event in fleet.events(run, "generation.launched")]


# --- H42 -------------------------------------------------------------------------------------------------------------


def test_a_silent_node_is_noticed_and_the_rest_goes_on_alone_where_it_may(short_dir: Path) -> None:
    """H42, with a minimum of 1. All of b is stopped; when it goes on, what it had is ended, and it stands by."""
    with sleeping(short_dir, 2, "1:2") as (fleet, run):
        [old] = [rank["pid"] for rank in fleet.ranks(run) if rank["node"] == "b"]
        with stopped(everything(fleet, "b")):
            status = is_on(fleet, run, 1, "a")
            assert (status["incident"]["cause"], status["incident"]["node"]) == ("node-lost", "b")
            assert (status["restarts_used"], state_of(fleet, "b")) == (0, "lost")
        is_on(fleet, run, 1, "a", spares="b")
        wait_for("b's first rank to be gone", lambda: not alive(old))
        assert launches(fleet, run) == [0, 1]


def test_a_run_that_cannot_do_without_a_silent_node_waits_and_says_for_whom(short_dir: Path) -> None:
    """H42, with a minimum of 2."""
    with sleeping(short_dir, 2, 2, AT_ONCE) as (fleet, run):
        with stopped(everything(fleet, "b")):
            wait_for("the run to wait for b", lambda: "b (unreachable) (1 of 2 nodes" in waits_for(fleet, run))
            assert state_of(fleet, "b") == "lost"
        assert is_on(fleet, run, 1, "ab")["restarts_used"] == 0
        assert launches(fleet, run) == [0, 1]


def waits_for(fleet: Fleet, run: str) -> str:
    """What a run says that it waits for."""
    return str(fleet.host.status(run)["waiting_for"])


# --- H43 -------------------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_a_supd_and_nothing_else_and_it_is_back_without_a_word_of_closed(short_dir: Path) -> None:
    """H43: three times, and once for the host."""
    with sleeping(short_dir, 2, "1:2") as (fleet, run):
        before = pids(fleet.host, run)
        for name in "bbba":
            fleet[name].kill(signal.SIGINT)
            fleet[name].start()
            fleet.wait_joined("a", "b")
        is_on(fleet, run, 0, "ab")
        assert (pids(fleet.host, run), launches(fleet, run)) == (before, [0])


def goes_and_comes(fleet: Fleet, run: str, name: str, *, others: str) -> None:
    """A node dies with all that it has, is back as a spare, and gets its place by a restart."""
    send(signal.SIGKILL, everything(fleet, name))
    is_on(fleet, run, 1, others)
    comes_back(fleet, name)
    is_on(fleet, run, 1, others, spares=name)
    fleet.host.supctl("restart", run)
    is_on(fleet, run, 2, "".join(sorted(others + name)))


def test_a_node_that_goes_and_comes_is_one_generation_each_time_and_the_host_s_too(short_dir: Path) -> None:
    """H43, with nodes that are lost. One that is back stands by until the next restart; what is left of a run whose
    host is lost ends its ranks, for want of its word, and begins anew with it."""
    with sleeping(short_dir, 2, "1:2") as (fleet, run):
        goes_and_comes(fleet, run, "b", others="a")
        send(signal.SIGKILL, everything(fleet, "a"))
        wait_for("b to end its rank", lambda: not fleet.workers())
        comes_back(fleet, "a")
        assert is_on(fleet, run, 3, "ab")["restarts_used"] == 0
        assert launches(fleet, run) == [0, 1, 2, 3]


# --- H44 -------------------------------------------------------------------------------------------------------------


def test_the_others_form_anew_without_a_lost_node_and_everybody_keeps_the_order(short_dir: Path) -> None:
    """H44. Also afterwards, when it is back: it has its old place."""
    with sleeping(short_dir, 3, "2:3") as (fleet, run):
        goes_and_comes(fleet, run, "b", others="ac")
        lines = fleet.host.supctl("logs", run, "--ranks", "0", "--gen", "all", "--no-prefix").stdout.splitlines()
        told = [line.rpartition(" pid ")[0] for line in lines]
        assert told == [f"rank 0 of {size} generation {number}" for number, size in enumerate((3, 2, 3))]


# --- H45 -------------------------------------------------------------------------------------------------------------


def test_a_lost_node_and_all_that_dies_of_it_are_one_failure(short_dir: Path) -> None:
    """H45. Four ranks on two nodes end with 1, 50 ms apart, as soon as they miss a peer on c; that c is lost is known
    three seconds later. A lost node is not charged."""
    with running_fleet(short_dir, 3, config=PATIENT) as fleet:
        shared = short_dir / "shared"
        shared.mkdir()
        job = fleet.job("train", "clinging.py", str(shared), nnodes="2:3", nproc=2, tables=GROW)
        run = fleet.host.start_job(job)
        is_on(fleet, run, 0, "abc")
        send(signal.SIGKILL, everything(fleet, "c"))
        status = is_on(fleet, run, 1, "ab")
        assert (status["incident"]["cause"], status["incident"]["node"], status["incident"]["number"]) == (
            "node-lost",
            "c",
            1,
        )
        assert status["restarts_used"] == 0
        stays("it runs", lambda: fleet.host.status(run)["state"] == "running")
        assert launches(fleet, run) == [0, 1]
        assert [len(fleet.events(run, kind)) for kind in ("incident.opened", "restart.decided")] == [1, 1]


# --- H50 -------------------------------------------------------------------------------------------------------------


def test_a_rendezvous_ends_whenever_a_node_is_killed_in_it(short_dir: Path) -> None:
    """H50, with three moments for its 100: a restart is asked for, b's rank has ended for it, a new rank has started.
    What must not run twice looks for that itself (copies.py); simulated fleets have all moments (tests/sim)."""
    with running_fleet(short_dir, 3, config=PATIENT) as fleet:
        run = Copies(fleet, "train", "fixed")
        for is_there in (is_asked, is_ended, is_begun):
            [old], generation = run.ranks("b"), int(fleet.host.status(run.run)["generation"])
            doomed = everything(fleet, "b")
            client = fleet.host.popen("restart", run.run)
            wait_for("the moment", partial(is_there, run, old, generation))
            send(signal.SIGKILL, doomed)
            comes_back(fleet, "b")
            out, error = client.communicate(timeout=TIMEOUT_S)
            assert client.returncode == 0, f"{out}{error}"
            wait_for("all to run again", partial(is_whole, fleet, run, generation))
        run.finish()


def is_asked(run: Copies, old: int, generation: int) -> bool:
    """By now."""
    return True


def is_ended(run: Copies, old: int, generation: int) -> bool:
    """Whether an old rank has ended."""
    return not alive(old)


def is_begun(run: Copies, old: int, generation: int) -> bool:
    """Whether a rank of the next generation has started."""
    return run.starts(generation + 1) > 0


def is_whole(fleet: Fleet, run: Copies, after: int) -> bool:
    """Whether three ranks of a later generation run that are alive, and nothing is waited for."""
    status = fleet.host.status(run.run)
    assert not status["is_final"], status
    is_running = (status["state"], status["ranks_running"], status["waiting_for"]) == ("running", 3, None)
    return is_running and status["generation"] > after and all(map(alive, run.pids()))


# --- H54 -------------------------------------------------------------------------------------------------------------

_NAMED = """
import os, sys
from pathlib import Path
from msgspec.structs import replace
from protocol.messages import encode
from protocol.messages.runner import decode_record

path, pids, command = Path(sys.argv[1]), (int(sys.argv[2]), os.getpid()), sys.argv[3:]
record = decode_record(path.read_bytes())
ranks = tuple(replace(rank, pid=pid) for rank, pid in zip(record.renewal.ranks, pids, strict=True))
path.write_bytes(encode(replace(record, renewal=replace(record.renewal, ranks=ranks))))
os.execv(command[0], command)
"""
"""Says in a runner's record that its ranks had this pid and our own; then becomes that command."""


def test_nobody_is_signalled_for_having_a_pid_that_was_left_behind(supd: Supd) -> None:
    """H54. By the record of a runner, on a node that has lost everything, its first rank had the pid of an innocent
    process and its second one that of the new supd. Who is alive is told by locks, and by marks."""
    run = supd.start_job(supd.job("train", "sleeper.py", tables=AT_ONCE))
    runs_at(supd, run, 0)
    supd.kill()
    send(signal.SIGKILL, [*supd.guard_pids(), *supd.runner_pids(), *supd.survivors()])
    wait_for("everything to be gone", lambda: not carriers(supd.marker))
    [record] = (supd.state / "runs" / run).glob("*.record")
    with subprocess.Popen(["sleep", "3600"]) as innocent:
        try:
            supd.start(argv=(sys.executable, "-c", _NAMED, str(record), str(innocent.pid)))
            assert runs_at(supd, run, 1)["incident"]["cause"] == "runner-lost"
            assert (innocent.poll(), len(supd.survivors())) == (None, 2)
        finally:
            innocent.kill()


# --- H56 -------------------------------------------------------------------------------------------------------------


def test_renumbered_ranks_have_the_same_number_everywhere(short_dir: Path) -> None:
    """H56. The node with the first ranks is lost (not the host, which the job leaves out)."""
    with running_fleet(short_dir, 3, config=PATIENT) as fleet:
        tables = f'exclude = ["a"]\n{GROW}'
        run = fleet.host.start_job(fleet.job("train", "sleeper.py", nnodes="1:2", nproc=2, tables=tables))
        is_on(fleet, run, 0, "bc")
        send(signal.SIGKILL, everything(fleet, "b"))
        is_on(fleet, run, 1, "c")
        ranks = [(rank["rank"], rank["node"], rank["local_rank"]) for rank in fleet.ranks(run)]
        assert ranks == [(0, "c", 0), (1, "c", 1)]
        logs = fleet["c"].state / "logs" / run
        for generation, numbers in ((0, (2, 3)), (1, (0, 1))):
            files = sorted(logs.glob(f"gen-{generation:04d}/rank-*.out"))
            assert [path.name for path in files] == [f"rank-{rank:05d}.out" for rank in numbers]
            for rank, path in zip(numbers, files, strict=True):
                assert path.read_text().startswith(f"rank {rank} of {4 - 2 * generation} generation {generation} ")
        lines = fleet.host.supctl("logs", run, "--ranks", "all", "--json").stdout.splitlines()
        told = [(said["gen"], said["node"], said["line"].rpartition(" of ")[0]) for said in map(json.loads, lines)]
        assert sorted(told) == [(1, "c", f"rank {rank}") for rank in (0, 1)]
