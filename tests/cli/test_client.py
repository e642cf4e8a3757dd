"""Whatever keeps supd from answering is one clear line, a next step, and code 69."""

import os
import socket
import threading
from pathlib import Path

import pytest

from protocol.framing import MAX_FRAME_BYTES
from protocol.messages.control import CONTROL_VERSION, Done, End, GetStatus, Greeting, Statuses, Watch
from supervisor.cli import client
from supervisor.cli.client import Client, ConnectionLost
from supervisor.shell.clock import boot_s
from tests.cli.conftest import Daemon, Supctl, a_run, one_run


def test_an_absent_supd_is_said_with_its_socket_and_how_to_start_one(supctl: Supctl, address: str) -> None:
    result = supctl("status")
    assert result.code == 69
    assert result.out == ""
    assert result.err == f"error[C001]: no supd answers at {address} (No such file or directory)\n→ supd run\n"


def test_a_socket_that_nobody_serves_any_more_is_an_absent_supd(supctl: Supctl, address: str) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(address)
    result = supctl("ps")
    assert (result.code, "Connection refused" in result.err) == (69, True)


def test_a_path_too_long_for_a_socket_is_no_traceback(supctl: Supctl) -> None:
    assert supctl("--addr", "/tmp/" + "x" * 200, "status").code == 69


def test_a_supd_that_does_not_greet_in_time_is_called_hung(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "GREETING_TIMEOUT_S", 0.2)
    end = threading.Event()
    daemon(one_run(a_run()), greeting=end)
    result = supctl("status")
    end.set()
    assert result.code == 69
    assert "does not answer" in result.err
    assert result.err.count("\n→ ") == 1


def test_a_slow_answer_is_waited_for_aloud(supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENT_S", 0.0)
    daemon(lambda _request: [Statuses(runs=(a_run(),))])
    result = supctl("status", "-q")
    assert (result.code, result.err) == (0, "")
    assert "… waiting for supd at " in supctl("status").err


def test_whoever_is_in_a_hurry_waits_to_one_point_in_time_however_often_it_asks(daemon: Daemon, address: str) -> None:
    end = threading.Event()
    daemon(lambda _request: [end])
    hurried = Client(address, print).hurried(boot_s() + 0.6)
    said = []
    for _ in range(2):
        with pytest.raises(client.Unavailable, match="does not answer") as raised:
            hurried.ask(GetStatus(), Statuses)
        said.append(str(raised.value))
    end.set()
    assert said[1].endswith("(waited 0 s)")


def test_a_full_backlog_of_a_hung_supd_is_waited_for_no_longer_than_a_greeting(
    supctl: Supctl, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "GREETING_TIMEOUT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(address)
        listener.listen(0)
        first.connect(address)
        result = supctl("status")
    assert (result.code, "C002" in result.err) == (69, True)


@pytest.mark.parametrize(("change", "word"), [(+1, "newer"), (-1, "older")])
def test_a_supd_of_another_version_is_told_from_one_that_is_broken(
    supctl: Supctl, daemon: Daemon, change: int, word: str
) -> None:
    daemon(one_run(a_run()), greeting=Greeting(control_version=CONTROL_VERSION + change, supd_version="7.7"))
    result = supctl("status")
    assert result.code == 69
    assert f"supd 7.7 is {word} than this supctl" in result.err
    assert result.err.count("\n→ ") == 1


def test_a_supd_that_greets_and_hangs_up_is_still_told_by_its_version(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LARGE", "x" * 100_000)  # more than the socket holds, so that sending fails
    newer = Greeting(control_version=CONTROL_VERSION + 1, supd_version="7.7")
    daemon(lambda _request: [None], greeting=newer)
    assert "newer" in supctl("status").err


def test_a_supd_that_goes_away_in_the_middle_is_said(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run()))
    result = supctl("wait", "hello")
    assert result.code == 69
    assert "went away in the middle" in result.err


def test_what_is_no_supd_is_called_so(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run()), greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n")
    result = supctl("status")
    assert (result.code, "does not speak supd's protocol" in result.err) == (69, True)


def test_a_frame_over_the_limit_is_not_waited_for(supctl: Supctl, daemon: Daemon) -> None:
    daemon(lambda _request: [(MAX_FRAME_BYTES + 1).to_bytes(4, "big")])
    assert (supctl("status").code, supctl("status").out) == (69, "")


def test_a_reply_of_another_kind_is_no_traceback(supctl: Supctl, daemon: Daemon) -> None:
    daemon(lambda _request: [Done()])
    assert supctl("status").code == 69


def test_a_stream_that_is_silent_asks_whether_its_supd_lives_and_goes_on_if_so(
    daemon: Daemon, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PROBE_AFTER_S", 0.05)
    more = threading.Event()
    fake = daemon(lambda _request: [more, Statuses(runs=(a_run(),))])
    replies = Client(address, print).stream(Watch(run="hello@1a2b3c", follow=True), 0.05)
    assert next(replies) is None  # probed, and alive
    more.set()
    assert any(isinstance(reply, Statuses) for reply in replies)
    assert len(fake.requests) == 1


def test_a_stream_ends_with_its_end_and_not_with_its_connection(daemon: Daemon, address: str) -> None:
    more = threading.Event()
    daemon(lambda _request: [Statuses(runs=(a_run(),)), End(), more])
    replies = Client(address, print).stream(Watch(run="hello@1a2b3c", follow=True), 0.05)
    assert [type(reply) for reply in replies if reply is not None] == [Statuses]
    more.set()


def test_a_stream_whose_supd_hangs_ends(daemon: Daemon, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PROBE_AFTER_S", 0.05)
    monkeypatch.setattr(client, "GREETING_TIMEOUT_S", 0.2)
    end = threading.Event()
    fake = daemon(lambda _request: [end])
    replies = Client(address, print).stream(Watch(run="hello@1a2b3c", follow=True), 0.05)
    while not fake.requests:
        assert next(replies) is None
    fake.greeting = end  # from here on it takes connections and says nothing
    with pytest.raises(client.Unavailable, match="does not answer"):
        next(replies)
    end.set()


def test_a_request_too_large_for_a_frame_is_said_before_anything_is_sent(
    supctl: Supctl, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = daemon(lambda _request: [])
    for i in range(80):
        monkeypatch.setenv(f"LARGE{i}", "x" * 120_000)
    file = tmp_path / "job.toml"
    file.write_text('name = "hello"\n')
    result = supctl("start", str(file))
    assert (result.code, "too large" in result.err) == (1, True)
    assert fake.requests == []


def test_a_socket_of_another_account_is_not_trusted_with_an_environment(daemon: Daemon, address: str) -> None:
    daemon(one_run(a_run()))
    with pytest.raises(Exception, match=f"belongs to uid {os.getuid()}") as caught:
        Client(address, print, owners=(os.getuid() + 1,)).greet()
    assert getattr(caught.value, "exit_code", None) == 77


def test_a_connection_lost_is_told_apart_because_the_request_may_have_been_taken(daemon: Daemon, address: str) -> None:
    daemon(lambda _request: [None])
    with pytest.raises(ConnectionLost):
        Client(address, print).resolve("")
