"""Several nodes on one machine: a fleet of supd on 127.0.0.2, .3 …, and as many agents of torchrun on loopback."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sides import LIMIT_S, MeasurementFailed, Side, Stamp, now_s, wait_for

NPROC = 2
"""Ranks on each node."""


def parent_of(pid: int) -> int:
    """proc_pid_stat(5)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def family_of(pid: int) -> list[int]:
    """A process and all that are below it."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                children.setdefault(parent_of(int(name)), []).append(int(name))
    found = [pid]
    for one in found:
        found += children.get(one, ())
    return found


def free_port(addresses: Sequence[str]) -> int:
    """A port, below those that the kernel gives out, that is free on all of them."""
    while True:
        port = random.randrange(20_000, 29_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for address in addresses:
                stack.enter_context(socket.create_server((address, port)))
            return port


class FleetSide(Side):
    """A side of several nodes, with NPROC ranks each."""

    def node_of(self, stamp: Stamp) -> int:
        """The node, 0, 1 …, on which a rank runs: ranks go by nodes."""
        return stamp.rank // NPROC

    def told_s(self, after_s: float, victim: Stamp, ranks: int) -> float:
        """When the last rank on another node than the victim's was told to end."""

        def look() -> list[float] | None:
            others = {
                s.pid: s.at_s
                for s in self.stamps()
                if s.event == "told" and s.at_s > after_s and self.node_of(s) != self.node_of(victim)
            }
            return list(others.values()) if len(others) >= ranks else None

        return max(wait_for(f"{ranks} ranks of {self.name} to be told", look))


@dataclass
class _Node:
    folder: Path
    daemon: "subprocess.Popen[bytes]"
    family: Sequence[int] = ()  # what was frozen or killed of it

    @property
    def control(self) -> Path:
        return self.folder / "control.sock"

    def runners(self) -> set[str]:
        """The runners there are, by the names of their locks."""
        return {lock.name for lock in (self.folder / "state" / "runners").glob("*.lock")}


