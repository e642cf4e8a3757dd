"""job.toml: what a sound file means, and what is said of one that is not."""

import contextlib
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import JobInvalid
from protocol.job import RESERVED_ENV, DevicesTable, JobSpec, RestartTable, RunTable, StopTable, TopologyTable
from protocol.job_file import read_job
from protocol.job_schema import SCHEMA
from protocol.selector import FORM

ROOT = Path(__file__).parents[2]
LEAST = 'name = "a"\n[run]\nscript = "train.py"\n'


def parsed(text: str) -> JobSpec:
    return read_job(text.encode(), "job.toml").spec


def problems_of(text: str) -> list[tuple[str, str, str, str, str]]:
    """Code, key, value, message and hint of every problem of a file."""
    with pytest.raises(JobInvalid) as caught:
        parsed(text)
    return [(p.code, p.key, p.value, p.message, p.hint) for p in caught.value.problems]


# --- sound files -------------------------------------------------------------------------------------------------


def test_the_least_job_file_takes_every_default_from_the_structs() -> None:
    origins = {"name": "file", "run.script": "file"}
    assert parsed(LEAST) == JobSpec(name="a", run=RunTable(script="train.py"), origins=origins)


def test_every_key_arrives_where_it_belongs() -> None:
    spec = parsed("""
        schema = 1
        name = "llama-7b"
        [run]
        command = ["python", "-m", "x"]
        args = ["--lr", ""]
        python = "/opt/py/bin/python"
        workdir = "${HOME}/src"
        env = { NCCL_DEBUG = "INFO", EMPTY = "" }
        env_file = "cluster.env"
        inherit_env = ["HF_*", "PATH"]
        limits = { nofile = 65536, core = 0, memlock = "unlimited" }
        [topology]
        nnodes = 1
        nproc_per_node = 8
        role = "trainer"
        [devices]
        visibility = "virtual"
        omp_num_threads = 4
        numa_binding = "socket"
        [restart]
        policy = "never"
        max_restarts = -1
        stable_after = "1h"
        backoff = "0s"
        backoff_max = "1m30s"
        on_startup_failure = "restart"
        start_after = "500ms"
        never_on_exit = [2]
        always_on_exit = [33, 75]
        [stop]
        pre_signal = "usr1"
        pre_wait = "3m"
        signal = "SIGINT"
        grace = "60s"
        scope = "tree"
        finish_timeout = "10m"
        [checkpoint]
        marker = "out/latest.txt"
    """)
    assert spec.run == RunTable(
        command=("python", "-m", "x"),
        args=("--lr", ""),
        python="/opt/py/bin/python",
        workdir="${HOME}/src",
        env={"NCCL_DEBUG": "INFO", "EMPTY": ""},
        env_file="cluster.env",
        inherit_env=("HF_*", "PATH"),
        limits={"nofile": 65536, "core": 0, "memlock": -1},
    )
    assert spec.topology == TopologyTable(nproc_per_node=8, role="trainer")
    assert spec.devices == DevicesTable(visibility="virtual", omp_num_threads=4, numa_binding="socket")
    assert spec.restart == RestartTable(
        policy="never",
        max_restarts=-1,
        stable_after_s=3600.0,
        backoff_s=0.0,
        backoff_max_s=90.0,
        on_startup_failure="restart",
        start_after_s=0.5,
        never_on_exit=(2,),
        always_on_exit=(33, 75),
    )
    assert spec.stop == StopTable(
        pre_signal="SIGUSR1", pre_wait_s=180.0, signal="SIGINT", grace_s=60.0, scope="tree", finish_timeout_s=600.0
    )
    assert spec.checkpoint.marker == "out/latest.txt"


