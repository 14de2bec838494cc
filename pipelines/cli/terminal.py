"""Results on a terminal: tables that fit its width, a few colours, a pager. By rich, which only terminals load."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TextIO

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pipelines.cli.report import TextTable, plain, width_of
from pipelines.reports.summary import aware

_ROWS_AT_ONCE: Final = 500
_NARROWEST: Final = 8
"""A column of texts may be folded to so many places before another column is left out."""
_GAP: Final = 2
_STYLES: Final = {
    "added": "green",
    "removed": "red",
    "changed": "yellow",
    "ok": "green",
    "FAILED": "bold red",
    "rollback": "bold yellow",
    "restore": "yellow",
}


def console(stream: TextIO | None = None, width: int | None = None) -> Console:
    """Return a terminal of rich. ``NO_COLOR`` is obeyed; nothing is highlighted by guess."""
    size = width or shutil.get_terminal_size().columns
    return Console(file=stream, width=size, force_terminal=True, highlight=False, markup=False, emoji=False)


def lines(parts: Iterable[str | TextTable], width: int | None = None) -> Iterator[str]:
    """Yield the lines of a result for a terminal so many columns wide, by default as wide as this one."""
    screen = console(width=width)
    for part in parts:
        if isinstance(part, TextTable):
            yield from _table_lines(part, screen)
        else:
            yield part


def page(parts: Iterable[str]) -> None:
    """Show lines in the pager; a result that fits on the screen stays there, as git does it."""
    import click

    os.environ.setdefault("LESS", "-FRX")
    with click.get_pager_file(color=None if os.environ.get("PAGER") else True) as pager:
        for line in parts:
            pager.write(f"{line}\n")


def _table_lines(table: TextTable, screen: Console) -> Iterator[str]:
    columns = _columns_with_room(table, screen.width)
    rows = iter(table.rows())
    has_heading = True
    while batch := list(islice(rows, _ROWS_AT_ONCE)):
        drawn = _draw(table, columns, batch, has_heading=has_heading)
        has_heading = False
        with screen.capture() as captured:
            screen.print(drawn)
        for line in captured.get().splitlines():
            yield line.rstrip()


def _draw(table: TextTable, columns: list[int], rows: list[Sequence[Any]], *, has_heading: bool) -> RichTable:
    drawn = RichTable(
        box=None,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
        show_header=has_heading,
        header_style="bold",
    )
    for column in columns:
        drawn.add_column(
            table.header[column],
            justify="right" if table.right[column] else "left",
            overflow="fold",
            no_wrap=_is_whole(table, column),
        )
    for row in rows:
        cells = []
        for column in columns:
            text = _cell_text(row[column])
            cells.append(Text(text, style=_STYLES.get(text, "")))
        drawn.add_row(*cells)
    return drawn


def _columns_with_room(table: TextTable, width: int) -> list[int]:
    """Return the columns that have room: the spare ones go first, one after the other."""
    columns = list(range(len(table.header)))
    for name in table.spare:
        needed = sum(_least_width(table, column) + _GAP for column in columns)
        if needed <= width:
            break
        columns.remove(table.header.index(name))
    return columns


def _least_width(table: TextTable, column: int) -> int:
    heading = width_of(table.header[column])
    cells = [width_of(_cell_text(row[column])) for row in table.first]
    widest = max([heading, *cells])
    if _is_whole(table, column):
        return widest
    return min(widest, max(_NARROWEST, heading))


def _is_whole(table: TextTable, column: int) -> bool:
    """Whether a column is never folded: numbers and times."""
    return table.right[column] or any(isinstance(row[column], datetime) for row in table.first)


def _cell_text(cell: Any) -> str:
    """Return a cell for people: a time to the second, UTC; pipes and JSON get the milliseconds."""
    if isinstance(cell, datetime):
        time = aware(cell).astimezone(UTC)
        return f"{time:%Y-%m-%d %H:%M:%S}"
    return plain(cell)
