"""supervisor/daemon/describe.py: everything about a run and its ranks, and not one secret."""

import os
import sys
from pathlib import Path

from protocol.effective import MASK
from protocol.messages import encode
from protocol.messages.control import Describe, Description, Done, Failure, RankStatus, Start, Watch
from supervisor.shell.config import Config
from tests.daemon.serving import ask, config_in, serving, talking
from tests.daemon.test_jobs import ended, status

SECRETS = ("from-the-shell", "from-the-file", "from-the-job")
JOB = """
name = "job"
[run]
command = ["sh", "-c", "echo up; exec sleep 3600", "${SHELL_TOKEN}"]
args = ["--rank={rank}", "--key=${JOB_KEY}", "${URL}"]
env_file = "job.env"
env = { JOB_KEY = "from-the-job", URL = "https://${FILE_SECRET}@host", PLAIN = "{run}" }
[topology]
nproc_per_node = 2
[devices]
omp_num_threads = "auto"
"""


def a_start(folder: Path, job: str = JOB) -> Start:
    (folder / "job.env").write_text("FILE_SECRET=from-the-file\nFILE_PLAIN=file\n")
    return Start(
        request_id="1",
        job_file=job.encode(),
        source="jobs/job.toml",
        folder=str(folder),
        python=sys.executable,
        env={b"PATH": os.environb[b"PATH"], b"SHELL_TOKEN": b"from-the-shell", b"HOME": b"/home/\xff"},
        limits={"nofile": 1000, "core": -1},
        umask=0o22,
    )


def environ_of(pid: int | None) -> dict[str, str]:
    content = Path(f"/proc/{pid}/environ").read_text(errors="replace")
    return dict(variable.split("=", 1) for variable in content.split("\0") if variable)


async def running(config: Config, request: Start) -> str:
    """A run whose ranks have started."""
    done = await ask(config.control, request)
    assert isinstance(done, Done), done
    async with talking(config.control, Watch(run=done.run, follow=True, snapshots=True)) as client:
        while not (await status(config, done.run)).has_started:
            assert await client.frame() is not None
    return done.run


async def described(config: Config, request: Describe) -> Description:
    reply = await ask(config.control, request)
    assert isinstance(reply, Description), reply
    return reply


async def test_of_a_run_there_is_its_file_its_command_and_every_setting(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        run = await running(config, a_start(short_dir))
        about = await described(config, Describe(run="job"))
        assert (about.status.run, about.status.rank_list) == (run, ())
        assert about.source == str(short_dir / "job.toml")
        assert about.command[:2] == ("sh", "-c")
        assert about.command[-2:] == ("--key=${JOB_KEY}", "${URL}")
        assert about.cwd == str(short_dir)
        assert about.limits == {"nofile": 1000, "core": -1}
        settings = {s.key: (s.value, s.origin) for s in about.settings}
        assert settings["topology.nproc_per_node"] == ("2", "file")
        assert settings["run.env.JOB_KEY"] == (MASK, "file")
        assert settings["run.limits.nofile"] == ("1000", "submitter")


async def test_of_a_rank_there_is_what_its_process_was_started_with(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        run = await running(config, a_start(short_dir))
        about = await described(config, Describe(run=run, rank=1))
        rank = next(r for r in about.status.rank_list if r.rank == 1)
        assert isinstance(rank, RankStatus)
        env = {name: value for name, value, _ in about.env}
        real = environ_of(rank.pid)
        assert env == {name: real[name] for name in env}, "what supd set, as it is"
        assert {origin for _, _, origin in about.env} == {"supd"}
        assert {"RANK", "MASTER_PORT", "OMP_NUM_THREADS", "SUPD_RUN", "TORCHELASTIC_ERROR_FILE"} <= env.keys()
        assert about.command[-3] == "--rank=1"
        assert [Path(file).name for file in about.files] == ["rank-00001.out", "rank-00001.err"]


async def test_with_all_variables_each_has_its_origin(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        run = await running(config, a_start(short_dir))
        about = await described(config, Describe(run=run, rank=0, with_env=True))
        env = {name: (value, origin) for name, value, origin in about.env}
        assert env["HOME"] == ("/home/\ufffd", "inherited")
        assert env["SHELL_TOKEN"] == (MASK, "inherited")
        assert env["FILE_PLAIN"] == ("file", "env_file")
        assert env["FILE_SECRET"] == (MASK, "env_file")
        assert env["JOB_KEY"] == (MASK, "job")
        assert env["PLAIN"] == (run, "job")
        assert env["RANK"] == ("0", "supd")


async def test_no_secret_leaves_supd_in_whatever_it_was_filled_in(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        run = await running(config, a_start(short_dir))
        about = await described(config, Describe(run=run, rank=0, with_env=True))
        assert about.command[-3:] == ("--rank=0", f"--key={MASK}", f"https://{MASK}@host")
        assert ("URL", f"https://{MASK}@host", "job") in about.env
        frames = encode(about) + encode(await described(config, Describe(run=run)))
        assert not [secret for secret in SECRETS if secret.encode() in frames]


async def test_a_rank_that_is_gone_is_still_described(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        job = JOB.replace("exec sleep 3600", "exit 0")
        done = await ask(config.control, a_start(short_dir, job))
        assert isinstance(done, Done)
        await ended(config, done.run)
        (short_dir / "job.env").unlink()
        about = await described(config, Describe(run="job", rank=1, with_env=True))
        env = {name: value for name, value, _ in about.env}
        assert (env["RANK"], env["JOB_KEY"], "FILE_PLAIN" in env) == ("1", MASK, False)
        assert about.status.rank_list[1].exit_code == 0


async def test_a_rank_or_run_that_is_not_there_is_refused(short_dir: Path) -> None:
    config = config_in(short_dir)
    async with serving(config):
        await running(config, a_start(short_dir))
        refusals = [await ask(config.control, Describe(run=run, rank=rank)) for run, rank in [("job", 2), ("x", None)]]
        assert [(r.code, r.exit_code) for r in refusals if isinstance(r, Failure)] == [("F109", 3), ("F102", 3)]
