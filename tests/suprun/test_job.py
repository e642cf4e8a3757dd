"""supervisor/suprun/job.py: the job of a plan, and a job file that says the same."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import Refused
from protocol.job import JobSpec
from protocol.job_file import read_job
from protocol.ranks import expand
from supervisor.suprun.job import job_of, job_toml
from supervisor.suprun.line import read_line
from supervisor.suprun.options import OPTIONS, Form
from supervisor.suprun.plan import LaunchPlan, plan_of
from supervisor.suprun.templates import argument
from tests.suprun.build import plan, step

NAMES = {"job": "j", "run": "j@1", "gen": "2", "node": "n", "rank": "9", "local_rank": "1"}
FULL = (
    "--nnodes=2:4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=n1 --rdzv-id=exp --max-restarts=3 --role=r "
    "--rdzv-conf=join_timeout=90,last_call_timeout=5 --virtual-local-rank --shutdown-timeout=90 -m pkg.train --x {rank}"
)


def read_back(plan: LaunchPlan, folder: str = "") -> JobSpec:
    return msgspec.structs.replace(read_job(job_toml(plan, folder).encode(), "job.toml").spec, origins={})


def without_origins(spec: JobSpec) -> JobSpec:
    return msgspec.structs.replace(spec, origins={})


@pytest.mark.parametrize(
    "line",
    [
        "train.py",
        "--nproc-per-node=auto train.py --lr 3e-4 '' 'a b' '\"q\"' '\\n'",
        "--no-python ./run.sh",
        "--nnodes=4 --node-rank=1 --master-addr=n1 a/b.py",
        "--max-restarts=2 --shutdown-timeout=0 train.py",
        "--tee=3 --log-dir=x --numa-binding=node --local-ranks-filter=0 --duplicate-stdout-filters=a train.py",
        FULL,
    ],
)
@pytest.mark.parametrize("folder", ["", "/home/me/{job} $X"])
def test_the_job_file_says_what_the_plan_says(line: str, folder: str) -> None:
    p = plan(line, {"PYTHON_EXEC": "venv/bin/python"})
    assert read_back(p, folder) == without_origins(job_of(p, folder))


@settings(deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20), max_size=4))
def test_any_arguments_arrive_in_the_job_file_as_they_are(args: list[str]) -> None:
    p = plan_of(read_line(["train.py", *args], {}), {}).plan
    arrived = [expand(arg, NAMES, {b"X": b"x"}) for arg in read_back(p).run.args]
    expected = args[1:] if args[:1] == ["--"] else args  # as with torchrun
    assert arrived == [arg.replace("${local_rank}", "1").replace("$local_rank", "1") for arg in expected]


@given(st.text(alphabet="{}$abrankX_ ", max_size=30))
def test_nothing_is_filled_in_that_torchrun_would_not_fill_in(text: str) -> None:
    assert expand(argument(text), NAMES, {b"X": b"x", b"a": b"y"}) == text


@pytest.mark.parametrize(
    ("text", "arrives"),
    [
        ("${local_rank}", "1"),
        ("cuda:$local_rank", "cuda:1"),
        ("{${local_rank}}", "{1}"),
        ("$local_ranks", "$local_ranks"),
        ("${rank}/{rank}", "${rank}/{rank}"),
        ("$$", "$$"),
    ],
)
def test_only_the_local_rank_is_filled_in_as_with_torchrun(text: str, arrives: str) -> None:
    assert expand(argument(text), NAMES, {}) == arrives


def test_the_job_has_every_key_that_the_line_says_and_knows_that_suprun_gave_it() -> None:
    spec = job_of(plan(FULL))
    assert spec.topology.nnodes == (2, 4)
    assert (spec.topology.extra_nodes, spec.topology.role, spec.devices.visibility) == ("grow", "r", "virtual")
    assert (spec.rendezvous.join_timeout_s, spec.rendezvous.last_call_s, spec.stop.grace_s) == (90.0, 5.0, 90.0)
    assert (spec.restart.max_restarts, spec.restart.on_startup_failure) == (3, "restart")
    assert spec.origins["stop.grace"] == "suprun"
    assert not spec.is_written("logs.max_file")


def test_a_line_without_restarts_ends_at_its_first_failure() -> None:
    spec = job_of(plan("train.py"))
    assert (spec.restart.max_restarts, spec.restart.on_startup_failure) == (0, "fail")


def test_a_job_file_is_short_and_says_what_it_cannot_say() -> None:
    assert job_toml(plan("--nproc-per-node=auto -t 0:3 --numa-binding=node train.py")) == (
        "# A job for supd. Every key, with its default: supctl help job.toml\n\n"
        'name = "train"\n\n[run]\nscript = "train.py"\n\n'
        '[topology]\nnproc_per_node = "auto"             # 1 where there is no accelerator\n\n'
        '[devices]\nnuma_binding = "node"\n\n'
        "[restart]\nmax_restarts = 0\n\n"
        "# --tee 0:3: all output is kept, and `supctl logs -f --ranks RANKS` shows what is wanted.\n"
    )


def test_what_is_no_utf8_stays_with_suprun_since_a_job_file_cannot_say_it() -> None:
    p = plan("train.py \udcff")
    assert job_of(p).run.args == ("\udcff",)
    with pytest.raises(Refused, match="is not UTF-8") as caught:
        job_toml(p)
    assert (caught.value.code, bool(caught.value.hint)) == ("C013", True)


def test_under_slurm_the_job_file_has_the_nodes_of_the_step() -> None:
    assert "nnodes = 4\n" in job_toml(plan("train.py", step()))


@settings(deadline=None)
@given(st.data())
def test_any_sound_line_is_a_sound_job_file(data: st.DataObject) -> None:
    values = {
        "nnodes": ["1", "3", "2:5"],
        "nproc_per_node": ["1", "8", "gpu", "auto"],
        "max_restarts": ["0", "7"],
        "role": ["r", "a b"],
        "shutdown_timeout": ["0", "61"],
        "rdzv_conf": ["join_timeout=1.5", "last_call_timeout=0"],
        "log_dir": ["a\nb", "ü"],
        "rdzv_id": ["x", "A_1"],
    }
    chosen = data.draw(st.dictionaries(st.sampled_from(sorted(values)), st.integers(0, 3)))
    words = [f"{OPTIONS[dest].names[-1]}={values[dest][i % len(values[dest])]}" for dest, i in chosen.items()]
    switches = data.draw(st.sets(st.sampled_from(["--module", "--virtual-local-rank", "--run-path"])))
    assert all(OPTIONS[switch[2:].replace("-", "_")].form is Form.SWITCH for switch in switches)
    script = data.draw(st.sampled_from(["train", "pkg.x", "odd name", 'q"uote']))
    p = plan_of(read_line([*words, *switches, "--rdzv-backend=c10d", script, "x"], {}), {}).plan
    assert read_back(p) == without_origins(job_of(p))
