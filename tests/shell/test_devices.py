"""supervisor/shell/devices.py: what is counted, and that it is told how."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import Refused
from supervisor.shell.devices import accelerators, count_as_torchrun, count_ranks, cpu_quota, node_slots

HAS_NVML = os.path.exists("/proc/driver/nvidia")
UUIDS = "GPU-8932f937-d72c,MIG-GPU-5c89852c/1/0, 3"


def test_a_number_is_a_number() -> None:
    assert count_ranks(4, {"CUDA_VISIBLE_DEVICES": "0"}) == (4, "as the job says")


@pytest.mark.parametrize(
    ("variable", "devices"),
    [
        ("0,1,2", ["0", "1", "2"]),
        ("3,1", ["3", "1"]),
        (UUIDS, ["GPU-8932f937-d72c", "MIG-GPU-5c89852c/1/0", "3"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", ["0"]),
    ],
)
def test_visible_devices_are_counted_in_their_order_and_never_read_as_numbers(
    variable: str, devices: list[str]
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": variable}
    assert accelerators(environ)[0] == devices
    assert count_ranks("auto", environ)[0] == max(1, len(devices))


@pytest.mark.parametrize(
    ("environ", "count"), [({"CUDA_VISIBLE_DEVICES": "0,1"}, 2), ({"ZE_AFFINITY_MASK": "0,1,2"}, 3), ({}, 5)]
)
def test_torchruns_auto_is_one_for_each_accelerator_else_one_for_each_cpu(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], count: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(5)))
    monkeypatch.setattr("supervisor.shell.devices.cpu_quota", lambda: None)
    without_any = {"CUDA_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": ""}
    assert count_as_torchrun("auto", {**without_any, **environ})[0] == count
    assert count_as_torchrun(3, {**without_any, **environ}) == count_ranks(3, {})


def test_gpu_without_any_is_refused_with_what_was_looked_at() -> None:
    with pytest.raises(Refused, match=r'nproc_per_node = "gpu", but this node has none: 0 in CUDA_VISIBLE_DEVICES='):
        count_ranks("gpu", {"CUDA_VISIBLE_DEVICES": ""})
    assert count_ranks("gpu", {"CUDA_VISIBLE_DEVICES": UUIDS})[0] == 3


def test_xpu_counts_the_affinity_mask_and_is_refused_where_there_is_none() -> None:
    assert count_ranks("xpu", {"ZE_AFFINITY_MASK": "0.0,1"})[0] == 2
    with pytest.raises(Refused, match='nproc_per_node = "xpu", but this node has none'):
        count_ranks("xpu", {"ZE_AFFINITY_MASK": ""})


@pytest.mark.skipif(HAS_NVML, reason="this machine has NVIDIA's driver")
def test_without_nvidia_libraries_auto_is_one_rank_and_nothing_is_imported() -> None:
    program = """if True:
        import sys
        from supervisor.shell.devices import accelerators, count_ranks
        assert count_ranks("auto", {}) == (1, "no accelerator found (no libnvidia-ml.so.1)")
        assert accelerators({})[0] == []
        assert not {"pynvml", "torch"} & set(sys.modules)
        """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=15)


NO_PACKAGE = "the Python package nvidia-ml-py is not (install supd[gpu])"
FAKE_NVML = """
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 3
"""


def with_nvidia(folder: Path, package: str, program: str) -> str:
    """What a program prints where NVIDIA's library is, by the look of it, and `package` is its Python package."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        libc = next(line.split()[-1] for line in maps if "/libc.so" in line or "/libc-" in line)
    (folder / "libnvidia-ml.so.1").symlink_to(libc)  # any library that can be loaded
    (folder / "pynvml.py").write_text(package)
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)}
    argv = [sys.executable, "-c", program]
    return subprocess.run(argv, env=env, capture_output=True, check=True, timeout=15).stdout.decode().strip()


