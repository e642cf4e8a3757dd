"""What a job is: the validated content of a job.toml (keys, defaults and meaning: docs/job-file.md), and its parser.

A key's default is its field's; its check is its line in `SCHEMA`, the single list of the keys. Problems have the
codes of `protocol.tables.Kind` behind a J: J0xx unreadable, J1xx unknown, J2xx a value, J3xx values that contradict.
"""

import re
import signal

import msgspec

from protocol.checks import (
    MAX_INT,
    array_of,
    choice,
    duration,
    duration_or_off,
    integer,
    matching,
    schema_version,
    string,
    text,
)
from protocol.checks import parse_duration_s as parse_duration_s  # for supctl's flags
from protocol.errors import JobInvalid
from protocol.tables import (
    Check,
    Found,
    Key,
    Kind,
    Schema,
    Spot,
    check_tables,
    did_you_mean,
    key_text,
    quoted,
    read_toml,
    shown,
)

RESERVED_ENV = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
    }
)
"""Variables of a worker that supd sets itself, as torchrun does; and all that begin with RESERVED_ENV_PREFIX."""

RESERVED_ENV_PREFIX = "SUPD_"

MAX_NPROC_PER_NODE = 4096

# --- structs -----------------------------------------------------------------------------------------------------


class RunTable(msgspec.Struct, frozen=True, kw_only=True):
    """[run]: what every rank executes. Exactly one of `script`, `module` and `command` is given."""

    script: str = ""
    module: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    python: str = ""  # "": the submitter's
    workdir: str = ""  # "": the folder of the job file
    env: dict[str, str] = {}
    env_file: str = ""
    inherit_env: str | tuple[str, ...] = "submitter"  # "submitter", "daemon", "none", or globs over the submitter's
    limits: dict[str, int] = {}  # nofile, core, memlock, stack; -1: unlimited


class TopologyTable(msgspec.Struct, frozen=True, kw_only=True):
    """[topology]: how many ranks."""

    nnodes: int = 1
    nproc_per_node: int | str = "auto"  # or "auto", "gpu", "cpu", "xpu"
    role: str = "default"


class DevicesTable(msgspec.Struct, frozen=True, kw_only=True):
    """[devices]: what a rank sees of the node's accelerators and CPUs."""

    visibility: str = "all"  # or "virtual": one device a rank
    omp_num_threads: int | str = ""  # "": 1 where a node has more than one rank; or "auto", "inherit"


class RestartTable(msgspec.Struct, frozen=True, kw_only=True):
    """[restart]: what happens after a failure."""

    policy: str = "on-failure"  # or "never"
    max_restarts: int = 10  # -1: no limit
    stable_after_s: float = 600.0
    backoff_s: float = 5.0
    backoff_max_s: float = 120.0
    on_startup_failure: str = "fail"  # or "restart"
    start_after_s: float = 10.0
    never_on_exit: tuple[int, ...] = ()
    always_on_exit: tuple[int, ...] = ()


class StopTable(msgspec.Struct, frozen=True, kw_only=True):
    """[stop]: how workers are ended, on every path. Signals are names, as in `signal.Signals`."""

    pre_signal: str = ""  # "": none
    pre_wait_s: float = 0.0
    signal: str = "SIGTERM"
    grace_s: float = 30.0
    scope: str = "rank"  # whom `signal` goes to first: the rank's main process, or its "tree"
    finish_timeout_s: float | None = None  # None: "off"


class CheckpointTable(msgspec.Struct, frozen=True, kw_only=True):
    """[checkpoint]: how a save is noticed."""

    marker: str = ""  # file whose number is the last saved step


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A whole job.toml, validated, with every default filled in."""

    name: str
    schema: int = 1
    run: RunTable
    topology: TopologyTable = TopologyTable()
    devices: DevicesTable = DevicesTable()
    restart: RestartTable = RestartTable()
    stop: StopTable = StopTable()
    checkpoint: CheckpointTable = CheckpointTable()


class Submitter(msgspec.Struct, frozen=True, kw_only=True):
    """What `supctl start` adds to the file: the place and environment it was called in."""

    folder: str  # the job file's folder, absolute: relative paths of the file start here
    source: str  # the job file's path as the user gave it, for messages
    python: str  # the submitter's interpreter: VIRTUAL_ENV's, else the first `python3` or `python` on PATH
    env: dict[bytes, bytes]  # byte for byte, as it was
    limits: dict[str, int]  # soft limits: nofile, core, memlock, stack; -1: unlimited
    umask: int
    user: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a runner needs to know of a run besides its assignment; the same in all generations."""

    run: str
    spec: JobSpec
    submitter: Submitter


