"""Cases H78 and H85 of the field reports: what a job file says is taken as it is, or refused."""

import json

from tests.e2e.jobs import command_job, output
from tests.e2e.supd import Supd

LITERAL = ["a%2Bb", "%s", "%%", "%h:%p", "{x}", "${Y_IS_NOT_SET}", "%(name)s", "\\n"]


def test_percent_signs_and_unknown_braces_arrive_as_they_stand_in_the_job_file(supd: Supd) -> None:
    """H78. In arguments, variables, and the settings of a command line."""
    env = ", ".join(f"V{number} = {json.dumps(word)}" for number, word in enumerate(LITERAL))
    show = [
        "python3",
        "-c",
        "import os, sys; print(*sys.argv[1:], *map(os.getenv, ['V%d' % i for i in range(9)]), sep='|')",
    ]
    job = command_job(supd, "literal", show, run=f"args = {json.dumps(LITERAL)}\nenv = {{ {env} }}")
    run = supd.start_job(job, "--set", "run.env.V8=50%s")
    supd.wait_state(run, "succeeded")
    assert output(supd, run).decode().rstrip("\n").split("|") == [*LITERAL, *LITERAL, "50%s"]


def test_a_job_file_that_is_not_there_starts_nothing(supd: Supd) -> None:
    """H85. Status 78, and the file's name."""
    done = supd.supctl("start", "missing.toml", check=False)
    assert done.returncode == 78
    assert "missing.toml" in done.stderr
    assert supd.json("status")["runs"] == []


TYPOS = {
    "[topology]\nnnode = 2": "did you mean `nnodes`?",
    "[topolgy]\nnnodes = 1": "did you mean [topology]?",
    "nproc_per_node = 8": "it belongs in [topology]",
}


def test_a_key_that_is_written_wrong_is_refused_with_a_suggestion_and_never_left_out(supd: Supd) -> None:
    """H85. Nothing is started in its place."""
    for lines, suggestion in TYPOS.items():
        job = supd.folder / "typo.toml"
        job.write_text(f'name = "typo"\n[run]\ncommand = ["true"]\n{lines}\n')
        done = supd.supctl("start", str(job), check=False)
        assert done.returncode == 78
        assert f"  --> {job}:" in done.stderr
        assert suggestion in done.stderr
    assert supd.json("status")["runs"] == []


def test_what_is_missing_on_the_node_is_shown_where_the_job_file_names_it(supd: Supd) -> None:
    """H85. A host file there; a script and an env_file here."""
    job = supd.folder / "gone.toml"
    job.write_text('name = "gone"\n[run]\nscript = "gone.py"\nenv_file = "gone.env"\n')
    done = supd.supctl("start", str(job), check=False)
    assert done.returncode == 78
    assert f'  --> {job}:3:10\n   |\n 3 | script = "gone.py"\n   |          ^^^^^^^^^ ' in done.stderr
    assert f"{job}:4:12" in done.stderr
    assert supd.json("status")["runs"] == []


def test_what_may_not_be_meant_is_told_and_the_job_starts(supd: Supd) -> None:
    """H85. Not silently, but no fallback either: the job runs as it was written."""
    job = command_job(supd, "odd", ["true"], tables='[stop]\npre_wait = "1s"\n')
    done = supd.supctl("start", str(job), "--detach")
    assert f"warning[J503]: `stop.pre_wait` has no effect without `stop.pre_signal`\n  --> {job}:8:12\n" in done.stderr
    supd.wait_state("odd", "succeeded")
