"""What every command is given: where to write, whom to ask, and the environment it was called in."""

from collections.abc import Mapping
from typing import NamedTuple

from supervisor.cli.client import Client
from supervisor.cli.screen import Screen


class Detached(KeyboardInterrupt):
    """Ctrl-C while looking on: the text says what goes on without us."""


class Context(NamedTuple):
    """One call of supctl."""

    screen: Screen
    client: Client
    environ: Mapping[str, str]
