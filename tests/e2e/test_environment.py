"""What a worker is born with: torchrun's variables, the submitter's environment and limits, and nothing of supd's."""

import os
import resource
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.e2e.jobs import finished
from tests.e2e.supd import Supd, running_supd
from tests.e2e.surroundings import born, report, surroundings_job

ROOT = Path(__file__).parents[2]

TORCHRUNS_FIXED = {
    "ROLE_NAME": "trainer",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "3",
    "WORLD_SIZE": "3",
    "ROLE_WORLD_SIZE": "3",
    "TORCHELASTIC_MAX_RESTARTS": "7",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "OMP_NUM_THREADS": "1",
}
PYTHONS = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
"""Ours: lines appear as they are printed, and a fatal signal leaves stacks."""


def test_a_worker_has_the_whole_contract_of_torchrun_and_ours_and_nothing_else(supd: Supd) -> None:
    """Source: torch 2.13.0, torch.distributed.elastic, local_elastic_agent.py and multiprocessing/api.py."""
    tables = 'role = "trainer"\n[restart]\nmax_restarts = 7\nbackoff = "0s"\non_startup_failure = "restart"\n'
    job = surroundings_job(supd, "--fail", "0", nproc=3, run='inherit_env = "none"', tables=tables)
    status, _ = finished(supd, job, "succeeded")
    run = status["run"]
    ports = []
    for generation in (0, 1):
        assert report(supd, 0, generation).port_is_free
        for rank in range(3):
            env = report(supd, rank, generation).env
            ports.append(env.pop("MASTER_PORT"))
            error_file = Path(env.pop("TORCHELASTIC_ERROR_FILE"))
            assert error_file.parent == Path(status["logs_dir"], f"gen-{generation:04d}")
            assert env.pop("SUPD_RUNNER")
            assert Path(env.pop("SUPD_HEARTBEAT")).name == f"gen-{generation:04d}-rank-{rank:05d}"
            assert Path(env.pop("SUPD_STOP_FILE")).name == f"gen-{generation:04d}-stop.json"
            assert Path(env.pop("PYTHONPATH"), "supd/beat.py").is_file()
            assert env.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # Python's own, where there is no locale (PEP 538)
            assert env == {
                **TORCHRUNS_FIXED,
                **PYTHONS,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "ROLE_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "TORCHELASTIC_RESTART_COUNT": str(generation),
                "TORCHELASTIC_RUN_ID": run,
                "SUPD_JOB": "born",
                "SUPD_RUN": run,
                "SUPD_GENERATION": str(generation),
                "SUPD_NODE": status["nodes"][0],
                "SUPD_RESTART_REASON": status["incident"]["summary"] if generation else "",
            }
    assert len(set(ports[:3])) == len(set(ports[3:])) == 1
    assert ports[0] != ports[3], "the port of the last generation"


def test_cuda_visible_devices_is_left_alone_unless_devices_are_to_be_shared_out(supd: Supd) -> None:
    """Its entries are names, and are never read as numbers."""
    devices = "GPU-8932f937,3,GPU-11111111"
    job = surroundings_job(supd, nproc=3)
    assert "CUDA_VISIBLE_DEVICES" not in born(supd, job).env
    assert born(supd, job, env={"CUDA_VISIBLE_DEVICES": devices}).env["CUDA_VISIBLE_DEVICES"] == devices
    assert report(supd, 1).env["LOCAL_RANK"] == "1"
    born(
        supd,
        surroundings_job(supd, nproc=3, tables='[devices]\nvisibility = "virtual"'),
        env={"CUDA_VISIBLE_DEVICES": devices},
    )
    for rank, device in enumerate(devices.split(",")):
        env = report(supd, rank).env
        assert (env["CUDA_VISIBLE_DEVICES"], env["LOCAL_RANK"], env["RANK"]) == (device, "0", str(rank))


