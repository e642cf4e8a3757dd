"""What every command is given: where to write, whom to ask, and the environment it was called in."""

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from supervisor.cli.screen import Screen
from supervisor.shell.paths import default_control_path

if TYPE_CHECKING:
    from supervisor.cli.client import Client


class Detached(KeyboardInterrupt):
    """Ctrl-C while looking on: the text says what goes on without us."""


class Context:
    """One call of supctl. `addr` is where supd was said to be; "": at its usual place."""

    def __init__(self, screen: Screen, environ: Mapping[str, str], addr: str) -> None:
        self.screen = screen
        self.environ = environ
        self._addr = addr

    @cached_property
    def client(self) -> "Client":
        """supd where it was said to be, else where this user's is; there, nobody else's may pose as it."""
        from supervisor.cli.client import Client  # half of what supctl imports, and not every command asks supd

        named = self._addr or self.environ.get("SUPD_ADDR", "")
        address = named or str(default_control_path(self.environ, os.getuid()))
        owners = () if named else (os.getuid(), 0)
        default_job = self.environ.get("SUPCTL_JOB", "")
        return Client(address, self.screen.tell, owners=owners, default_job=default_job)
