"""docs/launching.md: each of its commands is run, and each line of output that it shows is seen.

On the page, and so here:

- a prompt says where: `$` on the first host, `gpu-01$` on that one, `gpu-*$` on all of them at once;
- a line without a prompt is a line of the output, of which `…` is any part; a last line that is nothing but `…` says
  that the command goes on: it does so until the end of its section, and shows the lines above in that time;
- a block without any prompt is output of the script above it, or of what goes on;
- a command ends with 0, but for one that shows an error, or ✗.

What is changed: gpu-01 to gpu-04 are the hosts a to d; eight ranks a node are two; ten minutes are a second; PID is the
pid of rank 3; train.py is a script that needs no torch.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.hosts.namespaces import Hosts
from tests.e2e.batch import tasks_of
from tests.e2e.supd import wait_for
from tests.e2e.suprun import Launches, Suprun, launching
from tests.netns import NamespaceFleet, hosts_in_namespaces, needs_namespaces

PAGE = Path(__file__).parents[2] / "docs" / "launching.md"
PROMPT = re.compile(r"(gpu-\d\d|gpu-\*|)\$ (.+)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`((?:suprun|supctl|supd|srun) [^`\n]+)`(?!`)")

TRAIN = """\
import os, time
rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
def load_data():
    while os.path.exists("hangs"):
        time.sleep(0.1)
if rank == "3":
    load_data()