@pytest.mark.parametrize(
    ("nproc", "submitters", "line", "expected"),
    [
        (1, None, "", None),
        (2, None, "", "1"),
        (2, "7", "", "7"),
        (2, "7", "[devices]\nomp_num_threads = 5", "5"),
        (1, None, '[devices]\nomp_num_threads = "auto"', str(len(os.sched_getaffinity(0)))),
        (2, None, '[devices]\nomp_num_threads = "inherit"', None),
    ],
)
def test_a_users_omp_num_threads_wins_over_the_default(
    supd: Supd, nproc: int, submitters: str | None, line: str, expected: str | None
) -> None:
    supd.env.pop("OMP_NUM_THREADS", None)
    env = {} if submitters is None else {"OMP_NUM_THREADS": submitters}
    assert born(supd, surroundings_job(supd, nproc=nproc, tables=line), env=env).env.get("OMP_NUM_THREADS") == expected


def test_umask_and_limits_are_the_submitters_and_not_those_supd_has_raised_for_itself(supd: Supd) -> None:
    assert supd.process is not None
    soft, hard = resource.prlimit(supd.process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard, "supd has raised its own"
    worker = born(supd, surroundings_job(supd), shell="umask 027; ulimit -S -n 333; ulimit -S -c 0; ulimit -S -s 4096")
    assert worker.umask == 0o027
    assert worker.limits == {
        "NOFILE": [333, hard],
        "CORE": [0, worker.limits["CORE"][1]],
        "STACK": [4096 << 10, worker.limits["STACK"][1]],
    }
    worker = born(
        supd, surroundings_job(supd, run="limits = { nofile = 444 }"), shell="ulimit -S -n 333; ulimit -S -s 4096"
    )
    assert (worker.limits["NOFILE"][0], worker.limits["STACK"][0]) == (444, 4096 << 10)


def test_the_environment_arrives_byte_for_byte(supd: Supd) -> None:
    exported = {
        "LINES": "one\ntwo\n\n",
        "TABS": "\ta b\t",
        "NOT_UTF8": os.fsdecode(b"\xff\xfe caf\xe9"),
        "SHELL_LIKE": """64(x2) 'a' "b" $HOME `id` {"k": [1]} %s %% a%2Bb {rank} ${RANK} \\""",
        "LONG": "x" * 100_000,
        "EMPTY": "",
        "BASH_FUNC_f%%": "() { echo\n}",
    }
    worker = born(supd, surroundings_job(supd), env=exported)
    for name, value in exported.items():
        assert worker.environ[os.fsencode(name)] == os.fsencode(value), name


def test_what_the_job_file_sets_is_literal_but_for_its_templates(supd: Supd) -> None:
    run = """env = { A = 'a%2Bb %s %% %h:%p {x} ${UNSET} $A', B = '{job} {rank} ${HOME} {{rank} $$', C = "é\\n" }"""
    env = born(supd, surroundings_job(supd, "a%2Bb {x} '\"$HOME` ", "{job}-{rank}", run=run), env={"HOME": "/h"})
    assert env.env["A"] == "a%2Bb %s %% %h:%p {x} ${UNSET} $A"
    assert env.env["B"] == "born 0 /h {rank} $"
    assert env.environ[b"C"] == b"\xc3\xa9\n"
    assert env.argv == ["a%2Bb {x} '\"$HOME` ", "born-0"]


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("", {"HF_HOME": "h", "OTHER": "o"}),
        ('inherit_env = "submitter"', {"HF_HOME": "h", "OTHER": "o"}),
        ('inherit_env = "daemon"', {"OF_THE_DAEMON": "d"}),
        ('inherit_env = "none"', {}),
        ('inherit_env = ["HF_*", "PATH"]', {"HF_HOME": "h"}),
    ],
)
def test_inherit_env_says_whose_environment_a_worker_gets(short_dir: Path, line: str, seen: dict[str, str]) -> None:
    with running_supd(short_dir, env={"OF_THE_DAEMON": "d"}) as supd:
        supd.env.pop("OF_THE_DAEMON")
        submitters = {"HF_HOME": "h", "OTHER": "o", "SSH_TTY": "t", "XDG_SESSION_ID": "x", "TERM": "xterm"}
        worker = born(supd, surroundings_job(supd, run=line), env=submitters)
        ours = ("HF_HOME", "OTHER", "SSH_TTY", "XDG_SESSION_ID", "OF_THE_DAEMON", "SUPD_ADDR")
        assert {name: worker.env[name] for name in ours if name in worker.env} == seen
        if line != 'inherit_env = "daemon"':
            assert "TERM" not in worker.env


