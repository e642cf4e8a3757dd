"""docs/from-torchrun.md: a template with suprun's options filled in."""

from pathlib import Path

from pages import MARK
from tabular import table_text

from supervisor.suprun.options import GROUPS, Flags, Form, Group, Option

TEMPLATE = Path(__file__).with_name("from-torchrun.md")
PLACE = "<!-- OPTIONS -->"


def from_torchrun_page() -> str:
    """Every option, and all that is not as with torchrun."""
    page = TEMPLATE.read_text()
    assert page.count(PLACE) == 1
    return MARK + page.replace(PLACE, "\n\n".join(_section(group) for group in GROUPS))


def _section(group: Group) -> str:
    rows = [(_spelled(option), _default(option), option.meaning, option.differs) for option in group.options]
    return f"### {group.title}\n\n" + table_text(("option", "default", "meaning", "not as with torchrun"), rows)


def _spelled(option: Option) -> str:
    value = "" if option.form is Form.SWITCH else f" {option.value}"
    names = [f"`{name}`" for name in option.names[:-1]] + [f"`{option.names[-1]}{value}`"]
    variable = f" (`{option.variable}`)" if option.variable else ""
    return ", ".join(names) + variable


def _default(option: Option) -> str:
    default = getattr(Flags(), option.dest)
    return "" if default in (None, "", []) or option.form is Form.SWITCH else f"`{default}`"
