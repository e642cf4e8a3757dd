"""The training of docs/heartbeat.md that saves when it is asked to, run as it stands."""

import re
from collections.abc import Callable
from pathlib import Path

from supervisor.worker.page import Beat
from tests.worker.conftest import Run

DOCS = Path(__file__).parents[2] / "docs/heartbeat.md"
AROUND = """
last = 100

def train(step):
    if step == 7:
        os.kill(os.getpid(), signal.SIGUSR1)

def save(step):
    print("saved", step)
"""


def test_the_documented_training_saves_and_answers_when_it_gets_the_pre_signal(
    run: Run, shown: Callable[[], Beat]
) -> None:
    _, _, page = DOCS.read_text().partition("\n## When it is to save and stop\n")
    program, *_ = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    done = run(f"import os, signal\n{AROUND}\n{program}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "saved 7\n", "")
    beat = shown()
    assert (beat.step, beat.is_done) == (7, True)