def test_a_table_of_the_file_has_no_field_without_a_key_and_no_key_without_a_field() -> None:
    keyed = {table: {key.field or name for name, key in keys.items()} for table, keys in SCHEMA.tables.items()}
    fields = {field.name: field.type for field in msgspec.structs.fields(JobSpec)}
    structs = {name: struct for name, struct in fields.items() if name not in {*SCHEMA.top, "origins"}}
    assert keyed == {table: {f.name for f in msgspec.structs.fields(struct)} for table, struct in structs.items()}


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "jobs").glob("*.toml")), ids=lambda path: path.name)
def test_the_examples_are_sound(path: Path) -> None:
    spec = read_job(path.read_bytes(), str(path)).spec
    assert not spec.run.script or (path.parent / spec.run.script).is_file()


# --- problems ----------------------------------------------------------------------------------------------------


def test_all_problems_of_a_file_are_told_at_once_with_key_value_and_mend() -> None:
    with pytest.raises(JobInvalid) as caught:
        parsed("""
            nam = "Llama"
            [run]
            script = "train.py"
            command = ["python"]
            [topology]
            nproc_pernode = 8
            [stop]
            grace = 300
        """)
    assert [(p.code, p.key, p.value, p.hint) for p in caught.value.problems] == [
        ("J101", "nam", "", "did you mean `name`?"),
        ("J301", "run", "", "keep one: `script` runs under python, `command` is used as is"),
        ("J101", "topology.nproc_pernode", "", "did you mean `nproc_per_node`?"),
        ("J204", "stop.grace", "300", 'write "300s" or "5m"'),
        ("J202", "name", "", "write name = … at the top of the file"),
    ]


RUN, TOPOLOGY, RESTART, STOP, PREEMPTION = "[run]\n", "[topology]\n", "[restart]\n", "[stop]\n", "[preemption]\n"


