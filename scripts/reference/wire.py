"""The tables of messages in docs/protocol.md: who says what to whom and when stands here, the rest in the structs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType

from structs import Row, Shape, about, fields_parts, rows
from tabular import table_text

from protocol import coordinator_events, errors, job, restart, timing
from protocol.messages import Message, control, fleet, member, runner, upkeep, witness

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
BEGIN = "<!-- From here to the next mark: written by scripts/docs from the code. -->"
END = "<!-- Written by hand again. -->"


WIRE_WORDS = {
    "None": "null",
    "False": "false",
    "True": "true",
    "<": "&lt;",  # Markdown would take it for a tag
    **{
        name: ", ".join(f"`{word}`" for word in getattr(control, name))
        for name in ("RUN_STATES", "RANK_STATES", "NODE_STATES")
    },
}


@dataclass(frozen=True)
class Spoken:
    """One message as it is said: by whom, to whom, and when."""

    message: type[Message]
    speaker: str
    listener: str
    when: str


@dataclass(frozen=True)
class Section:
    """One conversation; or, where nothing is `spoken`, what is only kept or is a part of others."""

    title: str
    about: str
    spoken: tuple[Spoken, ...]
    modules: tuple[ModuleType, ...]  # whose structs are told here
    kept: tuple[Shape, ...] = ()  # those of them that no message mentions


SECTIONS = (
    Section(
        title="Node and host",
        about="A node is a supd; the host is the one whose supd hosts the coordinator. On the peers' port of the host.",
        spoken=(
            Spoken(fleet.Join, "node", "host", "its first frame, once"),
            Spoken(fleet.Joined, "host", "node", "the answer to `Join`, once it has reached the node's own port"),
            Spoken(fleet.JoinRefused, "host", "node", "the answer to `Join` or another first frame instead; the end"),
            Spoken(fleet.NodeReport, "node", "host", "after `Joined`: every second, and at once on a change"),
            Spoken(fleet.NodeOrder, "host", "node", "the answer to each `NodeReport`, and unasked on a change"),
        ),
        modules=(fleet,),
    ),
    Section(
        title="supd and supd",
        about="Between any two nodes, on the peers' port of either; one question a connection.",
        spoken=(
            Spoken(fleet.Probe, "any node", "any node", "its first frame, once; the host asks it of who joins"),
            Spoken(fleet.Probed, "any node", "any node", "the answer to `Probe`; the connection ends"),
            Spoken(fleet.Visit, "node", "host", "its first frame, once; then supctl's frames, from its `Greeting` on"),
            Spoken(fleet.FetchLogs, "host", "node", "its first frame, once"),
            Spoken(fleet.LogsNow, "host", "node", "after `FetchLogs`, whenever the run has moved on"),
            Spoken(fleet.LogsSeen, "node", "host", "after `FetchLogs`, behind the `LogChunk`s of a look at the files"),
            Spoken(fleet.LogsEnd, "node", "host", "after the last `LogChunk`, or why it fails; the end"),
            Spoken(fleet.FetchRank, "host", "node", "its first frame, once"),
            Spoken(fleet.RankFacts, "node", "host", "the answer to `FetchRank`; the connection ends"),
        ),
        modules=(fleet,),
    ),
    Section(
        title="Runner and coordinator",
        about="On the peers' port of the host.",
        spoken=(
            Spoken(member.Hello, "runner", "host", "its first frame, once"),
            Spoken(member.Welcome, "host", "runner", "the answer to `Hello`, once"),
            Spoken(member.JobWanted, "host", "runner", "the answer to `Hello` where the run is not known, once"),
            Spoken(member.JobTold, "runner", "host", "the answer to `JobWanted`, once; `Welcome` follows"),
            Spoken(member.Rejected, "host", "runner", "the answer to `Hello` instead; the connection ends"),
            Spoken(member.Renewal, "runner", "host", "after `Welcome`: every second, and at once on a change"),
            Spoken(member.Answer, "host", "runner", "the answer to each `Renewal`, and unasked when its order changes"),
            Spoken(member.RenewalOf, "runner", "host", "a witness, for each `PassOn`"),
            Spoken(member.AnswerFor, "host", "runner", "the answer to each `RenewalOf`, and unasked as `Answer`"),
            Spoken(member.Question, "host", "runner", "to the witnesses of a runner that is silent, every 0.3 s"),
            Spoken(member.Testimony, "runner", "host", "the answer to each `Question`"),
        ),
        modules=(member, timing),
    ),
    Section(
        title="Runner and runner",
        about="Between two runners of a run, on the port that one offers as `witness_port`; both begin with `Hello`.",
        spoken=(
            Spoken(witness.WordWanted, "runner", "its witness", "every 0.25 s while the coordinator does not answer"),
            Spoken(witness.Word, "witness", "runner", "the answer to each `WordWanted`"),
            Spoken(witness.PassOn, "runner", "its witness", "a `Renewal`, while the coordinator does not reach it"),
            Spoken(witness.PassedOn, "witness", "runner", "for each `AnswerFor` of the coordinator"),
        ),
        modules=(witness,),
    ),
    Section(
        title="The job",
        about="What `Welcome` and `FetchRank` hand over; how each key is written: [job-file.md](job-file.md).",
        spoken=(),
        modules=(job,),
        kept=(job.Job,),
    ),
    Section(
        title="supctl and supd",
        about="On the unix socket, or behind a `Visit`.",
        spoken=(
            Spoken(control.Greeting, "both", "each other", "its first frame, once"),
            Spoken(control.Start, "supctl", "supd", "a request; answered by `Done` or `Failure`"),
            Spoken(control.StopRun, "supctl", "supd", "a request; answered by `Done` or `Failure`"),
            Spoken(control.RestartRun, "supctl", "supd", "a request; answered by `Done` or `Failure`"),
            Spoken(control.DeclareLost, "supctl", "supd", "a request; answered by `Done` or `Failure`"),
            Spoken(upkeep.DrainNodes, "supctl", "supd", "a request; answered by `Done` or `Failure`"),
            Spoken(upkeep.UndrainNodes, "supctl", "supd", "a request; answered by `Done` or `Failure`"),
            Spoken(upkeep.ScaleRun, "supctl", "supd", "a request; answered by `Done` or `Failure`"),
            Spoken(upkeep.ResumeRun, "supctl", "supd", "a request; answered by `Done` or `Failure`"),
            Spoken(upkeep.AskPolicy, "supctl", "supd", "a request; answered by `Policy` or `Failure`"),
            Spoken(control.GetStatus, "supctl", "supd", "a request; answered by `Statuses` or `Failure`"),
            Spoken(control.GetNodes, "supctl", "supd", "a request; answered by `Nodes` or `Failure`"),
            Spoken(
                control.Watch,
                "supctl",
                "supd",
                "a request; answered by `Statuses`, `EventRecord`, `LogChunk` as they come, then `End` or `Failure`",
            ),
            Spoken(control.LogPaths, "supctl", "supd", "a request; answered by `Paths` or `Failure`"),
            Spoken(control.Describe, "supctl", "supd", "a request; answered by `Description` or `Failure`"),
            Spoken(control.Resolve, "supctl", "supd", "a request; answered by `Done` or `Failure`"),
            Spoken(control.Failure, "supd", "supctl", "the last frame"),
            Spoken(control.Done, "supd", "supctl", "the last frame"),
            Spoken(control.Statuses, "supd", "supctl", "the last frame, but in a `Watch`"),
            Spoken(control.Nodes, "supd", "supctl", "the last frame"),
            Spoken(upkeep.Policy, "supd", "supctl", "the last frame"),
            Spoken(control.EventRecord, "supd", "supctl", "in a `Watch`"),
            Spoken(control.LogChunk, "supd", "supctl", "in a `Watch`; and from node to host after `FetchLogs`"),
            Spoken(control.Notice, "supd", "supctl", "in a `Watch`"),
            Spoken(control.Paths, "supd", "supctl", "the last frame"),
            Spoken(control.Description, "supd", "supctl", "the last frame"),
            Spoken(control.End, "supd", "supctl", "the last frame of a `Watch`"),
        ),
        modules=(control, upkeep, errors),
    ),
    Section(
        title="supd and its runners",
        about="On the standard input of a runner that waits for a run; and what is on disk.",
        spoken=(Spoken(runner.TakeOn, "supd", "runner", "the only frame, once"),),
        modules=(runner, coordinator_events, restart),
        kept=(runner.Record, coordinator_events.RunRecord),
    ),
)


def messages_text() -> str:
    """Everything between the two marks of the page."""
    told: set[Shape] = set()
    parts = []
    for section in SECTIONS:
        parts += [f"### {section.title}", section.about]
        if section.spoken:
            spoken = [(_link(s.message), s.speaker, s.listener, s.when) for s in section.spoken]
            parts.append(table_text(("message", "from", "to", "when"), spoken))
        for first in (*(s.message for s in section.spoken), *section.kept):
            parts += [_shape_text(shape) for shape in _with_parts(first, section.modules, told)]
    return "\n\n".join(parts)


def _with_parts(shape: Shape, modules: tuple[ModuleType, ...], told: set[Shape]) -> Iterator[Shape]:
    """A shape and all that is below it, as far as it was not told already and is told here."""
    if shape in told or shape.__module__ not in {module.__name__ for module in modules}:
        return
    told.add(shape)
    yield shape
    for part in fields_parts(shape):
        yield from _with_parts(part, modules, told)


def _link(shape: Shape) -> str:
    return f"[{shape.__name__}](#{shape.__name__.lower()})"


def _shape_text(shape: Shape) -> str:
    is_array = issubclass(shape, tuple)
    parts = [
        f"#### {shape.__name__}",
        f"{about(shape)} An array of these, in this order." if is_array else about(shape),
    ]
    content = rows(shape)
    if issubclass(shape, Enum):
        parts.append(table_text(("word", "meaning"), [(f"`{row.name}`", row.meaning) for row in content]))
    elif content:
        parts.append(table_text(("field", "type", "default", "meaning"), [_cells(row) for row in content]))
    return "\n\n".join(parts)


def _cells(row: Row) -> tuple[str, ...]:
    return (f"`{row.name}`", row.type, f"`{row.default}`" if row.default else "", _on_the_wire(row.meaning))


def _on_the_wire(words: str) -> str:
    """What the source says of a field, with the wire's words for Python's."""
    for name, wire in WIRE_WORDS.items():
        words = re.sub(rf"(?<![\w.`]){name}(?![\w`])", wire, words)
    return words


def protocol_page() -> str:
    """docs/protocol.md: the page as it is, with the tables between its marks written anew."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGE} has no mark {BEGIN}"
    assert end, f"{PAGE} has no mark {END}"
    return f"{before}{BEGIN}\n\n{messages_text()}\n\n{END}{after}"
