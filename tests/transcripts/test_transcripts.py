"""Whole dialogues between coordinator and runner, as they are to be read (docs/protocol.md points here).

A transcript is a comment that says what it shows, then commands (`> …`, see stage.py), each followed by everything
that came of it. After a change that is meant, write them anew and read the difference:

    REWRITE_TRANSCRIPTS=1 python -m pytest tests/transcripts
"""

import os
from pathlib import Path

import pytest

from tests.transcripts.stage import Stage

FOLDER = Path(__file__).parent
TRANSCRIPTS = sorted(path.name for path in FOLDER.glob("*.txt"))


def played(text: str) -> str:
    """The transcript that its own commands make now."""
    stage, lines = Stage(), []
    for line in text.splitlines():
        if line.startswith("> "):
            lines += [line, *stage.play(line.removeprefix("> "))]
        elif not line.startswith("  "):
            lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_the_dialogue_is_as_written(name: str) -> None:
    path = FOLDER / name
    text = path.read_text()
    now = played(text)
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(now)
    assert now == text


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 6
