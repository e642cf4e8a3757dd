"""supd.toml, [lease]: times that have to hold together."""

import re
from pathlib import Path

import pytest

from protocol.errors import ConfigInvalid
from protocol.timing import Timing
from tests.shell.configs import loaded, problems_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("lease", "key", "hint"),
    [
        ('renew = "1.2s"', "alone", 'write `alone = "2.4s"` or more, or a shorter `renew`'),
        ('alone = "1.5s"', "alone", 'write `alone = "2s"` or more, or a shorter `renew`'),
        ('suspect = "1.9s"', "suspect", 'write `suspect = "2s"` or more, or a shorter `alone`'),
        ('renew = "400ms"\nalone = "800ms"\nsuspect = "1s"', "suspect", 'write `suspect = "1.01s"` or more'),
        ('fence = "2.5s"', "fence", 'write `fence = "2.65s"` or more, or a shorter `alone`'),
        ('ttl = "4.9s"', "ttl", 'write `ttl = "5s"` or more, or a shorter `fence`'),
        ('fence = "1h"', "ttl", "write a shorter `fence`"),
        ('ttl = "3s"', "ttl", 'write `ttl = "5s"` or more, or a shorter `fence`'),  # `suspect` wants less
        ('suspect = "4.5s"', "ttl", 'write `ttl = "5.2s"` or more, or a shorter `suspect`'),
        ('word = "700ms"', "word", 'write `word = "0.78s"` or more'),
    ],
)
def test_times_of_the_lease_that_do_not_hold_are_one_problem_at_the_key_that_is_too_short(
    tmp_path: Path, lease: str, key: str, hint: str
) -> None:
    assert problems_of(tmp_path, f"[lease]\n{lease}\n") == [("S302", f"lease.{key}", "", hint)]


def test_a_flaw_of_the_lease_is_shown_at_its_key_with_the_numbers_and_the_other_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        loaded(tmp_path, '[lease]\nfence = "4.9s"\nttl = "5s"\n')
    assert str(caught.value).startswith(
        f"""error[S302]: `lease.ttl` is 5 s, and has to be at least 5.41 s: `fence` (4.9 s) and 0.4 s to kill every \
rank, by clocks up to 1% off
  --> {tmp_path}/supd.toml:3:7
   |
 2 | fence = "4.9s"
   |         ------ for this one
 3 | ttl = "5s"
   |       ^^^^ write `ttl = "5.41s"` or more, or a shorter `fence`
"""
    )


def test_a_flaw_of_a_default_of_the_lease_is_shown_at_the_key_that_is_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        loaded(tmp_path, '[lease]\nrenew = "1.5s"\n')
    (problem,) = caught.value.problems
    assert (problem.key, problem.place and problem.place.line) == ("lease.alone", 2)


def test_a_time_of_the_lease_is_a_duration_of_100_ms_to_an_hour(tmp_path: Path) -> None:
    for wrong, code in (('"99ms"', "S205"), ('"0s"', "S205"), ('"61m"', "S205"), ("2", "S204"), ('"2"', "S204")):
        assert [p[:2] for p in problems_of(tmp_path, f"[lease]\nfence = {wrong}\n")] == [(code, "lease.fence")]
    assert [p[:2] for p in problems_of(tmp_path, '[lease]\non_isolation = "stay"\n')] == [
        ("S203", "lease.on_isolation")
    ]


def test_nothing_is_held_against_a_time_of_the_lease_that_cannot_be_read(tmp_path: Path) -> None:
    assert [p[1] for p in problems_of(tmp_path, '[lease]\nfence = "30s"\nttl = "40"\n')] == ["lease.ttl"]


def test_the_times_that_the_docs_show_hold(tmp_path: Path) -> None:
    (shown,) = re.findall(r"(?ms)^```toml\n(\[lease\].*?)^```", (ROOT / "docs" / "operations.md").read_text())
    assert loaded(tmp_path, shown).timing != Timing()