print(f"rank {rank} of {size} is at init_process_group", flush=True)
load_data()
"""

JOB = 'name = "train"\n[run]\nscript = "train.py"\n[topology]\nnproc_per_node = 4\n'


@dataclass(frozen=True)
class Command:
    """One line behind a prompt, and the lines of output below it."""

    where: str  # "", a node, or gpu-*
    line: str
    shown: tuple[str, ...]
    goes_on: bool


@dataclass(frozen=True)
class Block:
    """One block of the page."""

    language: str
    text: str

    @property
    def commands(self) -> list[Command]:
        """Those with a prompt."""
        found: list[Command] = []
        for line in self.text.splitlines():
            if prompt := PROMPT.fullmatch(line):
                found.append(Command(prompt[1], prompt[2], (), goes_on=False))
            elif found:
                last = found[-1]
                found[-1] = Command(last.where, last.line, (*last.shown, line), goes_on=line == "…")
        return found


def changed(text: str) -> str:
    """As the test has it."""
    for number, name in enumerate("abcd", 1):
        text = text.replace(f"gpu-0{number}", name)
    text = re.sub(r"(--nproc[-_]per[-_]node)=8", r"\1=2", text)
    return text.replace("=10m", "=1s")


def sections() -> dict[str, list[Block]]:
    """The blocks below each heading."""
    lines = PAGE.read_text().splitlines()
    prompts = [PROMPT.fullmatch(line) for line in lines]
    text = "\n".join(
        f"{prompt[1]}$ {changed(prompt[2])}" if prompt else changed(line)
        for line, prompt in zip(lines, prompts, strict=True)
    )
    parts = (part.partition("\n") for part in text.split("\n## "))
    found = {heading: [Block(*match) for match in FENCE.findall(below)] for heading, _, below in parts}
    return {heading: blocks for heading, blocks in found.items() if blocks}


def is_seen(shown: str, output: str) -> bool:
    """Whether a line of the page is in an output."""
    pattern = r"\s+".join(".*".join(map(re.escape, word.split("…"))) for word in shown.split())
    return any(re.fullmatch(pattern, line.strip()) for line in output.splitlines())


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """a, b, c and d; what is in their memory is theirs alone."""
    folder = Path(tempfile.mkdtemp(prefix="supd-t-"))
    try:
        with hosts_in_namespaces(folder, 4) as made:
            for host in made.of.values():
                subprocess.run(host.argv("mount", "-t", "tmpfs", "none", "/dev/shm"), check=True)
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def fleet(hosts: Hosts) -> Iterator[NamespaceFleet]:
    """A supd on each host."""
    folder = Path(tempfile.mkdtemp(prefix="supd-t-"))
    fleet = NamespaceFleet(folder, hosts)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.close()
        shutil.rmtree(folder, ignore_errors=True)


class Reader:
    """Does what a section says."""

    def __init__(self, hosts: Hosts, launches: Launches, env: dict[str, str]) -> None:
        """`env` is that of commands whose prompt names no node."""
        self._hosts = hosts
        self._launches = launches
        self._env = env
        self._exports: list[str] = []
        self._going_on: list[Suprun] = []
        self._of_script: list[Suprun] = []

    def read(self, block: Block) -> None:
        """Run what is in it, or see what it shows."""
        match block.language:
            case "toml":
                (self._launches.folder / "job.toml").write_text(block.text)
            case "bash":
                self._run_script(block.text)
            case "":
                self._run_all(block.commands)
                if not block.commands:
                    self._see(block.text.splitlines(), *self._of_script, *self._going_on)
            case _:
                assert block.language == "python"  # the script, which has a test of its own

    def close(self) -> None:
        """End what goes on: by Ctrl-C, if the page has not done it."""
        for launch in self._going_on:
            launch.signal(signal.SIGINT)
            assert launch.end() in (130, 128 + signal.SIGABRT), launch.text

    def _see(self, lines: Sequence[str], *launches: Suprun) -> None:
        for line in lines:
            shown = f"{line!r} in {[launch.text for launch in launches]}"
            wait_for(shown, lambda line=line: any(is_seen(line, launch.text) for launch in launches))  # type: ignore[misc]

    def _run_script(self, text: str) -> None:
        if tasks := re.search("^#SBATCH --ntasks-per-node=([0-9]+)$", text, re.MULTILINE):
            self._of_script = tasks_of(self._launches, self._hosts, text, int(tasks[1]))
        else:
            self._of_script = [self._launches.shell(text, argv=self._hosts.of["a"].argv())]
        is_wrong = "\\  #" in text or "--ntasks-per-node=8" in text
        for launch in self._of_script:
            assert (launch.end() != 0) is is_wrong, launch.text

    def _run_all(self, commands: Sequence[Command]) -> None:
        """Lines of a launch that stand together belong together."""
        started: list[tuple[Command, Suprun]] = []
        for command in commands:
            if command.line.startswith("export "):
                self._exports.append(command.line)
                continue
            launches = self._start(command)
            if command.goes_on:
                self._going_on += launches
            started += ((command, launch) for launch in launches)
            if not command.where or not command.line.startswith("suprun "):
                self._end(command, launches[0])
        for command, launch in started:
            if command.goes_on:
                self._see(command.shown, launch)
            else:
                self._end(command, launch)

    def _start(self, command: Command) -> list[Suprun]:
        names = list(self._hosts.of) if command.where == "gpu-*" else [changed(command.where) or "a"]
        exports = self._exports if command.where else []
        line = command.line.replace("PID", self._pid_of_rank_3()) if "PID" in command.line else command.line
        env = {} if command.where else self._env
        return [
            self._launches.shell("\n".join([*exports, line]), env=env, argv=self._hosts.of[name].argv())
            for name in names
        ]

    def _end(self, command: Command, launch: Suprun) -> None:
        is_wrong = any("error[" in line or line.startswith("✗") for line in command.shown)
        assert (launch.end() != 0) is is_wrong, f"{command.line}: {launch.text}"
        self._see(command.shown, launch)

    def _pid_of_rank_3(self) -> str:
        (asked,) = self._start(Command("gpu-01", "supctl ps --json", (), goes_on=False))
        assert asked.end() == 0, asked.text
        return str(next(rank["pid"] for rank in json.loads(asked.text)["data"]["ranks"] if rank["rank"] == 3))


@needs_namespaces
@pytest.mark.parametrize("heading", sections())
def test_every_command_of_a_section_does_what_the_page_says(
    request: pytest.FixtureRequest, hosts: Hosts, short_dir: Path, heading: str
) -> None:
    blocks = sections()[heading]
    env: dict[str, str] = {}
    if any(command.line.startswith("supctl") and not command.where for block in blocks for command in block.commands):
        fleet: NamespaceFleet = request.getfixturevalue("fleet")
        env = {"SUPD_ADDR": fleet.host.env["SUPD_ADDR"]}
    (short_dir / "train.py").write_text(TRAIN)
    if "hangs" in heading:
        (short_dir / "hangs").touch()
        (short_dir / "job.toml").write_text(JOB)
    with launching(short_dir) as launches:
        reader = Reader(hosts, launches, env)
        for block in blocks:
            reader.read(block)
        reader.close()


def test_every_command_in_a_sentence_is_run_as_well() -> None:
    """As the beginning of one that has a prompt, or a line of a script."""
    blocks = [block for of_section in sections().values() for block in of_section]
    run = [command.line for block in blocks for command in block.commands]
    run += [line for block in blocks if block.language == "bash" for line in block.text.splitlines()]
    named = [changed(line) for line in INLINE.findall(FENCE.sub("", PAGE.read_text()))]
    assert [line for line in named if not any(other.startswith(line) for other in run)] == []


def test_the_script_of_the_page_trains_and_goes_on_where_it_was(short_dir: Path) -> None:
    pytest.importorskip("torch")
    (script,) = [block.text for blocks in sections().values() for block in blocks if block.language == "python"]
    (short_dir / "train.py").write_text(script)
    with launching(short_dir) as launches:
        for steps in (100, 120):
            (short_dir / "train.py").write_text(script.replace("101", str(steps + 1)))
            launch = launches("--standalone", "--nproc-per-node=2", "train.py", env={"PYTHON_EXEC": sys.executable})
            assert launch.end() == 0, launch.text
            total = steps * (steps + 1) // 2
            assert {f"rank {rank} has {total} at step {steps}" for rank in (0, 1)} <= set(launch.text.splitlines())
