"""Fixtures that every test folder may use."""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import hypothesis
import pytest
import uvloop

from tests.e2e.supd import Supd, running_supd
from tests.e2e.suprun import Launches, launching

hypothesis.settings.register_profile("any machine", deadline=None)  # how long a test takes is no test
hypothesis.settings.load_profile("any machine")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every asynchronous test runs on both loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A private folder with a short path: a unix socket's has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="supd-t-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def supd(short_dir: Path) -> Iterator[Supd]:
    """A running supd of this test's own."""
    with running_supd(short_dir) as daemon:
        yield daemon


@pytest.fixture
def suprun(short_dir: Path) -> Iterator[Launches]:
    """Starts suprun."""
    with launching(short_dir) as launches:
        yield launches


@pytest.fixture
def port() -> int:
    """A port that is free."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
