"""The coordinator is gone for a while, or for good, and moves to another node: real processes on three nodes."""

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.messages.control import Done, RestartRun, StopRun
from protocol.timing import DEFAULTS
from supervisor.shell.clock import boot_s
from tests.e2e.fleet import Fleet
from tests.e2e.jobs import command_job
from tests.e2e.supd import TIMEOUT_S, Supd, alive, wait_for
from tests.e2e.threes import AT_ONCE, SIZES, Copies, kill, survivors
from tests.e2e.wire import ask


@pytest.fixture
def listed(short_dir: Path) -> Iterator[Fleet]:
    """Three nodes that are all in `[fleet] join`, of which a hosts."""
    fleet = Fleet(short_dir, 3, listed=3)
    try:
        fleet.start()
        yield fleet
    finally:
        moved = [supd for supd in fleet.nodes.values() if supd.process is not None and supd.process.poll() is None]
        for supd in moved:  # whoever hosts stops all runs
            supd.supctl("stop", "--all", "--now", check=False)
        fleet.close()


# --- moved to another node ---------------------------------------------------------------------------------------


def take_over(supd: Supd, *options: str) -> None:
    """`supd run --coordinator` on a node whose supd runs; wait until it hosts."""
    supd.kill(signal.SIGTERM)
    supd.launch("--coordinator", *options)
    wait_until_it_hosts(supd)


def wait_until_it_hosts(supd: Supd) -> None:
    wait_for("supd to host", lambda: [node for node in nodes(supd) if node["is_host"] and node["state"] == "ready"])


def nodes(supd: Supd) -> list[Any]:
    done = supd.supctl("nodes", check=False)
    return supd.json("nodes")["nodes"] if done.returncode == 0 else []


def wait_for_the_fleet(supd: Supd, host: str, *names: str) -> None:
    """Wait until this node hears from the `host` that these are there."""

    def look() -> bool:
        there = nodes(supd)
        is_there = {node["node"] for node in there if node["state"] in ("ready", "standby")} >= set(names)
        return is_there and [node["node"] for node in there if node["is_host"]] == [host]

    wait_for(f"{', '.join(names)} to be there with {host} as host", look)


def as_it_was(supd: Supd, run: Copies, before: list[int]) -> Any:
    """See that a run goes on as if nothing had happened, by what this node hears."""

    def look() -> Any:
        if supd.supctl("status", run.run, check=False).returncode:
            return None
        status = supd.status(run.run)
        return status if status["state"] == "running" and status["ranks_running"] == status["ranks"] else None

    status = wait_for(f"{run.run} to be running", look)
    assert (status["generation"], status["restarts_used"], status["incident"]) == (0, 0, None)
    assert sorted(rank["pid"] for rank in supd.ranks(run.run)) == sorted(before)
    assert run.starts(1) == 0
    return status


def test_it_moves_with_its_journal_while_runs_go_on_and_stays_there(listed: Fleet) -> None:
    a, b, c = listed.nodes.values()
    over = Copies(listed, "over", "fixed")
    over.finish()
    run = Copies(listed, "train", "fixed")
    before = run.pids()
    for supd in (a, b):
        supd.kill(signal.SIGTERM)
    moved = b.state / "moved"
    moved.mkdir()
    for path in a.state.glob("journal.db*"):
        shutil.copy(path, moved)
    b.launch("--coordinator")
    wait_for_the_fleet(c, "b", "b", "c")
    a.launch()
    wait_for_the_fleet(a, "b", "a", "b", "c")
    as_it_was(c, run, before)
    assert a.status(over.run)["state"] == "succeeded", "what was over is known as well"
    assert len(c.supctl("events", run.run, "--type", "job.accepted", "--json").stdout.splitlines()) == 1
    b.kill()
    b.launch()
    wait_for_the_fleet(a, "b", "a", "b", "c")
    as_it_was(a, run, before)
    kill(before[0])
    wait_for("the next generation", lambda: c.status(run.run)["generation"] == 1 and run.starts(1) == 3)


def test_it_moves_without_a_journal_where_the_old_host_is_gone_and_takes_over_what_runs(listed: Fleet) -> None:
    a, b, c = listed.nodes.values()
    run = Copies(listed, "train", "fixed")
    before = run.pids()
    a.kill()
    take_over(b)
    wait_for_the_fleet(c, "b", "b", "c")
    as_it_was(c, run, before)
    a.launch()  # plainly: by its supd.toml it would host
    wait_for_the_fleet(a, "b", "a", "b", "c")
    assert '"coordinator_moved"' in a.log.read_text()
    as_it_was(a, run, before)
    (run.shared / "finish").touch()
    assert b.wait_state(run.run, "succeeded", "failed", "stopped")["state"] == "succeeded"


def test_it_does_not_move_while_the_old_host_lives_unless_the_operator_says_that_it_is_dead(listed: Fleet) -> None:
    a, b, c = listed.nodes.values()
    run = Copies(listed, "train", "fixed")
    before = run.pids()
    b.kill(signal.SIGTERM)
    b.launch("--coordinator")
    assert b.process is not None
    assert b.process.wait(TIMEOUT_S) == 1
    said = b.log.read_text()
    assert f"supd: error[F310]: a ({listed.addresses['a']}:{listed.port}) hosts the coordinator, and lives: " in said
    assert a.process is not None
    a.process.send_signal(signal.SIGSTOP)  # it is not dead, and cannot be asked
    try:
        b.launch("--coordinator", "--old-is-dead")
        wait_for_the_fleet(c, "b", "b", "c")
        as_it_was(c, run, before)
    finally:
        a.process.send_signal(signal.SIGCONT)
    wait_for_the_fleet(a, "b", "a", "b", "c")  # two of them do not stay
    as_it_was(a, run, before)


