"""torchrun's options, each with a real launch: what they say is what the ranks get, and what is shown of them."""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.suprun import FOR_EVER, Launches, launching, worker

LAUNCHED = worker("launched")

TELLS = """
import os, sys
named = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "ROLE_NAME", "CUDA_VISIBLE_DEVICES", "TORCHELASTIC_SIGNALS_TO_HANDLE")
line = " ".join(f"{name}={os.environ.get(name)}" for name in named)
sys.stdout.write(f"out {os.environ['RANK']} {line} {sys.argv[1:]}\\n")
sys.stderr.write(f"err {os.environ['RANK']} of it\\n")
"""

DEAF = """
import os, pathlib, signal, sys, time
is_deaf = pathlib.Path("is-deaf")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "0":
        signal.signal(signal.SIGTERM, lambda *_: print("deaf", flush=True))
        is_deaf.touch()
    while os.environ["RANK"] == "0" or not is_deaf.exists():
        time.sleep(0.01)
    sys.exit(3)
print("again", flush=True)
"""


@pytest.fixture
def suprun(short_dir: Path) -> Iterator[Launches]:
    """Starts suprun, in a folder with the script `tells.py`."""
    (short_dir / "tells.py").write_text(TELLS)
    with launching(short_dir) as launches:
        yield launches


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "tells"),
        ("--run-path", "tells.py"),
        ("--no-python", "./tells.sh"),
        ("--run_path", "-m", "--no_python", "tells.py"),
    ],
)
def test_a_script_is_a_file_a_module_or_a_program_of_its_own(suprun: Launches, words: Sequence[str]) -> None:
    program = suprun.folder / "tells.sh"
    program.write_text('#!/bin/sh\nexec python3 tells.py "$@"\n')
    program.chmod(0o755)
    launch = suprun("--standalone", *words, "--lr", "a b", env={"PYTHONPATH": str(suprun.folder)})
    assert launch.end() == 0
    assert "['--lr', 'a b']" in launch.text


@pytest.mark.parametrize("word", ["auto", "cpu"])
def test_without_an_accelerator_there_is_a_rank_for_each_cpu(suprun: Launches, word: str) -> None:
    cpu = min(os.sched_getaffinity(0))
    launch = suprun("--standalone", "--nproc-per-node", word, "tells.py", argv=("taskset", "-c", str(cpu)))
    assert launch.end() == 0
    assert re.findall("LOCAL_WORLD_SIZE=([0-9]+)", launch.text) == ["1"]


def test_gpu_wants_an_accelerator_and_has_a_rank_for_each(suprun: Launches) -> None:
    devices = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    launch = suprun("--standalone", "--nproc-per-node=gpu", "tells.py", env=devices)
    assert launch.end() == 0
    assert re.findall("LOCAL_WORLD_SIZE=([0-9]+)", launch.text) == ["2", "2"]
    launch = suprun("--standalone", "--nproc-per-node=gpu", "tells.py", env={"CUDA_VISIBLE_DEVICES": ""})
    assert launch.end() != 0
    assert "suprun: error[F202]" in launch.text


def test_role_and_signals_are_told_to_the_ranks(suprun: Launches) -> None:
    launch = suprun("--standalone", "--role=trainer", "--signals-to-handle=SIGUSR1,SIGTERM", "tells.py")
    assert launch.end() == 0
    assert "ROLE_NAME=trainer " in launch.text
    assert "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGUSR1,SIGTERM " in launch.text


def test_with_a_virtual_local_rank_each_rank_sees_one_device_and_is_the_first(suprun: Launches) -> None:
    words = ("--standalone", "--virtual-local-rank", "--nproc-per-node=2", "tells.py")
    launch = suprun(*words, env={"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"})
    assert launch.end() == 0
    found = re.findall("out ([01]) LOCAL_RANK=0 .*CUDA_VISIBLE_DEVICES=(GPU-.)", launch.text)
    assert sorted(found) == [("0", "GPU-a"), ("1", "GPU-b")]


def test_a_signal_that_is_to_be_handled_stops_the_job(suprun: Launches) -> None:
    launch = suprun("--standalone", "--signals-to-handle=SIGUSR1", LAUNCHED, "sleep", "usr1")
    launch.wait_for("up RANK")
    launch.signal(signal.SIGUSR1)
    assert launch.end() == 128 + signal.SIGUSR1
    assert "warned" not in launch.text


