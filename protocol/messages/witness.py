"""Runner <-> runner: the word that a lease goes on, and what a witness passes on. Both sides begin with a Hello.

A connection belongs to two runners of one run and serves both of them: each may be the other's witness.
"""

from collections.abc import Callable

from protocol.messages import Message, decoder
from protocol.messages.member import Answer, Hello, Renewal


class WordWanted(Message, frozen=True):
    """A runner that hears nothing of the coordinator asks its witness for its word."""

    number: int  # of this asking; the answer repeats it
    generation: int


class Word(Message, frozen=True):
    """A witness to a runner: your ranks may go on, as far as I am concerned; or not."""

    number: int
    generation: int
    is_given: bool


class PassOn(Message, frozen=True):
    """A runner to its witness: tell the coordinator."""

    renewal: Renewal


class PassedOn(Message, frozen=True):
    """A witness to a runner: what the coordinator says to that."""

    answer: Answer


ToRunnerPeer = Hello | WordWanted | Word | PassOn | PassedOn

decode_peer: Callable[[bytes], ToRunnerPeer] = decoder(ToRunnerPeer)
