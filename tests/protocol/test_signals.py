"""Names and shell codes of signals and exits."""

import signal

import pytest

from protocol.signals import shell_code, signal_name, signal_number


@pytest.mark.parametrize("number", sorted(signal.Signals))
def test_every_signal_with_a_name_is_found_again_by_it(number: signal.Signals) -> None:
    assert signal_number(signal_name(number)) == number


def test_a_real_time_signal_is_counted_from_the_first_and_a_strange_one_is_told_by_number() -> None:
    assert signal_name(int(signal.SIGRTMIN) + 3) == "SIGRTMIN+3"
    assert signal_name(99) == "signal 99"
    assert signal_name(-1) == "signal -1"


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        signal_number("SIGNONE")


@pytest.mark.parametrize(("code", "number", "shown"), [(0, None, 0), (3, None, 3), (None, 9, 137), (None, 15, 143)])
def test_a_shell_shows_the_code_or_128_and_the_signal(code: int | None, number: int | None, shown: int) -> None:
    assert shell_code(code, number) == shown
