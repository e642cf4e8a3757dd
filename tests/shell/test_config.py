"""supd.toml."""

import contextlib
import dataclasses
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.addresses import JoinEntry
from protocol.errors import ConfigInvalid
from protocol.tables import Found
from protocol.timing import Timing
from supervisor.shell.config import SCHEMA, Config, load_config
from supervisor.shell.paths import (
    MAX_SOCKET_PATH_BYTES,
    host_name,
    socket_path_problem,
)
from tests.shell.configs import loaded, problems_of

ROOT = Path(__file__).parents[2]
UID = os.getuid()
SIZE_HINT = 'write a size like "200MB" or "50GiB" (units B, kB, MB, GB, TB of 1000, KiB, MiB, GiB, TiB of 1024)'


# --- configuration -----------------------------------------------------------------------------------------------


def test_without_a_file_every_key_has_its_default(tmp_path: Path) -> None:
    state = Path("/home/me/.local/state/supd", host_name())
    assert load_config(None, {"HOME": "/home/me", "TMPDIR": str(tmp_path)}) == Config(
        found=Found("S"),
        node=host_name(),
        labels={},
        devices=None,
        max_jobs=0,
        control=tmp_path / f"supd-{UID}" / "control.sock",
        peer=("127.0.0.1", 29410),
        peer_is_default=True,
        advertise="",
        interface="",
        runner_ports=None,
        fleet="default",
        join=(),
        credential=state / "fleet.pem",
        timing=Timing(),
        on_isolation="fence",
        state_dir=state,
        logs_dir=state / "logs",
        max_disk_bytes=50 << 30,
        min_free_bytes=0,
        min_free_percent=5.0,
        keep_runs=50,
        keep_days=30,
        ready_runners=1,
        orphan_wait_s=3600.0,
        linger_s=60.0,
        cgroup="auto",
        log_level="info",
        log_format="auto",
    )


def test_every_key_is_taken_from_the_file(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        """
        schema = 1
        [node]
        name = "gpu-01"
        labels = { rack = "b", "zone/a" = "" }
        devices = 4
        max_jobs = 2
        [listen]
        control = "~/c.sock"
        peer = "[::1]:29411"
        advertise = "gpu-01.example"
        runners = "29500-29599"
        [lease]
        renew = "400ms"
        alone = "800ms"
        suspect = "1.2s"
        fence = "1.5s"
        ttl = "2s"
        word = "800ms"
        on_isolation = "keep"
        [fleet]
        name = "blue"
        join = ["gpu-00", "10.0.0.7:7", "[fd00::1]:29411", "[::1]"]
        credential = "keys/fleet.pem"
        [state]
        dir = "/var/tmp/supd"
        logs_dir = "logs"
        max_disk = "2TB"
        min_free = "1.5GiB"
        keep_runs = 7
        keep_days = 365
        [workers]
        ready_runners = 0
        orphan_wait = "10m"
        linger = "5s"
        cgroup = "off"
        [log]
        level = "debug"
        format = "json"
        """,
    )
    assert config == Config(
        found=Found("S"),
        node="gpu-01",
        labels={"rack": "b", "zone/a": ""},
        devices=4,
        max_jobs=2,
        control=Path("/home/me/c.sock"),
        peer=("::1", 29411),
        peer_is_default=False,
        advertise="gpu-01.example",
        interface="",
        runner_ports=(29500, 29599),
        fleet="blue",
        join=(
            JoinEntry("gpu-00", 29410, "gpu-00"),
            JoinEntry("10.0.0.7", 7, "10.0.0.7:7"),
            JoinEntry("fd00::1", 29411, "[fd00::1]:29411"),
            JoinEntry("::1", 29410, "[::1]"),
        ),
        credential=tmp_path / "keys" / "fleet.pem",
        timing=Timing(renew_s=0.4, alone_s=0.8, suspect_s=1.2, fence_s=1.5, ttl_s=2.0, word_s=0.8),
        on_isolation="keep",
        state_dir=Path("/var/tmp/supd"),
        logs_dir=tmp_path / "logs",
        max_disk_bytes=2 * 10**12,
        min_free_bytes=3 << 29,
        min_free_percent=0.0,
        keep_runs=7,
        keep_days=365,
        ready_runners=0,
        orphan_wait_s=600.0,
        linger_s=5.0,
        cgroup="off",
        log_level="debug",
        log_format="json",
    )


