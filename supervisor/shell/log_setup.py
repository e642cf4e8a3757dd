"""Our own log: structlog to stderr, pretty on a terminal and JSON elsewhere."""

import contextlib
import logging
import sys
from typing import Any, TextIO, cast

import structlog

from supervisor.shell.log_thread import LogThread


class _Undemanding:
    """Standard error, where a full disk or a reader that went away costs the line and not the process."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


def set_up_log(level: str, format: str, file: LogThread | None = None) -> None:
    """Configure structlog once per process; `format` is "auto", "text" or "json", `file` what is written to instead of
    standard error."""
    pretty = format == "text" or (format == "auto" and sys.stderr.isatty())
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if pretty:
        processors.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", file or _Undemanding(sys.stderr))),
        cache_logger_on_first_use=True,
    )