def test_a_node_that_nobody_would_find_is_not_made_the_host(fleet: Fleet) -> None:
    node = fleet["b"]
    node.kill(signal.SIGTERM)
    node.launch("--coordinator")
    assert node.process is not None
    assert node.process.wait(TIMEOUT_S) == 78
    assert "error[F309]: b is not in `[fleet] join`" in node.log.read_text()


# --- away for a while --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def untouched(fleet: Fleet, other: str) -> Iterator[None]:
    """Meanwhile another run goes on beside this one, and does not notice."""
    run = Copies(fleet, f"beside-{other}", "fixed")
    before = run.pids()
    yield
    as_it_was(fleet["b"], run, before)
    run.finish()


def away(fleet: Fleet) -> None:
    """The host's supd is killed, and another one starts."""
    fleet.host.kill()
    fleet.host.launch()
    fleet.host.wait_until_ready()


def wait_for_phase(fleet: Fleet, run: str, phase: str) -> Any:
    def look() -> Any:
        status = fleet.host.status(run)
        return status if status["phase"] == phase else None

    return wait_for(f"{run} to be {phase}", look)


def saver(fleet: Fleet, name: str) -> tuple[str, Path]:
    """A run whose ranks take their time to end, and the file that they wait for."""
    until = fleet.folder / f"{name}.until"
    job = fleet.host.job(name, "saver.py", "--until", str(until), nproc=1, tables=SIZES["fixed"] + AT_ONCE)
    run = fleet.host.start_job(job)
    fleet.wait_generation(run, 0)
    return run, until


def noted(fleet: Fleet, name: str, what: str) -> int:
    """How many ranks of generation 0 have noted that."""
    return len(list(fleet.host.folder.glob(f"{what}-{name}-0-*")))


def test_a_start_that_was_accepted_is_carried_out_when_it_is_back(fleet: Fleet) -> None:
    with untouched(fleet, "begun"):
        run = fleet.host.start_job(fleet.job("begun", "sleeper.py"))
        away(fleet)
        fleet.wait_generation(run, 0)
        assert len(fleet.events(run, "generation.launched")) <= 1


def test_a_stop_with_a_long_grace_goes_on_while_it_is_away(fleet: Fleet) -> None:
    with untouched(fleet, "stopped"):
        run, until = saver(fleet, "stopped")
        assert isinstance(ask(fleet["b"].control, StopRun(run=run, grace_s=600)), Done)
        wait_for("all to be asked to end", lambda: noted(fleet, "stopped", "term") == 3)
        away(fleet)
        status = fleet.host.status(run)
        assert (status["state"], noted(fleet, "stopped", "saved")) == ("stopping", 0)
        until.touch()
        assert fleet.host.wait_state(run, "stopped", "failed")["state"] == "stopped"
        assert noted(fleet, "stopped", "saved") == 3, "nobody was ended before it had saved"


def test_a_restart_is_finished_when_it_is_back(fleet: Fleet) -> None:
    with untouched(fleet, "again"):
        run, until = saver(fleet, "again")
        assert isinstance(ask(fleet["b"].control, RestartRun(run=run, reason="")), Done)
        wait_for("all to be asked to end", lambda: noted(fleet, "again", "term") == 3)
        away(fleet)
        assert fleet.host.status(run)["generation"] == 0
        until.touch()
        assert fleet.wait_generation(run, 1)["restarts_used"] == 0
        assert noted(fleet, "again", "saved") == 3


def test_a_run_that_was_forming_forms_when_it_is_back(fleet: Fleet) -> None:
    with untouched(fleet, "forms"):
        fleet["c"].kill(signal.SIGTERM)
        run = fleet.host.start_job(fleet.job("forms", "sleeper.py"))
        wait_for_phase(fleet, run, "forming")
        away(fleet)
        wait_for_phase(fleet, run, "forming")
        fleet["c"].launch()
        fleet.wait_generation(run, 0)


def test_a_generation_that_was_launching_is_launched_once(fleet: Fleet) -> None:
    with untouched(fleet, "slow"):
        tables = f'{SIZES["fixed"]}{AT_ONCE}start_after = "10m"\n'
        run = fleet.host.start_job(command_job(fleet.host, "slow", ["sleep", "3600"], tables=tables))
        wait_for_phase(fleet, run, "launching")
        pids = wait_for("its ranks", lambda: [rank["pid"] for rank in fleet.ranks(run) if rank["pid"]])
        away(fleet)
        status = wait_for_phase(fleet, run, "launching")
        assert status["generation"] == 0
        assert all(map(alive, pids))


def test_while_it_is_away_for_long_training_goes_on_by_the_word_of_its_witnesses(fleet: Fleet) -> None:
    run = Copies(fleet, "alone", "fixed")
    before = run.pids()
    fleet.host.kill()
    until_s = boot_s() + 3 * DEFAULTS.fence_s
    wait_for("leases to be over that nobody prolongs", lambda: boot_s() > until_s)
    assert all(map(alive, before))
    fleet.host.start()
    as_it_was(fleet["b"], run, before)
    run.finish()
    wait_for("nothing to be left", lambda: not survivors(fleet))
