"""Text as a job file has it where `{rank}`, `${NAME}` and the like are filled in (protocol/ranks.py, `expand`)."""

import re

_LOCAL_RANK = re.compile(r"\$(?:local_rank(?![A-Za-z0-9_])|\{local_rank\})", re.ASCII)
_FILLED_IN = re.compile(r"\{\{|\$\$|\{(?:job|run|gen|node|rank|local_rank)\}|\$\{[A-Za-z_][A-Za-z0-9_]*\}")


def argument(text: str) -> str:
    """An argument of the script, meant as it is; but torchrun fills in `${local_rank}`, and so does the job."""
    parts = _LOCAL_RANK.split(text)
    return "{local_rank}".join(map(doubled, parts)) if len(parts) > 1 else literal(text)


def literal(text: str) -> str:
    """A text that is meant as it is."""
    return doubled(text) if _FILLED_IN.search(text) else text


def doubled(text: str) -> str:
    """A text of which nothing is filled in, whatever stands before or behind it."""
    return text.replace("{", "{{").replace("$", "$$")