def test_room_is_a_size_or_a_share_and_may_be_had_without_a_limit(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[state]\nmax_disk = "off"\nmin_free = "12.5%"')
    assert (config.max_disk_bytes, config.min_free_bytes, config.min_free_percent) == (None, 0, 12.5)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('max_disk = "50"', ("S206", "state.max_disk", '"50"', SIZE_HINT)),
        ('max_disk = "50gb"', ("S206", "state.max_disk", '"50gb"', 'write "50GB"')),
        ('max_disk = "1kB"', ("S205", "state.max_disk", '"1kB"', 'write "1MiB" to "1024TiB"')),
        ("min_free = 5", ("S206", "state.min_free", "5", 'write "5B"')),
        ('min_free = "95%"', ("S205", "state.min_free", '"95%"', 'write "0%" to "90%"')),
        ('min_free = "off"', ("S206", "state.min_free", '"off"', SIZE_HINT)),
    ],
)
def test_room_that_cannot_be_meant_is_told_with_the_mend(
    tmp_path: Path, written: str, problem: tuple[str, str, str, str]
) -> None:
    assert problems_of(tmp_path, f"[state]\n{written}") == [problem]


def test_the_users_own_file_is_read_where_there_is_one(tmp_path: Path) -> None:
    environ = {"HOME": "/home/me", "XDG_CONFIG_HOME": str(tmp_path)}
    assert load_config(None, environ).node == host_name()
    own = tmp_path / "supd" / "supd.toml"
    own.parent.mkdir()
    own.write_text('[node]\nname = "mine"\n')
    assert load_config(None, environ).node == "mine"
    other = tmp_path / "other.toml"
    other.write_text("")
    assert load_config(other, environ).node == host_name()


def test_the_default_peer_written_out_is_no_default(tmp_path: Path) -> None:
    assert not loaded(tmp_path, '[listen]\npeer = "127.0.0.1:29410"\n').peer_is_default


