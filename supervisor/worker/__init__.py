"""`import supd`, in a training script: tells the runner of this rank how it gets on. Nothing happens outside supd.

    supd.beat(step)             after each step; without a number, from anything else that takes long
    supd.phase("checkpoint")    what begins now has the limit of this phase; also as `with supd.phase(…):`
    supd.done()                 no more beats will come

None of them raises, blocks or prints, and a beat takes a fraction of a microsecond (docs/heartbeat.md).
"""

from .beat import beat, done, phase

__all__ = ["beat", "done", "phase"]
