"""supervisor/suprun/plan.py: what a line of torchrun means, what of it has no effect, and what cannot be meant."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import Refused
from supervisor.cli.codes import CODES
from supervisor.suprun.job import job_of
from supervisor.suprun.line import read_line
from supervisor.suprun.options import BY_SPELLING, OPTIONS
from supervisor.suprun.plan import How, LaunchPlan, Mode, plan_of
from supervisor.suprun.values import Mask
from tests.suprun.build import plan, planned, refusal, step

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")


def test_an_id_that_is_given_is_that_of_a_job_of_one_node_as_well_but_for_standalone() -> None:
    assert plan("--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=7 t.py").run_id == "7"
    assert plan("--rdzv-id=7 t.py").run_id == "7"
    assert plan("--standalone --rdzv-id=7 t.py").run_id == ""


def test_a_line_without_options_is_one_rank_on_this_node_alone() -> None:
    assert plan("out/train.py --lr 3") == LaunchPlan(
        mode=Mode.STANDALONE,
        is_host=True,
        node_rank=0,
        name="train",
        how=How.SCRIPT,
        program="out/train.py",
        args=("--lr", "3"),
        signals=SIGNALS,
    )


def test_every_option_arrives_in_the_plan() -> None:
    p = plan(
        "--nnodes=2:4 --nproc-per-node=gpu --rdzv-backend=c10d --rdzv-endpoint=[fe80::1]:7 --rdzv-id=Exp_7 "
        "--rdzv-conf join_timeout=60,last_call_timeout=0,is_host=true --max-restarts=3 --role=trainer -m "
        "--log-dir=out -r 1 -t 0:3,11:2 --local-ranks-filter=2,0 --duplicate-stdout-filters=a,,b,c "
        "--duplicate-stderr-filters=x --local-addr=10.0.0.7 --numa-binding=node --signals-to-handle=SIGUSR1,SIGTERM "
        "--shutdown-timeout=45 --virtual-local-rank --insecure pkg.train -x",
        {"PYTHON_EXEC": "/opt/python"},
    )
    assert p == LaunchPlan(
        mode=Mode.ELASTIC,
        host="fe80::1",
        port=7,
        is_host=True,
        local_addr="10.0.0.7",
        nnodes=(2, 4),
        join_timeout_s=60.0,
        last_call_s=0.0,
        run_id="Exp_7",
        is_insecure=True,
        name="exp-7",
        how=How.MODULE,
        program="pkg.train",
        args=("-x",),
        python="/opt/python",
        nproc_per_node="gpu",
        role="trainer",
        is_virtual=True,
        numa_binding="node",
        max_restarts=3,
        grace_s=45.0,
        signals=("SIGUSR1", "SIGTERM"),
        log_dir="out",
        redirects=Mask(1),
        tee=Mask(0, {0: 3, 11: 2}),
        shown_ranks=(0, 2),
        stdout_filters=("a,b", "c"),
        stderr_filters=("x",),
    )


# --- how the nodes find each other -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "mode", "host", "port", "is_host", "node_rank", "nnodes"),
    [
        ("x", Mode.STANDALONE, "", 0, True, 0, (1, 1)),
        ("--standalone x", Mode.STANDALONE, "", 0, True, 0, (1, 1)),
        ("--standalone --nnodes=1:4 x", Mode.STANDALONE, "", 0, True, 0, (1, 1)),
        ("--rdzv-backend=c10d --rdzv-endpoint=localhost:0 x", Mode.STANDALONE, "", 0, True, 0, (1, 1)),
        ("--master-port=29501 x", Mode.STATIC, "127.0.0.1", 29501, True, 0, (1, 1)),
        ("--nnodes=4 --node_rank=0 --master_addr=n1 x", Mode.STATIC, "n1", 29500, True, 0, (4, 4)),
        ("--nnodes=4 --node_rank=3 --master_addr=::1 x", Mode.STATIC, "::1", 29500, False, 3, (4, 4)),
        ("--nnodes=2 --node_rank=1 --rdzv-endpoint=n1:7 x", Mode.STATIC, "n1", 7, False, 1, (2, 2)),
        ("--nnodes=2:4 --node_rank=1 --master_addr=n1 x", Mode.STATIC, "n1", 29500, False, 1, (4, 4)),
        ("--nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=n1 x", Mode.ELASTIC, "n1", 29400, None, None, (2, 4)),
        ("--rdzv-backend=c10d --rdzv-endpoint=[::1]:8 x", Mode.ELASTIC, "::1", 8, None, None, (1, 1)),
        ("--rdzv-backend=c10d --rdzv-endpoint=[::1] x", Mode.ELASTIC, "::1", 29400, None, None, (1, 1)),
        ("--rdzv-backend=c10d x", Mode.ELASTIC, "localhost", 29400, None, None, (1, 1)),
        ("--rdzv-backend c10d --rdzv-conf=is_host=0 x", Mode.ELASTIC, "localhost", 29400, False, None, (1, 1)),
    ],
)  # fmt: skip
def test_the_rendezvous_is_the_one_that_torchrun_would_have(
    line: str, mode: Mode, host: str, port: int, is_host: bool | None, node_rank: int | None, nnodes: tuple[int, int]
) -> None:
    p = plan(line)
    assert (p.mode, p.host, p.port, p.is_host, p.node_rank, p.nnodes) == (mode, host, port, is_host, node_rank, nnodes)


def test_variables_of_kubeflow_and_torchx_are_a_line_as_well() -> None:
    environ = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-0", "PET_MASTER_PORT": "23456"}
    p = plan("train.py", environ)
    assert (p.mode, p.host, p.port, p.node_rank, p.nnodes) == (Mode.STATIC, "job-0", 23456, 1, (2, 2))


def test_each_rendezvous_waits_as_long_as_torchruns() -> None:
    assert plan("a.py").join_timeout_s == 600.0
    assert plan("--nnodes=2 --master-addr=n1 a.py").join_timeout_s == 900.0
    conf = "--rdzv-conf=timeout=5.5,join_timeout=7"
    assert plan(f"--nnodes=2 --master-addr=n1 {conf} a.py").join_timeout_s == 5.5
    assert plan(f"--rdzv-backend=c10d {conf} a.py").join_timeout_s == 7.0


def test_a_last_call_of_30_s_is_told_from_none() -> None:
    assert plan("--nnodes=2:3 --rdzv-backend=c10d a.py").last_call_s is None
    assert plan("--nnodes=2:3 --rdzv-backend=c10d --rdzv-conf=last_call_timeout=30 a.py").last_call_s == 30.0


def test_several_nodes_at_an_address_that_each_has_itself_are_warned_of() -> None:
    for line in ("--nnodes=2 a.py", "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=[::1] a.py"):
        assert any("each machine itself: other nodes find nobody there" in note for note in planned(line).notes)
    assert planned("--nnodes=2 --master-addr=10.0.0.1 a.py").notes == ()


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_etcd_is_refused_with_the_line_that_needs_none(backend: str) -> None:
    code, message, mend = refusal(f"--nnodes=2 --rdzv-backend={backend} --rdzv-endpoint=n1:2379 a.py")
    assert (code, "suprun needs no etcd" in message) == ("C023", True)
    assert mend == "--rdzv-backend=c10d --rdzv-endpoint=NODE:29400, NODE being one of the nodes of the job"
    assert refusal("--rdzv-backend=mine a.py")[0] == "C023"
    assert planned(f"--standalone --rdzv-backend={backend} a.py").notes == (
        "--rdzv-backend: no effect beside --standalone",
    )


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("--standalone --nnodes=4 a.py", "C022", "--standalone is one node, and --nnodes wants 4"),
        ("--nnodes=2 --node-rank=2 --master-addr=n a.py", "C022", "--node-rank is 2, and --nnodes is 2: "),
        ("--nnodes=2 --node-rank=-1 --master-addr=n a.py", "C022", "--node-rank is -1"),
        ("-m pkg/a.py", "C022", "-m takes a module, and 'pkg/a.py' is the name of a file"),
        ("--no-python -m a", "C022", "--no-python and -m exclude each other"),
        ("--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n1:0 a.py", "C024", "--rdzv-endpoint n1:0 is any free port"),
        ("--rdzv-backend=c10d --rdzv-endpoint=::1:29400 a.py", "C024", "--rdzv-endpoint ::1:29400 may be an"),
        ("--rdzv-backend=c10d --rdzv-endpoint=n1:x a.py", "C024", "--rdzv-endpoint is HOST[:PORT], an IPv6"),
        ("--rdzv-backend=c10d --rdzv-endpoint=n1:70000 a.py", "C024", "--rdzv-endpoint is HOST[:PORT], an IPv6"),
        ("--rdzv-endpoint=n1 a.py", "C024", "--rdzv-endpoint n1 has no port, which the static rendezvous needs"),
        ("--nnodes=2 --master-addr=n1:7 a.py", "C024", "--master-addr is a host without a port, not 'n1:7'"),
        ("--master-port=0 a.py", "C024", "--master-port is a port, 1 to 65535, not 0"),
        ("--rdzv-conf=store_type=file a.py", "C020", "--rdzv-conf wants store_type=file"),
        ("--rdzv-conf=join_timeout a.py", "C020", "--rdzv-conf is KEY=VALUE with commas between, and"),
        ("--rdzv-conf=join_timeout=0 a.py", "C020", "--rdzv-conf join_timeout is seconds up to a year, not '0'"),
        ("--rdzv-conf=join_timeout=inf a.py", "C020", "--rdzv-conf join_timeout is seconds up to a year, not 'inf'"),
        ("--rdzv-conf=is_host=maybe a.py", "C020", "--rdzv-conf is_host is true or false, not 'maybe'"),
        ("--nnodes=0 a.py", "C020", "--nnodes is 1 to 10000 nodes, not 0"),
        ("--nnodes=4:2 a.py", "C020", "--nnodes has its least above its most: 4:2"),
        ("--nnodes=2-4 a.py", "C020", "--nnodes is a number of nodes, or MIN:MAX, not '2-4'"),
        ("--nproc-per-node=0 a.py", "C020", "--nproc-per-node is 1 to 4096 ranks, or one of "),
        ("--nproc-per-node=npu a.py", "C020", "--nproc-per-node is 1 to 4096 ranks, or one of "),
        ("--max-restarts=-1 a.py", "C020", "--max-restarts is 0 to 1000000, not -1"),
        ("--shutdown-timeout=-1 a.py", "C020", "--shutdown-timeout is 0 to "),
        ("-r 4 a.py", "C020", "-r is 0, 1, 2 or 3, or like 0:3,1:1 (LOCAL RANK:MASK), not '4'"),
        ("--tee 0:3, a.py", "C020", "--tee is 0, 1, 2 or 3, or like 0:3,1:1 (LOCAL RANK:MASK), not '0:3,'"),
        ("--local-ranks-filter=0,x a.py", "C020", "--local-ranks-filter is local ranks with commas between, not '0,x'"),
        ("--role= a.py", "C020", "--role is empty"),
        ("--name=My_Job a.py", "C020", "--name is 1 to 63 of a-z, 0-9 and -, a letter or digit first, not 'My_Job'"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_error_with_its_mend(line: str, code: str, message: str) -> None:
    found = refusal(line)
    assert (found[0], found[1][: len(message)]) == (code, message)
    assert found[2]


def test_an_error_names_the_variable_that_it_comes_from() -> None:
    assert refusal("a.py", {"PET_NNODES": "x"})[1] == "PET_NNODES is a number of nodes, or MIN:MAX, not 'x'"
    told = refusal("a.py", {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1m"})
    assert told[1] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT is '1m', and no number of seconds"


# --- what runs ---------------------------------------------------------------------------------------------------


def test_run_path_wins_over_the_other_ways_to_run_a_script() -> None:
    p, notes = planned("--run-path --no-python -m a/b.py")
    assert (p.how, p.program) == (How.SCRIPT, "a/b.py")
    assert notes == ("--run-path: the script gets an interpreter of its own, as without it",)
    assert plan("--no-python ./train.sh").how is How.COMMAND


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("a.py", "a"),
        ("out/My_Train.py", "my-train"),
        ("-m pkg.train_it", "train-it"),
        ("--no-python /bin/x.sh", "x-sh"),
        ("ü.py", "job"),
        ("--rdzv-backend=c10d --rdzv-id=A/7 a.py", "a-7"),
        ("--standalone --rdzv-id=x a.py", "a"),
        ("--rdzv-id=none --master-port=7 a.py", "a"),
        ("--name=mine --rdzv-backend=c10d --rdzv-id=A a.py", "mine"),
    ],
)
def test_the_jobs_name_is_that_of_the_id_or_the_program(line: str, name: str) -> None:
    assert plan(line).name == name


def test_the_grace_is_the_options_else_the_variables() -> None:
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
    assert plan("a.py", environ).grace_s == 7.0
    assert plan("--shutdown-timeout=0 a.py", environ).grace_s == 0.0
    assert plan("a.py", {"PET_SHUTDOWN_TIMEOUT": "9", **environ}).grace_s == 9.0


# --- what is told ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("--monitor-interval=5 a.py", "--monitor-interval: no effect, the end of a rank is seen at once"),
        ("--start-method=fork a.py", "--start-method: no effect, ranks are always programs of their own"),
        ("--event-log-handler=console a.py", "--event-log-handler: no effect, what happens is told on the console"),
        ("--logs-specs=x a.py", "--logs-specs: no effect, suprun writes the output itself"),
        ("--master-port=29500 a.py", "--master-port 29500 is where the nodes meet: "),
        ("--rdzv-backend=c10d --node-rank=1 a.py", "--node-rank: no effect beside --rdzv-backend=c10d"),
        ("--rdzv-backend=c10d --rdzv-conf=timeout=9 a.py", "--rdzv-conf timeout: no effect beside --rdzv-backend=c10d"),
        ("--standalone --rdzv-id=x --nnodes=1 a.py", "--rdzv-id: no effect beside --standalone"),
        ("--rdzv-conf=read_timeout=60 a.py", "--rdzv-conf read_timeout: no effect, there is no TCPStore "),
        ("--rdzv-conf=last_calls=60 a.py", "--rdzv-conf last_calls: torchrun has no such key, and it has no effect"),
        ("--signals-to-handle=USR1,SIGTERM a.py", "--signals-to-handle: USR1 is no signal, and is left out"),
        ("--signals-to-handle=SIGKILL,SIGTERM a.py", "--signals-to-handle: SIGKILL cannot be handled, and is left out"),
        ("--nproc-per-node=2 -t 0:3,2:1 a.py", "-t: local rank 2 is not there, a node has ranks 0 to 1"),
        ("--local-ranks-filter=1 a.py", "--local-ranks-filter: local rank 1 is not there, a node has rank 0"),
        ("--nnodes=2:4 --master-addr=n1 a.py", "--nnodes: a static rendezvous takes all 4 nodes; "),
    ],
)  # fmt: skip
def test_what_has_no_effect_or_another_one_is_told_in_one_line(line: str, note: str) -> None:
    (told,) = planned(line).notes
    assert told[: len(note)] == note


def test_an_option_that_says_what_is_so_anyway_is_not_told_of() -> None:
    assert planned("--monitor-interval=0.1 --start-method=spawn --event-log-handler=null a.py").notes == ()
    assert planned("a.py", {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "x"}).notes != ()
    assert all(option.differs for option in OPTIONS.values() if option.meaning.endswith("no effect"))


WORDS = st.one_of(
    st.sampled_from(
        [*BY_SPELLING, *(f"{spelling}=" for spelling in BY_SPELLING), "--", "-", "a.py", "1", "2:4", "n:1"]
    ),
    st.builds("{}={}".format, st.sampled_from([*BY_SPELLING]), st.text(max_size=8)),
    st.text(max_size=8),
)
VARIABLES = [*(option.variable for option in OPTIONS.values() if option.variable), *step()]


@settings(deadline=None)
@given(st.lists(WORDS, max_size=8), st.dictionaries(st.sampled_from(VARIABLES), st.text(max_size=8), max_size=3))
def test_any_words_in_any_environment_are_a_plan_or_one_error_with_a_code_and_a_mend(
    words: list[str], variables: dict[str, str]
) -> None:
    for environ in (variables, step(**variables)):
        error = None
        try:
            line = read_line(words, environ)
            if not line.flags.help:
                plan, notes = plan_of(line, environ)
                assert all(notes)
                assert job_of(plan).name == plan.name
        except Refused as exc:
            error = exc
        assert error is None or (error.code in CODES and error.hint)


def test_a_mask_says_what_of_each_local_rank_is_meant() -> None:
    assert [Mask(0, {0: 3, 11: 2}).of(rank) for rank in (0, 1, 11)] == [3, 0, 2]
    assert Mask(1).of(4000) == 1
    assert (Mask(0, {1: 0}).is_empty, Mask(2).is_empty) == (True, False)
