"""job.toml: how many nodes a job has, which ones, and how long it waits for them."""

import pytest

from protocol.effective import effective
from protocol.errors import JobInvalid
from protocol.job import RendezvousTable, TopologyTable
from protocol.job_file import JobFile, read_job
from protocol.topology_checks import NODE_GLOBS_MAX

LEAST = 'name = "a"\n[run]\nscript = "train.py"\n'


def read(text: str, *settings: str) -> JobFile:
    return read_job((LEAST + text).encode(), "job.toml", settings=settings)


def problems_of(text: str, *settings: str) -> list[tuple[str, str, str, str]]:
    """Code, key, message and hint of every problem."""
    with pytest.raises(JobInvalid) as caught:
        read(text, *settings)
    return [(p.code, p.key, p.message, p.hint) for p in caught.value.problems]


def warnings_of(text: str, *settings: str) -> list[tuple[str, str, str]]:
    """Code, key and message of every warning."""
    return [(w.code, w.key, w.message) for w in read(text, *settings).warnings]


def test_every_key_of_a_fleet_arrives_where_it_belongs() -> None:
    spec = read("""
        [topology]
        nnodes = "2:3"
        extra_nodes = "grow"
        nodes = ["gpu-*", "login"]
        exclude = ["gpu-13"]
        node_labels = { rack = "b", zone = "" }
        rank_order = "label:slot"
        [rendezvous]
        join_timeout = "20m"
        last_call = "0s"
    """).spec
    assert spec.topology == TopologyTable(
        nnodes=(2, 3),
        extra_nodes="grow",
        nodes=("gpu-*", "login"),
        exclude=("gpu-13",),
        node_labels={"rack": "b", "zone": ""},
        rank_order="label:slot",
    )
    assert spec.rendezvous == RendezvousTable(join_timeout_s=1200.0, last_call_s=0.0)


@pytest.mark.parametrize(
    ("written", "nnodes", "shown"),
    [
        ("1", (1, 1), "1"),
        ("4", (4, 4), "4"),
        ('"2:3"', (2, 3), '"2:3"'),
        ('"4:4"', (4, 4), "4"),
        ('"1:10000"', (1, 10_000), '"1:10000"'),
    ],
)
def test_nnodes_is_a_number_or_a_range_and_is_shown_as_it_is_written(
    written: str, nnodes: tuple[int, int], shown: str
) -> None:
    spec = read(f"[topology]\nnnodes = {written}").spec
    assert spec.topology.nnodes == nnodes
    assert {s.key: (s.value, s.origin) for s in effective(spec)}["topology.nnodes"] == (shown, "file")


def test_a_range_can_be_set_on_the_command_line_without_quotes() -> None:
    assert read("", "topology.nnodes=2:3").spec.topology.nnodes == (2, 3)
    assert read('[topology]\nnnodes = "2:3"', "topology.nnodes=4").spec.topology.nnodes == (4, 4)


def test_a_range_the_wrong_way_round_is_told_with_the_right_one() -> None:
    assert problems_of('[topology]\nnnodes = "8:4"') == [
        (
            "J210",
            "topology.nnodes",
            "minimum is above maximum in `topology.nnodes`",
            'the form is "MIN:MAX"; did you mean "4:8"?',
        )
    ]


@pytest.mark.parametrize(
    ("line", "code", "hint"),
    [
        ("nnodes = 0", "J205", "numbers of nodes are 1 to 10000"),
        ("nnodes = 10001", "J205", "numbers of nodes are 1 to 10000"),
        ('nnodes = "0:3"', "J205", "numbers of nodes are 1 to 10000"),
        ('nnodes = "3:20000"', "J205", "numbers of nodes are 1 to 10000"),
        ('nnodes = "4"', "J201", "write 4 without quotes"),
        ("nnodes = true", "J201", 'write 4, or "2:4" for a range'),
        ("nnodes = 2.0", "J201", "write 2"),
        ("nnodes = [2, 4]", "J201", 'write 4, or "2:4" for a range'),
        ('nnodes = "2-4"', "J206", 'the form is "MIN:MAX"; did you mean "2:4"?'),
        ('nnodes = "8 .. 4"', "J206", 'the form is "MIN:MAX"; did you mean "4:8"?'),
        ('nnodes = "2:"', "J206", 'the form is "MIN:MAX", as in "2:4"'),
        ('nnodes = "all"', "J206", 'the form is "MIN:MAX", as in "2:4"'),
        ('extra_nodes = "spare"', "J203", 'write "standby" or "grow"'),
        ('nodes = "gpu-*"', "J201", 'write ["gpu-*"]'),
        ('exclude = ["a", ""]', "J206", "write something, or leave the key out for its default"),
        (f'exclude = ["{"x" * 256}"]', "J206", "write at most 255 characters"),
        (f"nodes = {['n'] * (NODE_GLOBS_MAX + 1)}", "J206", "write patterns, or use node_labels"),
        ('node_labels = "rack=b"', "J201", 'write node_labels = { rack = "b" }'),
        ("node_labels = { slot = 3 }", "J201", 'put it in quotes: "3"'),
        ('node_labels = { "" = "x" }', "J206", "write at most 100 characters that can be printed"),
        ('node_labels = { rack = "a\\nb" }', "J206", "write at most 100 characters that can be printed"),
        ('rank_order = "names"', "J203", 'did you mean "name"?'),
        ('rank_order = "label:"', "J203", 'write "name", "join" or "label:KEY"'),
        ('rank_order = "rack"', "J203", 'write "name", "join" or "label:KEY"'),
        ("rank_order = 1", "J201", 'put it in quotes: "1"'),
    ],
)
def test_a_wrong_choice_of_nodes_is_told_with_the_mend(line: str, code: str, hint: str) -> None:
    assert [(found[0], found[3]) for found in problems_of(f"[topology]\n{line}")] == [(code, hint)]


