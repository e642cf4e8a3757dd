"""Tables in Markdown."""

from collections.abc import Iterable


def table_text(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Rows below their head; no cell breaks a line or the table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
        lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    return "\n".join(lines)