# --- checks ------------------------------------------------------------------------------------------------------


def _signal_name(refused: dict[str, str], *, is_empty_allowed: bool = False) -> Check:
    """A check for a signal's name, with SIG or without; `refused` has the reasons why some cannot be used."""

    def check(at: Spot, value: object) -> object:
        if not isinstance(value, str):
            at.wrong_type("a string", value, 'write a signal\'s name, as in "SIGTERM"')
            return value
        if not value and is_empty_allowed:
            return value
        short = value.upper().removeprefix("SIG")
        name = f"SIG{short}"
        if name in refused:
            at.wrong(Kind.SIGNAL, value, f"cannot be {name}", refused[name])
        elif name not in signal.Signals.__members__:
            known = [member.removeprefix("SIG") for member in signal.Signals.__members__]
            hint = did_you_mean(short, known, '"SIG{}"') or 'write a signal\'s name, as in "SIGTERM"'
            at.wrong(Kind.SIGNAL, value, "is not a signal", hint)
        return name

    return check


def _nnodes(at: Spot, value: object) -> object:
    is_range = isinstance(value, str) and re.fullmatch("[0-9]+:[0-9]+", value)
    is_several = isinstance(value, int) and not isinstance(value, bool) and value > 1
    if is_range or is_several:
        at.wrong(Kind.NOT_YET, value, "above 1 is not in this version, which runs a job on one node", "write 1")
        return value
    return integer(1, 1)(at, value)


def _env(at: Spot, value: object) -> object:
    if not isinstance(value, dict):
        at.wrong_type("a table", value, 'write env = { NAME = "value" }, or [run.env] with a line for each')
        return value
    for name, content in value.items():
        _check_variable(at.below(name), name, content)
    return value


def _check_variable(at: Spot, name: str, content: object) -> None:
    word = key_text(name)
    if not name or "=" in name or "\0" in name:
        at.found.add(Kind.ENV, at.path, "", f"`{word}` cannot name a variable", "a name has no = and no NUL")
    elif name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIX):
        at.found.add(Kind.ENV, at.path, "", f"supd sets `{word}` itself for every rank", "leave it out")
    if isinstance(content, bool | int | float):
        at.wrong_type("a string", content, f'put it in quotes: {word} = "{shown(content)}"')
    elif not isinstance(content, str):
        at.wrong_type("a string", content)
    elif "\0" in content:  # what a variable holds may be a secret: it is not shown
        at.found.add(Kind.TEXT, at.path, "", f"`{at.path}` must not contain a NUL", "take the \\u0000 out")


def _inherit_env(at: Spot, value: object) -> object:
    if isinstance(value, list):
        return array_of(text)(at, value)
    if isinstance(value, str) and value not in ("submitter", "daemon", "none"):
        hint = did_you_mean(value, ("submitter", "daemon", "none"), '"{}"') or f"write [{quoted(value)}] for a pattern"
        at.wrong(Kind.CHOICE, value, "is none of its choices", hint)
    elif not isinstance(value, str):
        at.wrong_type("a string or an array", value, 'write "submitter", "daemon", "none", or patterns: ["HF_*"]')
    return value


LIMITS = ("nofile", "core", "memlock", "stack")
_LIMIT = integer(0, MAX_INT, "unlimited")


def _limits(at: Spot, value: object) -> object:
    if not isinstance(value, dict):
        at.wrong_type("a table", value, "write limits = { nofile = 65536 }")
        return value
    for name in value.keys() - set(LIMITS):
        spot = at.below(name)
        hint = did_you_mean(name, LIMITS) or f"there are {', '.join(LIMITS)}"
        spot.found.add(Kind.UNKNOWN_KEY, spot.path, "", f"unknown limit `{key_text(name)}`", hint)
    sound = {name: _LIMIT(at.below(name), value[name]) for name in LIMITS if name in value}
    return {name: -1 if limit == "unlimited" else limit for name, limit in sound.items()}


_EXIT_CODES = array_of(integer(1, 255))  # 0 is success and never a failure to decide about
_JOB_NAME = matching(
    "[a-z0-9][a-z0-9-]{0,62}", "a job name", "write 1 to 63 of a-z, 0-9 and -, a letter or digit first"
)
_KILL = "it cannot be caught, so nothing could be saved; SIGUSR1 is usual"
_STOP = "it would only suspend the ranks, and they would never end"

