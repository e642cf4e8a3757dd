"""`supctl logs`: whose line it is, what happened in between, and nothing that could harm a terminal or a pipe."""

import json

import pytest

from protocol.messages.control import (
    End,
    EventRecord,
    Incident,
    LogChunk,
    LogPaths,
    LogSelection,
    Paths,
    Statuses,
    Watch,
)
from tests.cli.conftest import Daemon, FakeDaemon, Supctl, a_run, one_run

RUN = "hello@1a2b3c"


def chunk(data: bytes, rank: int = 0, stream: str = "out", generation: int = 0, node: str = "n1") -> LogChunk:
    return LogChunk(generation=generation, node=node, rank=rank, stream=stream, data=data)


def event(text: str, generation: int = 0, kind: str = "generation.ended", wall_s: float = 1.0) -> EventRecord:
    return EventRecord(id=1, wall_s=wall_s, run=RUN, generation=generation, kind=kind, text=text)


def selection_sent(fake: FakeDaemon) -> LogSelection | None:
    [selection] = [request.logs for request in fake.requests if isinstance(request, Watch)]
    return selection


def test_on_one_node_the_prefix_is_the_rank_and_the_bar_tells_the_stream(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(ranks=12), chunk(b"a\n"), chunk(b"b\n", 11, "err"), event("ran 1.0 s"), End()))
    result = supctl("logs")
    assert result.code == 0
    assert result.out.splitlines() == [
        "── generation 0 · 12 ranks ──",
        "0  │ a",
        "11 ┃ b",
        "sup │ ran 1.0 s",
    ]


def test_on_several_nodes_the_prefix_names_the_node(supctl: Supctl, daemon: Daemon) -> None:
    run = a_run(nodes=("n1", "gpu-02"), nnodes=2)
    daemon(one_run(run, chunk(b"a\n"), chunk(b"b\n", 3, node="gpu-02"), event("x"), End()))
    assert supctl("logs").out.splitlines()[1:] == ["n1:0     │ a", "gpu-02:3 │ b", "     sup │ x"]


def test_without_utf_8_everything_of_ours_is_ascii(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "en_US.ISO-8859-1")
    daemon(one_run(a_run(), chunk("é→\n".encode()), chunk(b"b\n", 1, "err"), End()))
    result = supctl("logs", encoding="iso-8859-1")
    assert result.out.splitlines() == ["-- generation 0 - 4 ranks --", "0 | é->", "1 ! b"]
    assert supctl("wait", "nosuch", encoding="iso-8859-1").err.splitlines()[-1] == "-> supctl status"


