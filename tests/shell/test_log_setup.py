"""supervisor/shell/log_setup.py: in a process of its own, since a process is set up once."""

import json
import os
import subprocess
import sys
from typing import IO

PROGRAM = """
import sys, structlog
from supervisor.shell.log_setup import set_up_log
set_up_log(sys.argv[1], sys.argv[2])
log = structlog.get_logger()
log.debug("node_seen", count=1)
log.info("node_started", node="a", ran_s=1.5)
try:
    raise OSError(28, "full")
except OSError:
    log.exception("node_crashed")
for _ in range(1000):
    log.info("x" * 1000)
print("alive")
"""


def run(level: str, form: str, stderr: int | IO[bytes] = subprocess.PIPE) -> tuple[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, level, form],
        stdout=subprocess.PIPE,
        stderr=stderr,
        timeout=60,
        check=True,
    )
    return done.stdout.decode(), (done.stderr or b"").decode().splitlines()[:2]


def test_away_from_a_terminal_each_line_is_one_json_object_with_its_fields() -> None:
    _, (started, crashed) = run("info", "auto")
    assert json.loads(started) | {"timestamp": ""} == {
        "event": "node_started",
        "level": "info",
        "node": "a",
        "ran_s": 1.5,
        "timestamp": "",
    }
    assert "OSError: [Errno 28] full" in json.loads(crashed)["exception"]


def test_the_level_is_a_threshold_and_text_is_for_people() -> None:
    _, (seen, started) = run("debug", "text")
    assert "node_seen" in seen
    assert "node=a" in started


def test_a_full_disk_or_a_reader_that_went_away_costs_lines_and_not_the_process() -> None:
    with open("/dev/full", "wb") as full:
        assert run("info", "json", full)[0] == "alive\n"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run("info", "json", writer)[0] == "alive\n"
    finally:
        os.close(writer)
