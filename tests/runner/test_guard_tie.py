"""A guard that is tied to suprun: what a runner has started ends with it, and what suprun has left is removed."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.shell import guarding
from tests.runner.processes import end, end_below, is_gone, present, wait_until


class Tied:
    """A guard and a runner that reads its input to the end; we are their suprun."""

    def __init__(self, incarnation: str, folder: Path) -> None:
        self.folders = [folder / "state", folder / "output"]
        for made in self.folders:
            made.mkdir()
        tie_fd, self._end = os.pipe()
        lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
        options = guarding.guard_options(incarnation, lock_fd, None, guarding.Tie(tie_fd, *map(str, self.folders)))
        self.guard = subprocess.Popen(
            guarding.guard_argv(options, ["/bin/sh", "-c", "echo $$; read line"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(lock_fd, tie_fd),
        )
        os.close(tie_fd)
        os.close(lock_fd)
        assert self.guard.stdout is not None
        self.runner = present(int(self.guard.stdout.readline()))

    def end_suprun(self) -> None:
        """The kernel closes what suprun has."""
        os.close(self._end)
        self._end = -1

    def end_runner(self) -> None:
        """It has ended when this returns."""
        assert self.guard.stdin is not None
        self.guard.stdin.close()
        self.guard.stdin = None
        wait_until(lambda: is_gone(self.runner))

    def stop_guard(self) -> None:
        """It has stopped when this returns."""
        self.guard.send_signal(signal.SIGSTOP)
        wait_until(lambda: present(self.guard.pid).state == "T")

    def assert_nothing_is_left(self) -> None:
        """The guard has ended in order, and all else is gone."""
        assert self.guard.wait(15) == 0
        assert is_gone(self.runner)
        assert not any(folder.exists() for folder in self.folders)

    def close(self) -> None:
        """End both."""
        if self.guard.poll() is None:
            end_below(present(self.guard.pid))
        end([self.runner])
        self.guard.kill()
        self.guard.communicate(timeout=15)
        if self._end >= 0:
            os.close(self._end)


@pytest.fixture
def tied(incarnation: str, tmp_path: Path) -> Iterator[Tied]:
    """Both are there."""
    tied = Tied(incarnation, tmp_path)
    yield tied
    tied.close()


def test_when_suprun_has_ended_its_runner_is_killed_and_its_folders_are_removed(tied: Tied) -> None:
    tied.end_suprun()
    tied.assert_nothing_is_left()


def test_the_folders_are_removed_as_well_where_runner_and_suprun_have_ended_together(tied: Tied) -> None:
    tied.stop_guard()  # so that it sees both at once
    tied.end_runner()
    tied.end_suprun()
    tied.guard.send_signal(signal.SIGCONT)
    tied.assert_nothing_is_left()


def test_the_folders_of_a_suprun_that_lives_stay_when_a_runner_has_ended(tied: Tied) -> None:
    tied.end_runner()
    assert tied.guard.wait(15) == 0
    assert all(folder.exists() for folder in tied.folders)
