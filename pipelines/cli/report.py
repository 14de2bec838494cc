"""What commands and jobs return, as plain JSON data and as aligned text."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from enum import Enum
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any, Final, TypeAlias

from pipelines.reports import summary
from pipelines.reports.summary import SHOWN, ByteCount, Summarised, aware, human_bytes, items_of, utc

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_CONTROL: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
_BIDIRECTIONAL: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNSHOWN: Final = re.compile(f"[\x7f-\x9f\u2028\u2029{''.join(sorted(_BIDIRECTIONAL))}]")
"""What is written as an escape in JSON, beyond what JSON demands."""
_MEASURED_ROWS: Final = 200
"""A table measures its columns on so many rows, and then prints the others as they come."""


# -- JSON ----------------------------------------------------------------------------------------------


def to_json(value: Any) -> Json:
    """Return a value as plain JSON data.

    Dataclasses and mappings become objects, protobuf messages proto3 JSON, enums their values, bytes base64,
    durations seconds. A time is ISO 8601 in UTC; a field ``x`` that holds one is followed by ``x_millis``,
    epoch milliseconds, unless that is there already. Anything unknown becomes its text.
    """
    if isinstance(value, Enum):
        return to_json(value.value)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return utc(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _structure_to_json(value)


def _structure_to_json(value: Any) -> Json:
    if _is_dataclass(value):
        return _object_to_json(items_of(value).items())
    if hasattr(value, "DESCRIPTOR"):
        from trinitylake_core.definitions import to_dict  # a help text must not wait for protobuf

        return to_json(to_dict(value))
    if isinstance(value, Mapping):
        return _object_to_json((str(to_json(name)), each) for name, each in value.items())
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, AbstractSet):
        found = [to_json(each) for each in value]
        return sorted(found, key=str)
    if isinstance(value, Sequence | Iterator):
        return [to_json(each) for each in value]
    return str(value)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _object_to_json(items: Iterable[tuple[str, Any]]) -> dict[str, Json]:
    return {name: to_json(value) for name, value in _with_millis(items)}


def _with_millis(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield fields, and behind each time the same in milliseconds."""
    pairs = list(items)
    names = {name for name, _ in pairs}
    for name, value in pairs:
        yield name, value
        millis_name = f"{name}_millis"
        if isinstance(value, datetime) and millis_name not in names:
            seconds = aware(value).timestamp()
            yield millis_name, int(seconds * 1000 // 1)


def write_json(value: Any, write: Callable[[str], object], *, ascii_only: bool = False) -> None:
    """Write a value as one indented JSON document. Iterators in the uppermost object are read as they are written."""
    dumps = partial(_dump_json, ensure_ascii=ascii_only)
    if not isinstance(value, Mapping):
        write(dumps(to_json(value), indent=2) + "\n")
        return
    write("{")
    separator = "\n"
    for name, each in _with_millis(value.items()):
        write(f"{separator}  {dumps(str(name))}: ")
        separator = ",\n"
        if isinstance(each, Iterator):
            _write_items(each, write, dumps)
        else:
            text = dumps(to_json(each), indent=2)
            write(text.replace("\n", "\n  "))
    if separator == ",\n":
        write("\n")
    write("}\n")


def _dump_json(value: Json, **how: Any) -> str:
    """Return JSON that no terminal takes for a command: JSON itself escapes only those below U+0020."""
    return _UNSHOWN.sub(_escape_in_json, json.dumps(value, **how))


def _escape_in_json(found: re.Match[str]) -> str:
    character = found[0]
    if character == "\x7f":  # ASCII, which JSON does not escape
        return "\\u007f"
    return json.dumps(character)[1:-1]


def _write_items(items: Iterator[Any], write: Callable[[str], object], dumps: Callable[[Json], str]) -> None:
    """Write a list, an item a line: a listing of a million objects is never in memory."""
    separator = "[\n"
    for item in items:
        write(f"{separator}    {dumps(to_json(item))}")
        separator = ",\n"
    write("[]" if separator == "[\n" else "\n  ]")


# -- words ---------------------------------------------------------------------------------------------


def plain(value: Any) -> str:
    """Return a value as one line of text that no terminal takes for a command; ``None`` is ``-``."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return utc(value)
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, ByteCount):
        return human_bytes(value)
    if isinstance(value, int):
        return str(int(value))
    text = value
    if not isinstance(value, str):
        text = json.dumps(to_json(value), ensure_ascii=False)
    if text.isprintable():
        return str(text)
    return "".join(map(_escape, text))


def _escape(character: str) -> str:
    if unicodedata.category(character) in _CONTROL or character in _BIDIRECTIONAL:
        return character.encode("unicode_escape").decode()
    return character


def width_of(text: str) -> int:
    """Return the display width of a text."""
    if text.isascii():
        return len(text)
    width = 0
    for character in text:
        if unicodedata.category(character) in {"Mn", "Me"}:
            continue  # drawn over the character before it
        width += 1
        if unicodedata.east_asian_width(character) in {"W", "F"}:
            width += 1
    return width


# -- tables --------------------------------------------------------------------------------------------


class TextTable:
    """Rows below a header. Its lines are for pipes and files: aligned, numbers to the right, few rows in memory.

    Without rows there are no lines. A terminal shows it by ``pretty``. Can be read once.

    Args:
        header: the names of the columns.
        rows: any number of rows, as long as the header.
        spare: the columns that a narrow terminal does without, the first one first.
    """

    def __init__(self, header: Sequence[str], rows: Iterable[Sequence[Any]], spare: Sequence[str] = ()) -> None:
        self.header = header
        self.spare = spare
        self._stream = iter(rows)

    @cached_property
    def first(self) -> list[Sequence[Any]]:
        """The rows that are measured: read when a line is asked for, for nothing is printed where JSON is."""
        return list(islice(self._stream, _MEASURED_ROWS))

    @cached_property
    def right(self) -> list[bool]:
        """Which columns hold numbers."""
        found = []
        for column in range(len(self.header)):
            cells = [row[column] for row in self.first if row[column] is not None]
            found.append(bool(cells) and all(map(_is_number, cells)))
        return found

    def __bool__(self) -> bool:
        return bool(self.first)

    def rows(self) -> Iterator[Sequence[Any]]:
        """Yield the rows."""
        return chain(self.first, self._stream)

    def csv(self) -> Iterator[list[str]]:
        """Yield header and rows for programs: numbers as they are, times in ISO 8601, nothing for what is not there.

        Text is on one line, as in tables.
        """
        first = self.first  # before anything is yielded: where the rows cannot be read, nothing is printed
        yield [name.replace(" ", "_") for name in self.header]
        for row in chain(first, self._stream):
            yield list(map(_csv_cell, row))

    def __iter__(self) -> Iterator[str]:
        """Yield the lines."""
        texts = [[plain(cell) for cell in row] for row in self.first]
        widths = [max(map(width_of, column)) for column in zip(self.header, *texts, strict=True)]
        if texts:
            yield _align(self.header, widths, self.right)
        for row in texts:
            yield _align(row, widths, self.right)
        for cells in self._stream:
            yield _align([plain(cell) for cell in cells], widths, self.right)


table = TextTable


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, ByteCount):
        return str(int(value))
    return plain(value)


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _align(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = []
    for cell, width, to_right in zip(cells, widths, right, strict=True):
        space = " " * (width - width_of(cell))
        parts.append(space + cell if to_right else cell + space)
    return "  ".join(parts).rstrip()


def fields(value: Any, indent: str = "") -> Iterator[str]:
    """Yield the fields of a dataclass or mapping as aligned lines, nested ones indented below their name."""
    items = items_of(value)
    names = [name for name, each in items.items() if not _is_nested(each)]
    width = max(map(width_of, names), default=0)
    for name, each in items.items():
        if _is_nested(each):
            yield f"{indent}{plain(name)}"
            yield from _nested_lines(each, indent + "  ")
        else:
            space = " " * (width - width_of(name))
            yield f"{indent}{plain(name)}{space}  {_field_text(name, each)}".rstrip()


def _is_nested(value: Any) -> bool:
    if _is_mapping(value):
        return bool(items_of(value))
    return isinstance(value, list | tuple) and any(map(_is_mapping, value))


def _is_mapping(value: Any) -> bool:
    """Whether a value has fields with names."""
    return isinstance(value, Mapping) or _is_dataclass(value)


def _nested_lines(value: Any, indent: str) -> Iterator[str]:
    if not isinstance(value, list | tuple):
        yield from fields(value, indent)
        return
    for each in value:
        if not _is_mapping(each):
            yield f"{indent}- {plain(each)}"
            continue
        marker = f"{indent}- "
        for line in fields(each, indent + "  "):
            yield marker + line.removeprefix(indent + "  ")
            marker = indent + "  "


def _field_text(name: str, value: Any) -> str:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and "bytes" in name.split("_"):
        if value < 1024:
            return human_bytes(value)
        return f"{human_bytes(value)} ({value})"
    if isinstance(value, list | tuple | AbstractSet):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, Mapping):
        return "none"
    return plain(value)


# -- reports of jobs -----------------------------------------------------------------------------------


def summarise(done: Summarised, *more: str, rows: int = SHOWN) -> Iterator[Iterable[str]]:
    """Yield the parts of a report for people: its sentences, with ``more`` after them, and so many rows of its tables.

    Tables of details are left out, for ``--verbose`` prints every field.
    """
    yield [*map(plain, done.summary()), *more]
    for each in summary.tables_of(done):
        if not each.detail:
            yield _table_lines(each, rows)


def _table_lines(each: summary.Table, shown: int) -> Iterator[str]:
    yield from each.caption.splitlines()
    yield from TextTable(each.columns, each.rows[:shown])
    left_out = each.left_out(shown)
    if left_out:
        yield left_out
