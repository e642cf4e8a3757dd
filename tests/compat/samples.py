"""Every message and record of version 1, each once with every field set; and once with its defaults where it has any.

What is here was recorded (v1/) and never changes. A new field needs no new sample; a new message gets one, and
a file of its own in the folder of its version.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from protocol.coordinator_events import Phase, RunRecord, Seat
from protocol.errors import Place
from protocol.job import Job
from protocol.messages import control as c
from protocol.messages import decoder
from protocol.messages import fleet as f
from protocol.messages import member as m
from protocol.messages import witness as w
from protocol.messages.runner import Record, TakeOn, decode_record, decode_take_on
from protocol.restart import Ledger
from tests.compat.parts import (
    ASSIGNMENT,
    INCIDENT,
    JOB,
    KNOWN_HOST,
    LIFE_OFFER,
    LOG_PLACE,
    LOGS,
    NODE_STATUS,
    RENEWAL,
    RUN_STATUS,
    SMALL_JOB,
    TERMINATED,
    life_ranks,
)

Samples = tuple[Callable[[bytes], Any], Sequence[msgspec.Struct]]
"""How they are decoded, and what they are."""

VERSION_1: dict[str, Samples] = {
    "to-coordinator": (
        m.decode_to_coordinator,
        [
            m.Hello(versions=(1,), fleet="default", node="n1", run="train@1a2b3c", incarnation="00ff00ff00ff00ff"),
            m.Hello(
                versions=(1,),
                fleet="default",
                node="n1",
                run="train@1a2b3c",
                incarnation="00ff00ff00ff00ff",
                epoch=7,
                answered_s=0.5,
            ),
            m.JobTold(job=SMALL_JOB),
            m.Testimony(number=3, node="n1", incarnation="00ee00ee00ee00ee", word_s=4.5),
            m.RenewalOf(node="n1", incarnation="00ee00ee00ee00ee", renewal=m.Renewal(number=1)),
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
            m.JobWanted(version=1, epoch=7),
            m.Rejected(reason="this is fleet a, not b"),
            m.Question(number=3, epoch=7, node="n1", incarnation="00ee00ee00ee00ee"),
            m.AnswerFor(node="n1", incarnation="00ee00ee00ee00ee", answer=m.Answer(number=9, epoch=7, order=m.Wait())),
            m.Answer(number=9, epoch=7, order=m.Tell()),
            m.Answer(number=9, epoch=7, order=m.Run(assignment=ASSIGNMENT)),
            m.Answer(number=9, epoch=7, order=m.Stop(generation=3, grace_s=5.0, now=True)),
            m.Answer(number=9, epoch=7, order=m.Stop(generation=3)),
            m.Answer(number=9, epoch=7, order=m.Wait()),
            m.Answer(number=9, epoch=7, order=m.Release()),
        ],
    ),
    "between-runners": (
        w.decode_peer,
        [
            m.Hello(versions=(1,), fleet="default", node="n1", run="train@1a2b3c", incarnation="00ff00ff00ff00ff"),
            w.WordWanted(number=2, generation=3),
            w.Word(number=2, generation=3, is_given=True),
            w.PassOn(renewal=m.Renewal(number=1)),
            w.PassedOn(answer=m.Answer(number=9, epoch=7, order=m.Wait())),
        ],
    ),
    "first": (
        f.decode_first,
        [
            m.Hello(versions=(1,), fleet="default", node="n1", run="train@1a2b3c", incarnation="00ff00ff00ff00ff"),
            f.Join(
                versions=(1,),
                fleet="default",
                node="n2",
                identity="5b1f0e2d5b1f0e2d",
                incarnation=7,
                address="10.0.0.2",
                port=29410,
                join=("n1:29410", "10.0.0.2:29410"),
                labels={"rack": "r2"},
                facts=f.NodeFacts(
                    host="gpu-02",
                    boot_id="0f7c2a51",
                    kernel="6.8.0",
                    python="3.11.9",
                    supd="0.1.0",
                    cpus=96,
                    memory_bytes=1 << 40,
                    devices="8 NVIDIA H100 80GB HBM3",
                ),
                wall_s=1770000000.25,
            ),
            f.Join(
                versions=(1,),
                fleet="default",
                node="n2",
                identity="5b1f0e2d5b1f0e2d",
                incarnation=1,
                address="10.0.0.2",
                port=29410,
                join=("n1:29410",),
            ),
            f.Visit(versions=(1,), fleet="default", node="n2", user="mia"),
            f.Probe(fleet="default"),
            f.FetchLogs(
                fleet="default",
                run="train@1a2b3c",
                selection=LOGS,
                now=f.LogsNow(generation=3, is_over=True, look=4),
                first=2,
                follow=True,
                known=(LOG_PLACE,),
            ),
            f.FetchLogs(
                fleet="default",
                run="train@1a2b3c",
                selection=c.LogSelection(),
                now=f.LogsNow(generation=0, is_over=False),
            ),
            f.FetchRank(
                fleet="default",
                job=JOB,
                assignment=ASSIGNMENT,
                rank=4,
                incarnation="00ff00ff00ff00ff",
                with_env=True,
                pid=100,
            ),
            f.Join(
                versions=(1,),
                fleet="default",
                node="n2",
                identity="5b1f0e2d5b1f0e2d",
                incarnation=8,
                address="10.0.0.2",
                port=29410,
                join=("n1:29410",),
                epoch=7,
                host="6c2f0e2d5b1f0e2d",
            ),
        ],
    ),
    "reports": (
        f.decode_report,
        [
            f.NodeReport(
                number=12,
                buried=(
                    f.RunnerBuried(run="train@1a2b3c", incarnation="00ee00ee00ee00ee", last=RENEWAL),
                    f.RunnerBuried(run="train@1a2b3c", incarnation="00dd00dd00dd00dd"),
                ),
                failures=(f.StartFailure(run="eval@4d5e6f", number=2, reason="No space left on device"),),
            ),
            f.NodeReport(number=1),
            f.NodeReport(number=13, runners=("00ff00ff00ff00ff",)),
        ],
    ),
    "to-node": (
        f.decode_to_node,
        [
            f.Joined(
                version=1, epoch=7, host="n1", warnings=("n2's clock is 2.5 s behind",), identity="5b1f0e2d5b1f0e2d"
            ),
            f.Joined(version=1, epoch=7, host="n1"),
            f.JoinRefused(code="F301", message="this is fleet a, not b", hint="look at [fleet] name"),
            f.JoinRefused(code="F302", message="no"),
            f.NodeOrder(number=12, epoch=7, wanted=("train@1a2b3c",), settled=("00ee00ee00ee00ee",)),
            f.NodeOrder(number=1, epoch=7),
            f.JoinRefused(code="F308", message="n2 does not host", host=KNOWN_HOST),
        ],
    ),
    "from-peer": (
        f.decode_from_peer,
        [
            f.Probed(node="n2", identity="5b1f0e2d5b1f0e2d"),
            f.LogsSeen(before=2, seen=3, look=4),
            f.LogsEnd(error="no such run here"),
            f.LogsEnd(),
            f.RankFacts(
                command=("/usr/bin/python3", "train.py"),
                cwd="/home/me",
                env=(("RANK", "3", "supd"), ("HF_TOKEN", "***", "inherited")),
                files=("/state/logs/train@1a2b3c/gen-0003/rank-00003.out",),
            ),
            f.Probed(node="n2", identity="5b1f0e2d5b1f0e2d", host=KNOWN_HOST),
            f.LogsEnd(generations=(0, 7)),
        ],
    ),
    "logs-now": (
        f.decode_logs_now,
        [f.LogsNow(generation=3, is_over=True, look=4), f.LogsNow(generation=-1, is_over=False)],
    ),
    "node": (
        decoder(f.Join | f.Probed | f.NodeReport | m.Hello | m.Renewal),
        [  # a whole life, for old_node.py
            f.Join(
                versions=(1,),
                fleet="default",
                node="n2",
                identity="5b1f0e2d5b1f0e2d",
                incarnation=1,
                address="10.0.0.2",
                port=29410,
                join=("n1:29410",),
            ),
            f.Probed(node="n2", identity="5b1f0e2d5b1f0e2d"),
            f.NodeReport(
                number=1,
                buried=(f.RunnerBuried(run="train@1a2b3c", incarnation="00ff00ff00ff00ff"),),
            ),
            m.Hello(versions=(1,), fleet="default", node="n2", run="train@1a2b3c", incarnation="00ff00ff00ff00ff"),
            m.Renewal(number=1, offer=LIFE_OFFER),
            m.Renewal(number=2, generation=0, part=m.Part.LAUNCHED, ranks=life_ranks(started=False)),
            m.Renewal(number=3, generation=0, part=m.Part.RUNNING, ranks=life_ranks()),
            m.Renewal(number=4, generation=0, part=m.Part.STOPPING, ranks=life_ranks()),
            m.Renewal(number=5, generation=0, part=m.Part.STOPPED, ranks=life_ranks(exit=TERMINATED), offer=LIFE_OFFER),
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
                address="10.0.0.2",
                witness_ports=(41000, 41063),
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
                lost=("n1",),
                lapsed=("n4",),
                slots={"n2": 0},
                without="n3",
                lacked_nodes=True,
                stalled=(6,),
                is_taken_over=True,
                reason="stopped by me",
                last_parts={"n2": RENEWAL},
            ),
            RunRecord(),
            *(RunRecord(phase=phase) for phase in Phase),
            RunRecord(is_taken_over=True, newer=4),
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
                allow_mixed=True,
            ),
            c.StopRun(run="train", all_runs=True, grace_s=5.0, now=True),
            c.StopRun(),
            c.RestartRun(run="train", reason="new data", without="n3"),
            c.DeclareLost(node="n2", check_only=True),
            c.GetNodes(node="n2"),
            c.GetNodes(),
            c.GetStatus(run="train", with_ranks=True),
            c.GetStatus(),
            c.Watch(run="train", follow=True, events=True, after_event=7, snapshots=True, logs=LOGS),
            c.Watch(run="train", follow=True, logs=LOGS, known=(LOG_PLACE,), merge_window_s=0.5),
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
            c.Nodes(nodes=(NODE_STATUS,)),
            c.EventRecord(
                id=7,
                wall_s=1770000000.25,
                run="train@1a2b3c",
                generation=3,
                kind="incident.opened",
                text="rank 4 was killed",
                detail={"rank": 4, "signal": "SIGKILL", "exit_code": None, "ran_s": 1.5, "charged": True},
            ),
            c.LogChunk(
                generation=3,
                node="n1",
                rank=4,
                local_rank=1,
                stream="err",
                data=b"boom \xff\n",
                times=((0, 1770000000.25),),
                offset=4096,
                skipped_lines=12,
                removed_bytes=100,
            ),
            c.Notice(text="n3 cannot be reached: its output is missing"),
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