@pytest.mark.skipif(HAS_NVML, reason="this machine has NVIDIA's driver")
@pytest.mark.parametrize(
    ("package", "said"),
    [
        (FAKE_NVML, "(3, '3 by NVML') ['0', '1', '2']"),
        (
            FAKE_NVML.replace("nvmlInit(): pass", "nvmlInit(): raise NVMLError('Driver Not Loaded')"),
            "(1, 'no accelerator found (NVML: Driver Not Loaded)') []",
        ),
        (
            "raise ImportError",
            f"(1, 'libnvidia-ml.so.1 is here, but {NO_PACKAGE}') []",
        ),
    ],
)
def test_with_a_stand_in_for_nvidias_library_nvml_is_asked(tmp_path: Path, package: str, said: str) -> None:
    program = "from supervisor.shell.devices import *; print(count_ranks('auto', {}), accelerators({})[0])"
    assert with_nvidia(tmp_path, package, program) == said


@pytest.mark.skipif(HAS_NVML, reason="this machine has NVIDIA's driver")
def test_a_driver_that_does_not_answer_is_no_node_without_gpus(tmp_path: Path) -> None:
    package = FAKE_NVML.replace("nvmlInit(): pass", "nvmlInit(): import threading; threading.Event().wait()")
    program = """if True:
        from protocol.errors import Refused
        from supervisor.shell import devices
        devices.NVML_LIMIT_S = 0.2
        try:
            devices.count_ranks("auto", {})
        except Refused as exc:
            print(exc.code, exc)
        """
    assert with_nvidia(tmp_path, package, program) == "F206 NVIDIA's driver does not answer for 0.2 s"


def test_cpu_counts_the_cpus_of_this_process_whatever_omp_says() -> None:
    count, how = count_ranks("cpu", {"OMP_NUM_THREADS": "64"})
    assert 1 <= count <= len(os.sched_getaffinity(0))
    assert "affinity" in how
    program = """if True:
        import os
        from supervisor.shell.devices import count_ranks
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        assert count_ranks("cpu", {})[0] == 1
        """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=15)


@pytest.mark.parametrize(
    ("mount", "membership", "files", "quota"),
    [
        ("/ ROOT/cg rw - cgroup2 cgroup2 rw", "0::/a/b", {"cg/a/b/cpu.max": "max 100000"}, None),
        ("/ ROOT/cg rw - cgroup2 cgroup2 rw", "0::/a/b", {"cg/a/b/cpu.max": "350000 100000"}, 3.5),
        (
            "/ ROOT/cg rw - cgroup2 cgroup2 rw",
            "0::/a/b",
            {"cg/a/b/cpu.max": "max 100000", "cg/a/cpu.max": "200000 100000"},
            2.0,
        ),
        (
            "/box ROOT/cpu rw - cgroup cgroup rw,cpu,cpuacct",
            "3:cpu,cpuacct:/box/a",
            {"cpu/a/cpu.cfs_quota_us": "150000", "cpu/a/cpu.cfs_period_us": "100000"},
            1.5,
        ),
        (
            "/ ROOT/cpu rw - cgroup cgroup rw,cpu",
            "3:cpu:/",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_the_tightest_quota_of_v1_or_v2_on_the_way_up_counts(
    tmp_path: Path, mount: str, membership: str, files: dict[str, str], quota: float | None
) -> None:
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "mountinfo").write_text(f"30 1 0:9 {mount}\n".replace("ROOT", str(tmp_path)))
    (proc / "cgroup").write_text(membership + "\n")
    for name, content in files.items():
        path = Path(tmp_path, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    assert cpu_quota(str(proc.parent)) == quota


@pytest.mark.parametrize(
    ("devices", "visible", "slots"),
    [
        (None, None, ("0", "1", "2", "10")),
        (None, "4,5,GPU-a", ("4", "5", "GPU-a")),
        (None, "", None),
        (2, None, ("0", "2")),
        (4, "4,5,6,7", ("4", "5", "6", "7")),
        (6, "4,5,6", ("4", "4", "5", "5", "6", "6")),
        (2, "", ("", "")),
        (0, None, ()),
    ],
)
def test_slots_are_the_accelerators_that_supd_was_given_or_as_many_as_it_is_told_spread_over_them(
    tmp_path: Path, devices: int | None, visible: str | None, slots: tuple[str, ...] | None
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert node_slots(devices, environ, str(tmp_path)) == slots
