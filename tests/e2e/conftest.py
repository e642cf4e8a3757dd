"""A fleet of three that the tests of a file share: made once, whole and idle again before each of them."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet, running_fleet
from tests.e2e.supd import wait_for
from tests.e2e.threes import launch_the_dead, survivors


@pytest.fixture(scope="module")
def whole() -> Iterator[Fleet]:
    """Nodes a, b, c."""
    folder = Path(tempfile.mkdtemp(prefix="supd-t-"))
    try:
        with running_fleet(folder, 3) as fleet:
            yield fleet
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def fleet(whole: Fleet) -> Iterator[Fleet]:
    """Three nodes, of which a hosts: whatever a test does to them, the next one gets them whole and idle."""
    yield whole
    launch_the_dead(whole)
    whole.host.wait_until_ready()
    whole.wait_joined(*whole.nodes)
    whole.host.supctl("stop", "--all", "--now", check=False)  # it has nothing to stop where all is well
    whole.host.supctl("undrain", *whole.nodes)  # what went wrong on them is held against none
    wait_for("nothing to be left", lambda: not survivors(whole))
