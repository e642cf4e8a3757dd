"""What --set, --name and -- change in a job, and what is said of them."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import JobInvalid, Place
from protocol.job import JobSpec
from protocol.job_file import read_job
from protocol.overlay import MAX_SETTING_CHARS, MAX_SETTINGS

FILE = b'name = "a"\n[run]\nscript = "train.py"\nargs = ["-v"]\nenv = { A = "1", B = "2" }\n[stop]\ngrace = "30s"\n'


def job(*changes: str, name: str | None = None, args: tuple[str, ...] = ()) -> JobSpec:
    return read_job(FILE, "job.toml", settings=changes, name=name, args=args).spec


def complaints(*changes: str, name: str | None = None) -> list[str]:
    """What is said, without the last line."""
    with pytest.raises(JobInvalid) as caught:
        job(*changes, name=name)
    return [str(problem) for problem in caught.value.problems]


def test_a_setting_is_toml_or_a_bare_word() -> None:
    spec = job(
        "stop.grace=5m",
        'run.args=["a", "b c"]',
        "run.script=b.py",
        "restart.max_restarts=3",
        "stop.abort_on_hang=false",
    )
    assert (spec.stop.grace_s, spec.run.args, spec.run.script) == (300.0, ("a", "b c"), "b.py")
    assert (spec.restart.max_restarts, spec.stop.abort_on_hang) == (3, False)
    assert job("run.script=a b=c#d").run.script == "a b=c#d"
    assert job("run.script='x y'").run.script == "x y"
    assert job(" stop . grace = 5m").stop.grace_s == 300.0


def test_a_number_or_a_truth_is_text_where_a_key_takes_text() -> None:
    spec = job(
        "run.env.A=5", "run.env.B=true", "run.script=1.50", "name=7", "topology.role=010", "progress.log_ranks=0"
    )
    assert spec.run.env == {"A": "5", "B": "true"}
    assert (spec.run.script, spec.name, spec.topology.role) == ("1.50", "7", "010")
    assert spec.progress.log_ranks == "0"


def test_of_two_settings_of_a_key_the_last_one_wins() -> None:
    assert job("stop.grace=1s", "stop.grace=2s").stop.grace_s == 2.0


def test_a_setting_goes_into_its_table_and_a_table_takes_the_place_of_the_whole_one() -> None:
    assert job("run.env.A=x", 'run.env."C D"="5"').run.env == {"A": "x", "B": "2", "C D": "5"}
    assert job('run.env={ C = "3" }', "run.env.D=x").run.env == {"C": "3", "D": "x"}


def test_a_name_is_the_jobs_and_args_are_appended() -> None:
    spec = job(name="b", args=("--set", "x=1"))
    assert (spec.name, spec.run.args) == ("b", ("-v", "--set", "x=1"))


def test_who_gave_a_key_is_known() -> None:
    assert job().origins == {
        "name": "file",
        "run.script": "file",
        "run.args": "file",
        "run.env.A": "file",
        "run.env.B": "file",
        "stop.grace": "file",
    }
    changed = job("stop.grace=1s", "run.env.B=x", "hang.phases.eval=5m", name="b", args=("x",))
    assert changed.origins == {
        "name": "--name",
        "run.script": "file",
        "run.args": "--",
        "run.env.A": "file",
        "run.env.B": "--set",
        "stop.grace": "--set",
        "hang.phases.eval": "--set",
    }
    assert changed.is_written("hang.phases.eval")
    assert not changed.is_written("hang.step_timeout")
    assert job('run.env={ C = "3" }').origins["run.env.C"] == "--set"


def test_an_error_stands_in_the_setting_that_made_it() -> None:
    (complaint,) = complaints("stop.grace=300")
    assert complaint == (
        "error[J204]: `stop.grace` needs a unit\n"
        "  --> --set stop.grace=300\n"
        "   |\n"
        "   | stop.grace=300\n"
        '   |            ^^^ write "300s" or "5m"'
    )
    with pytest.raises(JobInvalid) as caught:
        job("stop.grace=300")
    assert caught.value.problems[0].place == Place("--set stop.grace=300", None, 12, 3)


@pytest.mark.parametrize(
    ("setting", "code", "carets"),
    [
        ("stop.grcae=5s", "J101", "     ^^^^^"),
        ("run=5", "J201", "    ^"),
        ("run.args=x", "J201", "         ^"),
        ('run.args=["a", 2]', "J201", "               ^"),
        ("stop.grace.x=1", "J201", "     ^^^^^"),
        ("restart={ policy = 'x' }", "J203", "                   ^^^"),
        ("run.workdir=", "J206", "            ^"),
        ("progress.log_pattern=(x)", "J412", "                     ^^^"),
        ("", "J006", "^"),
        ("stop.grace", "J006", "          ^"),
        ("=5", "J006", "^"),
        ("stop grace=5", "J006", "     ^"),
        ("run.args=[1,", "J006", "            ^"),
        ("run.script='x", "J006", "             ^"),
        ("restart.max_restarts=" + "9" * 3000, "J205", None),
        ("stop.grace=" + "9" * 4000, "J204", None),
        ("run.args=" + "[" * 2000, "J006", None),
        ("a." * 100 + "b=1", "J006", None),
        ("x" * (MAX_SETTING_CHARS + 1), "J006", None),
    ],
)
def test_a_wrong_setting_is_shown_where_it_is_wrong(setting: str, code: str, carets: str | None) -> None:
    (complaint,) = complaints(setting)
    assert complaint.startswith(f"error[{code}]: ")
    assert "--set" in complaint
    if carets:
        assert f"\n   | {carets} " in complaint
    assert max(map(len, complaint.split("\n"))) < 400


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("run.args=-v x", """write --set 'run.args=["-v", "x"]'"""),
        ("run.inherit_env=HF_*", """write --set 'run.inherit_env=["HF_*"]' for a pattern"""),
        ("stop=3", "set its keys: --set stop.KEY=VALUE"),
        ("run.env=5", "set its keys: --set run.env.KEY=VALUE"),
        ("grace=5s", "write stop.grace"),
        ("stop.grace.x=1", "--set stop.grace=VALUE sets it as a whole"),
    ],
)
def test_a_hint_for_a_setting_is_one_for_a_command_line(setting: str, hint: str) -> None:
    with pytest.raises(JobInvalid) as caught:
        job(setting)
    assert [problem.hint for problem in caught.value.problems] == [hint]


def test_an_error_of_the_file_stays_where_a_setting_is_below_it() -> None:
    with pytest.raises(JobInvalid) as caught:
        read_job(
            b"name = 'a'\nstop = 3\n[run]\nscript = 'x'\nenv = 5\n", "f", settings=["stop.grace=5s", "run.env.A=x"]
        )
    assert [(problem.code, problem.key, problem.place and problem.place.file) for problem in caught.value.problems] == [
        ("J201", "stop", "f"),
        ("J201", "run.env", "f"),
        ("J201", "stop", "--set stop.grace=5s"),
        ("J201", "run.env", "--set run.env.A=***"),
    ]


def test_the_errors_are_counted_where_they_are() -> None:
    with pytest.raises(JobInvalid, match=r"\ncommand line: 1 error\.  ") as caught:
        job("stop.grace=300")
    assert caught.value.hint == "mend the command line"
    with pytest.raises(JobInvalid, match=r"\nmy f: 1 error; command line: 1 error\.  ") as caught:
        read_job(b"name = 'A'\nrun.script = 'x'", "my f", settings=["stop.grace=300"])
    assert "`supctl validate 'my f'`" in caught.value.hint


def test_a_wrong_name_is_shown_as_it_was_given() -> None:
    (complaint,) = complaints(name="My Job")
    assert complaint.split("\n")[1:4] == ["  --> --name My Job", "   |", "   | My Job"]


def test_a_contradiction_of_file_and_setting_names_both_places() -> None:
    (complaint,) = complaints('run.command=["x"]')
    assert "  --> --set run.command=" in complaint
    assert complaint.endswith("   = first given here at job.toml:3:1")


def test_problems_of_the_file_come_first_and_settings_in_their_order() -> None:
    with pytest.raises(JobInvalid) as caught:
        read_job(
            b"nam = 1\n[stop]\ngrace = 5\n", "job.toml", settings=["run.script=x", "stop.scope=x", "zz=1"], name="b"
        )
    assert [problem.key for problem in caught.value.problems] == ["nam", "stop.grace", "stop.scope", "zz"]


def test_a_hundred_settings_are_enough() -> None:
    assert job(*["stop.grace=1s"] * MAX_SETTINGS).stop.grace_s == 1.0
    (complaint,) = complaints(*["stop.grace=1s"] * (MAX_SETTINGS + 1))
    assert "more than 100 times --set" in complaint


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.one_of(st.text(max_size=30), st.from_regex(r"[a-z.]{1,12}=[\[\]{}'\"a-z0-9,=]{0,12}")), max_size=4))
def test_any_settings_give_a_job_or_job_invalid(changes: list[str]) -> None:
    said = ""
    try:
        job(*changes)
    except JobInvalid as exc:
        said = str(exc)
    assert all(line.isprintable() for line in said.split("\n"))


def test_many_long_settings_are_read_quickly() -> None:
    began_s = time.thread_time()
    complaints(*["run.args=[" + "1," * (MAX_SETTING_CHARS // 2 - 10) + "]"] * MAX_SETTINGS)
    assert time.thread_time() - began_s < 10