class SupdFleet(FleetSide):
    """Some supd of its own, running; `supctl start` a start."""

    name = "supd"

    def __init__(self, commands: Path, nodes: int, topology: str) -> None:
        """`topology`: the rest of that table of the job."""
        super().__init__(commands)
        self._topology = topology
        self._marker = self.folder / "saved"
        self._saved = 0
        self._client: subprocess.Popen[bytes] | None = None
        self._used: list[set[str]] = []
        self._nodes: list[_Node] = []
        try:
            self._make(nodes)
            wait_for(f"{nodes} supd to form a fleet", lambda: self._has_formed(nodes))
        except BaseException:
            self.close()
            raise

    def _make(self, nodes: int) -> None:
        addresses = [f"127.0.0.{2 + number}" for number in range(nodes)]
        port = free_port(addresses)
        for number, address in enumerate(addresses):
            folder = self.folder / f"n{number}"
            folder.mkdir()
            config = folder / "supd.toml"
            config.write_text(
                f'[node]\nname = "n{number}"\n[listen]\ncontrol = "{folder}/control.sock"\npeer = "{address}:{port}"\n'
                f'[fleet]\njoin = ["{addresses[0]}:{port}"]\ncredential = "{self.folder}/fleet.pem"\n'
                f'[state]\ndir = "{folder}/state"\n'
            )
            supd = str(self.commands / "supd")
            if not number:
                subprocess.run([supd, "fleet", "key", "new", "--config", str(config)], check=True, capture_output=True)
            self._nodes.append(_Node(folder, self._popen([supd, "run", "--config", str(config)], f"supd-{number}")))
        self.env |= {"SUPD_ADDR": str(self._nodes[0].control)}

    def _has_formed(self, nodes: int) -> bool:
        for number, node in enumerate(self._nodes):
            if node.daemon.poll() is not None:
                raise MeasurementFailed(f"supd ended with {node.daemon.returncode}: {self._tail(f'supd-{number}')}")
        seen = self._read("nodes").get("nodes", [])
        return [node["state"] for node in seen] == ["ready"] * nodes and all(node.runners() for node in self._nodes)

    def _read(self, *args: str) -> dict[str, Any]:
        """The data of `supctl … --json`; nothing where it fails."""
        command = [str(self.commands / "supctl"), *args, "--json"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        data: dict[str, Any] = json.loads(done.stdout)["data"] if done.returncode == 0 else {}
        return data

    def supctl(self, *args: str, check: bool = True) -> None:
        """Run supctl to its end."""
        code = self._popen([str(self.commands / "supctl"), *args], "supctl").wait(LIMIT_S)
        if check and code:
            raise MeasurementFailed(f"supctl {' '.join(args)} ended with {code}: {self._tail('supctl')}")

    def _start(self, ranks: int) -> float:
        job = self.folder / "job.toml"
        job.write_text(
            f'name = "bench"\n[run]\nscript = "{self.worker}"\npython = "{self.python}"\n'
            f'[topology]\nnproc_per_node = {NPROC}\n{self._topology}\n[restart]\nbackoff = "0s"\nmax_restarts = 10\n'
            f'[checkpoint]\nmarker = "{self._marker}"\n'
        )
        self._used = [node.runners() for node in self._nodes]
        begun_s = now_s()
        self._client = self._popen([str(self.commands / "supctl"), "start", str(job)], "supctl")
        return begun_s

    def ranks(self) -> int:
        """Of the newest generation."""
        return len(self._read("ps", "bench")["ranks"])

    def save(self) -> float:
        """Move the checkpoint marker on, as a program does that has saved. Returns when."""
        self._saved += 1
        new = self.folder / "saved.new"
        new.write_text(str(self._saved))
        saved_s = now_s()
        new.replace(self._marker)
        return saved_s

    def awaits_save(self) -> bool:
        """Whether a planned change waits for a checkpoint."""
        return any(run["plan"] for run in self._read("status", "bench").get("runs", []))

    def restarts_used(self) -> int:
        """What the run's failures have cost."""
        return int(self._read("status", "bench")["runs"][0]["restarts_used"])

    def kill_node(self, stamps: Sequence[Stamp], number: int) -> float:
        """End workers, runner and guard of a node at once; its supd lives. Returns when."""
        workers = [stamp.pid for stamp in stamps if self.node_of(stamp) == number]
        runner = parent_of(workers[0])
        guard = parent_of(runner)
        killed_s = now_s()
        for pid in (guard, runner, *workers):
            os.kill(pid, signal.SIGKILL)
        return killed_s

    def freeze(self, number: int) -> float:
        """Let a whole node fall silent, its supd too. Returns when."""
        return self._signal(number, signal.SIGSTOP)

    def kill_all(self, number: int) -> float:
        """End all processes of a node at once, its supd too. Returns when."""
        return self._signal(number, signal.SIGKILL)

    def _signal(self, number: int, how: signal.Signals) -> float:
        node = self._nodes[number]
        node.family = family_of(node.daemon.pid)
        begun_s = now_s()
        for pid in node.family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        return begun_s

    def bring_back(self, number: int) -> None:
        """After `freeze` or `kill_all`: the node is there again."""
        node = self._nodes[number]
        for pid in node.family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if node.daemon.poll() is not None:
            node.daemon.wait(LIMIT_S)
            command = [str(self.commands / "supd"), "run", "--config", str(node.folder / "supd.toml")]
            node.daemon = self._popen(command, f"supd-{number}")
        wait_for("the node to be back", self._is_whole)

    def _is_whole(self) -> bool:
        """Whether every node answers; one may stand by until the next generation."""
        nodes = self._read("nodes").get("nodes", [])
        return len(nodes) == len(self._nodes) and all(node["state"] in ("ready", "standby") for node in nodes)

    def stop(self) -> None:
        if self._client is not None:
            self._client.wait(LIMIT_S)
            self._client = None
        self.supctl("stop", "bench", "--now")
        # A supd makes the next runner ready a moment after a start. That must not fall into what is measured next.
        for node, used in zip(self._nodes, self._used, strict=True):
            wait_for("the next ready runner", lambda n=node, u=used: len(n.runners()) == 1 and not n.runners() & u)

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._nodes and self._nodes[0].daemon.poll() is None:
                self.supctl("stop", "--all", "--now", check=False)
            for node in self._nodes:
                node.daemon.terminate()
            for node in self._nodes:
                node.daemon.wait(LIMIT_S)
        super().close()


class TorchrunFleet(FleetSide):
    """Agents with torchrun's defaults, of which the first holds the store; one set of them a start."""

    name = "torchrun"

    def __init__(self, commands: Path, nodes: int, nnodes: str) -> None:
        super().__init__(commands)
        self.env |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "TMPDIR": str(self.folder)}
        self._count, self._nnodes = nodes, nnodes
        self._port = 0  # of the store
        self._agents: list[subprocess.Popen[bytes]] = []
        self._node_of: dict[int, int] = {}  # pid of a worker -> its node

    def _start(self, ranks: int) -> float:
        self._port = free_port(["127.0.0.1"])
        begun_s = now_s()
        for number in range(self._count):
            self._start_agent(number)
        return begun_s

    def join(self) -> float:
        """One more agent. Returns when it was called."""
        joined_s = now_s()
        self._start_agent(len(self._agents))
        return joined_s

    def _start_agent(self, number: int) -> None:
        options = ["--nnodes", self._nnodes, "--nproc-per-node", str(NPROC), "--max-restarts", "3"]
        options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}"]
        options += ["--rdzv-id", "bench", "--local-addr", "127.0.0.1"]
        options += ["--rdzv-conf", f"is_host={int(not number)}"]
        command = [str(self.commands / "torchrun"), *options, str(self.worker)]
        self._agents.append(self._popen(command, f"torchrun-{number}"))

    def stamps(self) -> list[Stamp]:
        found = super().stamps()
        agents = {agent.pid: number for number, agent in enumerate(self._agents)}
        for stamp in found:
            if stamp.pid not in self._node_of:
                with contextlib.suppress(OSError):
                    self._node_of[stamp.pid] = agents.get(parent_of(stamp.pid), -1)
        return found

    def node_of(self, stamp: Stamp) -> int:
        return self._node_of.get(stamp.pid, -1)

    def kill_node(self, stamps: Sequence[Stamp], number: int) -> float:
        """End an agent and its workers at once, and then the workers of all others, as a collective that fails does;
        without that nobody would notice. Returns when."""
        killed_s = now_s()
        self._agents[number].kill()
        for stamp in stamps:
            if self.node_of(stamp) == number:
                os.kill(stamp.pid, signal.SIGKILL)
        for stamp in stamps:
            if self.node_of(stamp) != number:
                os.kill(stamp.pid, signal.SIGUSR1)
        return killed_s

    def stop(self) -> None:
        for agent in self._agents:
            agent.terminate()
        for agent in self._agents:
            agent.wait(LIMIT_S)
        self._agents.clear()
        self._node_of.clear()
        for folder in self.folder.glob("torchelastic_*"):
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        super().close()
        for agent in self._agents:
            agent.wait()
