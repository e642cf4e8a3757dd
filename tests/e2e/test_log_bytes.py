"""What ranks write comes back as it was written, whatever happens meanwhile to files, connections and supd."""

import json
from pathlib import Path

import pytest

from supervisor.logs.paths import parts, stream_path
from tests.e2e.cutting import cutting
from tests.e2e.reading import Follower, raw
from tests.e2e.supd import Supd, wait_for
from tests.e2e.workers.any_bytes import chunks

RANKS = 8
TABLES = '[logs]\nmax_file = "64KiB"\nkeep_files = 1000\n'


def line_starts(data: bytes) -> list[int]:
    """The offsets at which lines begin."""
    starts = [0, *(at + 1 for at, byte in enumerate(data) if byte == ord("\n"))]
    return starts if data[starts[-1] :] else starts[:-1]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(3))
def test_any_bytes_come_back_through_rotation_disconnects_and_a_kill_of_supd(
    supd: Supd, tmp_path: Path, seed: int
) -> None:
    go = supd.folder / "go"
    run = supd.start_job(supd.job("any", "any_bytes.py", str(seed), str(go), nproc=RANKS, tables=TABLES))
    written = [b"".join(chunks(str(seed), rank)) for rank in range(RANKS)]
    way = supd.folder / "way.sock"
    with cutting(way, supd.control, seed=seed, cuts=6, bytes_max=100_000) as cutter:
        followers = []
        supd.env["SUPD_ADDR"] = str(way)
        try:
            for name, args in (("json", ["-r", "all", "--json"]), ("raw", ["-r", "3", "--stream", "out", "--raw"])):
                followers.append(Follower(supd, tmp_path, name, run, "-n", "all", *args))
            supd.env["SUPD_ADDR"] = str(supd.control)
            for follower in followers:
                follower.until("its first bytes", lambda seen: len(seen) > 0)
            cutter.is_cutting = True
            wait_for("all to be half way", lambda: all(Path(f"{go}.{rank}").exists() for rank in range(RANKS)))
            supd.kill()
            supd.start()
            go.touch()
            assert supd.wait_state(run, "succeeded", "failed")["state"] == "succeeded"
            as_json, as_raw = (follower.rest() for follower in followers)
        finally:
            supd.env["SUPD_ADDR"] = str(supd.control)
            for follower in followers:
                follower.close()
    logs_dir = Path(supd.status(run)["logs_dir"])
    assert any(parts(stream_path(logs_dir, 0, rank, "out")) for rank in range(RANKS)), "something was rotated"
    assert [raw(supd, run, rank) == written[rank] for rank in range(RANKS)] == [True] * RANKS
    assert as_raw == written[3]
    seen: list[list[int]] = [[] for _ in range(RANKS)]
    for line in as_json.splitlines():
        record = json.loads(line)
        seen[record["rank"]].append(record["seq"])
    for rank in range(RANKS):
        assert seen[rank] == line_starts(written[rank]), rank
