"""Cases H61 to H73 of the field reports: output, whatever is in it and whatever happens to its files.

Times, rounds and sizes are scaled down; each test says to what.
"""

import contextlib
import hashlib
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.logs.paths import stream_path
from tests.e2e.fleet import running_fleet
from tests.e2e.jobs import command_job, output
from tests.e2e.places import NOBODY, as_ordinary_user
from tests.e2e.reading import Follower, logs, peak_kib, raw, records
from tests.e2e.supd import BIN, TIMEOUT_S, Supd, running_supd, wait_for

Follow = Callable[..., Follower]


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Follow]:
    """Starts followers, by supd and arguments of `logs -f`; they end with the test."""
    followers: list[Follower] = []

    def start(supd: Supd, *args: str) -> Follower:
        followers.append(Follower(supd, tmp_path, f"follower-{len(followers)}", *args))
        return followers[-1]

    yield start
    for follower in followers:
        follower.close()


def python_job(supd: Supd, name: str, code: str, *args: str, nproc: int = 1, run: str = "", tables: str = "") -> Path:
    """A job of ranks that run this code; `args` are its sys.argv[1:], in front of which it has `go` and `wait`.

    `go(name)` tells that it has come so far, and waits until the test has seen that and lets it go on.
    """
    return command_job(
        supd, name, [sys.executable, "-c", GO + code, str(supd.folder), *args], nproc=nproc, run=run, tables=tables
    )


GO = """
import os, signal, sys, time
def write(data, fd=1):
    while data:
        data = data[os.write(fd, data):]
def go(name):
    open(f"{sys.argv[1]}/{name}.here", "w").close()
    while not os.path.exists(f"{sys.argv[1]}/{name}.go"):
        time.sleep(0.01)
"""


def arrived(supd: Supd, name: str) -> None:
    """Wait until a rank has come to `go(name)`."""
    wait_for(f"a rank to come to {name}", (supd.folder / f"{name}.here").exists)


def let_go(supd: Supd, *names: str) -> None:
    """Let it go on from there."""
    for name in names:
        (supd.folder / f"{name}.go").touch()


