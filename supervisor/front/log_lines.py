"""What the parts of supd have to tell, in the words of suprun; what concerns nobody who runs a job is left out."""

import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import structlog

from protocol.text import one_line

Event = MutableMapping[str, Any]

TEXTS: Mapping[str, Callable[[Event, str], str]] = {
    "node_refused": lambda event, _: f"not taken in: {event['why']}",
    "handshake_failed": lambda event, mend: f"{event['peer']} is not let in: {event['error']}. If {mend}",
}


def set_up(tell: Callable[[str], None] | None = None, mend: str = "") -> None:
    """Configure structlog: lines go to `tell`. `mend` is that of nodes whose keys differ."""

    def line(_logger: object, _method: str, event: Event) -> str:
        text = TEXTS.get(event["event"])
        if text is None or tell is None:
            raise structlog.DropEvent
        tell(one_line(text(event, mend)))
        raise structlog.DropEvent

    structlog.configure(
        processors=[line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        cache_logger_on_first_use=True,
    )
