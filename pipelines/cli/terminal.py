"""Results on a terminal: tables that fit its width, a few colours, a pager. By rich, which only terminals load."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Final, TextIO

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pipelines.cli.report import Table, plain, width_of

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


def lines(parts: Iterable[str | Table], width: int | None = None) -> Iterator[str]:
    """Yield the lines of a result for a terminal so many columns wide, by default as wide as this one."""
    screen = console(width=width)
    for part in parts:
        if isinstance(part, Table):
            yield from _table(part, screen)
        else:
            yield part


def page(parts: Iterable[str]) -> None:
    """Show lines in the pager; a result that fits on the screen stays there, as git does it."""
    import click

    os.environ.setdefault("LESS", "-FRX")
    with click.get_pager_file(color=None if os.environ.get("PAGER") else True) as pager:
        for line in parts:
            pager.write(f"{line}\n")


def _table(table: Table, screen: Console) -> Iterator[str]:
    shown = _columns(table, screen.width)
    rows = iter(table.rows())
    heading = True
    while batch := list(islice(rows, _ROWS_AT_ONCE)):
        made = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=heading, header_style="bold")
        heading = False
        for column in shown:
            justify: Any = "right" if table.right[column] else "left"
            made.add_column(table.header[column], justify=justify, overflow="fold", no_wrap=_is_whole(table, column))
        for texts in ([_shown(cell) for cell in row] for row in batch):
            made.add_row(*(Text(texts[column], style=_STYLES.get(texts[column], "")) for column in shown))
        with screen.capture() as captured:
            screen.print(made)
        yield from (line.rstrip() for line in captured.get().splitlines())


def _columns(table: Table, width: int) -> list[int]:
    """Return the columns that have room: the spare ones go first, one after the other."""
    shown = list(range(len(table.header)))
    for name in table.spare:
        needed = sum(_least(table, column) + _GAP for column in shown)
        if needed <= width:
            break
        shown.remove(table.header.index(name))
    return shown


def _least(table: Table, column: int) -> int:
    cells = chain([table.header[column]], (_shown(row[column]) for row in table.first))
    widest = max(map(width_of, cells))
    return widest if _is_whole(table, column) else min(widest, max(_NARROWEST, width_of(table.header[column])))


def _is_whole(table: Table, column: int) -> bool:
    """Whether a column is never folded: numbers and times."""
    return table.right[column] or any(isinstance(row[column], datetime) for row in table.first)


def _shown(cell: Any) -> str:
    """Return a cell for people: a time to the second, UTC; pipes and JSON get the milliseconds."""
    if isinstance(cell, datetime):
        return f"{cell.astimezone(UTC) if cell.tzinfo else cell:%Y-%m-%d %H:%M:%S}"
    return plain(cell)