def runner_pid(supd: Supd, run: str) -> int:
    """The pid of the run's runner."""
    stat = Path(f"/proc/{supd.ranks(run)[0]['pid']}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def succeeded(supd: Supd, run: str) -> None:
    """Wait for the run's good end."""
    status = supd.wait_state(run, "succeeded", "failed", "stopped")
    assert status["state"] == "succeeded", status["reason"]


# --- what is in it -----------------------------------------------------------------------------------------------


def test_lines_of_1_and_10_mib_without_a_newline_arrive_byte_for_byte_and_cost_no_memory(
    supd: Supd, follow: Follow
) -> None:
    """H61."""
    code = """
go("ready")
write(b"a" * (1 << 20)); write(b"\\n")
write(b"0123456789" * (1 << 20)); write(b"\\n")
write(b"a normal line\\n" * 1000)
go("written")
"""
    expected = b"a" * (1 << 20) + b"\n" + b"0123456789" * (1 << 20) + b"\n" + b"a normal line\n" * 1000
    run = supd.start_job(python_job(supd, "long", code))
    arrived(supd, "ready")
    runner = runner_pid(supd, run)
    before_kib = peak_kib(runner)
    bare, view = follow(supd, run, "--no-prefix", "-n", "all"), follow(supd, run, "-n", "all")
    let_go(supd, "ready")
    arrived(supd, "written")
    view.until("the last line", lambda seen: seen.count(b"a normal line") == 1000)
    assert peak_kib(runner) - before_kib < 40 << 10
    assert view.peak_kib() < 100 << 10
    let_go(supd, "written")
    succeeded(supd, run)
    assert output(supd, run) == raw(supd, run) == bare.rest() == expected
    shown = b"".join(re.findall(rb"^0 +\xe2\x94\x82 (.*)\n", view.rest(), re.MULTILINE))
    assert hashlib.sha256(shown).digest() == hashlib.sha256(expected.replace(b"\n", b"")).digest(), "only split"


def test_a_megabyte_of_random_bytes_is_kept_as_it_is_and_shown_as_text_and_training_goes_on(
    supd: Supd, follow: Follow
) -> None:
    """H62."""
    code = """
import random
write(random.Random(1).randbytes(1_000_000))
write(b"\\nstill training\\n")
go("written")
"""
    expected = random.Random(1).randbytes(1_000_000) + b"\nstill training\n"
    run = supd.start_job(python_job(supd, "random", code))
    view = follow(supd, run, "-n", "all")
    arrived(supd, "written")
    view.until_has(b"still training")
    let_go(supd, "written")
    succeeded(supd, run)
    assert output(supd, run) == raw(supd, run) == expected
    text = view.rest().decode()  # it is UTF-8
    assert "\N{REPLACEMENT CHARACTER}" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def test_signs_of_several_bytes_that_are_written_byte_by_byte_are_never_cut(supd: Supd, follow: Follow) -> None:
    """H63."""
    code = """
bar = "\\u2588\\u2593\\u2592\\u2591".encode()
for number in range(200):
    for byte in bar * 5 + b"\\n":
        os.write(1, bytes([byte]))
"""
    expected = ("█▓▒░" * 5 + "\n").encode() * 200
    run = supd.start_job(python_job(supd, "bars", code))
    bare, view = follow(supd, run, "--no-prefix", "-n", "all"), follow(supd, run, "-n", "all")
    succeeded(supd, run)
    assert output(supd, run) == bare.rest() == expected
    assert "\N{REPLACEMENT CHARACTER}" not in view.rest().decode()


def test_a_progress_bar_is_seen_while_it_moves_is_kept_as_it_is_and_costs_no_memory(supd: Supd, follow: Follow) -> None:
    """H64, for 8 updates that are waited for one by one, and then 10 MB of them."""
    code = """
for number in range(8):
    write(b"\\rstep %02d" % number)
    go(f"step-{number:02d}")
write(b"".join(b"\\rstep %07d of 1000000 and so on" % number for number in range(300_000)))
write(b"\\rdone")
go("written")
"""
    run = supd.start_job(python_job(supd, "bar", code))
    view, bare = follow(supd, run, "-n", "all"), follow(supd, run, "--raw", "-n", "all")
    for number in range(8):
        for follower in (view, bare):
            follower.until_has(b"step %02d" % number)
        let_go(supd, f"step-{number:02d}")
    arrived(supd, "written")
    bare.until_has(b"\rdone")
    assert view.peak_kib() < 100 << 10
    assert bare.peak_kib() < 100 << 10
    let_go(supd, "written")
    succeeded(supd, run)
    expected = b"".join(b"\rstep %02d" % number for number in range(8))
    expected += b"".join(b"\rstep %07d of 1000000 and so on" % number for number in range(300_000)) + b"\rdone"
    assert output(supd, run) == bare.rest() == expected


# --- all of it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(3))
def test_each_line_of_16_ranks_that_end_at_once_is_shown_once_and_in_order_before_the_outcome(
    supd: Supd, follow: Follow, number: int
) -> None:
    """H65, with 3 rounds."""
    code = 'write(b"".join(b"line %05d\\n" % number for number in range(10_000)))'
    run = supd.start_job(python_job(supd, "many", code, nproc=16))
    view = follow(supd, run, "-r", "all", "-n", "all")
    lines = view.rest().decode().splitlines()
    assert "succeeded" in lines[-1]
    shown: dict[str, list[str]] = {}
    for line in lines:
        if found := re.fullmatch(r" *(\d+) *│ (.*)", line):
            shown.setdefault(found[1], []).append(found[2])
    expected = [f"line {number:05d}" for number in range(10_000)]
    assert sorted(shown, key=int) == [str(rank) for rank in range(16)], number
    assert all(of_rank == expected for of_rank in shown.values()), number


def test_a_traceback_of_200_lines_is_there_in_full_at_each_of_5_attempts(supd: Supd) -> None:
    """H66."""
    code = """
trace = "".join(f'  File "train.py", line {number}, in f{number}\\n' for number in range(198))
write(("Traceback (most recent call last):\\n" + trace + "RuntimeError: at last\\n").encode(), 2)
sys.exit(1)
"""
    tables = '[restart]\nmax_restarts = 4\non_startup_failure = "restart"\nbackoff = "0s"\n'
    run = supd.start_job(python_job(supd, "crash", code, tables=tables))
    assert supd.wait_state(run, "failed")["generation"] == 4
    found = records(supd, run, "--gen", "all", "--stream", "err")
    lines = [f'  File "train.py", line {number}, in f{number}' for number in range(198)]
    trace = ["Traceback (most recent call last):", *lines, "RuntimeError: at last"]
    assert [[r["line"] for r in found if r["gen"] == generation] for generation in range(5)] == [trace] * 5
    shown = supd.supctl("logs", run, "--gen", "all", "-n", "all").stdout
    for generation in range(5):
        assert f"generation {generation}" in shown


def test_output_goes_on_after_each_of_3_stops_and_starts_with_the_same_follower(supd: Supd, follow: Follow) -> None:
    """H67. A start after a stop is a restart here; another start makes another run, beside the first one."""
    code = 'print("I am generation", os.environ["SUPD_GENERATION"]); go("never")'
    job = python_job(supd, "cycles", code)
    run = supd.start_job(job)
    view = follow(supd, run)
    for generation in range(4):
        if generation:
            supd.supctl("restart", run)
        view.until_has(b"I am generation %d" % generation)
        assert output(supd, run, generation=generation) == b"I am generation %d\n" % generation
    supd.supctl("stop", run, "--now")
    assert view.rest().count(b"I am generation") == 4
    second = supd.start_job(job)
    wait_for("the second run's line", lambda: raw(supd, second) == b"I am generation 0\n")
    assert raw(supd, run) == b"".join(b"I am generation %d\n" % generation for generation in range(4))


def test_lines_of_two_nodes_in_two_writes_each_are_whole_and_say_node_and_rank(short_dir: Path, follow: Follow) -> None:
    """H68, 500 lines a rank."""
    code = """
rank = int(os.environ["RANK"])
for number in range(500):
    line = b"%d:%d:" % (rank, number) + b"x" * 4000 + b"\\n"
    os.write(1, line[:2000]); os.write(1, line[2000:])
"""
    with running_fleet(short_dir, 2) as fleet:
        job = python_job(fleet.host, "lines", code, nproc=4, tables="nnodes = 2\n")
        run = fleet.host.start_job(job)
        view = follow(fleet["b"], run, "-r", "all", "-n", "all")
        succeeded(fleet.host, run)
        node_of = {rank["rank"]: rank["node"] for rank in fleet.ranks(run)}
        assert sorted(node_of.values()) == ["a"] * 4 + ["b"] * 4
        shown: dict[int, list[str]] = {}
        for line in view.rest().decode().splitlines():
            if found := re.fullmatch(r" *(\w+):(\d+) *│ (\d+):(\d+):(x*)", line):
                assert (found[1], found[2], len(found[5])) == (node_of[int(found[3])], found[3], 4000)
                shown.setdefault(int(found[3]), []).append(found[4])
        assert shown == {rank: [str(number) for number in range(500)] for rank in range(8)}
        by_rank = logs(fleet.host, run, "-r", "5", "-n", "all", "--no-prefix")
        by_node = records(fleet.host, run, "-r", "b")
        assert {line.partition(b":")[0] for line in by_rank.splitlines()} == {b"5"}
        assert {(r["node"], r["rank"]) for r in by_node} == {
            ("b", rank) for rank, node in node_of.items() if node == "b"
        }
        for rank in range(8):
            assert raw(fleet["b"], run, rank).count(b"\n") == 500


# --- its files ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[None]:
    """A tmpfs of that size at `folder`."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    folder.parent.mkdir(mode=0o700)
    folder.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_log_disk_costs_counted_output_and_nothing_else_and_output_comes_back_with_room(
    short_dir: Path, follow: Follow
) -> None:
    """H69."""
    code = """
write(b"".join(b"line %011d\\n" % number for number in range(600_000)))
go("full")
while not os.path.exists(f"{sys.argv[1]}/roomy.go"):
    write(b"there is room\\n")
    time.sleep(0.01)
write(b"the end\\n")
"""
    with small_file_system(short_dir / "state" / "logs", "1m"), running_supd(short_dir) as supd:
        run = supd.start_job(python_job(supd, "full", code))
        view = follow(supd, run, "--no-prefix", "-n", "all")
        arrived(supd, "full")
        assert supd.status(run)["state"] == "running"
        subprocess.run(["mount", "-o", "remount,size=64m", supd.state / "logs"], check=True)
        let_go(supd, "full")
        view.until_has(b"\nthere is room\n")
        let_go(supd, "roomy")
        succeeded(supd, run)
        content = output(supd, run)
        lost = re.findall(
            rb"^\[supd: (\d+) bytes not written until [^ ]+Z: No space left on device\]\n", content, re.MULTILINE
        )
        kept = re.sub(rb"\n?\[supd: .*\]\n", b"", content)
        assert lost
        written = len(kept) + sum(map(int, lost))  # without a line break in front of a notice that was the rank's
        assert (written - 600_000 * 17 - len(b"the end\n")) % len(b"there is room\n") in (0, len(b"there is room"))
        assert content.endswith(b"there is room\nthe end\n")
        assert view.rest() == content
        supd.kill()
        supd.start()
        assert supd.status(run)["state"] == "succeeded"
        succeeded(supd, supd.start_job(python_job(supd, "next", 'write(b"fine\\n")')))


def test_a_log_that_is_removed_or_renamed_from_outside_is_made_again_and_the_follower_goes_on(
    supd: Supd, follow: Follow
) -> None:
    """H70. A file that is gone is noticed within a second, so its rank writes until it is there again."""
    code = """
number = 0
for name in ("first", "removed", "renamed"):
    while not os.path.exists(f"{sys.argv[1]}/{name}.go"):
        write(b"%s %d\\n" % (name.encode(), number))
        number += 1
        time.sleep(0.01)
"""
    run = supd.start_job(python_job(supd, "gone", code))
    view = follow(supd, run, "--no-prefix", "-n", "all")
    view.until_has(b"first")
    live = stream_path(Path(supd.status(run)["logs_dir"]), 0, 0, "out")
    live.unlink()
    wait_for("a new file", live.exists)
    let_go(supd, "first")
    view.until_has(b"\nremoved")
    moved = live.with_name("moved")
    live.rename(moved)
    wait_for("a new file", live.exists)
    let_go(supd, "removed")
    view.until_has(b"\nrenamed")
    let_go(supd, "renamed")
    succeeded(supd, run)
    numbers = [int(line.split()[1]) for line in view.rest().splitlines()]
    assert numbers == sorted(set(numbers)), "nothing twice, all in order"
    assert live.read_bytes().splitlines()[-1] == b"renamed %d" % numbers[-1]


@pytest.mark.parametrize("is_buffered", [False, True])
def test_what_a_rank_prints_is_there_at_once_and_after_its_kill_unless_it_wants_a_buffer(
    supd: Supd, follow: Follow, is_buffered: bool
) -> None:
    """H71, for 5 lines of which each is waited for."""
    code = """
for number in range(5):
    print("line", number)
    if not os.environ.get("BUFFERED"): go(f"line-{number}")
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = 'env = { PYTHONUNBUFFERED = "", BUFFERED = "1" }' if is_buffered else ""
    run = supd.start_job(python_job(supd, "print", code, run=env, tables='[restart]\npolicy = "never"\n'))
    view = follow(supd, run, "--no-prefix", "-n", "all")
    for number in range(0 if is_buffered else 5):
        view.until_has(b"line %d\n" % number)
        let_go(supd, f"line-{number}")
    assert supd.wait_state(run, "failed")["incident"]["signal"] == "SIGKILL"
    expected = b"" if is_buffered else b"".join(b"line %d\n" % number for number in range(5))
    assert output(supd, run) == view.rest() == expected


# --- whose they are ----------------------------------------------------------------------------------------------


def test_two_users_of_one_machine_have_folders_of_their_own_that_nobody_else_may_enter(short_dir: Path) -> None:
    """H72. No folder is named: all defaults, with one TMPDIR for both, and a umask of 077."""
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    shared = short_dir / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    short_dir.chmod(0o755)
    with contextlib.ExitStack() as stack:
        users = []
        for uid in (0, NOBODY):
            home = short_dir / f"home-{uid}"
            home.mkdir(mode=0o700)
            user = Supd(
                home, env={"HOME": str(home), "TMPDIR": str(shared)}, argv=as_ordinary_user(home) if uid else ()
            )
            stack.callback(user.close)
            user.config.write_text('[listen]\npeer = "127.0.0.1:0"\n')
            user.state = home / ".local" / "state" / "supd"
            for name in [name for name in user.env if name.startswith("XDG_") or name == "SUPD_ADDR"]:
                del user.env[name]
            user.start(argv=("sh", "-c", 'umask 077; exec "$@"', "sh"))
            users.append(user)
        for uid, user in zip((0, NOBODY), users, strict=True):
            run = user.start_job(python_job(user, "hello", f"print({uid})"))
            succeeded(user, run)
            assert raw(user, run) == b"%d\n" % uid
            assert user.json("status")["runs"][0]["logs_dir"].startswith(str(user.state))
            for folder in (shared / f"supd-{uid}", user.state):
                status = folder.stat()
                assert (status.st_uid, status.st_mode & 0o777) == (uid, 0o700), folder
        other = users[1]
        other.config.write_text(f'[state]\ndir = "{users[0].state}"\n')
        said = subprocess.run(
            [*other.argv, str(BIN / "supd"), "run", "--config", str(other.config)],
            env=other.env | {"TMPDIR": str(short_dir / "home-65534")},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert said.returncode != 0
        assert str(users[0].state) in said.stderr
        assert "Permission denied" in said.stderr


def test_a_second_supd_with_the_same_log_folder_and_no_room_touches_nothing_of_the_first_one(short_dir: Path) -> None:
    """H73. Folders are named by job and run, each start being another run."""
    shared = short_dir / "logs"
    config = f'logs_dir = "{shared}"\n'
    with contextlib.ExitStack() as stack:
        both = []
        for name, more in (("one", ""), ("two", 'max_disk = "1MiB"\n')):
            (short_dir / name).mkdir()
            supd = Supd(short_dir / name)
            supd.config.write_text(supd.config.read_text().replace("[log]", f"{config}{more}[log]"))
            stack.callback(supd.close)
            both.append(supd)
        first, second = both
        first.start()
        for _ in range(3):
            succeeded(first, first.start_job(python_job(first, "same", 'write(b"x" * 500_000)')))
        run = first.start_job(python_job(first, "same", 'print("first"); go("second"); print("last")'))
        arrived(first, "second")
        before = {path: path.lstat().st_ino for path in shared.rglob("*")}
        second.start()
        succeeded(second, second.start_job(python_job(second, "same", 'write(b"y" * 2_000_000)')))
        wait_for("it to look for room", lambda: "disk_too_full" in second.log.read_text(), timeout_s=20)
        assert {path: path.lstat().st_ino for path in shared.rglob("*") if path in before} == before
        let_go(first, "second")
        succeeded(first, run)
        assert raw(first, run) == b"first\nlast\n"
