"""What a rank executes: torchrun's contract, environment, arguments and folders, to the byte."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from protocol.job import CheckpointTable, DevicesTable, JobSpec, PreemptionTable, RestartTable, RunTable
from protocol.ranks import (
    Command,
    Environment,
    Place,
    allotted_device,
    command,
    expand,
    inherited,
    interpreter,
    known_marker,
    notice_command,
    parse_env_file,
)
from tests.protocol.build import assignment, job_spec, submitted

NASTY = {
    b"PARENS": b"64(x2)",
    b"JSON": b'{"a": [1, "b"], \'c\'}',
    b"SHELL": b"$HOME `id` $(id) ; | & > < * ? ~ \\ \" '",
    b"PERCENT": b"a%2Bb %s %% %h:%p",
    b"NEWLINES": b" line one\n\tline two\r\n",
    b"LATIN": b"caf\xe9 \xff\xfe",
    b"BASH_FUNC_f%%": b"() {  echo hi\n}",
    b"LONG": b"x" * 100_000,
    b"EMPTY": b"",
    b"N\xe4me": b"not UTF-8",
}
"""H76, H77, H78."""


def seat(local_rank: int = 1, **more: Any) -> Place:
    return Place(node="n1", local_rank=local_rank, incarnation="f00d", error_file="/logs/rank.error.json", **more)


def command_of(
    spec: JobSpec,
    *,
    submitter: Mapping[str, Any] | None = None,
    daemon_env: Environment | None = None,
    env_file: dict[str, str] | None = None,
    place: Place | None = None,
    generation: int = 3,
    **changed: Any,
) -> Command:
    job = submitted(spec, **(submitter or {}))
    return command(
        job, assignment(generation, **changed), place or seat(), inherited(job, daemon_env or {}), env_file or {}
    )


def env_of(spec: JobSpec, **given: Any) -> dict[str, str]:
    """The environment as text."""
    return {n.decode(): v.decode() for n, v in command_of(spec, **given).env.items()}


# --- torchrun's contract ---------------------------------------------------------------------------------------------


def test_a_rank_gets_all_of_torchruns_variables_and_ours_and_nothing_else() -> None:
    spec = job_spec(
        run=RunTable(script="t.py", inherit_env="none"), restart=RestartTable(max_restarts=7), role="trainer"
    )
    got = env_of(spec, node_rank=1, nnodes=2, first_rank=4, nproc=4, world_size=8, restart_reason="rank 2 on n1 killed")
    assert got == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "trainer",
        "ROLE_RANK": "5",
        "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4000",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_MAX_RESTARTS": "7",
        "TORCHELASTIC_RUN_ID": "j@1",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/logs/rank.error.json",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "SUPD_JOB": "j",
        "SUPD_RUN": "j@1",
        "SUPD_GENERATION": "3",
        "SUPD_NODE": "n1",
        "SUPD_RESTART_REASON": "rank 2 on n1 killed",
        "SUPD_RUNNER": "f00d",
    }


def test_ranks_are_told_which_backend_the_job_names() -> None:
    run = RunTable(script="t.py", backend="gloo")
    assert env_of(job_spec(run=run))["SUPD_BACKEND"] == "gloo"
    assert "SUPD_BACKEND" not in env_of(job_spec())


def test_the_first_generation_has_no_restart_reason() -> None:
    assert env_of(job_spec(), generation=0)["SUPD_RESTART_REASON"] == ""


@pytest.mark.parametrize("name", ["TORCH_NCCL_ASYNC_ERROR_HANDLING", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"])
def test_a_users_own_value_wins_over_a_mere_default(name: str) -> None:
    assert env_of(job_spec(), submitter={"env": {name.encode(): b"0"}})[name] == "0"


def test_what_the_submitter_has_of_the_contract_does_not_leak_into_a_rank() -> None:
    got = env_of(job_spec(), submitter={"env": {b"RANK": b"99", b"MASTER_PORT": b"1", b"SUPD_RUN": b"other"}})
    assert (got["RANK"], got["MASTER_PORT"], got["SUPD_RUN"]) == ("1", "4000", "j@1")


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (None, "/run/python"),
        ("", "/run/python"),
        ("/mine", "/mine:/run/python"),
        ("/mine:", "/mine::/run/python"),  # an empty element is the working directory, and stays where it is
        (":/mine", ":/mine:/run/python"),
    ],
)
def test_the_package_comes_last_in_pythonpath_and_no_empty_element_with_it(own: str | None, expected: str) -> None:
    place = seat(package_dir="/run/python")
    env = {} if own is None else {"PYTHONPATH": own}
    assert env_of(job_spec(run=RunTable(script="t.py", env=env)), place=place)["PYTHONPATH"] == expected
    submitter = {"env": {name.encode(): text.encode() for name, text in env.items()}}
    assert env_of(job_spec(), submitter=submitter, place=place)["PYTHONPATH"] == expected


def test_a_folder_that_pythonpath_cannot_name_is_left_out() -> None:
    spec = job_spec(run=RunTable(script="t.py", env={"PYTHONPATH": "/mine"}))
    assert env_of(spec, place=seat(package_dir="/a:b"))["PYTHONPATH"] == "/mine"


def test_a_rank_is_told_its_heartbeat_page_where_it_has_one() -> None:
    assert env_of(job_spec(), place=seat(heartbeat="/dev/shm/page"))["SUPD_HEARTBEAT"] == "/dev/shm/page"
    assert "SUPD_HEARTBEAT" not in env_of(job_spec(), place=seat())


# --- threads and devices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "nproc", "inherited_value", "threads"),
    [
        ("", 2, None, "1"),  # torchrun's rule
        ("", 1, None, None),
        ("", 2, "8", "8"),
        ("inherit", 2, None, None),
        ("inherit", 2, "8", "8"),
        ("auto", 2, "8", "5"),
        ("auto", 16, None, "1"),
        (3, 2, "8", "3"),
    ],
)
def test_threads_follow_the_job_then_the_submitter_then_torchruns_rule(
    wanted: int | str, nproc: int, inherited_value: str | None, threads: str | None
) -> None:
    env = {} if inherited_value is None else {b"OMP_NUM_THREADS": inherited_value.encode()}
    spec = job_spec(devices=DevicesTable(omp_num_threads=wanted))
    got = env_of(spec, submitter={"env": env}, place=seat(cpus=10), nproc=nproc, world_size=nproc)
    assert got.get("OMP_NUM_THREADS") == threads


def test_a_job_can_set_threads_in_its_own_environment() -> None:
    spec = job_spec(run=RunTable(script="t.py", env={"OMP_NUM_THREADS": "6"}))
    assert env_of(spec)["OMP_NUM_THREADS"] == "6"


def test_a_rank_is_told_the_step_that_was_saved_last_and_where_a_planned_stop_is_announced() -> None:
    got = env_of(job_spec(), place=seat(stop_file="/dev/shm/stop.json"), resume_step=0)
    assert (got["SUPD_RESUME_STEP"], got["SUPD_STOP_FILE"]) == ("0", "/dev/shm/stop.json")
    assert not {"SUPD_RESUME_STEP", "SUPD_STOP_FILE"} & env_of(job_spec()).keys()


VIRTUAL = job_spec(devices=DevicesTable(visibility="virtual"))


@pytest.mark.parametrize(
    ("devices", "shown", "shown_virtual"),
    [
        (("4", "5"), "4,5", "5"),
        (("GPU-a", "GPU-a"), "GPU-a", "GPU-a"),
        (("", ""), "2,3", "2,3"),
        (None, "2,3", "2,3"),
    ],
)
def test_the_devices_of_the_allotment_win_over_what_is_inherited(
    devices: tuple[str, ...] | None, shown: str, shown_virtual: str
) -> None:
    """Of slots that share a device each rank sees it once; slots without one leave it as it was."""
    given = {"submitter": {"env": {b"CUDA_VISIBLE_DEVICES": b"2,3"}}, "devices": devices}
    for spec, wanted in ((job_spec(), shown), (VIRTUAL, shown_virtual)):
        allotted = allotted_device(assignment(devices=devices), 1, is_virtual=spec is VIRTUAL)
        assert env_of(spec, place=seat(device=allotted), **given)["CUDA_VISIBLE_DEVICES"] == wanted


def test_what_the_job_itself_gives_for_its_devices_stays() -> None:
    spec = job_spec(run=RunTable(script="t.py", env={"CUDA_VISIBLE_DEVICES": "7"}))
    assert env_of(spec, place=seat(device="4,5"), devices=("4", "5"))["CUDA_VISIBLE_DEVICES"] == "7"


def test_with_virtual_devices_each_rank_sees_one_and_is_local_rank_0() -> None:
    spec = job_spec(devices=DevicesTable(visibility="virtual"))
    got = env_of(spec, place=seat(1, device="GPU-1234"))
    assert (got["CUDA_VISIBLE_DEVICES"], got["LOCAL_RANK"], got["RANK"]) == ("GPU-1234", "0", "1")


def test_without_virtual_devices_what_the_submitter_sees_is_left_as_it_is() -> None:
    assert env_of(job_spec(), submitter={"env": {b"CUDA_VISIBLE_DEVICES": b"2,3"}})["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "CUDA_VISIBLE_DEVICES" not in env_of(job_spec())


# --- where the environment comes from --------------------------------------------------------------------------------

SUBMITTERS = {
    b"PATH": b"/bin",
    b"HF_HOME": b"/hf",
    b"HF_TOKEN": b"secret",
    b"SSH_AUTH_SOCK": b"/tmp/s",
    b"DISPLAY": b":0",
    b"XDG_RUNTIME_DIR": b"/run/me",
    b"TERM": b"xterm",
    b"TERM_PROGRAM": b"vt",
    b"SUPD_ADDR": b"/sock",
    b"PWD": b"/there",
    b"OLDPWD": b"/elsewhere",
}
DAEMONS = {b"PATH": b"/sbin", b"XDG_RUNTIME_DIR": b"/run/0", b"SUPD_RUNNER": b"x", b"PWD": b"/"}


@pytest.mark.parametrize(
    ("inherit", "expected"),
    [
        ("submitter", {b"PATH": b"/bin", b"HF_HOME": b"/hf", b"HF_TOKEN": b"secret"}),
        ("daemon", {b"PATH": b"/sbin", b"XDG_RUNTIME_DIR": b"/run/0"}),
        ("none", {}),
        (("HF_*",), {b"HF_HOME": b"/hf", b"HF_TOKEN": b"secret"}),
        (("H?_HOME", "PATH"), {b"PATH": b"/bin", b"HF_HOME": b"/hf"}),
        (("*",), {b"PATH": b"/bin", b"HF_HOME": b"/hf", b"HF_TOKEN": b"secret"}),
        (("SUPD_*", "SSH_*"), {}),
        ((), {}),
    ],
)
def test_each_kind_of_inheritance_takes_what_it_says_and_never_what_is_a_terminals_or_ours(
    inherit: str | tuple[str, ...], expected: Environment
) -> None:
    job = submitted(job_spec(run=RunTable(script="t.py", inherit_env=inherit)), env=SUBMITTERS)
    assert inherited(job, DAEMONS) == expected


def test_every_byte_of_the_submitters_environment_arrives() -> None:
    """H76, H77: byte-exact, never silently dropped."""
    got = command_of(job_spec(), submitter={"env": NASTY}).env
    assert {name: got.get(name) for name in NASTY} == NASTY


def test_later_layers_win_inherited_then_supds_then_the_file_then_the_jobs_own() -> None:
    spec = job_spec(run=RunTable(script="t.py", env={"C": "own", "D": "own"}))
    got = env_of(spec, submitter={"env": {b"A": b"in", b"B": b"in", b"C": b"in"}}, env_file={"B": "file", "C": "file"})
    assert (got["A"], got["B"], got["C"], got["D"]) == ("in", "file", "own", "own")


# --- expansion -------------------------------------------------------------------------------------------------------

NAMES = {"job": "j", "run": "j@1", "gen": "3", "node": "n1", "rank": "5", "local_rank": "1"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("{job}/{run}/{gen}/{node}/{rank}/{local_rank}", "j/j@1/3/n1/5/1"),
        ("${HOME}/x", "/me/x"),
        ("${NOBODY}", "${NOBODY}"),
        ("$HOME", "$HOME"),
        ("{x} {} { } {rank", "{x} {} { } {rank"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("{{rank}}", "{rank}}"),
        ("$${HOME}", "${HOME}"),
        ("$$$${rank}", "$$5"),
        ("a%2Bb %s %% %h:%p", "a%2Bb %s %% %h:%p"),
        ("${TWICE}", "${HOME}"),
        ("", ""),
    ],
)
def test_only_the_documented_templates_are_filled_in(text: str, expanded: str) -> None:
    assert expand(text, NAMES, {b"HOME": b"/me", b"TWICE": b"${HOME}"}) == expanded


def test_arguments_folder_and_variables_are_expanded_with_the_workers_environment() -> None:
    run = RunTable(
        script="t.py",
        args=("--out={rank}", "${FROM_FILE}", "${OWN}", "${WORLD_SIZE}", "${BYTES}", "64(x2) `id`"),
        workdir="${HOME}/{job}",
        env={"OWN": "gen {gen} of ${FROM_FILE}"},
    )
    got = command_of(
        job_spec(run=run), submitter={"env": {b"HOME": b"/me", b"BYTES": b"\xff\xfe"}}, env_file={"FROM_FILE": "file"}
    )
    assert got.argv == (
        b"/usr/bin/python3",
        b"/home/me/t.py",
        b"--out=1",
        b"file",
        b"gen 3 of file",
        b"2",
        b"\xff\xfe",
        b"64(x2) `id`",
    )
    assert got.cwd == b"/me/j"
    assert got.env[b"OWN"] == b"gen 3 of file"


def test_an_env_file_is_taken_as_it_is() -> None:
    assert env_of(job_spec(), env_file={"A": "{rank} ${HOME} $$"})["A"] == "{rank} ${HOME} $$"


# --- the program -----------------------------------------------------------------------------------------------------


def argv_and_cwd(run: RunTable) -> tuple[list[str], str]:
    got = command_of(job_spec(run=run))
    return [word.decode() for word in got.argv], got.cwd.decode()


def test_a_script_a_module_and_a_command_are_each_executed_as_documented() -> None:
    assert argv_and_cwd(RunTable(script="a/t.py", args=("-x",))) == (
        ["/usr/bin/python3", "/home/me/a/t.py", "-x"],
        "/home/me",
    )
    assert argv_and_cwd(RunTable(script="/abs/t.py"))[0] == ["/usr/bin/python3", "/abs/t.py"]
    assert argv_and_cwd(RunTable(module="pkg.train"))[0] == ["/usr/bin/python3", "-m", "pkg.train"]
    assert argv_and_cwd(RunTable(command=("./run", "{rank}"), args=("{rank}",)))[0] == ["./run", "{rank}", "1"]


def test_the_working_directory_is_the_job_files_folder_or_starts_there() -> None:
    assert argv_and_cwd(RunTable(script="t.py", workdir="sub"))[1] == "/home/me/sub"
    assert argv_and_cwd(RunTable(script="t.py", workdir="/abs"))[1] == "/abs"


@pytest.mark.parametrize(
    ("named", "expected"),
    [("", "/usr/bin/python3"), ("python3.12", "python3.12"), ("venv/bin/python", "/home/me/venv/bin/python")],
)
def test_an_interpreter_with_a_slash_is_a_path_and_one_without_is_looked_up(named: str, expected: str) -> None:
    assert interpreter(job_spec(run=RunTable(script="t.py", python=named)), "/home/me", "/usr/bin/python3") == expected


# --- env files -------------------------------------------------------------------------------------------------------


def test_an_env_file_has_names_values_comments_quotes_and_export() -> None:
    text = "# c\n\nA=1\nexport B = two words \nC='q # $x'\nD=\"d\"\r\nE=\nF=a=b\nG='\nH='mixed\"\nA=last\n"
    assert parse_env_file(text) == (
        {"A": "last", "B": "two words", "C": "q # $x", "D": "d", "E": "", "F": "a=b", "G": "'", "H": "'mixed\""},
        [],
    )


@pytest.mark.parametrize("rest", ["", "  # c", '\t# "c"'])
def test_behind_a_quoted_value_of_an_env_file_a_comment_is_left_out(rest: str) -> None:
    assert parse_env_file(f"B=\"x 'y'\"{rest}\nC='x \"y\" # z'{rest}") == ({"B": "x 'y'", "C": 'x "y" # z'}, [])


@pytest.mark.parametrize("rest", ["#c", " c", "c", '"x"', " # c"])
def test_anything_else_behind_a_quoted_value_of_an_env_file_is_told(rest: str) -> None:
    told = [] if rest == " # c" else ["line 1: there is more behind the closing quote of B"]
    assert parse_env_file(f'B="secret"{rest}')[1] == told


def test_only_a_newline_ends_a_line() -> None:
    value = "a\x0bb\x0cc\x1cd\x85e\u2028f\udcff"
    assert parse_env_file(f"A={value}\n") == ({"A": value}, [])


def test_what_is_wrong_with_an_env_file_is_told_by_line_and_without_values() -> None:
    text = "A=1\nnonsense\n1B=secret\nA-B=secret\n=secret\nC=sec\0ret\n"
    assert parse_env_file(text) == (
        {"A": "1"},
        [
            "line 2: not NAME=VALUE",
            "line 3: not NAME=VALUE",
            "line 4: not NAME=VALUE",
            "line 5: not NAME=VALUE",
            "line 6: C contains a NUL",
        ],
    )


@pytest.mark.parametrize("name", ["RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SUPD_RUN", "SUPD_ANYTHING"])
def test_an_env_file_cannot_set_what_supd_sets_itself(name: str) -> None:
    assert parse_env_file(f"export {name}=1") == ({}, [f"line 1: supd sets {name} itself for every rank"])


# --- the notice command ----------------------------------------------------------------------------------------------


def test_a_notice_command_has_the_jobs_environment_and_folder_but_for_what_is_a_ranks() -> None:
    env = {"ZONE": "z-{node}", "OUT": "/out/{rank}", "COPY": "${HOME}"}
    spec = job_spec(
        run=RunTable(script="t.py", env=env, workdir="work"),
        preemption=PreemptionTable(notice_command=("ask", "$$ {node}")),
    )
    job = submitted(spec, env={b"HOME": b"/home/me"})
    made = notice_command(job, "n1", "f00d", inherited(job, {}), {"TOKEN": "t"})
    assert made.argv == (b"ask", b"$$ {node}"), "as run.command it is taken as it stands"
    assert made.cwd == b"/home/me/work"
    assert made.env == {
        b"HOME": b"/home/me",
        b"TOKEN": b"t",
        b"ZONE": b"z-n1",
        b"COPY": b"/home/me",
        b"SUPD_JOB": b"j",
        b"SUPD_RUN": b"j@1",
        b"SUPD_NODE": b"n1",
        b"SUPD_RUNNER": b"f00d",
    }


@pytest.mark.parametrize(
    ("marker", "path"),
    [
        ("latest", b"/home/me/latest"),
        ("{run}/${OUT}/latest", b"/home/me/j@1/out-n1/latest"),
        ("", b""),
        ("latest-{rank}", b""),
        ("{gen}/latest", b""),
        ("${RANK}/latest", b""),
    ],
)
def test_a_marker_is_known_before_there_are_ranks_where_its_path_takes_none(marker: str, path: bytes) -> None:
    spec = job_spec(run=RunTable(script="t.py", env={"OUT": "out-{node}"}), checkpoint=CheckpointTable(marker=marker))
    job = submitted(spec, env={b"RANK": b"7"})
    assert known_marker(job, "n1", "f00d", inherited(job, {}), {}) == path


# --- what is documented of it ----------------------------------------------------------------------------------------


def test_every_variable_that_supd_sets_is_documented_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs/environment.md").read_text()
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    documented = {name for cell in cells for name in re.findall(r"`([A-Z_]+)`", cell)}
    place = seat(device="0", heartbeat="/page", stop_file="/stop.json")
    spec = job_spec(run=RunTable(script="t.py", inherit_env="none"))
    assert env_of(spec, place=place, resume_step=7).keys() == documented