@pytest.mark.parametrize(
    ("extra", "code", "key", "value", "hint"),
    [
        # values
        ("args = [1]", "J201", "run.args[0]", "1", 'put it in quotes: "1"'),
        ('args = "-v"', "J201", "run.args", '"-v"', 'write ["-v"]'),
        ('workdir = ""', "J206", "run.workdir", '""', "write something, or leave the key out for its default"),
        ('inherit_env = "HF_*"', "J203", "run.inherit_env", '"HF_*"', 'write ["HF_*"] for a pattern'),
        (
            'inherit_env = "all"',
            "J203",
            "run.inherit_env",
            '"all"',
            'write "submitter", "daemon" or "none", or ["all"] for a pattern',
        ),
        ('inherit_env = "deamon"', "J203", "run.inherit_env", '"deamon"', 'did you mean "daemon"?'),
        (
            "inherit_env = true",
            "J201",
            "run.inherit_env",
            "true",
            'write "submitter", "daemon", "none", or patterns: ["HF_*"]',
        ),
        ("limits = 5", "J201", "run.limits", "5", "write limits = { nofile = 65536 }"),
        ("limits.nofiles = 5", "J101", "run.limits.nofiles", "", "did you mean `nofile`?"),
        ("limits.cpu = 5", "J101", "run.limits.cpu", "", "there are nofile, core, memlock, stack"),
        ("limits.core = -1", "J205", "run.limits.core", "-1", 'write 0 or more or "unlimited"'),
        ("limits.core = true", "J201", "run.limits.core", "true", 'write 0 or more or "unlimited"'),
        ('limits.stack = "8MB"', "J203", "run.limits.stack", '"8MB"', 'write 0 or more or "unlimited"'),
        # environment
        ("env = []", "J201", "run.env", "", 'write env = { NAME = "value" }, or [run.env] with a line for each'),
        ("env.A = 1", "J201", "run.env.A", "", 'put the value in quotes: A = "…"'),
        ("env.A = true", "J201", "run.env.A", "", 'put the value in quotes: A = "…"'),
        ('env.TOKEN = ["secret"]', "J201", "run.env.TOKEN", "", "write a string"),
        ('env.TOKEN = "secret\\u0000"', "J206", "run.env.TOKEN", "", "take the \\u0000 out"),
        ('env."A=B" = "x"', "J208", 'run.env."A=B"', "", "a name has no = and no NUL"),
        ('env."" = "x"', "J208", 'run.env.""', "", "a name has no = and no NUL"),
        ('env."A\\u0000" = "x"', "J208", 'run.env."A\\u0000"', "", "a name has no = and no NUL"),
        ('env.RANK = "3"', "J208", "run.env.RANK", "", "leave it out"),
        ('env.SUPD_JOB = "x"', "J208", "run.env.SUPD_JOB", "", "leave it out"),
        # topology and devices
        (
            TOPOLOGY + "nproc_per_node = 0",
            "J205",
            "topology.nproc_per_node",
            "0",
            'write 1 to 4096 or "auto" or "gpu" or "cpu" or "xpu"',
        ),
        (TOPOLOGY + 'nproc_per_node = "8"', "J201", "topology.nproc_per_node", '"8"', "write 8 without quotes"),
        (TOPOLOGY + 'nproc_per_node = "gpus"', "J203", "topology.nproc_per_node", '"gpus"', 'did you mean "gpu"?'),
        (TOPOLOGY + "grow_min_interval = 300", "J204", "topology.grow_min_interval", "300", 'write "300s" or "5m"'),
        ('[devices]\nvisibility = "one"', "J203", "devices.visibility", '"one"', 'write "all" or "virtual"'),
        # restart
        (RESTART + 'policy = "always"', "J203", "restart.policy", '"always"', 'write "on-failure" or "never"'),
        (RESTART + "max_restarts = -2", "J205", "restart.max_restarts", "-2", "write -1 to 1000000"),
        (RESTART + "max_restarts = true", "J201", "restart.max_restarts", "true", "write -1 to 1000000"),
        (RESTART + "never_on_exit = [0]", "J205", "restart.never_on_exit[0]", "0", "write 1 to 255"),
        (RESTART + "always_on_exit = [1, 256]", "J205", "restart.always_on_exit[1]", "256", "write 1 to 255"),
        (
            RESTART + "never_on_exit = [2, 3]\nalways_on_exit = [3]",
            "J302",
            "restart.always_on_exit",
            "3",
            "keep it in one of them",
        ),
        (RESTART + 'on_budget_spent = "wait"', "J203", "restart.on_budget_spent", '"wait"', 'write "fail" or "hold"'),
        (RESTART + "no_progress_limit = -1", "J205", "restart.no_progress_limit", "-1", "write 0 to 1000000"),
        (RESTART + "exclude_node_after = 51", "J205", "restart.exclude_node_after", "51", "write 0 to 50"),
        # stop
        (STOP + 'signal = "SIGTREM"', "J207", "stop.signal", '"SIGTREM"', 'did you mean "SIGTERM"?'),
        (STOP + 'signal = ""', "J207", "stop.signal", '""', 'write a signal\'s name, as in "SIGTERM"'),
        (STOP + "signal = 15", "J201", "stop.signal", "15", 'write a signal\'s name, as in "SIGTERM"'),
        (
            STOP + 'signal = "stop"',
            "J207",
            "stop.signal",
            '"stop"',
            "it would only suspend the ranks, and they would never end",
        ),
        (
            STOP + 'pre_signal = "KILL"',
            "J207",
            "stop.pre_signal",
            '"KILL"',
            "it cannot be caught, so nothing could be saved; SIGUSR1 is usual",
        ),
        (STOP + 'scope = "node"', "J203", "stop.scope", '"node"', 'write "rank" or "tree"'),
        (
            STOP + 'finish_timeout = "on"',
            "J204",
            "stop.finish_timeout",
            '"on"',
            'write a duration like "90s", "1h30m" or "500ms" (units d, h, m, s, ms, the largest first), or "off"',
        ),
        # progress
        ("[progress]\nlog_pattern = '('", "J412", "progress.log_pattern", '"("', "see Python's `re`"),
        ("[progress]\nlog_pattern = 'x'", "J412", "progress.log_pattern", '"x"', r"name it: (?P<step>\d+)"),
        ('[progress]\nlog_ranks = "x"', "J206", "progress.log_ranks", '"x"', f"write ranks {FORM}"),
        (
            '[progress]\nsource = "log"',
            "J302",
            "progress.source",
            '"log"',
            r"write log_pattern = 'step (?P<step>\d+)', or source = " + '"auto"',
        ),
        (
            '[progress]\nsource = "file"',
            "J302",
            "progress.source",
            '"file"',
            'write file = "out/progress.json", or source = "auto"',
        ),
        # hangs
        ('[hang]\naction = "dump"', "J103", "hang.action", '"dump"', 'write "warn"'),
        (
            '[hang]\nstep_timeout = "auto"',
            "J103",
            "hang.step_timeout",
            '"auto"',
            'write a limit, as in "10m", or leave it out',
        ),
        # checkpoints and preemption
        ("[checkpoint]\nlog_pattern = 'saved'", "J412", "checkpoint.log_pattern", '"saved"', r"name it: (?P<step>\d+)"),
        (
            PREEMPTION + 'signals = ["SIGKILL"]',
            "J207",
            "preemption.signals[0]",
            '"SIGKILL"',
            "write SIGTERM, SIGUSR1, SIGUSR2, SIGHUP or SIGINT",
        ),
        (PREEMPTION + 'signals = ["TREM"]', "J207", "preemption.signals[0]", '"TREM"', 'did you mean "SIGTERM"?'),
        (PREEMPTION + 'signals = "TERM"', "J201", "preemption.signals", '"TERM"', 'write ["TERM"]'),
        (
            PREEMPTION + "notice_command = []",
            "J206",
            "preemption.notice_command",
            "",
            "write at least one item, or leave the key out",
        ),
        (
            PREEMPTION + 'notice_interval = "50ms"',
            "J205",
            "preemption.notice_interval",
            '"50ms"',
            'write "100ms" or more',
        ),
        (PREEMPTION + 'then = "requeue"', "J103", "preemption.then", '"requeue"', 'write "exit", or "wait-for-nodes"'),
        (PREEMPTION + "exit_code = 0", "J205", "preemption.exit_code", "0", "write 1 to 255"),
        # what is not there
        ("max_restarts = 3", "J101", "run.max_restarts", "", "it belongs in [restart]"),
        ("[[health.check]]", "J103", "health", "", "leave it out"),
    ],
)
def test_a_wrong_line_is_told_with_its_key_its_value_and_the_mend(
    extra: str, code: str, key: str, value: str, hint: str
) -> None:
    ((found_code, found_key, found_value, message, found_hint),) = problems_of(LEAST + extra)
    assert (found_code, found_key, found_value, found_hint) == (code, key, value, hint)
    assert message
    assert f"| `{code}` " in (ROOT / "docs" / "error-codes.md").read_text()


