"""Tables of benchmarks on a terminal."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table


def print_table(
    console: Console, title: str | None, names: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1
) -> None:
    """Print rows below their names; all but the first `left` columns are numbers, and stand at the right."""
    table = Table(title=title, box=SIMPLE)
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place < left else "right", no_wrap=place < left)
    for row in rows:
        table.add_row(*row)
    console.print(table)
