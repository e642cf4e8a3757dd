"""supervisor/daemon/control.py, watcher.py and control_socket.py: a client can hurt nobody but itself."""

import asyncio
import fcntl
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import structs

from protocol.errors import JobInvalid, Place, Refused
from protocol.framing import MAX_FRAME_BYTES, encode_frame
from protocol.job_file import read_job
from protocol.messages import encode
from protocol.messages.control import (
    CONTROL_VERSION,
    Done,
    End,
    EventRecord,
    Failure,
    GetStatus,
    Greeting,
    LogPaths,
    LogSelection,
    Start,
    Statuses,
    StopRun,
    Watch,
    decode_greeting,
    decode_reply,
)
from supervisor.daemon import control_socket, journal, watcher
from supervisor.logs.paths import generation_dir
from tests.daemon.serving import Client, ask, config_in, drop_in, serving, talking, wait_for
from tests.e2e.places import NOBODY, as_ordinary_user

GREETING = Greeting(control_version=CONTROL_VERSION, supd_version="test")
HELLO = encode_frame(encode(GREETING))


def start(request_id: str, name: str = "job", command: str = '["sleep", "3600"]') -> Start:
    """A job of one rank that is never restarted."""
    tables = f'[run]\ncommand = {command}\n[topology]\nnproc_per_node = 1\n[restart]\npolicy = "never"\n'
    return Start(
        request_id=request_id,
        job_file=f'name = "{name}"\n{tables}'.encode(),
        source="job.toml",
        folder="/",
        python=sys.executable,
        env={b"PATH": os.environb[b"PATH"]},
        limits={},
        umask=0o22,
    )


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        encode_frame(b""),
        encode_frame(b"\xc1"),
        encode_frame(encode({"type": "Unknown"})),
        HELLO + encode_frame(encode({"type": "Start"})),
        HELLO + encode_frame(encode({"type": "Unknown"})),
        HELLO + encode_frame(b"\x91" * 100_000),
        HELLO * 20,
    ],
)
async def test_nonsense_costs_a_client_its_connection_and_nobody_else_anything(
    short_dir: Path, nonsense: bytes
) -> None:
    config = config_in(short_dir)
    async with serving(config), talking(config.control) as bystander:
        client = await Client.connect(config.control)
        client.writer.write(nonsense)
        while await client.frame() is not None:
            pass
        await client.close()
        bystander.say(GetStatus())
        assert await bystander.frame() == encode(Statuses(runs=()))


async def test_hundreds_of_random_clients_leave_supd_as_it_was(short_dir: Path) -> None:
    config, rng = config_in(short_dir), random.Random(5)
    sound = HELLO + encode_frame(encode(Watch(run="", follow=True, events=True)))
    async with serving(config):
        for _ in range(300):
            data = bytearray(sound if rng.random() < 0.7 else rng.randbytes(rng.randrange(200)))
            for _ in range(rng.randrange(4)):
                data[rng.randrange(len(data) or 1) : rng.randrange(len(data) or 1)] = rng.randbytes(rng.randrange(9))
            drop_in(config.control, bytes(data[: rng.randrange(len(data) + 1)]))
            await asyncio.sleep(0)  # so that some are gone before supd sees them, and some in the middle of the answer
        assert await ask(config.control, GetStatus()) == Statuses(runs=())


