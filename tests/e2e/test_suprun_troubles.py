"""suprun where something is in its way: one clear line each, and never a traceback."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.front.console import STDERR, Console
from tests.e2e.supd import TIMEOUT_S, wait_for
from tests.e2e.suprun import Launches, worker

LAUNCHED = worker("launched")
STUB = Path(__file__).parents[2] / "supervisor" / "bin" / "suprun"


FAILS = ("--standalone", "--no-python", "sh", "-c", "echo why >&2; exit 7")


def test_the_last_errors_of_a_rank_are_shown_where_they_went_to_a_file(suprun: Launches) -> None:
    launch = suprun("--redirects=3", "--log-dir=logs", *FAILS)
    assert launch.end() == 7
    (path,) = launch.folder.glob("logs/*/attempt_0/0/stderr.log")
    assert path.read_text() == "why\n"
    assert launch.text.endswith(
        f"suprun: the last lines of rank 0's errors:\nsuprun:   why\nsuprun: {path} has all of them\n"
    )


def test_errors_that_were_shown_are_not_shown_again(suprun: Launches) -> None:
    launch = suprun(*FAILS)
    assert launch.end() == 7
    assert launch.text.count("why\n") == 1


def test_output_that_is_redirected_to_nowhere_is_told(suprun: Launches) -> None:
    launch = suprun("--redirects=1", "--standalone", "--no-python", "echo", "hello")
    assert launch.end() == 0
    assert launch.text == "suprun: --redirects without --log-dir: what it names is neither shown nor kept\n"


@pytest.mark.parametrize(("kind", "what"), [("file", "is a file, and no folder"), ("open", "is open to others")])
def test_a_temporary_folder_that_is_not_ours_is_one_error(
    suprun: Launches, short_dir: Path, kind: str, what: str
) -> None:
    own = short_dir / f"supd-{os.getuid()}"
    if kind == "file":
        own.touch()
    else:
        own.mkdir()
        own.chmod(0o777)
    launch = suprun("--standalone", LAUNCHED, env={"TMPDIR": str(short_dir)})
    assert launch.end() == 1
    error, mend = launch.text.splitlines()
    assert error.startswith(f"suprun: error[C014]: {own} {what}")
    assert mend == "  = export TMPDIR=FOLDER, one of your own"


def test_a_current_folder_that_is_gone_is_one_error(suprun: Launches) -> None:
    launch = suprun.shell(f"mkdir gone && cd gone && rmdir ../gone && exec suprun --standalone {LAUNCHED}")
    assert launch.end() == 78
    assert launch.text.startswith("suprun: error[C014]: the current folder is gone: ")


def test_a_disk_that_is_full_is_told_once_and_the_job_goes_on(suprun: Launches) -> None:
    launch = suprun.shell(f"suprun --standalone {LAUNCHED} > /dev/full")
    assert launch.end() == 0
    assert launch.text == "suprun: standard output: No space left on device: the job goes on, its output is lost\n"


def test_output_that_the_disk_does_not_take_is_told(suprun: Launches) -> None:
    writer = "head -c 3000000 /dev/zero"
    launch = suprun.shell(f"ulimit -f 1000; suprun --standalone --no-python {writer} | wc -c")
    assert launch.end() == 0
    (told,) = launch.wait_for("suprun: (.*); the job goes on")
    assert re.fullmatch("output is lost, and not shown: /.*-output: File too large", told)


def test_a_reader_that_has_gone_is_told_of_and_the_job_goes_on(suprun: Launches) -> None:
    writer = "while [ ! -e told ]; do echo y; sleep 0.05; done; echo well >&2"
    launch = suprun.shell(f"suprun --standalone --no-python sh -c '{writer}' | true")
    launch.wait_for("standard output: Broken pipe: the job goes on")
    (launch.folder / "told").touch()
    assert launch.end() == 0
    assert launch.text.endswith("lost\nwell\n")


def test_ctrl_c_while_suprun_loads_is_no_traceback(tmp_path: Path) -> None:
    folder = tmp_path / "supervisor" / "front"
    folder.mkdir(parents=True)
    for file in (folder.parent / "__init__.py", folder / "__init__.py", folder / "app.py"):
        file.write_text("raise KeyboardInterrupt\n" if file.name == "app.py" else "")
    code = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_path({str(STUB)!r})"
    result = subprocess.run([sys.executable, "-E", "-P", "-c", code], capture_output=True, timeout=TIMEOUT_S)
    assert (result.returncode, result.stderr) == (128 + signal.SIGINT, b"")


def test_a_kind_of_device_that_is_not_there_is_one_error(suprun: Launches) -> None:
    launch = suprun("--nproc-per-node=gpu", LAUNCHED, env={"CUDA_VISIBLE_DEVICES": ""})
    assert launch.end() == 78
    assert launch.text.splitlines()[1] == "  = --nproc-per-node=NUMBER, or auto, or cpu"


async def test_a_countdown_gives_way_to_what_is_shown_next(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.show("SIGKILL in 30 s")
    console.put(STDERR, b"saved\n")
    await console.is_stuck(TIMEOUT_S)
    line = "suprun: SIGKILL in 30 s"
    assert capfd.readouterr().err == f"{line}\r{' ' * len(line)}\rsaved\n"


def test_a_node_more_than_the_job_takes_says_that_it_waits(suprun: Launches) -> None:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    words = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", LAUNCHED, "sleep")
    nodes = [suprun(*words) for _ in range(3)]
    wait_for("the third one to say so", lambda: [n for n in nodes if "this one waits, as a spare" in n.text])
    wait_for("the ranks", lambda: sum(n.text.count("up RANK") for n in nodes) == 2)
    for launch in nodes:
        assert ("as a spare" in launch.text) != ("up RANK" in launch.text)
        launch.signal(signal.SIGTERM)
