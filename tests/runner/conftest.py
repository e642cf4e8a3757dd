import secrets
from collections.abc import Iterator

import pytest

from supervisor.shell import cgroup


@pytest.fixture
def incarnation() -> str:
    """The name of a runner that has never been."""
    return secrets.token_hex(8)


@pytest.fixture
def group(incarnation: str) -> Iterator[str | None]:
    """The cgroup of that runner, removed whatever happens; None where we may not make one."""
    path = cgroup.make_runner_cgroup(incarnation)
    yield path
    if path is not None:
        cgroup.kill_members(path)
        cgroup.remove_cgroup(path)
