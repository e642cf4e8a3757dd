"""A node of the oldest release that is still spoken, with a runner of its own, serves under the present supd."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from protocol.versions import VERSIONS
from tests.e2e.fleet import running_fleet
from tests.e2e.supd import TIMEOUT_S

FOLDER = Path(__file__).parent


@contextlib.contextmanager
def old_node(host: str, port: int, credential: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A node of that name, as long as it is needed."""
    recorded = FOLDER / f"v{VERSIONS[0]}"
    argv = [sys.executable, "-I", *map(str, (FOLDER / "old_node.py", recorded, host, port, credential, "old"))]
    with log.open("wb") as file:
        node = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield node
    finally:
        node.kill()
        node.wait()


def test_a_node_of_the_oldest_version_joins_runs_restarts_and_stops(short_dir: Path) -> None:
    log = short_dir / "old.log"
    with running_fleet(short_dir, 1) as fleet:
        supd = fleet.host
        run = supd.start_job(fleet.job("j", "none", nnodes=1, nproc=2, tables='nodes = ["old"]'))
        with old_node(fleet.addresses["a"], fleet.port, supd.state / "fleet.pem", log) as node:
            assert fleet.wait_generation(run, 0)["nodes"] == ["old"]
            supd.supctl("restart", run)
            assert fleet.wait_generation(run, 1)["nodes"] == ["old"]
            supd.supctl("stop", run)
            assert supd.wait_state(run, "stopped", "failed")["state"] == "stopped"
            assert node.wait(TIMEOUT_S) == 0, log.read_text()
            assert log.read_text() == ""