def test_a_rendezvous_has_some_time_and_its_last_call_may_have_none() -> None:
    assert problems_of('[rendezvous]\njoin_timeout = "0s"') == [
        (
            "J205",
            "rendezvous.join_timeout",
            "`rendezvous.join_timeout` would pass at once",
            'write how long it may take, as in "10m"',
        )
    ]
    assert problems_of('[rendezvous]\njoin_timeout = "off"')[0][0] == "J204"


def test_a_job_whose_named_nodes_are_too_few_is_refused_before_it_waits_for_others() -> None:
    three = '[topology]\nnnodes = "4:5"\nnodes = ["a", "b", "c", "c"]\n'
    ((code, key, message, _),) = problems_of(three)
    assert (code, key) == ("J302", "topology.nodes")
    assert message == "`topology.nodes` names 3 nodes, and `topology.nnodes` wants 4"
    ((_, _, message, _),) = problems_of('[topology]\nnnodes = 2\nnodes = ["a", "b"]\nexclude = ["b*"]')
    assert (
        message == "`topology.nodes` names 1 node, without those of `topology.exclude`, and `topology.nnodes` wants 2"
    )
    assert read('[topology]\nnnodes = 4\nnodes = ["a", "gpu-*"]').spec.topology.nodes == ("a", "gpu-*")


def test_a_node_that_is_named_and_left_out_is_warned_of_since_the_command_line_may_leave_it_out() -> None:
    named = '[topology]\nnnodes = 2\nnodes = ["gpu-1", "gpu-2", "gpu-3", "x-*"]\n'
    assert warnings_of(named) == []
    assert warnings_of(named, 'topology.exclude=["z", "*-2"]') == [
        ("J503", "topology.nodes", '`topology.nodes` names "gpu-2", which `topology.exclude` leaves out')
    ]


@pytest.mark.parametrize("key", ["topology.extra_nodes", "rendezvous.last_call"])
def test_what_is_said_of_further_nodes_has_no_effect_without_a_range(key: str) -> None:
    setting = f"{key}=grow" if key.endswith("nodes") else f"{key}=5s"
    message = f"`{key}` has no effect where `topology.nnodes` is one number, 2"
    assert warnings_of("[topology]\nnnodes = 2", setting) == [("J503", key, message)]
    assert warnings_of('[topology]\nnnodes = "2:3"', setting) == []


@pytest.mark.parametrize("name", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
def test_ranks_on_several_nodes_that_are_to_talk_by_the_loopback_interface_are_warned_of(name: str) -> None:
    of_one = f'[run.env]\n{name} = "lo"\n'
    assert warnings_of(of_one) == []
    message = f'`run.env.{name}` is "lo", by which no rank of another machine is reached'
    assert warnings_of(of_one, "topology.nnodes=1:2") == [("J505", f"run.env.{name}", message)]
    assert warnings_of(f'[run.env]\n{name} = "eth0"\n', "topology.nnodes=2") == []


def test_ranks_to_look_at_are_those_of_all_nodes() -> None:
    looked_at = "[topology]\nnproc_per_node = 4\n[progress]\nlog_pattern = '(?P<step>.)'\nlog_ranks = '7'"
    assert [code for code, *_ in warnings_of(looked_at)] == ["J501"]
    assert warnings_of(looked_at, "topology.nnodes=2:3") == []


def test_labels_that_a_node_must_have_are_no_secrets() -> None:
    settings = {s.key: s.value for s in effective(read('[topology]\nnode_labels = { KEY = "v" }').spec)}
    assert settings["topology.node_labels.KEY"] == '"v"'
