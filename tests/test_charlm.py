"""The training of the quickstart, run as users run it: as processes, one for each rank."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="could not import 'torch'")

SCRIPT = Path(__file__).parent.parent / "scripts/examples/charlm.py"
FOREVER = 1_000_000
SCORE = re.compile(r"step (\d+) held-out loss ([\d.]+) nats/char \(order-0 entropy ([\d.]+)\)")

Rank = subprocess.Popen[str]
Start = Callable[..., Rank]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts one rank of a training that keeps its checkpoints in `out`; all are gone after the test."""
    started: list[Rank] = []

    def start_rank(*, steps: int, save_every: int, out: str = "out", **env: object) -> Rank:
        command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / out)]
        command += ["--steps", str(steps), "--save-every", str(save_every)]
        variables = os.environ | {"GLOO_SOCKET_IFNAME": "lo"} | {name: str(value) for name, value in env.items()}
        rank = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(rank)
        return rank

    yield start_rank
    for rank in started:
        rank.kill()
        rank.communicate()


def lines_until(stream: IO[str] | None, text: str) -> list[str]:
    """What a rank prints up to the line that begins with `text`."""
    assert stream is not None
    lines = []
    for line in stream:
        lines.append(line.rstrip("\n"))
        if line.startswith(text):
            return lines
    raise AssertionError(f"no {text!r} in {lines}")


def finished(rank: Rank) -> str:
    """The output of a rank that ends well and has nothing to complain about."""
    out, err = rank.communicate()
    assert (rank.returncode, err) == (0, "")
    return out


def ranks_at(port: int, world_size: int = 2) -> list[dict[str, object]]:
    """The environments of two ranks that meet at `port`, or of as many as are said."""
    common = {"WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [common | {"RANK": rank} for rank in range(world_size)]


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_the_loss_on_text_never_trained_on_falls_below_its_order_0_entropy(start: Start) -> None:
    scores = SCORE.findall(finished(start(steps=40, save_every=40)))
    (first_step, first_loss, entropy), (last_step, last_loss, _) = scores
    assert (first_step, last_step) == ("0", "40")
    assert float(last_loss) < float(entropy) < float(first_loss)


def test_a_training_killed_at_any_moment_ends_as_one_that_was_not(start: Start, tmp_path: Path) -> None:
    killed = start(steps=FOREVER, save_every=2)
    lines_until(killed.stdout, "step 4 held-out loss")
    killed.kill()
    killed.wait()
    saved = int((tmp_path / "out/latest_step.txt").read_text())
    assert saved >= 4

    resumed = finished(start(steps=saved + 2, save_every=2)).splitlines()
    undisturbed = finished(start(steps=saved + 2, save_every=2, out="other")).splitlines()
    assert f"resuming from step {saved}" in resumed
    assert not any(line.startswith("resuming") for line in undisturbed)
    assert resumed[-2:] == undisturbed[-2:]  # the loss to its last digit


def test_sigterm_saves_the_step_it_comes_at_and_does_not_pass_for_the_end(start: Start, tmp_path: Path) -> None:
    rank = start(steps=FOREVER, save_every=FOREVER)
    lines_until(rank.stdout, "step 10 loss")
    rank.send_signal(signal.SIGTERM)
    (told,) = lines_until(rank.stdout, "told to leave")[-1:]
    assert rank.wait() == 128 + signal.SIGTERM
    assert told == f"told to leave: saved step {(tmp_path / 'out/latest_step.txt').read_text().strip()}"


def test_two_ranks_go_on_from_what_one_has_saved_and_tell_why_they_had_to(start: Start, port: int) -> None:
    finished(start(steps=2, save_every=2))
    why = {"SUPD_GENERATION": 1, "SUPD_RESTART_REASON": "rank 3 killed by SIGKILL"}
    ranks = [start(steps=4, save_every=2, **env, **why) for env in ranks_at(port)]
    first, second = [finished(rank).splitlines() for rank in ranks]
    assert "resuming from step 2 (generation 1, reason: rank 3 killed by SIGKILL)" in first
    assert first[-1] == "finished: step 4"
    assert second == ["rank 1 of 2 has met the others"]


def test_the_loss_goes_on_at_another_world_size_as_if_nothing_had_changed(start: Start, port: int) -> None:
    undisturbed = finished(start(steps=18, save_every=6, out="undisturbed"))
    printed = ""
    for steps, world_size in ((6, 3), (18, 2)):
        ranks = [start(steps=steps, save_every=6, **env) for env in ranks_at(port, world_size)]
        printed, *_ = [finished(rank) for rank in ranks]
    assert "384 windows seen so far; the 64 of each step are split among 2 ranks" in printed.splitlines()
    last, as_wanted = (float(SCORE.findall(text)[-1][1]) for text in (printed, undisturbed))
    assert last == pytest.approx(as_wanted, rel=0.02)


def test_a_rank_whose_peer_is_killed_ends_at_once_and_blames_nobody_at_length(start: Start, port: int) -> None:
    first, second = (start(steps=FOREVER, save_every=FOREVER, **env) for env in ranks_at(port))
    lines_until(first.stdout, "step 10 loss")
    second.kill()
    _, err = first.communicate()
    assert first.returncode == 1
    assert re.fullmatch(r"rank 0 lost touch with another rank: .+\n", err)
