"""The C writer of docs/heartbeat.md, compiled and run."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.worker.page import Beat

DOCS = Path(__file__).parents[2] / "docs/heartbeat.md"
MAIN = """
int main(void) {
    begin();
    for (int step = 0; step <= 41; step++) beat(step);
    return 0;
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (source,) = re.findall(r"```c\n(.+?)```", DOCS.read_text(), re.DOTALL)
    assert len(source.splitlines()) <= 20
    (tmp_path / "writer.c").write_text(source + MAIN)
    warnings = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2"]
    subprocess.run(["cc", *warnings, "-o", tmp_path / "writer", tmp_path / "writer.c"], check=True, timeout=60)
    return tmp_path / "writer"


def test_the_documented_writer_beats(program: Path, page_file: Path, shown: Callable[[], Beat]) -> None:
    process = subprocess.Popen([program], env={"SUPD_HEARTBEAT": str(page_file)})
    assert process.wait(60) == 0
    beat = shown()
    assert (beat.count, beat.step, beat.pid, beat.phase, beat.is_done) == (42, 41, process.pid, "", False)


def test_the_documented_writer_does_nothing_outside_supd(program: Path, tmp_path: Path, page_file: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(page_file.read_bytes().replace(b"supd\1", b"supd\2"))
    for env in ({}, {"SUPD_HEARTBEAT": "/no/such/file"}, {"SUPD_HEARTBEAT": str(other)}):
        assert subprocess.run([program], env=os.environ | env, timeout=60, check=False).returncode == 0
    assert other.read_bytes()[8:] == page_file.read_bytes()[8:]