def test_a_signal_that_is_not_to_be_handled_ends_suprun_and_nothing_is_left(suprun: Launches) -> None:
    launch = suprun("--standalone", "--signals-to-handle=SIGUSR1", LAUNCHED, "sleep", "family")
    launch.wait_for("up RANK")
    launch.signal(signal.SIGTERM)
    assert launch.end() == -signal.SIGTERM
    launch.wait_until_nothing_is_left()


@pytest.mark.parametrize(
    ("words", "env"), [(("--shutdown-timeout=1",), FOR_EVER), ((), {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"})]
)
def test_the_shutdown_timeout_is_honoured_where_a_signal_stops_the_job(
    suprun: Launches, words: Sequence[str], env: dict[str, str]
) -> None:
    launch = suprun("--standalone", *words, LAUNCHED, "sleep", "deaf", env=env)
    launch.wait_for("up RANK")
    launch.signal(signal.SIGTERM)
    launch.wait_for("deaf 0")
    assert launch.end() == 143
    assert "SIGKILL in 1 s" in launch.text


def test_the_shutdown_timeout_is_honoured_at_a_restart(suprun: Launches) -> None:
    """Where torchrun waits for 30 s."""
    (suprun.folder / "deaf.py").write_text(DEAF)
    words = ("--standalone", "--shutdown-timeout=1", "--nproc-per-node=2", "--max-restarts=1", "deaf.py")
    launch = suprun(*words, env=FOR_EVER)
    launch.wait_for("deaf")
    assert launch.end() == 0
    assert launch.text.count("again") == 2


def shown(text: str) -> list[str]:
    """`out 0`, `err 1`: what of which rank is on the console."""
    return sorted(re.findall("(?:out|err) [01]", text))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--redirects=0:3",), ["err 1", "out 1"]),
        (("-r", "0:1,1:2"), ["err 0", "out 1"]),
        (("--redirects=3", "--tee=0:3"), ["err 0", "out 0"]),
        (("--local-ranks-filter=0", "--tee", "3"), ["err 0", "out 0"]),
        (("-r", "3"), []),
    ],
)
def test_what_goes_to_files_is_not_shown_but_what_is_teed(
    suprun: Launches, words: Sequence[str], wanted: list[str]
) -> None:
    launch = suprun("--standalone", "--nproc-per-node=2", "--log-dir=logs", *words, "tells.py")
    assert launch.end() == 0
    assert shown(launch.text) == wanted
    files = sorted(launch.folder.glob("logs/*/attempt_0/*/std*.log"))
    assert shown("".join(file.read_text() for file in files)) == ["err 0", "err 1", "out 0", "out 1"]


def test_lines_of_errors_with_a_word_of_a_filter_have_a_file_of_their_own(suprun: Launches) -> None:
    words = ("--duplicate-stderr-filters=err 1,none", "--duplicate-stdout-filters=no such", "--nproc-per-node=2")
    launch = suprun("--standalone", "--log-dir=logs", *words, "tells.py")
    assert launch.end() == 0
    (copied,) = launch.folder.glob("logs/*/attempt_0/filtered_std*.log")
    assert copied.name == "filtered_stderr.log"
    assert re.fullmatch("[^ ]+:1 [│|] err 1 of it\n", copied.read_text())


@pytest.mark.parametrize("mode", ["node", "socket", "exclusive", "core-complex"])
def test_ranks_without_a_gpu_cannot_be_bound_to_cpus_near_it_and_are_refused_at_once(
    suprun: Launches, mode: str
) -> None:
    """torchrun raises there, and starts nothing either."""
    words = ("--standalone", f"--numa-binding={mode}", "--nproc-per-node=2", "tells.py")
    launch = suprun(*words, env={"CUDA_VISIBLE_DEVICES": ""})
    assert launch.end() != 0
    assert (
        "suprun: error[F213]: ranks cannot be bound to the CPUs near their GPUs: local rank 0 has no GPU" in launch.text
    )
    assert "out 0" not in launch.text
