"""supd.toml as tests write it, read."""

from pathlib import Path

import pytest

from protocol.errors import ConfigInvalid
from supervisor.shell.config import Config, load_config


def loaded(folder: Path, content: str, environ: dict[str, str] | None = None) -> Config:
    """What a file of this content makes."""
    (folder / "supd.toml").write_text(content)
    return load_config(folder / "supd.toml", environ or {"HOME": "/home/me"})


def problems_of(folder: Path, content: str) -> list[tuple[str, str, str, str]]:
    """Code, key, value and hint of every problem of a file."""
    with pytest.raises(ConfigInvalid) as caught:
        loaded(folder, content)
    return [(p.code, p.key, p.value, p.hint) for p in caught.value.problems]
