"""`supctl logs`: what supd is asked for, what cannot be meant, where the files lie, and with which code it ends."""

import json

import pytest

from protocol.messages.control import End, LogPaths, LogSelection, Paths, RankStatus, Statuses, Watch
from tests.cli.conftest import Daemon, FakeDaemon, Supctl, a_run, one_run

RUN = "hello@1a2b3c"


def selection_sent(fake: FakeDaemon) -> LogSelection | None:
    [selection] = [request.logs for request in fake.requests if isinstance(request, Watch)]
    return selection


@pytest.mark.parametrize(
    ("flags", "selection"),
    [
        ([], LogSelection()),
        (["-n", "5", "--stream", "err"], LogSelection(tail_lines=5, streams=("err",))),
        (["-n", "9" * 20], LogSelection(tail_lines=None)),
        (["--tail", "all", "--gen", "all"], LogSelection(tail_lines=None, all_generations=True)),
        (["--gen", "0", "-r", "1-2,3"], LogSelection(generation=0, chooser="1-2,3")),
        (["-r", "all"], LogSelection(chooser="all")),
        (["-r", "!0"], LogSelection(chooser="!0")),
        (["-r", "local:0,n1/local:1-9"], LogSelection(chooser="local:0,n1/local:1-9")),
        (["-r", "0-2,!1"], LogSelection(chooser="0-2,!1")),
        (["--grep", "x"], LogSelection(chooser="all", all_generations=True, tail_lines=None)),
        (["--grep", "x", "-r", "0"], LogSelection(chooser="0", all_generations=True, tail_lines=None)),
        (["--grep", "x", "--gen", "0", "-n", "5"], LogSelection(chooser="all", generation=0, tail_lines=None)),
        (["--grep", "x", "-f", "-n", "5"], LogSelection(tail_lines=5)),
        (["-f"], LogSelection(may_skip=True)),
        (["-f", "--exclude", "x"], LogSelection()),
        (["-f", "--no-prefix"], LogSelection()),
        (["-f", "--raw"], LogSelection(tail_lines=None)),
        (["--raw", "-n", "5"], LogSelection(tail_lines=5)),
        (["-f", "--json"], LogSelection()),
        (["--exclude", "x"], LogSelection()),
        (["--since", "1970-01-01T00:01:40Z"], LogSelection(all_generations=True, tail_lines=None, since_wall_s=100.0)),
        (["--until", "1970-01-01T00:01:40Z", "--gen", "0"], LogSelection(generation=0, until_wall_s=100.0)),
        (
            ["--around", "1970-01-01T00:01:40Z"],
            LogSelection(all_generations=True, tail_lines=None, since_wall_s=90.0, until_wall_s=110.0),
        ),
    ],
)
def test_the_flags_choose_what_supd_sends(
    supctl: Supctl, daemon: Daemon, flags: list[str], selection: LogSelection
) -> None:
    fake = daemon(one_run(a_run(is_final=True, state="succeeded"), End()))
    assert supctl("logs", *flags).code == 0
    assert selection_sent(fake) == selection


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["-r", "4"], 3),
        (["-r", "2-1"], 2),
        (["-r", "2-9"], 3),
        (["-r", "n2"], 3),
        (["-r", "n[1-2]/local:0"], 3),
        (["-r", "root"], 3),
        (["-r", "failed"], 3),
        (["-r", "!stalled"], 3),
        (["-r", "all,behind"], 3),
        (["-r", "0,,1"], 2),
        (["-r", "local:"], 2),
        (["--gen", "1"], 3),
        (["--gen", "-1"], 3),
        (["--gen", "-2"], 2),
        (["--gen", "x"], 2),
        (["-n", "-1"], 2),
        (["--json", "--no-prefix"], 2),
        (["--since", "yesterday"], 2),
        (["--since", "10"], 2),
        (["--since", "2026-13-01"], 2),
        (["--since", "25:00"], 2),
        (["--since", "5m", "--until", "10m"], 2),
        (["-f", "--until", "10m"], 2),
        (["--grep", "("], 2),
        (["--exclude", "*"], 2),
        (["--prefix", "{when}"], 2),
        (["--prefix", "{rank.real}"], 2),
        (["--prefix", "{rank!r}"], 2),
        (["--prefix", "{"], 2),
        (["--prefix", "{}"], 2),
        (["--prefix", "{rank:{width}}"], 2),
        (["--prefix", "{node:d}"], 2),
        (["--timestamps", "--no-prefix"], 2),
        (["--raw", "--json"], 2),
        (["--raw", "--grep", "x"], 2),
        (["--raw", "--dedupe"], 2),
        (["--no-prefix", "--dedupe"], 2),
        (["--around", "5m", "--since", "10m"], 2),
        (["--around", "5m", "-f"], 2),
        (["--around", "noon"], 2),
        (["--merge-window", "61s"], 2),
        (["--merge-window", "fast"], 2),
        (["-f", "--merge-window", "-1s"], 2),
        (["--merge-window", "1s"], 2),
        (["--path", "-f"], 2),
        (["--path", "--raw"], 2),
        (["--path", "-f", "--merge-window", "1s"], 2),
        (["--since", "-10m"], 2),
        (["-r", "0-"], 2),
        (["-r", "0,3-"], 2),
    ],
)
def test_what_cannot_be_meant_is_one_error_with_a_next_step_and_not_an_empty_result(
    supctl: Supctl, daemon: Daemon, flags: list[str], code: int
) -> None:
    daemon(one_run(a_run(), End()))
    result = supctl("logs", *flags)
    assert (result.code, result.out) == (code, "")
    *_, next_step = result.err.splitlines()
    assert result.err.count("error") == 1
    assert "--json" in flags or next_step.startswith("→ ")


