"""supervisor/shell/log_thread.py: in a process of its own, since a process is set up once."""

import json
import subprocess
import sys

LINES = 3000
PROGRAM = f"""
import sys, structlog
from supervisor.shell.log_setup import set_up_log
from supervisor.shell.log_thread import LogThread
lines = LogThread(sys.stderr)
set_up_log("info", "json", lines)
log = structlog.get_logger()
for number in range({LINES}):
    log.info("node_seen", number=number, rest="x" * 200)
print("alive", flush=True)
sys.stdin.readline()
lines.close(15)
"""


def test_a_reader_that_does_not_read_holds_nobody_up_and_what_was_lost_is_counted() -> None:
    argv = [sys.executable, "-P", "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"alive\n", "nobody has read a line yet, and a pipe holds few"
        _, written = program.communicate(b"\n", timeout=60)
    lines = [json.loads(line) for line in written.splitlines()]
    seen = [line["number"] for line in lines if line["event"] == "node_seen"]
    lost = sum(line["lines"] for line in lines if line["event"] == "log_lines_lost")
    assert seen == sorted(seen)
    assert lost > 0
    assert len(seen) + lost == LINES