def test_in_the_c_locale_symbols_are_ascii_although_python_writes_utf_8(
    supctl: Supctl, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    daemon(one_run(a_run(), chunk(b"a\n"), End()))
    assert supctl("logs").out.isascii()


@pytest.mark.parametrize(
    ("flags", "environ", "is_tty", "has_colour"),
    [
        ([], {}, True, True),
        ([], {}, False, False),
        ([], {"NO_COLOR": "1"}, True, False),
        ([], {"TERM": "dumb"}, True, False),
        ([], {"FORCE_COLOR": "1"}, False, True),
        (["--color", "always"], {"NO_COLOR": "1"}, False, True),
        (["--color", "never"], {}, True, False),
    ],
)
def test_colour_is_for_terminals_and_as_asked_for(
    supctl: Supctl,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    environ: dict[str, str],
    is_tty: bool,
    has_colour: bool,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    daemon(one_run(a_run(), chunk(b"\x1b[31ma\x1b[2J\n"), End()))
    out = supctl("logs", *flags, is_tty=is_tty).out
    assert ("\x1b[31ma\x1b[0m" in out, "\x1b" in out, "\x1b[2J" in out) == (has_colour, has_colour, False)


def test_no_prefix_gives_the_lines_as_they_were_written_and_nothing_else(supctl: Supctl, daemon: Daemon) -> None:
    data = b"10%\r20%\x1b[2J\nhalf"
    fake = daemon(one_run(a_run(), chunk(data), chunk(b"b\n", 1, "err"), End()))
    result = supctl("logs", "--no-prefix")
    assert result.out.encode() == b"10%\r20%\x1b[2J\nb\nhalf\n"
    assert [request.events for request in fake.requests if isinstance(request, Watch)] == [False]


def test_json_is_one_object_a_line(supctl: Supctl, daemon: Daemon) -> None:
    daemon(one_run(a_run(), chunk(b"a\nb\xff", 2, "err"), End()))
    first, second = [json.loads(line) for line in supctl("logs", "--json").out.splitlines()]
    assert first == {
        "run": RUN,
        "job": "hello",
        "generation": 0,
        "node": "n1",
        "rank": 2,
        "stream": "stderr",
        "line": "a",
    }
    assert second["line"] == "b�"


def test_following_goes_on_over_a_restart_and_ends_with_the_outcome(supctl: Supctl, daemon: Daemon) -> None:
    incident = Incident(number=1, generation=0, cause="exit", summary="rank 1 on n1 exited with code 1", node="n1")
    daemon(
        one_run(
            a_run(),
            chunk(b"a\n"),
            event("before", wall_s=1.0),
            event("unseen", kind="incident.opened", wall_s=4e9),
            Statuses(runs=(a_run(state="restarting", incident=incident),)),
            chunk(b"b\n", generation=1),
            Statuses(runs=(a_run(state="failed", is_final=True, generation=1, incident=incident, reason="budget"),)),
            End(),
        )
    )
    result = supctl("logs", "-f")
    assert result.code == 0
    assert result.out.splitlines() == [
        "── generation 0 · 4 ranks ──",
        "0 │ a",
        "sup │ before",
        "sup │ incident #1",
        "sup │   rank 1 on n1 exited with code 1",
        "sup │   generation 0",
        "── generation 1 ──",
        "0 │ b",
        "── hello@1a2b3c failed: budget ──",
    ]


def test_events_of_other_generations_are_left_out(supctl: Supctl, daemon: Daemon) -> None:
    run = a_run(generation=2)
    daemon(one_run(run, event("old", generation=1), event("new", generation=2), End()))
    assert "old" not in supctl("logs").out
    assert supctl("logs", "--gen", "-1").out == "sup │ old\n"
    assert supctl("logs", "--gen", "all").out == "sup │ old\nsup │ new\n"


@pytest.mark.parametrize(
    ("flags", "selection"),
    [
        ([], LogSelection()),
        (["-n", "5", "--stream", "err"], LogSelection(tail_lines=5, streams=("err",))),
        (["--tail", "all", "--gen", "all"], LogSelection(tail_lines=None, all_generations=True)),
        (["--gen", "0", "-r", "1-2,3"], LogSelection(generation=0, ranks=(1, 2, 3))),
        (["-r", "all"], LogSelection(ranks=(0, 1, 2, 3))),
        (["-r", "!0"], LogSelection(ranks=(1, 2, 3))),
        (["-r", "0-2,!1"], LogSelection(ranks=(0, 2))),
    ],
)
def test_the_flags_choose_what_supd_sends(
    supctl: Supctl, daemon: Daemon, flags: list[str], selection: LogSelection
) -> None:
    fake = daemon(one_run(a_run(), End()))
    assert supctl("logs", *flags).code == 0
    assert selection_sent(fake) == selection


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["-r", "4"], 3),
        (["-r", "2-1"], 3),
        (["-r", "0,,1"], 2),
        (["-r", "local:0"], 2),
        (["--gen", "1"], 3),
        (["--gen", "-1"], 3),
        (["--gen", "-2"], 2),
        (["--gen", "x"], 2),
        (["-n", "-1"], 2),
        (["--json", "--no-prefix"], 2),
    ],
)
def test_an_unknown_rank_or_generation_is_an_error_and_not_an_empty_result(
    supctl: Supctl, daemon: Daemon, flags: list[str], code: int
) -> None:
    daemon(one_run(a_run(), End()))
    result = supctl("logs", *flags)
    assert (result.code, result.out) == (code, "")
    assert "supctl" in result.err.splitlines()[-1]


def test_following_chosen_ranks_waits_until_the_ranks_are_known(supctl: Supctl, daemon: Daemon) -> None:
    pending = a_run(state="pending", ranks=None, generation=None, has_started=False)
    fake = daemon(one_run(pending, Statuses(runs=(a_run(is_final=True, state="succeeded"),)), End()))
    assert supctl("logs", "-f", "-r", "3").code == 0
    assert [request.logs.ranks for request in fake.requests if isinstance(request, Watch) and request.logs] == [(3,)]


def test_path_says_where_the_files_lie(supctl: Supctl, daemon: Daemon) -> None:
    fake = daemon(one_run(a_run(), Paths(paths=("/logs/a", "/logs/b"))))
    assert supctl("logs", "--path").out == "/logs/a\n/logs/b\n"
    assert json.loads(supctl("logs", "--path", "--json").out)["data"] == {"run": RUN, "paths": ["/logs/a", "/logs/b"]}
    assert isinstance(fake.requests[-1], LogPaths)


def test_reading_the_past_what_the_supervisor_did_follows_the_output_of_its_generation(
    supctl: Supctl, daemon: Daemon
) -> None:
    run = a_run(generation=1, state="succeeded", is_final=True)
    events = [event("unseen", kind="generation.launched"), event("x"), event("y", 1, "job.succeeded")]
    daemon(one_run(run, *events, chunk(b"a\n"), chunk(b"b\n", generation=1), End()))
    assert supctl("logs", "--gen", "all").out.splitlines() == [
        "── generation 0 ──",
        "0 │ a",
        "sup │ x",
        "── generation 1 · 4 ranks ──",
        "0 │ b",
        "sup │ job succeeded: y",
        "── hello@1a2b3c succeeded ──",
    ]
