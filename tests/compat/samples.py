"""Every message and record of version 1, each once with every field set; and once with its defaults where it has any.

What is here was recorded (v1/) and never changes. A new field needs no new sample; a new message gets one, and
a file of its own in the folder of its version.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from protocol.coordinator_events import Phase, RunRecord, Seat
from protocol.errors import Place
from protocol.job import (
    CheckpointTable,
    DevicesTable,
    HangTable,
    Job,
    JobSpec,
    ProgressTable,
    RendezvousTable,
    RestartTable,
    RunTable,
    StopTable,
    Submitter,
    TopologyTable,
)
from protocol.messages import control as c
from protocol.messages import decoder
from protocol.messages import member as m
from protocol.messages.runner import Record, TakeOn, decode_record, decode_take_on
from protocol.restart import Ledger

JOB = Job(
    run="train@1a2b3c",
    spec=JobSpec(
        name="train",
        run=RunTable(
            script="train.py",
            args=("--lr", "{rank}"),
            python="venv/bin/python",
            workdir="work",
            env={"A": "é"},
            env_file="cluster.env",
            inherit_env=("HF_*", "PATH"),
            limits={"nofile": 4096, "core": -1},
            secret_env=("*PASS*",),
        ),
        topology=TopologyTable(nnodes=1, nproc_per_node=4, role="trainer"),
        rendezvous=RendezvousTable(master_port=29500),
        devices=DevicesTable(visibility="virtual", omp_num_threads=8),
        restart=RestartTable(
            policy="on-failure",
            max_restarts=-1,
            stable_after_s=60.0,
            backoff_s=1.5,
            backoff_max_s=30.0,
            on_startup_failure="restart",
            start_after_s=2.0,
            never_on_exit=(2,),
            always_on_exit=(33, 34),
        ),
        stop=StopTable(
            pre_signal="SIGUSR1",
            pre_wait_s=60.0,
            signal="SIGINT",
            grace_s=45.0,
            scope="tree",
            finish_timeout_s=90.0,
            abort_on_hang=False,
        ),
        progress=ProgressTable(
            source="log", log_pattern="step (?P<step>[0-9]+)", log_ranks="0-3", file="out/step", total_steps=50000
        ),
        hang=HangTable(action="restart", init_timeout_s=None, step_timeout_s=90.0, phases={"eval": 600.0}),
        checkpoint=CheckpointTable(marker="out/{job}/latest"),
        origins={"hang.step_timeout": "file", "name": "--name"},
    ),
    submitter=Submitter(
        folder="/home/me/jobs",
        source="train.toml",
        python="/usr/bin/python3",
        env={b"PATH": b"/bin", b"LATIN": b"caf\xe9\n"},
        limits={"nofile": 1024},
        umask=0o27,
        user="me",
    ),
)
SMALL_JOB = Job(
    run="small@000000",
    spec=JobSpec(name="small", run=RunTable(command=("./run",))),
    submitter=Submitter(folder="/", source="j", python="python3", env={}, limits={}, umask=0o22, user="1000"),
)
ASSIGNMENT = m.Assignment(
    generation=3,
    node_rank=1,
    nnodes=2,
    first_rank=4,
    nproc=4,
    world_size=8,
    master_addr="10.0.0.1",
    master_port=41873,
    restart_reason="rank 2 on n1 (pid 4711) killed by SIGKILL, sender unknown",
)
RENEWAL = m.Renewal(
    number=4711,
    generation=3,
    part=m.Part.STOPPED,
    ranks=(
        m.RankReport(
            rank=4,
            local_rank=0,
            pid=100,
            started=True,
            exit=m.RankExit(
                signal=9,
                core_dumped=True,
                order=1,
                wall_s=1770000000.25,
                ran_s=812.5,
                stopped_by_us=True,
                oom="oom_kill of /job.slice went up by 1",
                stderr_tail=(b"Traceback \xff", b"boom"),
            ),
        ),
        m.RankReport(
            rank=5,
            local_rank=1,
            pid=101,
            started=False,
            exit=m.RankExit(code=0, order=0, wall_s=0.0, ran_s=0.5, stopped_by_us=False),
        ),
        m.RankReport(
            rank=6,
            local_rank=2,
            pid=102,
            started=True,
            step=17800,
            total_steps=50000,
            loss=2.25,
            phase="eval",
            silent_s=91.5,
            remark="the pattern was given up",
            stall=m.Stall(
                state=m.StallState("stopped"),
                silent_s=90.25,
                limit_s=90.0,
                setting="hang.step_timeout",
                action=m.StallAction("restart"),
            ),
        ),
    ),
    spawn_failure=m.SpawnFailure(rank=7, path="/no/python", reason="No such file or directory"),
    stuck_pids=(77, 78),
    saved_step=12000,
    offer=m.Offer(
        slots=4, address="10.0.0.2", port=40001, problem="no GPU was found", waits_for="port 40001", note="by NVML"
    ),
)
INCIDENT = c.Incident(
    number=2,
    generation=3,
    cause="out-of-memory",
    summary="rank 4 on n2 (pid 100) killed by SIGKILL, out of memory",
    node="n2",
    rank=4,
    local_rank=0,
    pid=100,
    exit_code=1,
    signal="SIGKILL",
    core_dumped=True,
    shell_code=137,
    wall_s=1770000000.25,
    stderr_tail=(b"boom \xff",),
    evidence="oom_kill went up by 1",
)
RANK_STATUS = c.RankStatus(
    rank=4,
    node="n2",
    local_rank=0,
    pid=100,
    state="killed",
    exit_code=1,
    signal="SIGKILL",
    shell_code=137,
    core_dumped=True,
    stopped_by_supervisor=True,
    ended_wall_s=1770000000.25,
    ran_s=812.5,
    note="stopped by supervisor",
    step=17800,
    phase="eval",
    silent_s=91.5,
)
RUN_STATUS = c.RunStatus(
    run="train@1a2b3c",
    job="train",
    state="restarting",
    phase="backoff",
    is_final=False,
    generation=3,
    has_started=True,
    ranks_running=0,
    ranks=8,
    nodes=("n1", "n2"),
    nnodes=2,
    user="me",
    submitted_wall_s=1769990000.0,
    ended_wall_s=None,
    reason="rank 4 was killed",
    waiting_for="the backoff",
    wait_left_s=2.5,
    restarts_used=2,
    max_restarts=-1,
    saved_step=12000,
    incident=INCIDENT,
    rank_list=(RANK_STATUS,),
    logs_dir="/state/logs/train@1a2b3c",
    step=17800,
    total_steps=50000,
    rate=0.875,
    eta_s=36800.0,
    loss=2.25,
    silent_s=91.5,
)
LOGS = c.LogSelection(
    ranks=(0, 3),
    streams=("err",),
    generation=2,
    all_generations=True,
    tail_lines=None,
    since_wall_s=1770000000.25,
    until_wall_s=1770000060.5,
)

Samples = tuple[Callable[[bytes], Any], Sequence[msgspec.Struct]]
"""How they are decoded, and what they are."""

VERSION_1: dict[str, Samples] = {
    "to-coordinator": (
        m.decode_to_coordinator,
        [
            m.Hello(versions=(1,), fleet="default", node="n1", run="train@1a2b3c", incarnation="00ff00ff00ff00ff"),
            RENEWAL,
            m.Renewal(number=1),
            *(m.Renewal(number=2, part=part) for part in m.Part),
        ],
    ),
    "to-runner": (
        m.decode_to_runner,
        [
            m.Welcome(version=1, epoch=7, job=JOB),
            m.Welcome(version=1, epoch=7, job=SMALL_JOB),
            m.Rejected(reason="this is fleet a, not b"),
            m.Answer(number=9, epoch=7, order=m.Run(assignment=ASSIGNMENT)),
            m.Answer(number=9, epoch=7, order=m.Stop(generation=3, grace_s=5.0, now=True)),
            m.Answer(number=9, epoch=7, order=m.Stop(generation=3)),
            m.Answer(number=9, epoch=7, order=m.Wait()),
            m.Answer(number=9, epoch=7, order=m.Release()),
        ],
    ),
    "take-on": (
        decode_take_on,
        [
            TakeOn(
                run="train@1a2b3c",
                node="n1",
                fleet="default",
                incarnation="00ff00ff00ff00ff",
                coordinator_file="/state/coordinator",
                credential="/state/fleet.pem",
                run_dir="/state/runs/train@1a2b3c",
                logs_dir="/state/logs/train@1a2b3c",
                orphan_wait_s=3600.0,
                linger_s=60.0,
                beats_dir="/dev/shm/supd-1000/00ff00ff00ff00ff",
            )
        ],
    ),
    "record": (
        decode_record,
        [
            Record(run="train@1a2b3c", incarnation="00ff", renewal=RENEWAL),
            Record(run="train@1a2b3c", incarnation="00ff", renewal=m.Renewal(number=1)),
        ],
    ),
    "run-record": (
        decoder(RunRecord),
        [
            RunRecord(
                phase=Phase.BACKOFF,
                generation=3,
                seats=(Seat(node="n2", incarnation="00ff", assignment=ASSIGNMENT),),
                has_started=True,
                ledger=Ledger(used=2, streak=1, lost=1, saved_step=12000, ports=1),
                backoff_s=2.5,
                restart_reason="rank 4 was killed",
                stop=m.Stop(generation=3, grace_s=5.0),
                restart="new data",
                incidents=2,
                incident=INCIDENT,
                incident_is_open=True,
                stalled=(6,),
                reason="stopped by me",
                last_parts={"n2": RENEWAL},
            ),
            RunRecord(),
            *(RunRecord(phase=phase) for phase in Phase),
        ],
    ),
    "job": (decoder(Job), [JOB, SMALL_JOB]),
    "greeting": (c.decode_greeting, [c.Greeting(control_version=1, supd_version="0.1.0", node="n1")]),
    "requests": (
        c.decode_request,
        [
            c.Start(
                request_id="r1",
                job_file=b'name = "train"\n',
                source="train.toml",
                folder="/home/me",
                python="/usr/bin/python3",
                env={b"A": b"\xff"},
                limits={"nofile": 1024},
                umask=0o22,
                check_only=True,
                settings=("stop.grace=45s",),
                name="train2",
                args=("--lr", "1"),
                replace=True,
                columns=88,
                is_ascii=True,
            ),
            c.StopRun(run="train", all_runs=True, grace_s=5.0, now=True),
            c.StopRun(),
            c.RestartRun(run="train", reason="new data"),
            c.GetStatus(run="train", with_ranks=True),
            c.GetStatus(),
            c.Watch(run="train", follow=True, events=True, after_event=7, snapshots=True, logs=LOGS),
            c.Watch(run="train", follow=False, logs=c.LogSelection()),
            c.LogPaths(run="train", logs=LOGS),
            c.Resolve(word="train"),
            c.Describe(run="train", rank=3, with_env=True),
            c.Describe(run="train"),
        ],
    ),
    "replies": (
        c.decode_reply,
        [
            c.Failure(code="F102", message="there is no job x", hint="supctl status", exit_code=3),
            c.Failure(
                code="J210",
                message="what is wrong",
                problems=(
                    c.FileProblem(
                        code="J210",
                        key="stop.grace",
                        value="30",
                        message="needs a unit",
                        hint='write "30s"',
                        place=Place(file="train.toml", line=7, column=9, length=2),
                    ),
                ),
            ),
            c.Failure(code="F040", message="no"),
            c.Done(
                run="train@1a2b3c",
                runs=("a", "b"),
                notes=("python /usr/bin/python3",),
                file_warnings=("no progress source",),
                warnings=("nofile is cut",),
            ),
            c.Done(),
            c.Statuses(runs=(RUN_STATUS,)),
            c.EventRecord(
                id=7,
                wall_s=1770000000.25,
                run="train@1a2b3c",
                generation=3,
                kind="incident.opened",
                text="rank 4 was killed",
                detail={"rank": 4, "signal": "SIGKILL", "exit_code": None, "ran_s": 1.5, "charged": True},
            ),
            c.LogChunk(generation=3, node="n1", rank=4, stream="err", data=b"boom \xff\n", times=((0, 1770000000.25),)),
            c.Paths(paths=("/a", "/b")),
            c.Description(
                status=RUN_STATUS,
                source="/home/me/train.toml",
                settings=(c.Setting(key="stop.grace", value='"45s"', origin="--set"),),
                command=("/usr/bin/python3", "train.py"),
                cwd="/home/me",
                limits={"nofile": 4096},
                env=(("RANK", "3", "supd"), ("HF_TOKEN", "***", "inherited")),
                files=("/state/logs/train@1a2b3c/gen-0003/rank-00003.out",),
            ),
            c.End(),
        ],
    ),
}
