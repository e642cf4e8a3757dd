"""supervisor/shell/names.py: a name service that hangs, fails or comes late; and seldom.py."""

import asyncio
import errno
import threading

import pytest

from supervisor.shell.names import Names, resolve
from supervisor.shell.seldom import KEYS_MAX, Seldom

TIMEOUT_S = 20.0


class Service:
    """A name service under our control: knows what is in `known`, and answers once `answers` is set."""

    def __init__(self, known: dict[str, tuple[str, ...]]) -> None:
        self.known = known
        self.answers = threading.Event()
        self.asked: list[str] = []

    def resolve(self, host: str) -> tuple[str, ...]:
        self.asked.append(host)
        assert self.answers.wait(TIMEOUT_S)
        if host not in self.known:
            raise OSError(errno.ENOENT, "Name or service not known")
        return self.known[host]


async def test_an_address_is_its_own_and_nobody_is_asked() -> None:
    service = Service({})
    assert await Names(service.resolve).look_up("fd00::1") == ("fd00::1",)
    assert await Names(service.resolve).look_up("10.0.0.1") == ("10.0.0.1",)
    assert service.asked == []


async def test_a_name_is_looked_up_anew_each_time() -> None:
    service = Service({})
    service.answers.set()
    names = Names(service.resolve)
    with pytest.raises(OSError, match="Name or service not known"):
        await names.look_up("gpu-01")
    service.known["gpu-01"] = ("10.0.0.1", "fd00::1")
    assert await names.look_up("gpu-01") == ("10.0.0.1", "fd00::1")


async def test_a_service_that_hangs_costs_one_thread_a_name_and_its_late_answer_counts() -> None:
    service = Service({"gpu-01": ("10.0.0.1",)})
    names = Names(service.resolve, timeout_s=0.05)
    for _ in range(3):
        with pytest.raises(OSError, match="does not answer"):
            await names.look_up("gpu-01")
    assert service.asked == ["gpu-01"]
    patient = asyncio.get_running_loop().create_task(names.look_up("gpu-01"))
    await asyncio.sleep(0)
    service.answers.set()
    assert await patient == ("10.0.0.1",)


async def test_only_so_many_names_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.shell.names.NAMES_MAX", 2)
    service = Service({})
    names = Names(service.resolve, timeout_s=0.01)
    for host in ("gpu-01", "gpu-02", "gpu-01"):
        with pytest.raises(OSError, match="does not answer"):
            await names.look_up(host)
    with pytest.raises(OSError, match="too many names"):
        await names.look_up("gpu-03")
    service.answers.set()


def test_a_lookup_that_outlives_its_loop_troubles_nobody() -> None:
    service = Service({})
    names = Names(service.resolve, timeout_s=0.01)
    with pytest.raises(OSError, match="does not answer"):
        asyncio.run(names.look_up("gpu-01"))
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "look up gpu-01")
    service.answers.set()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_the_machines_own_name_service_is_asked() -> None:
    assert "127.0.0.1" in resolve("localhost")
    for host in ("no-such-host.invalid", "a..b", "x" * 70):
        with pytest.raises(OSError, match=r".") as caught:
            resolve(host)
        assert caught.value.strerror


# --- seldom ------------------------------------------------------------------------------------------------------


def test_what_was_told_is_told_again_only_after_a_while_or_once_it_was_over() -> None:
    seldom = Seldom(every_s=3600)
    assert [seldom.is_due("a"), seldom.is_due("b"), seldom.is_due("a")] == [True, True, False]
    seldom.forget("a")
    assert [seldom.is_due("a"), seldom.is_due("b")] == [True, False]
    assert [Seldom(every_s=0).is_due("a") for _ in range(2)] == [True, True]


def test_only_so_many_keys_are_kept() -> None:
    seldom = Seldom(every_s=3600)
    assert all(seldom.is_due(i) for i in range(KEYS_MAX + 1))
    assert not seldom.is_due(KEYS_MAX)
    assert seldom.is_due(0)
