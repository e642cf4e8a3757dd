"""supd, runner or guard die, or supd is replaced: training does not notice, and what happened meanwhile is told."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.supd import Supd, alive, running_supd, wait_for

SHORT_WAITS = '[workers]\nlinger = "0.3s"\norphan_wait = "2s"\n'


def pids(supd: Supd, run: str) -> dict[int, int]:
    return {r["rank"]: r["pid"] for r in supd.ranks(run)}


def at_generation(supd: Supd, run: str, generation: int) -> Any:
    """Wait until the run runs at this generation; returns its status."""

    def look() -> Any:
        status = supd.status(run)
        return status if (status["generation"], status["state"]) == (generation, "running") else None

    return wait_for(f"{run} to run at generation {generation}", look)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def sleeps_in_poll(pid: int) -> bool:
    """Whether it waits in poll(2); where the kernel does not tell in what, whether it waits."""
    where = Path(f"/proc/{pid}/wchan").read_text()
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "poll" in where or (where in ("", "0") and state == "S")


def deserters(supd: Supd, name: str, how: str) -> tuple[str, list[int]]:
    """A running job whose one rank has left two processes in sessions of their own; and the pids of all three."""
    notes = supd.folder / "pids"
    run = supd.start_job(supd.job(name, "deserters.py", str(notes), how, nproc=1))
    supd.wait_state(run, "running")
    return run, [int(line) for line in notes.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_supd_ends_alone_and_the_next_one_finds_the_run_as_it_is(supd: Supd, number: int) -> None:
    run = supd.start_job(supd.job("train", "sleeper.py"))
    supd.wait_state(run, "running")
    before = pids(supd, run)
    supd.kill(number)
    assert supd.process is not None
    assert supd.process.returncode == (0 if number == signal.SIGTERM else -number)
    assert all(alive(pid) for pid in before.values())
    supd.start()
    status = supd.wait_state(run, "running")
    assert (status["generation"], status["restarts_used"], status["incident"]) == (0, 0, None)
    wait_for("the runner to report", lambda: pids(supd, run) == before)
    assert f"pid {before[0]}" in supd.supctl("logs", run, "--no-prefix").stdout
    supd.supctl("stop", run)
    assert supd.status(run)["state"] == "stopped"
    assert supd.survivors() == []


def test_a_rank_that_fails_while_supd_is_away_stops_the_rest_at_once_and_restarts_it_later(supd: Supd) -> None:
    run = supd.start_job(supd.job("train", "sleeper.py"))
    supd.wait_state(run, "running")
    before = pids(supd, run)
    supd.kill()
    os.kill(before[1], signal.SIGKILL)
    wait_for("rank 0 to be stopped without supd", lambda: not alive(before[0]))
    supd.start()
    status = at_generation(supd, run, 1)
    incident = status["incident"]
    assert status["restarts_used"] == 1
    assert (incident["cause"], incident["signal"], incident["generation"]) == ("signal", "SIGKILL", 0)
    assert (incident["rank"], incident["pid"]) == (1, before[1])
    assert not set(pids(supd, run).values()) & set(before.values())


@pytest.mark.parametrize(("codes", "state"), [("", "succeeded"), ("1 3\n", "failed")])
def test_a_job_that_ended_unseen_is_told_truly_when_its_runner_is_long_gone(
    short_dir: Path, codes: str, state: str
) -> None:
    with running_supd(short_dir, config=SHORT_WAITS) as supd:
        go = short_dir / "go"
        run = supd.start_job(supd.job("train", "until.py", str(go), tables='[restart]\npolicy = "never"\n'))
        supd.wait_state(run, "running")
        before = pids(supd, run)
        supd.kill()
        draft = short_dir / "draft"
        draft.write_text(codes)
        draft.rename(go)
        wait_for("the runner to end", lambda: not supd.runner_pids() and not supd.guard_pids())
        supd.start()
        status = supd.wait_state(run, "succeeded", "failed")
        assert status["state"] == state
        assert (status["incident"] is not None) == (state == "failed")
        told = [(r["rank"], r["pid"], r["exit_code"]) for r in supd.ranks(run)]
        assert (1, before[1], 3 if codes else 0) in told
        if state == "failed":
            assert (status["incident"]["exit_code"], status["incident"]["stderr_tail"]) == (3, ["rank 1 ends now"])
        supd.kill()
        supd.start()
        assert [(r["rank"], r["pid"], r["exit_code"]) for r in supd.ranks(run)] == told


@pytest.mark.parametrize("is_supd_away", [False, True])
def test_a_runner_that_is_killed_leaves_nothing_behind_and_the_next_generation_is_not_charged(
    supd: Supd, is_supd_away: bool
) -> None:
    run, tree = deserters(supd, "train", "clear")
    assert len(tree) == 3
    runner = parent_of(pids(supd, run)[0])
    if is_supd_away:
        supd.kill()
    os.kill(runner, signal.SIGKILL)
    wait_for("everything to be gone", lambda: not any(map(alive, tree)))
    if is_supd_away:
        supd.start()
    status = at_generation(supd, run, 1)
    assert (status["restarts_used"], status["incident"]["cause"]) == (0, "runner-lost")


def test_a_guard_that_is_killed_is_replaced_and_training_does_not_notice(supd: Supd) -> None:
    run, tree = deserters(supd, "train", "clear")
    runner = parent_of(tree[0])
    guard = parent_of(runner)
    os.kill(guard, signal.SIGKILL)

    def replacement() -> int | None:
        return next((pid for pid in supd.guard_pids() if pid != guard and parent_of(pid) == runner), None)

    new_guard = wait_for("another guard", replacement)
    assert all(map(alive, tree))
    assert (supd.status(run)["generation"], supd.status(run)["state"]) == (0, "running")
    wait_for("the new guard to watch", lambda: sleeps_in_poll(new_guard))
    os.kill(runner, signal.SIGKILL)
    wait_for("everything to be gone", lambda: not any(map(alive, tree)))
    at_generation(supd, run, 1)


def test_when_runner_and_guard_are_killed_at_once_supd_sweeps(supd: Supd) -> None:
    run, tree = deserters(supd, "train", "keep")
    runner = parent_of(tree[0])
    os.kill(parent_of(runner), signal.SIGKILL)
    os.kill(runner, signal.SIGKILL)
    wait_for("everything to be gone", lambda: not any(map(alive, tree)))
    status = at_generation(supd, run, 1)
    assert (status["restarts_used"], status["incident"]["cause"]) == (0, "runner-lost")


def test_what_is_left_when_all_three_are_killed_is_swept_by_the_next_supd(supd: Supd) -> None:
    run, tree = deserters(supd, "train", "keep")
    runner = parent_of(tree[0])
    guard = parent_of(runner)
    supd.kill()
    for pid in (guard, runner):
        os.kill(pid, signal.SIGKILL)
    wait_for("the rank to follow its runner", lambda: not alive(tree[0]))
    supd.start()
    wait_for("everything to be gone", lambda: not any(map(alive, tree)))
    at_generation(supd, run, 1)


def test_a_ready_runner_is_there_and_gets_the_next_run(supd: Supd) -> None:
    (ready,) = wait_for("a ready runner", lambda: supd.runner_pids() or None)
    run = supd.start_job(supd.job("train", "sleeper.py", nproc=1))
    supd.wait_state(run, "running")
    assert parent_of(pids(supd, run)[0]) == ready
    wait_for("another ready runner", lambda: len(supd.runner_pids()) == 2)


def test_ready_runners_end_with_their_supd_and_the_next_one_sweeps_what_they_left(supd: Supd) -> None:
    locks = wait_for("a ready runner", lambda: list((supd.state / "runners").glob("*.lock")))
    groups = [Path(text) for lock in locks if (text := lock.read_text()) != "-"]
    assert all(group.is_dir() for group in groups)
    supd.kill()
    supd.start()  # at once: the old one may still be on its way out
    wait_for("its files to be swept", lambda: not any(lock.exists() for lock in locks))
    assert not any(group.exists() for group in groups)
    wait_for("one ready runner", lambda: len(supd.runner_pids()) == 1 and len(supd.guard_pids()) == 1)


def test_a_copy_of_the_state_folder_touches_nothing_of_the_original_and_begins_no_second_generation(
    supd: Supd, short_dir: Path
) -> None:
    run = supd.start_job(supd.job("train", "sleeper.py"))
    supd.wait_state(run, "running")
    before = pids(supd, run)
    supd.kill()
    (short_dir / "copy").mkdir()
    copy = Supd(short_dir / "copy")
    shutil.copytree(supd.state, copy.state)
    try:
        for _ in range(2):
            copy.start()
            wait_for("it to miss the runner", lambda: "the runner on" in (copy.status(run)["waiting_for"] or ""))
            assert all(alive(pid) for pid in before.values())
            copy.kill()
    finally:
        if copy.process is not None and copy.process.poll() is None:
            copy.kill()
        copy.close()
    assert copy.log.read_text().count("state_copied") == 1
    supd.start()
    wait_for("the runner to report", lambda: pids(supd, run) == before)
    assert supd.status(run)["generation"] == 0
