"""`suprun --help`."""

from textwrap import wrap

from supervisor.suprun.options import GROUPS, Form, Option

COLUMNS_MIN, COLUMNS_MAX = 40, 100
_INDENT = 28
_HEAD = """\
usage: suprun [OPTIONS] SCRIPT [ARG ...]

Runs a script on every rank of a job, on one node or on several, in the foreground: torchrun's command line.
Options may be spelled with _ for -, and take their defaults from PET_ variables, as in PET_NNODES."""


def help_text(columns: int) -> str:
    """All options with what they mean, for so many columns."""
    width = min(COLUMNS_MAX, max(COLUMNS_MIN, columns))
    lines = [line for text in _HEAD.splitlines() for line in wrap(text, width) or [""]]
    for group in GROUPS:
        lines += ["", f"{group.title}:"]
        for option in group.options:
            lines += _option_lines(option, width)
    lines += ["", *wrap("SUPD_FLEET_KEY names the key that the nodes share; default: ~/.config/supd/fleet.pem.", width)]
    lines += ["", *wrap("What is not as with torchrun: docs/from-torchrun.md", width)]
    return "\n".join(lines)


def _option_lines(option: Option, width: int) -> list[str]:
    value = "" if option.form is Form.SWITCH else f" {option.value}"
    form = f"  {', '.join(option.names)}{value}"
    indent = _INDENT if width > COLUMNS_MIN * 3 // 2 else 6
    if len(form) + 2 > indent:
        pad = " " * indent
        return [form, *wrap(option.meaning, width, initial_indent=pad, subsequent_indent=pad)]
    return wrap(option.meaning, width, initial_indent=f"{form:<{indent}}", subsequent_indent=" " * indent)
