"""Heartbeats between a real supd and real workers: the page a rank is given, and what `import supd` finds."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from supervisor.shell import tree
from supervisor.worker import page
from tests.e2e.jobs import command_job, finished, output
from tests.e2e.supd import Supd, wait_for

PYTHON = os.path.realpath(sys.executable)
"""Without the site packages of this environment, in which supd may be installed."""

WHOSE = "WHOSE = 'the user'\n"
"""A module of the user's own, by one of our names."""


def pages_of(supd: Supd, run: str, generation: int = 0) -> list[Path]:
    """The files that its two ranks say they beat into."""

    def told() -> list[Path] | None:
        with contextlib.suppress(FileNotFoundError):
            lines = [output(supd, run, rank, generation=generation) for rank in range(2)]
            if all(line.endswith(b"\n") for line in lines):
                return [Path(os.fsdecode(line.strip())) for line in lines]
        return None

    return wait_for("both ranks to beat", told)


def test_each_generation_has_pages_of_its_own_and_nothing_is_left_of_them_at_the_end(supd: Supd) -> None:
    run = supd.start_job(supd.job("beats", "beater.py", nproc=2))
    old = pages_of(supd, run)
    beats = [page.read(path.read_bytes()) for path in old]
    pids = {rank["rank"]: rank["pid"] for rank in supd.ranks(run)}
    assert [(b.count, b.step, b.pid) for b in beats if b] == [(1, 0, pids[rank]) for rank in range(2)]
    os.kill(pids[1], signal.SIGKILL)
    wait_for("generation 1", lambda: supd.status(run)["generation"] == 1)
    new = pages_of(supd, run, generation=1)
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in new)
    supd.supctl("stop", run)
    wait_for("the runner to end", lambda: not new[0].parent.exists())


def test_a_runner_that_is_killed_leaves_no_pages_behind(supd: Supd) -> None:
    run = supd.start_job(supd.job("beats", "beater.py", nproc=2))
    (folder,) = {path.parent for path in pages_of(supd, run)}
    rank = tree.look(supd.ranks(run)[0]["pid"])
    assert rank is not None
    os.kill(rank.ppid, signal.SIGKILL)
    wait_for("supd to clear up", lambda: not folder.exists())
    supd.supctl("stop", run, check=False)


def test_import_supd_works_in_an_environment_without_it(supd: Supd) -> None:
    status, _ = finished(
        supd, command_job(supd, "bare", [PYTHON, "-c", "import supd; supd.beat(1); print(supd.__file__)"]), "succeeded"
    )
    found = Path(output(supd, status["run"]).decode().strip())
    assert found.is_relative_to(supd.state / "runs")


def test_import_supd_works_beside_a_users_own_modules_of_our_names(supd: Supd) -> None:
    (supd.folder / "protocol.py").write_text(WHOSE)
    (supd.folder / "supervisor").mkdir()
    (supd.folder / "supervisor/__init__.py").write_text(WHOSE)
    program = "import protocol, supervisor, supd; supd.beat(1); print(protocol.WHOSE, supervisor.WHOSE, supd.__name__)"
    (supd.folder / "train.py").write_text(program)
    status, _ = finished(supd, command_job(supd, "beside", [PYTHON, "train.py"]), "succeeded")
    assert output(supd, status["run"]) == b"the user the user supd\n"


@pytest.mark.parametrize("where", ["beside the script", "in PYTHONPATH"])
def test_a_users_own_supd_comes_first(supd: Supd, where: str) -> None:
    (supd.folder / "train.py").write_text("import supd\nprint(supd.WHOSE)\n")
    folder = supd.folder if where == "beside the script" else supd.folder / "lib"
    folder.mkdir(exist_ok=True)
    (folder / "supd.py").write_text(WHOSE)
    run = "" if where == "beside the script" else f"env = {{ PYTHONPATH = {json.dumps(str(folder))} }}"
    status, _ = finished(supd, command_job(supd, "own", [PYTHON, "train.py"], run=run), "succeeded")
    assert output(supd, status["run"]) == b"the user\n"
