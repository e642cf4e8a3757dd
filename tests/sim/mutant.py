"""A planted bug: a one-line patch. The patched module never touches the disk (mutants.py)."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SEEDS_MAX = 500
"""Within so many seeds, of those that draw a world in which it is looked for, every planted bug must be caught."""


@dataclass(frozen=True)
class Mutant:
    """A bug: in `module`, `good` stands exactly once and becomes `bad`."""

    module: str
    good: str
    bad: str
    kinds: tuple[str, ...] = ()  # of worlds in which it is looked for; (): all
    story: str = ""  # the one of test_losses.py that finds it, where random seeds do not

    @property
    def path(self) -> Path:
        """The file that is patched."""
        return ROOT / f"{self.module.replace('.', '/')}.py"

    def source(self) -> str:
        """The patched text. Raises AssertionError where `good` does not stand there exactly once."""
        text = self.path.read_text()
        assert text.count(self.good) == 1, f"{self.path}: {self.good!r} stands there {text.count(self.good)} times"
        return text.replace(self.good, self.bad)
