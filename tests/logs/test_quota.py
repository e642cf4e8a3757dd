"""supervisor/logs/quota.py: real files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.logs import marks
from supervisor.logs.quota import FORGOTTEN_AFTER_S, Limits, Quota, Tidied

NOW_S = 2_000_000_000.0
KIB = 1 << 10
OWN = marks.owner("n1", Path("/state"))
NO_LIMITS = Limits(None, 0, 0.0)


def output(
    logs_dir: Path, run: str, kib: int, *, ended_s: float | None = None, changed_s: float = NOW_S, owner: str = OWN
) -> Path:
    """The folder of a run that has written so much, and ended then."""
    folder = logs_dir / run
    generation = folder / "gen-0000"
    generation.mkdir(parents=True)
    (generation / "rank-00000.out").write_bytes(b"x" * kib * KIB)
    marks.begin(folder, owner)
    if ended_s is not None:
        marks.end(folder, owner)
    for path in folder.rglob("*"):
        os.utime(path, (ended_s or changed_s,) * 2)
    return folder


def tidied(quota: Quota, is_live: Callable[[str], bool] = lambda _run: False) -> Tidied:
    done = quota.tidy(is_live, NOW_S)
    assert done is not None
    return done


@pytest.fixture
def logs_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "state" / "logs"
    folder.mkdir(parents=True)
    return folder


def quota(logs_dir: Path, limits: Limits) -> Quota:
    return Quota(logs_dir.parent, logs_dir, limits, OWN)


def test_output_of_the_oldest_finished_runs_goes_first_and_no_more_than_need_be(logs_dir: Path) -> None:
    for run, ended_s in (("a@3", 30.0), ("b@1", 10.0), ("c@2", 20.0), ("d@4", 40.0)):
        output(logs_dir, run, 100, ended_s=ended_s)
    done = tidied(quota(logs_dir, Limits(250 * KIB, 0, 0.0)))
    assert (done.removed, done.is_over) == (("b@1", "c@2"), False)
    assert sorted(os.listdir(logs_dir)) == ["a@3", "d@4"]
    assert 200 * KIB <= done.used_bytes <= 250 * KIB


def test_what_is_live_and_what_has_ended_last_stays_and_that_is_told(logs_dir: Path) -> None:
    output(logs_dir, "live@1", 100, ended_s=1.0)  # another runner has begun since
    output(logs_dir, "old@2", 100, ended_s=2.0)
    output(logs_dir, "last@3", 100, ended_s=3.0)
    done = tidied(quota(logs_dir, Limits(50 * KIB, 0, 0.0)), lambda run: run == "live@1")
    assert (done.removed, done.is_over) == (("old@2",), True)
    assert sorted(os.listdir(logs_dir)) == ["last@3", "live@1"]


def test_a_run_that_was_cut_off_counts_as_finished_once_it_is_forgotten(logs_dir: Path) -> None:
    output(logs_dir, "last@1", 1, ended_s=NOW_S)
    output(logs_dir, "recent@2", 100, changed_s=NOW_S - FORGOTTEN_AFTER_S + 60)
    output(logs_dir, "forgotten@3", 100, changed_s=NOW_S - FORGOTTEN_AFTER_S - 60)
    done = tidied(quota(logs_dir, Limits(10 * KIB, 0, 0.0)))
    assert (done.removed, done.is_over) == (("forgotten@3",), True)


def test_in_a_folder_that_several_supd_share_each_removes_its_own(logs_dir: Path) -> None:
    other = marks.owner("n1", Path("/other/state"))
    assert other != OWN
    output(logs_dir, "theirs@1", 100, ended_s=1.0, owner=other)
    output(logs_dir, "forgotten@1", 100, changed_s=1.0, owner=other)
    for run in ("both@2", "ended@3"):
        marks.begin(output(logs_dir, run, 100, ended_s=2.0), other)
    marks.end(logs_dir / "ended@3", other)
    marks.begin(output(logs_dir, "cut@4", 100, changed_s=1.0), other)
    (logs_dir / "unmarked@5").mkdir()
    output(logs_dir, "last@6", 1, ended_s=6.0)
    done = tidied(quota(logs_dir, Limits(1 * KIB, 0, 0.0)))
    assert (done.removed, done.is_over) == (("ended@3",), True)


def test_what_else_the_state_folder_holds_counts_and_stays(logs_dir: Path) -> None:
    (logs_dir.parent / "journal.db").write_bytes(b"x" * 100 * KIB)
    (logs_dir / "mine").mkdir()
    (logs_dir / "notes.txt").write_text("x")
    elsewhere = logs_dir.parents[1] / "elsewhere"
    output(elsewhere, "linked@1", 100, ended_s=1.0)
    (logs_dir / "linked@1").symlink_to(elsewhere / "linked@1")
    for run in (1, 2):
        output(logs_dir, f"a@{run}", 100, ended_s=float(run))
    done = tidied(quota(logs_dir, Limits(50 * KIB, 0, 0.0)))
    assert (done.removed, done.is_over) == (("a@1",), True)
    assert sorted(os.listdir(logs_dir)) == ["a@2", "linked@1", "mine", "notes.txt"]
    assert (elsewhere / "linked@1" / "gen-0000" / "rank-00000.out").exists()


def test_output_on_another_disk_counts_as_well(logs_dir: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "scratch"
    for run in (1, 2):
        output(elsewhere, f"a@{run}", 100, ended_s=float(run))
    done = tidied(Quota(logs_dir.parent, elsewhere, Limits(150 * KIB, 0, 0.0), OWN))
    assert (done.removed, done.is_over) == (("a@1",), False)


@pytest.mark.parametrize("limits", [Limits(None, 1 << 60, 0.0), Limits(None, 0, 100.0)])
def test_a_disk_that_is_too_full_is_made_room_on(logs_dir: Path, limits: Limits) -> None:
    for run in (1, 2, 3):
        output(logs_dir, f"a@{run}", 1, ended_s=float(run))
    done = tidied(quota(logs_dir, limits))
    assert (done.removed, done.is_over) == (("a@1", "a@2"), True)
    assert done.free_bytes > 0


def test_without_limits_nothing_goes(logs_dir: Path) -> None:
    for run in (1, 2):
        output(logs_dir, f"a@{run}", 100, ended_s=float(run))
    done = tidied(quota(logs_dir, NO_LIMITS))
    assert (done.removed, done.is_over) == ((), False)


def test_somebody_who_makes_room_by_hand_saves_the_others(logs_dir: Path) -> None:
    folders = [output(logs_dir, f"a@{run}", 100, ended_s=float(run)) for run in (1, 2, 3)]
    looked = quota(logs_dir, Limits(350 * KIB, 0, 0.0))
    assert tidied(looked).removed == ()
    (folders[1] / "gen-0000" / "rank-00000.out").unlink()
    output(logs_dir, "b@4", 100, ended_s=4.0)
    assert tidied(looked).removed == ()


def test_what_a_killed_supd_has_left_half_removed_goes(logs_dir: Path) -> None:
    output(logs_dir, ".gone-a@1", 100)
    tidied(quota(logs_dir, NO_LIMITS))
    assert os.listdir(logs_dir) == []


def test_two_looks_at_once_are_one(logs_dir: Path) -> None:
    output(logs_dir, "a@1", 1)
    again: list[Tidied | None] = []
    looked = quota(logs_dir, NO_LIMITS)

    def is_live(_run: str) -> bool:
        again.append(looked.tidy(lambda _run: True, NOW_S))
        return True

    assert looked.tidy(is_live, NOW_S) is not None
    assert set(again) == {None}
