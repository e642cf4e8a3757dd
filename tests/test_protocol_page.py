"""docs/protocol.md says all that goes over the wire, and a client that was written from it alone is understood.

That its tables are the code's is checked with the other generated pages (test_docs.py).
"""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from protocol import coordinator_events, framing, job, restart, timing, versions
from protocol.dataclass import InMemory
from protocol.messages import Message, control, fleet, member, runner, upkeep, witness
from supervisor.daemon import door
from tests.e2e.fleet import running_fleet
from tests.e2e.supd import TIMEOUT_S

PAGE = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text()
MODULES = (fleet, member, timing, witness, job, control, upkeep, runner, coordinator_events, restart)


STRUCTS = [
    value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
    if not issubclass(value, InMemory)
]
"""Every struct of the wire and of the disk."""


def section(title: str, marks: str) -> str:
    """What stands below a heading, up to the next one of its rank."""
    return PAGE.split(f"\n{marks} {title}\n", 1)[1].split(f"\n{marks} ", 1)[0]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: str(struct.__name__))
def test_a_struct_of_the_wire_has_a_table_of_its_own_with_every_field(struct: type[msgspec.Struct]) -> None:
    table = section(struct.__name__, "####").split("\n### ", 1)[0]
    assert re.findall(r"(?m)^\| `(\w+)` \|", table) == list(struct.__struct_fields__)


def test_every_message_has_a_speaker_a_listener_and_its_time_or_is_an_order() -> None:
    spoken = re.findall(r"(?m)^\| \[(\w+)\]\(#\w+\) \| [^|]+ \| [^|]+ \| [^|]+ \|$", PAGE)
    assert len(spoken) == len(set(spoken))
    orders = [order.__name__ for order in get_args(member.Order)]
    assert sorted([*spoken, *orders]) == sorted(s.__name__ for s in STRUCTS if issubclass(s, Message))


def test_every_first_message_is_told_with_what_follows() -> None:
    told = re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", section("Connections", "##"))
    assert sorted(told) == sorted(kind.__name__ for kind in get_args(fleet.FirstMessage))


def test_every_link_within_the_page_has_exactly_one_place_to_go() -> None:
    places = [title.lower().replace(" ", "-") for title in re.findall(r"(?m)^#+ (.+)$", PAGE)]
    for link in set(re.findall(r"\(#([\w-]+)\)", PAGE)):
        assert places.count(link) == 1, link


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"({framing.MAX_FRAME_BYTES:,} bytes)" in section("Frames", "##")
    assert f"within {door.HELLO_TIMEOUT_S:g} s" in section("Connections", "##")
    assert f"today there is one, {versions.VERSIONS[0]})" in section("Versions", "##")


# --- a client ----------------------------------------------------------------------------------------------------

STRANGER = Path(__file__).with_name("stranger.py")


def test_the_client_is_short_and_knows_nothing_of_this_repository() -> None:
    lines = STRANGER.read_text().splitlines()
    assert len(list(filter(None, lines))) <= 60
    tree = ast.parse(STRANGER.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    assert imported - sys.stdlib_module_names == {"msgspec"}


def test_a_node_written_from_the_page_alone_joins_and_its_runner_carries_a_run_to_its_end(short_dir: Path) -> None:
    with running_fleet(short_dir, 1) as fleet:
        supd, host = fleet.host, fleet.addresses["a"]
        run = supd.start_job(fleet.job("j", "none", nnodes=1, nproc=2, tables='nodes = ["stranger"]'))
        argv = [sys.executable, "-I", str(STRANGER), host, str(fleet.port), str(supd.state / "fleet.pem"), "stranger"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        status = supd.wait_state(run, "succeeded", "failed")
        assert (status["state"], status["nodes"]) == ("succeeded", ["stranger"]), status
        seen = [(rank["rank"], rank["node"], rank["pid"], rank["exit_code"]) for rank in supd.ranks(run)]
        assert seen == [(0, "stranger", 1000, 0), (1, "stranger", 1001, 0)]
