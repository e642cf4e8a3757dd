"""supervisor/suprun/hostlist.py: Slurm's lists of nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.suprun.hostlist import HOSTS_MAX, NotAHostlist, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", "node1"),
        ("node[1-3],gpu-a[01-03,7]", "node1 node2 node3 gpu-a01 gpu-a02 gpu-a03 gpu-a7"),
        ("a,b.example.org", "a b.example.org"),
        ("n[008-011]", "n008 n009 n010 n011"),
        ("n[98-101]", "n98 n99 n100 n101"),
        ("rack[1-2]n[1-2]-ib", "rack1n1-ib rack1n2-ib rack2n1-ib rack2n2-ib"),
        ("[1-2]x", "1x 2x"),
        ("n[3,1]", "n3 n1"),
    ],
)
def test_names_come_in_their_order_with_the_zeros_in_front(text: str, hosts: str) -> None:
    assert expand(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text", ["", ",", "a,,b", "a,", ",a", "a[", "a[1", "a[]", "a]", "a[x]", "a[1-]", "a[-1]", "a[3-1]", "a b", "a[1,]"]
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(NotAHostlist):
        expand(text)


@pytest.mark.parametrize("text", ["n[1-10001]", "n[0-99]m[0-999]", "n[1-999999999999999999]", "a" * ((1 << 20) + 1)])
def test_a_list_without_end_is_refused_before_it_is_made(text: str) -> None:
    with pytest.raises(NotAHostlist):
        expand(text)


def test_nested_brackets_do_not_multiply_without_end() -> None:
    with pytest.raises(NotAHostlist, match="brackets"):
        expand("n" + "[0-9]" * 9)
    assert len(expand("n[0-9][0-9][0-9][0-9]")) == HOSTS_MAX


@given(st.text(alphabet="an019-,[]", max_size=30))
def test_any_text_is_a_list_of_names_or_refused(text: str) -> None:
    try:
        hosts = expand(text)
    except NotAHostlist:
        return
    assert all(hosts)
    assert not set("".join(hosts)) & set("[], ")