def test_a_fleet_listens_on_all_interfaces_and_at_exactly_the_port_that_the_others_know(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[fleet]\njoin = ["gpu-01"]\n')
    assert (config.peer, config.peer_is_default) == (("", 29410), False)
    assert loaded(tmp_path, '[listen]\npeer = "*:7"\n[fleet]\njoin = ["gpu-01"]\n').peer == ("", 7)
    assert loaded(tmp_path, '[listen]\npeer = "127.0.0.2:7"\n[fleet]\njoin = ["a"]\n').peer == ("127.0.0.2", 7)
    ((code, key, _, hint),) = problems_of(tmp_path, '[listen]\npeer = "*:0"\n[fleet]\njoin = ["gpu-01"]\n')
    assert (code, key, hint) == ("S302", "listen.peer", 'write a port, as in "*:29410"')
    assert loaded(tmp_path, '[listen]\npeer = "*:0"\n[fleet]\njoin = []\n').peer == ("", 0)


@pytest.mark.parametrize(
    ("entry", "code", "hint"),
    [
        ("::1:29410", "S211", 'write "[::1]:29410"'),
        ("fd00::1", "S211", 'write "[fd00::1]"'),
        ("fe80::1:2941", "S211", 'write "[fe80::1]:2941" or "[fe80::1:2941]"'),
        ("a:b:7", "S211", 'write "HOST" or "HOST:PORT", as in "gpu-01:29410" or "[fd00::1]:29410"'),
        ("[gpu-01]:7", "S211", 'write "HOST" or "HOST:PORT", as in "gpu-01:29410" or "[fd00::1]:29410"'),
        ("", "S211", 'write "HOST" or "HOST:PORT", as in "gpu-01:29410" or "[fd00::1]:29410"'),
        ("a" * 254, "S211", 'write "HOST" or "HOST:PORT", as in "gpu-01:29410" or "[fd00::1]:29410"'),
        ("gpu-01:65536", "S211", 'write "HOST" or "HOST:PORT", as in "gpu-01:29410" or "[fd00::1]:29410"'),
        ("gpu-01:0", "S211", "write that node's port, 29410 by default"),
        ("0.0.0.0", "S211", 'write one that the others reach, as in "gpu-01"'),
        ("[::]:29410", "S211", 'write one that the others reach, as in "gpu-01"'),
        ("GPU-00:29410", "S206", "keep one of them"),
    ],
)
def test_an_entry_of_join_is_the_address_of_one_node_written_without_doubt(
    tmp_path: Path, entry: str, code: str, hint: str
) -> None:
    problems = problems_of(tmp_path, f'[fleet]\njoin = ["gpu-00", "{entry}"]\n')
    assert [(problem[0], problem[1], problem[3]) for problem in problems] == [(code, "fleet.join[1]", hint)]


def test_two_ways_to_write_one_address_are_one_entry(tmp_path: Path) -> None:
    ((code, *_),) = problems_of(tmp_path, '[fleet]\njoin = ["[fd00::1]:29410", "[fd00:0::0:1]"]\n')
    assert code == "S206"
    loaded(tmp_path, '[fleet]\njoin = ["gpu-00", "gpu-00:29411"]\n')


def test_join_is_a_list_and_not_a_long_one(tmp_path: Path) -> None:
    assert [p[0] for p in problems_of(tmp_path, '[fleet]\njoin = "gpu-01"\n')] == ["S201"]
    assert [p[0] for p in problems_of(tmp_path, "[fleet]\njoin = [1]\n")] == ["S201"]
    most = [f"gpu-{i}" for i in range(16)]
    assert len(loaded(tmp_path, f"[fleet]\njoin = {most}\n").join) == 16
    assert [p[0] for p in problems_of(tmp_path, f"[fleet]\njoin = {[*most, 'gpu-16']}\n")] == ["S205"]


def test_an_address_to_give_out_is_a_host_without_a_port(tmp_path: Path) -> None:
    for written, host in (("10.0.0.7", "10.0.0.7"), ("fd00::7", "fd00::7"), ("[fd00::7]", "fd00::7"), ("a.b", "a.b")):
        assert loaded(tmp_path, f'[listen]\nadvertise = "{written}"\n').advertise == host
    ((code, *_, hint),) = problems_of(tmp_path, '[listen]\nadvertise = "gpu-01:29410"\n')
    assert (code, hint) == ("S211", 'write "gpu-01": the port is that of `listen.peer`')
    for wrong in ("0.0.0.0", "::", "", "a b", "[a]", "gpu:"):
        assert [p[0] for p in problems_of(tmp_path, f'[listen]\nadvertise = "{wrong}"\n')] == ["S211"]


def test_an_address_and_an_interface_to_give_out_exclude_each_other(tmp_path: Path) -> None:
    assert loaded(tmp_path, '[listen]\ninterface = "bond0.100"\n').interface == "bond0.100"
    assert [p[0] for p in problems_of(tmp_path, '[listen]\ninterface = "not/an interface"\n')] == ["S206"]
    ((code, key, *_),) = problems_of(tmp_path, '[listen]\nadvertise = "a"\ninterface = "eth0"\n')
    assert (code, key) == ("S301", "listen")


@pytest.mark.parametrize(
    ("ports", "code", "hint"),
    [
        ("", "S205", 'write "auto" or "LOW-HIGH", as in "29500-29599"'),
        ("29500", "S205", 'write "auto" or "LOW-HIGH", as in "29500-29599"'),
        ("29500 - 29599", "S205", 'write "auto" or "LOW-HIGH", as in "29500-29599"'),
        ("any", "S205", 'write "auto" or "LOW-HIGH", as in "29500-29599"'),
        ("29599-29500", "S210", 'write "29500-29599"'),
        ("80-29599", "S205", 'write one like "29500-29599"'),
        ("65500-65536", "S205", 'write one like "29500-29599"'),
        ("29500-29506", "S205", "write a range of at least 8, better of 100"),
        ("29410-29499", "S302", "write a range without it"),
    ],
)
def test_ports_for_runners_are_a_range_with_room_that_leaves_out_the_port_of_peers(
    tmp_path: Path, ports: str, code: str, hint: str
) -> None:
    ((*found, _, told),) = problems_of(tmp_path, f'[listen]\nrunners = "{ports}"\n')
    assert (found, told) == ([code, "listen.runners"], hint)


def test_the_least_room_for_runners_is_said_with_the_ports_that_there_are(tmp_path: Path) -> None:
    assert loaded(tmp_path, '[listen]\nrunners = "29500-29507"\n').runner_ports == (29500, 29507)
    assert loaded(tmp_path, '[listen]\nrunners = "auto"\n').runner_ports is None
    with pytest.raises(ConfigInvalid, match="has 1 port, and every runner of the node takes one"):
        loaded(tmp_path, '[listen]\nrunners = "29500-29500"\n')
    assert [p[0] for p in problems_of(tmp_path, "[listen]\nrunners = 29500\n")] == ["S201"]


def test_ports_for_runners_and_the_port_of_peers_are_both_shown_where_they_meet(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        loaded(tmp_path, '[listen]\npeer = "*:29500"\nrunners = "29500-29599"\n')
    assert str(caught.value).startswith(
        f"""error[S302]: port 29500 of `listen.runners` is that of `listen.peer`
  --> {tmp_path}/supd.toml:3:11
   |
 2 | peer = "*:29500"
   |        --------- and here
 3 | runners = "29500-29599"
   |           ^^^^^^^^^^^^^ write a range without it
"""
    )
    assert loaded(tmp_path, '[listen]\npeer = "*:0"\nrunners = "29400-29499"\n').runner_ports == (29400, 29499)


def test_labels_are_short_strings_by_name_and_not_too_many(tmp_path: Path) -> None:
    wrong = '"" = "x"\n"a b" = "x"\nn = 1\nlong = "' + "x" * 101 + '"\nnul = "\\u0000"\n'
    assert [p[:2] for p in problems_of(tmp_path, f"[node.labels]\n{wrong}")] == [
        ("S206", 'node.labels.""'),
        ("S206", 'node.labels."a b"'),
        ("S201", "node.labels.n"),
        ("S206", "node.labels.long"),
        ("S206", "node.labels.nul"),
    ]
    assert [p[0] for p in problems_of(tmp_path, '[node]\nlabels = ["a"]\n')] == ["S201"]
    most = "".join(f'k{i} = "v"\n' for i in range(64))
    assert len(loaded(tmp_path, f"[node.labels]\n{most}").labels) == 64
    assert [p[0] for p in problems_of(tmp_path, f'[node.labels]\n{most}k = "v"\n')] == ["S205"]


def test_devices_are_a_number_of_slots_or_auto(tmp_path: Path) -> None:
    assert loaded(tmp_path, '[node]\ndevices = "auto"\n').devices is None
    assert loaded(tmp_path, "[node]\ndevices = 0\n").devices == 0
    assert problems_of(tmp_path, '[node]\ndevices = "all"\nmax_jobs = -1\n') == [
        ("S203", "node.devices", '"all"', 'write 0 to 4096 or "auto"'),
        ("S205", "node.max_jobs", "-1", "write 0 to 1000"),
    ]


def test_in_dev_mode_everything_lies_below_one_folder_and_the_users_own_file_is_not_read(tmp_path: Path) -> None:
    own = tmp_path / "supd" / "supd.toml"
    own.parent.mkdir()
    own.write_text("broken")
    config = load_config(None, {"XDG_CONFIG_HOME": str(tmp_path)}, dev_dir=Path("/d"))
    assert (config.state_dir, config.logs_dir) == (Path("/d"), Path("/d/logs"))
    assert (config.control, config.credential) == (Path("/d/control.sock"), Path("/d/fleet.pem"))
    assert (config.peer, config.peer_is_default) == (("127.0.0.1", 0), False)


def test_in_dev_mode_a_named_file_is_read_but_for_its_paths_and_its_port(tmp_path: Path) -> None:
    file = tmp_path / "supd.toml"
    file.write_text(
        '[state]\ndir = "/x"\n[listen]\npeer = "h:1"\ncontrol = "/x/y"\nadvertise = "h"\n[workers]\nready_runners = 2\n'
        '[fleet]\nname = "blue"\njoin = ["h:1"]\n'
    )
    config = load_config(file, {}, dev_dir=Path("/d"))
    assert config.ready_runners == 2
    assert (config.fleet, config.join, config.advertise) == ("blue", (), "")
    assert (config.state_dir, config.control, config.peer) == (
        Path("/d"),
        Path("/d/control.sock"),
        ("127.0.0.1", 0),
    )


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    content = """
        [node]
        nam = "x"
        [listen]
        peer = "127.0.0.1"
        http = "off"
        [workers]
        ready_runners = 9
        linger = 60
        [metrics]
        [logs]
    """
    assert problems_of(tmp_path, content) == [
        ("S101", "node.nam", "", "did you mean `name`?"),
        (
            "S211",
            "listen.peer",
            '"127.0.0.1"',
            'write "HOST:PORT", as in "127.0.0.1:29410" or "[::1]:29410"; port 0 is any that is free',
        ),
        ("S103", "listen.http", "", "leave it out"),
        ("S205", "workers.ready_runners", "9", "write 0 to 8"),
        ("S204", "workers.linger", "60", 'write "60s" or "1m"'),
        ("S103", "metrics", "", "leave it out"),
        ("S102", "logs", "", "did you mean [log]?"),
    ]


@pytest.mark.parametrize(
    "peer",
    ["", ":1", "*", "*:65536", "**:1", "h:", "h:65536", "h:x", "::1:29410", "[]:1", "[h]:1", "a b:1", "h:1\n", "h:٣"],
)
def test_a_peer_is_a_host_and_a_port(tmp_path: Path, peer: str) -> None:
    assert [code for code, *_ in problems_of(tmp_path, f"[listen]\npeer = '''{peer}'''")] == ["S211"]


def test_a_file_that_is_not_there_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"absent\.toml cannot be read: No such file"):
        load_config(tmp_path / "absent.toml", {})


def test_a_control_socket_whose_path_the_kernel_would_not_take_is_told_at_once(tmp_path: Path) -> None:
    longest = "/" + "x" * (MAX_SOCKET_PATH_BYTES - 1)
    assert loaded(tmp_path, f'[listen]\ncontrol = "{longest}"').control == Path(longest)
    ((code, key, value, hint),) = problems_of(tmp_path, f'[listen]\ncontrol = "{longest}x"')
    assert (code, key, value) == ("S212", "listen.control", longest + "x")
    assert "[listen] control" in hint
    assert socket_path_problem(Path("/" + "ä" * 60)) is not None


@settings(deadline=None)  # the machine may be busy
@given(st.binary())
def test_any_bytes_are_a_configuration_or_config_invalid(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(data)
    with contextlib.suppress(ConfigInvalid):
        load_config(file, {})


def test_the_template_lists_every_key_with_its_default(tmp_path: Path) -> None:
    template = (ROOT / "conf" / "supd.toml").read_text()
    assert loaded(tmp_path, template) == loaded(tmp_path, "")
    # A comment that is a setting, and nothing else, begins with "#key =".
    assert _keys(template, r"#(\w+) = ") == _keys_of_schema()
    places = (
        "advertise",
        "control",
        "credential",
        "dir",
        "interface",
        "logs_dir",
        "name",
    )  # these have no default that fits every machine
    settings = re.sub(rf"(?m)^#(?!(?:{'|'.join(places)}) = )(\w+ = )", r"\1", template)
    written_out = loaded(tmp_path, settings)
    assert written_out.peer_is_default is False
    assert dataclasses.replace(written_out, peer_is_default=True) == loaded(tmp_path, "")
    loaded(tmp_path, re.sub(r"(?m)^#((?!interface)\w+ = )", r"\1", template))  # which excludes `advertise`


def _keys_of_schema() -> dict[str, set[str]]:
    return {"": set(SCHEMA.top), **{table: set(keys) for table, keys in SCHEMA.tables.items()}}


def _keys(document: str, pattern: str) -> dict[str, set[str]]:
    keys: dict[str, set[str]] = {}
    table = ""
    for line in document.splitlines():
        if heading := re.match(r"\[(\w+)\]", line):
            table = heading[1]
        elif key := re.match(pattern, line):
            keys.setdefault(table, set()).add(key[1])
    return keys


def test_a_folder_that_the_file_names_and_cannot_be_used_is_shown_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = loaded(tmp_path, '[state]\ndir = "file"\n')
    with pytest.raises(ConfigInvalid) as caught:
        config.make_private(config.state_dir, "state", "dir")
    [problem] = caught.value.problems
    assert (problem.code, problem.key) == ("S401", "state.dir")
    assert problem.place == (str(tmp_path / "supd.toml"), 2, 7, 6)
    assert "remove" not in str(caught.value)
    assert str(caught.value).endswith(f"{tmp_path}/supd.toml: 1 error.  supctl help S401 explains a code.")