def test_the_generation_before_the_newest_is_asked_for_by_its_number(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(one_run(a_run(generation=2), End()))
    assert supctl("logs", "--gen", "-1").code == 0
    assert selection_sent(fake) == LogSelection(generation=1)


def test_following_chosen_ranks_waits_until_the_ranks_are_known(supctl: Supctl, daemon: Daemon) -> None:
    waiting = a_run(state="starting", ranks=None, generation=None, has_started=False)
    fake = daemon(one_run(waiting, Statuses(runs=(a_run(is_final=True, state="succeeded"),)), End()))
    assert supctl("logs", "-f", "-r", "3").code == 0
    assert [request.logs.chooser for request in fake.requests if isinstance(request, Watch) and request.logs] == ["3"]


def test_path_says_where_the_files_lie(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(one_run(a_run(), Paths(paths=("/logs/a", "/logs/b"))))
    assert supctl("logs", "--path").out == "/logs/a\n/logs/b\n"
    assert json.loads(supctl("logs", "--path", "--json").out)["data"] == {"run": RUN, "paths": ["/logs/a", "/logs/b"]}
    assert isinstance(fake.requests[-1], LogPaths)


def test_path_tells_of_several_nodes_that_each_lists_its_own_files(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(nodes=("a", "b")), Paths(paths=("/logs/a",))))
    ran = supctl("logs", "--path")
    assert ran.out == "/logs/a\n"
    assert "of a, b each has its own" in ran.err


def test_path_names_the_nodes_that_have_the_files_of_chosen_ranks(supctl: Supctl, daemon: Daemon) -> None:
    ranks = tuple(
        RankStatus(rank=rank, node="ab"[rank // 2], local_rank=rank % 2, pid=1, state="running") for rank in range(4)
    )
    daemon(one_run(a_run(nodes=("a", "b"), rank_list=ranks), Paths(paths=())))
    assert "nothing of that lies on this node: look on b" in supctl("logs", "--path", "-r", "2,3").err


def test_a_time_with_a_sign_is_told_what_it_means_without(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(), End()))
    assert "--since '-10m' is no time: without its sign, 10m is so long ago" in supctl("logs", "--since", "-10m").err


def test_path_says_where_there_is_no_file(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(), Paths(paths=())))
    ran = supctl("logs", "--path")
    assert (ran.code, ran.out) == (0, "")
    assert "nothing of that lies on this node" in ran.err


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 4), ("stopped", 5)])
def test_exit_status_is_the_outcome_where_the_run_is_over(
    supctl: Supctl, daemon: Daemon, state: str, code: int
) -> None:
    daemon(one_run(a_run(state=state, is_final=True), End()))
    assert supctl("logs").code == 0
    assert supctl("logs", "--exit-status").code == code