SCHEMA = Schema(
    top={
        "schema": Key(schema_version),
        "name": Key(_JOB_NAME, is_required=True),
    },
    tables={
        "run": {
            "script": Key(text),
            "module": Key(text),
            "command": Key(array_of(string, is_empty_allowed=False)),
            "args": Key(array_of(string)),
            "python": Key(text),
            "workdir": Key(text),
            "env": Key(_env),
            "env_file": Key(text),
            "inherit_env": Key(_inherit_env),
            "limits": Key(_limits),
        },
        "topology": {
            "nnodes": Key(_nnodes),
            "nproc_per_node": Key(integer(1, MAX_NPROC_PER_NODE, "auto", "gpu", "cpu", "xpu")),
            "role": Key(text),
        },
        "devices": {
            "visibility": Key(choice("all", "virtual")),
            "omp_num_threads": Key(integer(1, 65536, "auto", "inherit")),
        },
        "restart": {
            "policy": Key(choice("on-failure", "never")),
            "max_restarts": Key(integer(-1, 1_000_000)),
            "stable_after": Key(duration, "stable_after_s"),
            "backoff": Key(duration, "backoff_s"),
            "backoff_max": Key(duration, "backoff_max_s"),
            "on_startup_failure": Key(choice("fail", "restart")),
            "start_after": Key(duration, "start_after_s"),
            "never_on_exit": Key(_EXIT_CODES),
            "always_on_exit": Key(_EXIT_CODES),
        },
        "stop": {
            "pre_signal": Key(_signal_name({"SIGKILL": _KILL, "SIGSTOP": _STOP}, is_empty_allowed=True)),
            "pre_wait": Key(duration, "pre_wait_s"),
            "signal": Key(_signal_name({"SIGSTOP": _STOP})),
            "grace": Key(duration, "grace_s"),
            "scope": Key(choice("rank", "tree")),
            "finish_timeout": Key(duration_or_off, "finish_timeout_s"),
        },
        "checkpoint": {
            "marker": Key(string),
        },
    },
    later={
        "": (
            "description",
            "labels",
            "rendezvous",
            "progress",
            "hang",
            "health",
            "preemption",
            "logs",
            "hooks",
            "notify",
        ),
        "run": ("preload", "launcher", "backend", "secret_env"),
        "topology": (
            "extra_nodes",
            "grow_min_interval",
            "grow_without_checkpoint",
            "nodes",
            "exclude",
            "node_labels",
            "rank_order",
        ),
        "devices": ("kind", "numa", "require_free"),
        "restart": (
            "max_infra_restarts",
            "restart_window",
            "no_progress_limit",
            "exclude_node_after",
            "count_membership",
            "on_budget_spent",
        ),
        "stop": ("abort_on_hang",),
        "checkpoint": ("log_pattern",),
    },
)

# --- the parser --------------------------------------------------------------------------------------------------


def parse_job(data: bytes, source: str) -> JobSpec:
    """The job that a job.toml describes; raises JobInvalid with every problem of it. `source` is for messages."""
    found = Found("J")
    document = read_toml(data, found)
    if document == {}:
        found.add(Kind.EMPTY, "", "", "the file is empty", 'the least is name = "my-job", [run], script = "train.py"')
    elif document is not None:
        values = check_tables(document, SCHEMA, found)
        _check_program(document.get("run", {}), found)
        _check_exit_codes(values["restart"], found)
        _check_backoff(values["restart"], found)
        if not found.problems:
            return msgspec.convert(values, JobSpec)
    raise JobInvalid(source, found.problems)


def _check_program(run: object, found: Found) -> None:
    if not isinstance(run, dict):
        return
    given = [f"`run.{key}`" for key in ("script", "module", "command") if key in run]
    if not given:
        message = "[run] needs one of `script`, `module` and `command`"
        found.add(Kind.EXCLUSIVE, "run", "", message, 'write [run] and below it script = "train.py"')
    elif len(given) > 1:
        message = f"{' and '.join(given)} exclude each other"
        hint = "keep one: `script` and `module` run under python, `command` is used as it is"
        found.add(Kind.EXCLUSIVE, "run", "", message, hint)


def _check_exit_codes(restart: dict[str, tuple[int, ...]], found: Found) -> None:
    for code in sorted({*restart.get("never_on_exit", ())} & {*restart.get("always_on_exit", ())}):
        message = "a code is in `restart.never_on_exit` and in `restart.always_on_exit`"
        found.add(Kind.CONTRADICTION, "restart.always_on_exit", str(code), message, "keep it in one of them")


def _check_backoff(restart: dict[str, float], found: Found) -> None:
    low, high = restart.get("backoff_s"), restart.get("backoff_max_s")
    if low is not None and high is not None and high < low:
        message = "`restart.backoff_max` is below `restart.backoff`"
        found.add(Kind.CONTRADICTION, "restart.backoff_max", f"{high:g}s", message, f'write "{low:g}s" or more')