async def test_clients_that_say_nothing_or_half_of_it_keep_nobody_waiting(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        silent = [await Client.connect(config.control) for _ in range(50)]
        for client in silent[25:]:
            client.writer.write(HELLO[:-1])
        assert await ask(config.control, GetStatus()) == Statuses(runs=())
        for client in silent:
            await client.close()


async def test_another_version_is_greeted_and_then_left_alone(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        client = await Client.connect(config.control)
        client.say(Greeting(control_version=CONTROL_VERSION + 1, supd_version="9.9"))
        greeting = await client.frame()
        assert greeting is not None
        assert decode_greeting(greeting).control_version == CONTROL_VERSION
        assert await client.frame() is None
        await client.close()


KNOCK = """
import os, socket, sys
knocking = socket.socket(socket.AF_UNIX)
knocking.settimeout(20)
knocking.connect(sys.argv[1])
try:
    knocking.sendall(bytes.fromhex(sys.argv[2]))
    answer = knocking.recv(100)
except ConnectionError:
    answer = b""
print(os.getuid(), answer)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_is_refused_even_where_the_socket_is_open_to_all(short_dir: Path) -> None:
    config = config_in(short_dir)
    theirs = short_dir / "theirs"
    os.mkdir(theirs)
    argv = [sys.executable, "-I", "-S", "-c", KNOCK, str(config.control), HELLO.hex()]
    async with serving(config):
        for path, mode in ((short_dir, 0o755), (config.control.parent, 0o755), (config.control, 0o666)):
            os.chmod(path, mode)
        knock = await asyncio.create_subprocess_exec(*as_ordinary_user(theirs), *argv, stdout=subprocess.PIPE)
        told, _ = await knock.communicate()
    assert told.decode().split() == [str(NOBODY), "b''"]


async def test_a_start_is_carried_out_whether_its_client_waits_for_the_answer_or_not(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        for number in range(10):
            drop_in(config.control, HELLO + encode_frame(encode(start(f"request-{number}", f"job{number}"))))
            await asyncio.sleep(0)
        for number in range(10):  # what was not taken in before is made now; it must be there in either case
            reply = await ask(config.control, start(f"request-{number}", f"job{number}"))
            assert isinstance(reply, Done), reply
            status = await ask(config.control, GetStatus(run=reply.run))
            assert isinstance(status, Statuses), status
        everything = await ask(config.control, GetStatus())
        assert isinstance(everything, Statuses)
        assert len(everything.runs) == 10


async def test_output_that_cannot_be_read_is_a_failure_for_its_client_alone(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        reply = await ask(config.control, start("one"))
        assert isinstance(reply, Done)
        logs_dir = config.logs_dir / reply.run
        logs_dir.mkdir(parents=True, exist_ok=True)
        generation_dir(logs_dir, 7).symlink_to("gen-0007")
        selection = LogSelection(generation=7)
        for watch in (
            Watch(run=reply.run, follow=False, logs=selection),
            Watch(run=reply.run, follow=True, logs=selection, events=True, snapshots=True),
        ):
            failure = await ask(config.control, watch)
            assert isinstance(failure, Failure), failure
            assert failure.code == "F040"
        assert isinstance(await ask(config.control, Watch(run=reply.run, follow=False, events=True)), End)


async def test_a_choice_of_ranks_that_is_not_understood_is_a_failure_that_says_how_to_write_it(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        reply = await ask(config.control, start("one"))
        assert isinstance(reply, Done)
        selection = LogSelection(chooser="0;1")
        for request in (
            Watch(run=reply.run, follow=False, logs=selection),
            Watch(run=reply.run, follow=True, logs=selection, events=True),
            LogPaths(run=reply.run, logs=selection),
        ):
            failure = await ask(config.control, request)
            assert isinstance(failure, Failure), failure
            assert "write them like 0 or 0,3" in failure.message


async def test_supd_ends_at_once_with_followers_attached_that_do_not_even_read(short_dir: Path) -> None:
    config = config_in(short_dir)
    loop = asyncio.get_running_loop()
    watch = Watch(run="", follow=True, events=True)
    flood = Watch(run="", follow=True, logs=LogSelection(tail_lines=None, all_generations=True))
    async with serving(config):
        assert isinstance(await ask(config.control, start("one", command='["yes"]')), Done)
        deaf = []
        for request in (watch, flood) * 3:
            client = await Client.connect(config.control)
            client.say(GREETING, request)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            deaf.append(client)
        async with talking(config.control, flood) as reader:
            while (await reader.frame() or b"").count(b"y\n") < 1000:
                pass
        await ask(config.control, StopRun(all_runs=True, now=True))
        await wait_for("its runner to be gone", lambda: not os.listdir(config.state_dir / "runners"))
        asked_at_s = loop.time()
    assert loop.time() - asked_at_s < 5
    for client in deaf:
        await client.close()


async def test_a_socket_that_is_being_made_as_supd_ends_is_closed_and_removed(short_dir: Path) -> None:
    path = short_dir / "c.sock"
    folder = os.open(short_dir, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    making = asyncio.get_running_loop().create_task(control_socket.make(path, 5))

    def is_in_the_thread() -> bool:
        return "_folder_to_ourselves" in [frame.f_code.co_name for frame in sys._current_frames().values()]

    await wait_for("the thread to wait for its turn", is_in_the_thread)
    making.cancel()
    os.close(folder)
    await asyncio.wait([making])
    assert making.cancelled()
    assert not path.exists()


async def test_a_socket_that_a_dead_supd_left_is_taken_over_and_a_living_ones_is_not(short_dir: Path) -> None:
    path = short_dir / "c.sock"
    first = control_socket.listen(path, 5)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(Refused, match="another supd listens"):
        control_socket.listen(path, 5)
    first.close()
    control_socket.listen(path, 5).close()


async def test_a_place_where_no_socket_can_be_is_told_plainly(short_dir: Path) -> None:
    with pytest.raises(Refused, match="No such file or directory"):
        control_socket.listen(short_dir / "missing" / "c.sock", 5)


async def test_what_is_wrong_on_the_node_is_told_with_its_place_in_the_job_file(short_dir: Path) -> None:
    config = config_in(short_dir)
    request = structs.replace(start("1"), job_file=b'name = "a"\n[run]\nscript = "no/such.py"\n', check_only=True)
    async with serving(config):
        answer = await ask(config.control, request)
    assert isinstance(answer, Failure)
    assert (answer.code, answer.exit_code) == ("J000", 78)
    assert "error[J402]: " in answer.message
    assert '\n 3 | script = "no/such.py"\n   |          ^^^^^^^^^^^^ ' in answer.message
    assert [(problem.code, problem.place) for problem in answer.problems] == [("J402", Place("job.toml", 3, 10, 12))]


async def test_what_may_not_be_meant_comes_with_the_answer(short_dir: Path) -> None:
    config = config_in(short_dir)
    request = structs.replace(start("1"), settings=("stop.pre_wait=1s",), check_only=True)
    async with serving(config):
        answer = await ask(config.control, request)
    assert isinstance(answer, Done)
    (warning,) = answer.file_warnings
    assert not any(text.startswith("warning[J") for text in answer.warnings)
    assert warning.startswith("warning[J503]: ")
    assert "  --> --set stop.pre_wait=1s\n" in warning


async def test_while_a_large_job_file_is_read_the_loop_has_time_for_the_runners(short_dir: Path) -> None:
    config = config_in(short_dir)
    job_file = b"x = [" + b"1," * 500_000 + b"]"
    async with serving(config):
        before_s = time.thread_time()
        answer = await ask(config.control, structs.replace(start("a"), job_file=job_file, check_only=True))
        loop_s = time.thread_time() - before_s
    assert isinstance(answer, Failure)
    assert [problem.code for problem in answer.problems] == ["J003"]
    before_s = time.thread_time()
    with pytest.raises(JobInvalid):
        read_job(job_file, "job.toml")
    assert loop_s < (time.thread_time() - before_s) / 2


async def test_events_that_take_many_reads_are_all_told_among_the_output(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_in(short_dir)
    async with serving(config):
        done = await ask(config.control, start("one", command='["echo", "hello"]'))
        assert isinstance(done, Done)
        await ask(config.control, Watch(run=done.run, follow=True, snapshots=True))
        for module in (journal, watcher):
            monkeypatch.setattr(module, "EVENTS_A_READ_MAX", 2)
        logs = LogSelection(all_generations=True)
        for follow in (False, True):
            watch = Watch(run=done.run, follow=follow, events=True, snapshots=True, logs=logs)
            async with talking(config.control, watch) as client:
                told = []
                while (payload := await client.frame()) is not None:
                    reply = decode_reply(payload)
                    told.append(reply.kind if isinstance(reply, EventRecord) else type(reply).__name__)
            assert told[:2] == ["job.accepted", "generation.launched"]
            assert sorted(told[2:4]) == ["LogChunk", "generation.ready"]
            assert told[4:] == ["job.succeeded", "Statuses", "End"]