@pytest.mark.parametrize("name", ["", "A", "-a", "a_b", "a.b", "ä", "a" * 64, "a\n"])
def test_a_job_name_is_fit_for_a_folder_and_a_host_label(name: str) -> None:
    ((code, key, _, _, hint),) = problems_of(f"name = {tomllib_string(name)}\n[run]\nscript = 'x'")
    assert (code, key, hint) == ("J206", "name", "write 1 to 63 of a-z, 0-9 and -, a letter or digit first")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("", "[run] needs one of `script`, `module` and `command`"),
        ("[run]\nargs = []", "[run] needs one of `script`, `module` and `command`"),
        ("[run]\nscript = 'a'\nmodule = 'b'", "`run.script` and `run.module` exclude each other"),
        (
            "[run]\nscript = 'a'\nmodule = 'b'\ncommand = ['c']",
            "`run.script` and `run.module` and `run.command` exclude each other",
        ),
    ],
)
def test_a_job_has_exactly_one_program(run: str, message: str) -> None:
    ((code, _, _, found_message, _),) = problems_of(f'name = "a"\n{run}')
    assert (code, found_message) == ("J301", message)


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("module = 'train.py'", 'write script = "train.py", or module = "train"'),
        ("module = 'src/train'", 'write script = "src/train", or module = "src.train"'),
        ("module = './a/b.py'", 'write script = "./a/b.py", or module = "a.b"'),
        ("command = ['', 'x']", "write the program that is to run"),
    ],
)
def test_a_program_that_could_never_start_is_refused(program: str, hint: str) -> None:
    ((code, _, _, _, found_hint),) = problems_of(f"name = 'a'\n[run]\n{program}")
    assert (code, found_hint) == ("J206", hint)


