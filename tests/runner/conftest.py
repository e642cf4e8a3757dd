import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.shell import cgroup
from tests.runner.family import STRAYS, Family
from tests.runner.processes import AS_NOBODY


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


@pytest.fixture(params=["root with a cgroup", "without a cgroup", "an ordinary user"])
def setting(request: pytest.FixtureRequest, group: str | None) -> tuple[str | None, list[str]]:
    """The cgroup, and what is in front of the command line."""
    match request.param:
        case "root with a cgroup":
            return group, []
        case "without a cgroup":
            return None, []
        case _:
            return None, AS_NOBODY


@pytest.fixture
def family(setting: tuple[str | None, list[str]], incarnation: str, tmp_path: Path) -> Iterator[Family]:
    group, user = setting
    family = Family(incarnation, group, tmp_path, STRAYS, user)
    yield family
    family.close()
