"""Any bytes from anyone: at worst that connection ends, and supd goes on answering."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.bombard import check
from tests.fuzz.host import Loop, serving_in_memory

ROOT = Path(__file__).parents[2]
STREAMS = [*Path(__file__).parent.glob("corpus/*.bin"), *ROOT.glob("tests/compat/v*/*.frames")]
FRAMES = 100_000
LIMIT_S = 600


def test_a_supd_bears_the_corpus_and_all_that_was_recorded_at_both_its_doors(short_dir: Path) -> None:
    async def send_all() -> None:
        async with serving_in_memory(short_dir) as loop:
            for path in sorted(STREAMS):
                for door in ("peers", "control"):
                    wire = loop.wire(door)
                    wire.say(path.read_bytes())
                    await check(loop)
                    wire.close()

    assert STREAMS
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(send_all())


@pytest.mark.timeout(LIMIT_S)
def test_a_supd_bears_whatever_peers_and_clients_say_to_it() -> None:
    """They are sent by scripts/fuzz, which sends more of them where asked to."""
    argv = [sys.executable, "-m", "tests.fuzz.run", "--frames", str(FRAMES), "--seed", "ci", "--jobs", "2"]
    # Debugging the loop would take three times as long.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) >= FRAMES
    for name in ("Joined", "JoinRefused", "NodeOrder", "Failure", "Statuses"):
        assert f" host: {name}, mangled" in done.stdout
    for kind in ("runner", "node", "client", "client of another node", "logs", "rank", "probe"):
        for how in ("in order", "astray", "mangled"):
            assert f" {kind}: {how}, " in done.stdout, f"no frame of this kind was sent: {kind}, {how}"