def test_problems_without_end_are_not_counted() -> None:
    with pytest.raises(JobInvalid, match=r"\njob.toml: more than 100 errors\.  "):
        parsed("".join(f"k{i} = 1\n" for i in range(200)))


@pytest.mark.parametrize("content", ["", "\n \n", "# only a comment\n"])
def test_an_empty_file_is_one_problem(content: str) -> None:
    assert [code for code, *_ in problems_of(content)] == ["J004"]


def test_the_environment_reserved_for_supd_is_torchruns_contract() -> None:
    assert "MASTER_PORT" in RESERVED_ENV
    assert "TORCHELASTIC_RUN_ID" in RESERVED_ENV
    assert len(RESERVED_ENV) == 16


@settings(deadline=None)  # the machine may be busy
@given(st.binary())
def test_any_bytes_are_a_job_or_job_invalid(data: bytes) -> None:
    with contextlib.suppress(JobInvalid):
        read_job(data, "job.toml")


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["1979-05-27", "nan", "{}", "[]", "{ a = 1 }", "[[1], {}]"]),
    st.one_of(
        st.sampled_from(["auto", "off", "90s", "SIGTERM", "none", "on-failure", "unlimited"]), st.text(max_size=8)
    ).map(lambda text: tomllib_string(text)),
).map(lambda value: str(value).lower() if isinstance(value, bool) else value)
KEYS = [f"{table}.{key}" for table, keys in SCHEMA.tables.items() for key in keys]


@pytest.mark.parametrize("name", ["", "x" * 33, "prüfung-der-gewichte-nach-äonen-ä", "a\\nb", "a\\u0000"])
def test_a_phase_must_have_a_name_that_a_heartbeat_page_shows_as_it_is(name: str) -> None:
    """Its limit would hold for nobody."""
    ((code, _, _, message, hint),) = problems_of(f'{LEAST}[hang.phases]\n"{name}" = "1m"\n')
    assert code == "J206"
    assert message.endswith("cannot be the name of a phase")
    assert hint == "write at most 32 bytes that can be printed"
    assert parsed(f'{LEAST}[hang.phases]\n"{"x" * 32}" = "1m"\n"eval.full" = "off"').hang.phases == {
        "checkpoint": 1800.0,
        "x" * 32: 60.0,
        "eval.full": None,
    }


@pytest.mark.parametrize("key", ["init_timeout", "step_timeout", "phases.eval"])
def test_a_limit_of_nothing_is_none(key: str) -> None:
    assert problems_of(f'{LEAST}[hang]\n{key} = "0s"') == [
        ("J205", f"hang.{key}", '"0s"', f"`hang.{key}` would pass at once", 'write "off" for no limit')
    ]


@settings(deadline=None)  # the machine may be busy
@given(st.dictionaries(st.sampled_from([*SCHEMA.top, *KEYS, *SCHEMA.tables, "run.env.A", "x.y"]), SCALARS, max_size=6))
def test_any_value_of_any_key_is_a_job_or_job_invalid(content: dict[str, str]) -> None:
    text = "".join(f"{key} = {value}\n" for key, value in {"name": '"a"', "run.script": '"x"', **content}.items())
    with contextlib.suppress(JobInvalid):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(parsed(text)), type=JobSpec) == parsed(text)


def tomllib_string(text: str) -> str:
    """A basic string of TOML."""
    escaped = "".join(f"\\U{ord(c):08x}" if not 0xD800 <= ord(c) <= 0xDFFF else "?" for c in text)
    assert tomllib.loads(f'x = "{escaped}"')
    return f'"{escaped}"'


# --- docs --------------------------------------------------------------------------------------------------------
