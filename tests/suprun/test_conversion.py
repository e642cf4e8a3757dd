"""supervisor/suprun/conversion.py: the job file that says what a launch line says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import Refused
from protocol.job import JobSpec
from protocol.job_file import read_job
from protocol.ranks import expand
from supervisor.suprun.conversion import convert
from tests.suprun.launch_lines import ELASTIC, INLINE, SINGLE_NODE, SLURM, STATIC

SRUN = "`srun` in front is left out: supd starts the ranks on all nodes itself"


def converted(text: str, folder: str = "") -> tuple[JobSpec, tuple[str, ...]]:
    """The job, and the notes."""
    found = convert(text, folder)
    return read_job(found.text.encode(), "job.toml").spec, found.notes


def refusal(text: str) -> tuple[str, str, str]:
    with pytest.raises(Refused) as caught:
        convert(text)
    return caught.value.code, str(caught.value), caught.value.hint


# --- the launch lines of the page --------------------------------------------------------------------------------


def test_one_node() -> None:
    spec, notes = converted(SINGLE_NODE)
    assert (spec.name, spec.run.script, spec.run.args) == ("train", "train.py", ("--batch-size", "32"))
    assert (spec.topology.nnodes, spec.topology.nproc_per_node, spec.restart.max_restarts) == ((1, 1), 8, 0)
    assert notes == ()


@pytest.mark.parametrize("rank", range(4))
def test_several_nodes_are_one_job_whichever_of_their_lines_is_taken(rank: int) -> None:
    spec, notes = converted(STATIC.format(rank=rank))
    assert spec == converted(STATIC.format(rank=0))[0]
    assert (spec.run.script, spec.topology.nnodes, spec.topology.nproc_per_node) == ("train.py", (4, 4), 8)
    assert notes == ()


def test_a_batch_script_of_slurm_leaves_its_variables_as_they_are_told() -> None:
    found = convert(SLURM)
    spec = read_job(found.text.encode(), "job.toml").spec
    assert (spec.run.script, spec.topology.nproc_per_node) == ("train.py", 8)
    assert "nnodes = 1                          # the line says $SLURM_NNODES\n" in found.text
    assert found.notes == (
        SRUN,
        "topology.nnodes: the line says $SLURM_NNODES, which only the shell that runs it knows: write it",
    )


def test_an_elastic_line_is_taken_without_the_comments_that_break_it() -> None:
    spec, notes = converted(ELASTIC)
    assert (spec.topology.nnodes, spec.topology.extra_nodes, spec.topology.nproc_per_node) == ((2, 8), "grow", 8)
    assert notes == ("a comment behind a backslash ends the line in a shell; it is left out",)


def test_code_on_the_line_ends_with_the_line_that_runs_it_which_is_taken() -> None:
    code, _, mend = refusal(INLINE)
    assert code == "C026"
    assert mend.startswith("suprun --nproc_per_node=8 --no-python python -c $'\\nimport torch.distributed as dist\\n")
    spec, notes = converted(f"NCCL_DEBUG=INFO {mend}")
    assert (spec.run.command, spec.run.args[0], spec.run.env) == (("python",), "-c", {"NCCL_DEBUG": "INFO"})
    assert expand(spec.run.args[1], {"rank": "0"}, {}) == INLINE.partition('"')[2].rpartition('"')[0]
    assert notes == ()


# --- what stands in front ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("python -m torch.distributed.run --nnodes=2 train.py", ""),
        ("/opt/venv/bin/python3.11 -u -m torch.distributed.run --nnodes=2 train.py", "/opt/venv/bin/python3.11"),
        ("export A=1 && source x.sh; suprun --nnodes=2 train.py > log 2>&1 &", ""),
        ("/usr/bin/torchrun --nnodes=2 train.py", ""),
        ("PYTHON_EXEC=py torchrun --nnodes=2 train.py", "py"),
        ("PET_NNODES=2 torchrun train.py", ""),
    ],
)
def test_whatever_calls_the_launcher_is_understood(text: str, python: str) -> None:
    spec, notes = converted(text)
    assert (spec.topology.nnodes, spec.run.script, spec.run.python, notes) == ((2, 2), "train.py", python, ())


def test_variables_in_front_are_those_of_the_ranks() -> None:
    spec, notes = converted("env A=1 B='x {rank}' C=$HOME/c RANK=3 torchrun train.py")
    assert notes == ("RANK: supd sets it itself for every rank; it is left out",)
    environ = {b"HOME": b"/home/me"}
    names = {"rank": "7"}
    assert {name: expand(value, names, environ) for name, value in spec.run.env.items()} == {
        "A": "1",
        "B": "x {rank}",
        "C": "/home/me/c",
    }


@pytest.mark.parametrize(
    ("front", "nnodes"),
    [("srun -N4", (4, 4)), ("srun -N 2-4 --exclusive", (2, 4)), ("srun --nodes=3 -l", (3, 3)), ("srun -l", (1, 1))],
)
def test_the_nodes_of_srun_are_those_of_the_job(front: str, nnodes: tuple[int, int]) -> None:
    spec, notes = converted(f"{front} --ntasks-per-node=1 torchrun train.py")
    assert spec.topology.nnodes == nnodes
    assert notes == (SRUN.replace("srun", f"{front} --ntasks-per-node=1"),)
    assert converted(f"{front} torchrun --nnodes=7 train.py")[0].topology.nnodes == (7, 7)


# --- variables ---------------------------------------------------------------------------------------------------


def test_variables_in_arguments_are_filled_in_on_the_node_and_nothing_else_is() -> None:
    spec, notes = converted("torchrun train.py $LR \"${OUT}/{rank}\" '$LR' '${LR}' x$(date)y --r=${local_rank}")
    environ = {b"LR": b"3", b"OUT": b"/out"}
    names = {"rank": "7", "local_rank": "1"}
    assert [expand(arg, names, environ) for arg in spec.run.args] == [
        "3", "/out/{rank}", "$LR", "${LR}", "x$(date)y", "--r=${local_rank}",
    ]  # fmt: skip
    assert notes == ("$(date) stands in the file as it is: only the shell that runs the line knows it",)


def test_what_a_shell_makes_of_paths_is_filled_in_or_told() -> None:
    spec, notes = converted("cd runs && torchrun train.py ~/data --out=~/out part-*.txt '*'")
    assert spec.run.args == ("${HOME}/data", "--out=~/out", "part-*.txt", "*")
    assert notes == (
        "`cd runs` before it is left out: run.workdir says where ranks run",
        "* stands in the file as it is: only the shell that runs the line knows it",
    )


def test_options_that_only_the_shell_knows_are_told_where_they_stand_in_the_file() -> None:
    found = convert("torchrun --nproc-per-node=$GPUS --max-restarts=${N:-3} --log-dir=$D -t 3 $SCRIPT")
    spec = read_job(found.text.encode(), "job.toml").spec
    assert (spec.topology.nproc_per_node, spec.restart.max_restarts) == ("auto", 0)
    assert (spec.name, spec.run.script) == ("job", "$SCRIPT")
    assert [note.partition(":")[0] for note in found.notes] == [
        "topology.nproc_per_node", "restart.max_restarts", "run.script",
    ]  # fmt: skip
    assert "max_restarts = 0                    # the line says ${N:-3}\n" in found.text


def test_no_option_for_the_meeting_of_the_nodes_is_needed() -> None:
    spec, notes = converted("torchrun --nnodes=2 --rdzv-backend=etcd --rdzv-endpoint=$E --rdzv-id=exp_1 train.py")
    assert (spec.name, spec.topology.nnodes, notes) == ("exp-1", (2, 2), ())


def test_a_job_file_elsewhere_says_where_the_line_runs() -> None:
    spec, _ = converted(SINGLE_NODE, "/home/me")
    assert (spec.run.script, spec.run.workdir) == ("/home/me/train.py", "/home/me")


TOKENS = [
    "torchrun",
    "--nnodes=",
    "--nproc-per-node",
    "$A",
    "${B}",
    "$(c)",
    "2",
    "train.py",
    "srun",
    "-N",
    "A=",
    " ",
    "\\",
]


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from([*TOKENS, *"'\"\n#;"]), st.text(max_size=3)), max_size=12))
def test_any_text_is_a_sound_job_file_or_one_error_with_a_mend(tokens: list[str]) -> None:
    error = None
    try:
        found = convert("torchrun " + "".join(tokens))
        read_job(found.text.encode(), "job.toml")
        assert all(note.strip() for note in found.notes)
    except Refused as exc:
        error = exc
    assert error is None or (error.code[0] == "C" and error.hint)


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "C029", "there is no torchrun or suprun in this line"),
        ("python train.py", "C029", "there is no torchrun or suprun in this line"),
        ("python -m torch.distributed.launch train.py", "C029", "torch.distributed.launch hands --local-rank"),
        ("torchrun 'train.py", "C029", "a shell would not take this line: a ' is missing"),
        ("torchrun --nnodes=$N", "C021", "the line names no script"),
        ("torchrun --lr=$LR train.py", "C020", "suprun has no option --lr"),
        ("torchrun --standalone --nnodes=4 train.py", "C022", "--standalone is one node, and --nnodes wants 4"),
    ],
)
def test_what_is_no_launch_line_is_one_error_with_its_mend(text: str, code: str, message: str) -> None:
    found = refusal(text)
    assert (found[0], found[1][: len(message)]) == (code, message)
    assert "\ue000" not in "".join(found)
    assert found[2]