def test_an_env_file_comes_before_env_and_after_what_is_inherited(supd: Supd) -> None:
    Path(supd.folder, "vars").write_text("# comment\n\nexport A='from file'\nB=\"also\"\nC=plain=${A}\n")
    run = "env_file = 'vars'\nenv = { B = 'from the job' }"
    env = born(supd, surroundings_job(supd, run=run), env={"A": "submitter's", "B": "submitter's"}).env
    assert (env["A"], env["B"], env["C"]) == ("from file", "from the job", "plain=${A}")


def test_the_working_directory_is_the_job_files_folder_or_what_it_says_from_there(supd: Supd) -> None:
    elsewhere = supd.folder / "elsewhere"
    elsewhere.mkdir()
    Path(supd.folder, "sub-0").mkdir()
    assert born(supd, surroundings_job(supd), cwd=elsewhere).cwd == str(supd.folder)
    assert born(supd, surroundings_job(supd, run='workdir = "sub-{rank}"'), cwd=elsewhere).cwd == f"{supd.folder}/sub-0"
    assert born(supd, surroundings_job(supd, run=f'workdir = "{elsewhere}"')).cwd == str(elsewhere)


def test_the_interpreter_is_the_submitters_and_not_the_daemons(supd: Supd) -> None:
    root = supd.folder / "venv"
    venv.create(root, symlinks=True)
    worker = born(supd, surroundings_job(supd, python=None), env={"VIRTUAL_ENV": str(root)})
    assert (worker.prefix, worker.executable) == (str(root), f"{root}/bin/python3")
    worker = born(
        supd, surroundings_job(supd, python=None), env={"PATH": f"{root}/bin:/usr/bin:/bin", "VIRTUAL_ENV": ""}
    )
    assert worker.prefix == str(root)
    relative = born(supd, surroundings_job(supd, python="venv/bin/python"))
    assert relative.prefix == str(root)


@pytest.fixture
def installed(short_dir: Path) -> Path:
    """The folder of our commands in an environment as an installer makes it.

    The .pth file of an editable install imports modules before the first line of ours is reached.
    """
    root = short_dir / "installed"
    venv.create(root, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(root), "platbase": str(root)}))
    (site / "paths.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    for name in ("supd", "supctl"):
        command = root / "bin" / name
        command.write_text(f"#!{root}/bin/python\n" + (ROOT / "supervisor" / "bin" / name).read_text())
        command.chmod(0o755)
    return root / "bin"


def test_foreign_modules_of_our_names_break_neither_our_processes_nor_the_script(
    short_dir: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie in the working directory of all, and on the PYTHONPATH of all; the script wants one of them."""
    hostile = short_dir / "hostile"
    hostile.mkdir()
    for name in ("supervisor", "types", "logging", "asyncio", "msgspec", "json"):
        Path(hostile, f"{name}.py").write_text(f"raise ImportError('the hostile {name}')\n")
    Path(hostile, "protocol.py").write_text("WHOSE = 'the user'\n")
    Path(hostile, "train.py").write_text(
        "import os, protocol\nos.write(1, b'protocol of ' + protocol.WHOSE.encode())\n"
    )
    job = hostile / "job.toml"
    bare = os.path.realpath(sys.executable)  # no site packages, which would have to start with that PYTHONPATH too
    job.write_text(f'name = "mine"\n[run]\nscript = "train.py"\npython = "{bare}"\n[topology]\nnproc_per_node = 2\n')
    monkeypatch.setattr("tests.e2e.supd.BIN", installed)
    supd = Supd(short_dir, env={"PYTHONPATH": str(hostile)})
    supd.folder = hostile  # where daemon and client are started
    try:
        supd.start()
        done = supd.supctl("start", str(job), "--follow")
        assert "protocol of the user" in done.stdout
        assert "the hostile" not in supd.log.read_text() + done.stderr
        status = supd.status("mine")
        assert (status["state"], status["restarts_used"]) == ("succeeded", 0)
    finally:
        supd.close()
