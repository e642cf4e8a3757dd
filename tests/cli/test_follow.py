"""supervisor/cli/follow.py: a wait is told, and not told over and over."""

import io

import pytest

from supervisor.cli import follow
from supervisor.cli.client import SILENT_S
from supervisor.cli.follow import WaitLine
from supervisor.cli.screen import Screen
from tests.cli.conftest import a_run


def told(waits: list[tuple[float, str]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a pipe, where a run waits for these things so many seconds after the first line."""
    now_s = 0.0
    monkeypatch.setattr(follow, "boot_s", lambda: now_s)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    line = WaitLine(Screen(io.TextIOWrapper(io.BytesIO()), err, {"LANG": "en_US.UTF-8"}))
    line.show(a_run())
    for at_s, what in waits:
        now_s = SILENT_S + at_s
        line.show(a_run(waiting_for=what))
    err.seek(0)
    return err.read().splitlines()


def test_a_wait_of_which_only_numbers_change_is_told_again_after_30_s_and_then_each_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = [(float(s), f"the runner on n2 (silent for {s} s) to report") for s in range(200)]
    lines = told(waits, monkeypatch)
    assert [line.partition("silent for ")[2].split()[0] for line in lines] == ["0", "30", "90", "150"]


@pytest.mark.parametrize("name", ["n{}", "gpu-{}", "10.0.0.{}", "hello@{}"])
def test_a_number_in_a_name_is_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [(float(number), f"the runner on {name.format(number)} (silent for 6 s) to report") for number in (1, 2)]
    assert len(told(waits, monkeypatch)) == 2


def test_numbers_that_stand_alone_count_for_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told([(1.0, "3 of 4 ranks to end"), (2.0, "1,024 of 4 ranks to end")], monkeypatch) == [
        "… waiting for 3 of 4 ranks to end"
    ]
