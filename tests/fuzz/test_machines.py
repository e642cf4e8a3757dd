"""No peer makes a machine raise, or say what cannot be read."""

from random import Random

import pytest

from tests.fuzz.machines import PLAYS

SEEDS = 150


@pytest.mark.parametrize("name", PLAYS)
def test_nothing_that_a_peer_says_makes_a_machine_raise(name: str) -> None:
    for seed in range(SEEDS):
        try:
            PLAYS[name](Random(f"{name} {seed}"))
        except Exception as exc:
            exc.add_note(f"again: scripts/fuzz --machine {name} --seed {seed}")
            raise
