"""Tables for a terminal, which has an edge, and for a file or a pipe, which has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table


def print_table(
    console: Console, make: Callable[[Sequence[str]], Table], lesser: Sequence[str] = ()
) -> None:
    """Print the table that `make` builds without the columns it is told.

    A narrow terminal goes without as many of the lesser columns, in their order, as it has to.
    """
    endless = console.options.update(width=10_000)
    for dropped in range(len(lesser) + 1):
        table = make(lesser[:dropped])
        needed = console.measure(table, options=endless).maximum
        if not console.is_terminal:
            console.width = needed
        if needed <= console.width:
            break
    console.print(table)
