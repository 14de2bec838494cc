"""Rows of an Avro file, by the schema that the file was written with (Avro specification 1.11, binary encoding).

The schema is compiled once into functions that each pass over a value. Only the columns that are asked for become
Python objects; all others are stepped over, value by value, so that a row ends exactly where its schema says.

Why no row takes more time than its bytes are worth: a value that takes no byte (``null``, an empty record) is no step
at all, so each step moves on by a byte at least; a count of items is compared with the bytes that are left; and a type
cannot contain itself. Why nothing is read beyond the end: an index there is an error of Python's, a match finds
nothing, and a length is compared with the bytes that are left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from trinitylake_core.iceberg.reading import limits
from trinitylake_core.iceberg.reading.errors import Malformed

Step = Callable[[bytes, int], int]
"""Passes over a value: takes the bytes of a block and where the value begins, and returns where the next one does."""
Read = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value: returns it, and where the next one begins."""
Row = tuple[Any, ...]
"""The values of the columns that were asked for, in that order; of a column that is a record again a tuple."""

_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is asked for.

    Attributes:
        number: the ``field-id`` that Iceberg gives it; names may differ.
        inside: the columns that are asked for inside, if it is a record.
        optional: whether a schema may be without it; then its value is ``None``.
        raw: whether its value is the bytes that it is written in, whatever its type: only good to tell values apart.
    """

    number: int
    inside: tuple[Column, ...] = ()
    optional: bool = False
    raw: bool = False


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads the rows of a schema.

    Attributes:
        read: reads one row, as a :data:`Row`.
        least: the fewest bytes that a row takes.
    """

    read: Read
    least: int


def row_reader(schema: Any, columns: Sequence[Column]) -> RowReader:
    """Return the reader of rows with this schema, which is JSON.

    Raises ``Malformed``: it is no schema, or too large, or a type contains itself, or a column is missing or of a
    type that it cannot have.
    """
    compiler = _Compiler()
    record = compiler.compile(schema, "")
    if record.fields is None:
        raise Malformed("the rows of the file are no records")
    read = _read_record(record.fields, columns)
    return RowReader(read, record.least)


# -- values ----------------------------------------------------------------------------------------------------


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to 64 bits, and where it ends. Raises ``IndexError`` at the end of the data."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    number = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if shift == 7 * _LONG_BYTES:
            raise Malformed("a number has more than ten bytes")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    if number >> 64:
        raise Malformed("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def read_int(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to 32 bits, and where it ends. Raises ``IndexError`` at the end of the data."""
    number, end = read_long(data, at)
    if not -(1 << 31) <= number < 1 << 31:
        raise Malformed("a number has more than 32 bits")
    return number, end


def read_size(data: bytes, at: int) -> tuple[int, int]:
    """Return the length of what follows, which is not beyond the end, and where that begins."""
    size, at = read_long(data, at)
    if size < 0:
        raise Malformed("a length is negative")
    if size > len(data) - at:
        raise Malformed("a value is longer than what is left of its block")
    return size, at


def read_string(data: bytes, at: int) -> tuple[str, int]:
    """Return a text, and where it ends."""
    size, at = read_size(data, at)
    end = at + size
    text = data[at:end]
    try:
        return text.decode(), end
    except UnicodeDecodeError:
        raise Malformed("a text is not UTF-8") from None


def _skip_bytes(data: bytes, at: int) -> int:
    byte = data[at]
    if byte < 0x80 and not byte & 1:  # most are short; what follows the value finds it if that is beyond the end
        return at + 1 + (byte >> 1)
    size, at = read_size(data, at)
    return at + size


def _skip_number(most_bytes: int) -> Step:
    """Return what passes over a number. Its value is not looked at: one writer left bits beyond the 64th."""

    def skip(data: bytes, at: int) -> int:
        last = at + most_bytes - 1
        while data[at] >= 0x80:
            if at == last:
                raise Malformed(f"a number has more than {most_bytes} bytes")
            at += 1
        return at + 1

    return skip


def _skip_fixed(size: int) -> Step:
    def skip(data: bytes, at: int) -> int:
        if size > len(data) - at:
            raise Malformed("a value is longer than what is left of its block")
        return at + size

    return skip


# -- forms -----------------------------------------------------------------------------------------------------
#
# Values without a length or a count in them have a form that a regular expression can tell: numbers, booleans, unions
# of those. Runs of them are passed over by one match, which is ten times as fast as a function for each. All
# repetitions are possessive (``+`` at their end): a match gives no byte back, so it takes the time of its bytes.

_FORM_BYTES: Final = 1_000
"""No longer form is made; then each value is passed over by itself."""
_BOOLEAN_FORM: Final = b"[\\x00\\x01]"
_FORM_REPEATED: Final = 1_000
"""So many values at the most are passed over by one match."""


def _number_form(most_bytes: int) -> bytes:
    return b"(?:[\\x80-\\xff]{0,%d}+[\\x00-\\x7f])" % (most_bytes - 1)


def _fixed_form(size: int) -> bytes | None:
    return b"(?:.{%d}+)" % size if size <= _FORM_REPEATED else None


@lru_cache(maxsize=4_096)
def _skip_form(form: bytes, count: int = 1) -> Step:
    """Return what passes over ``count`` values of a form."""
    repeated = b"(?:%b){%d}+" % (form, count)
    match = re.compile(repeated, re.DOTALL).match

    def skip(data: bytes, at: int) -> int:
        found = match(data, at)
        if found is None:
            raise Malformed("a number, a boolean or the branch of a union is none, or ends too early")
        return found.end()

    return skip


# -- types -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Type:
    """A compiled type.

    Attributes:
        skip: passes over a value; ``None`` where values take no bytes.
        least: the fewest bytes that a value takes.
        form: its form, if a regular expression can tell it.
        read: reads a value, of the types that a column can be asked for.
        fields: those of a record.
        branches: those of a union.
    """

    skip: Step | None
    least: int
    form: bytes | None = None
    read: Read | None = None
    fields: Sequence[_Field] | None = None
    branches: Sequence[_Type] | None = None


@dataclass(frozen=True, slots=True)
class _Field:
    number: int | None
    type: _Type


_NULL: Final = _Type(None, 0, b"")
_PRIMITIVE: Final = {
    "null": _NULL,
    "boolean": _Type(
        skip=_skip_form(_BOOLEAN_FORM),
        least=1,
        form=_BOOLEAN_FORM,
    ),
    "int": _Type(
        skip=_skip_number(_INT_BYTES),
        least=1,
        form=_number_form(_INT_BYTES),
        read=read_int,
    ),
    "long": _Type(
        skip=_skip_number(_LONG_BYTES),
        least=1,
        form=_number_form(_LONG_BYTES),
        read=read_long,
    ),
    "float": _Type(
        skip=_skip_fixed(4),
        least=4,
        form=_fixed_form(4),
    ),
    "double": _Type(
        skip=_skip_fixed(8),
        least=8,
        form=_fixed_form(8),
    ),
    "bytes": _Type(
        skip=_skip_bytes,
        least=1,
    ),
    "string": _Type(
        skip=_skip_bytes,
        least=1,
        read=read_string,
    ),
}


class _Compiler:
    """Compiles one schema. ``logicalType`` is ignored: a value is stored as its underlying type says."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Any, _Type | None]] = {}
        """The types that have names, as JSON and compiled; ``None`` while one is compiled: it must not name itself."""
        self._types = 0
        self._depth = 0

    def compile(self, schema: Any, namespace: str) -> _Type:
        """Return a type. Raises ``Malformed``."""
        self._types += 1
        if self._types > limits.SCHEMA_TYPES:
            raise Malformed(f"its schema has more than {limits.SCHEMA_TYPES} types")
        if self._depth == limits.SCHEMA_DEPTH:
            raise Malformed(f"the types of its schema lie more than {limits.SCHEMA_DEPTH} deep in each other")
        self._depth += 1
        try:
            if isinstance(schema, str):
                primitive = _PRIMITIVE.get(schema)
                return primitive or self._find(schema, namespace)
            if isinstance(schema, list):
                return self._union(schema, namespace)
            if isinstance(schema, dict):
                return self._object(schema, namespace)
            raise Malformed("a type of its schema is neither a name, nor a list, nor an object")
        finally:
            self._depth -= 1

    def _find(self, name: str, namespace: str) -> _Type:
        """Return a type that was defined before."""
        full = _full_name(name, namespace)
        found = None
        for each in (full, name):
            if each in self._named and found is None:
                _, found = self._named[each]
        if found is None:
            raise Malformed("its schema names a type that is not defined before, or a type contains itself")
        return found

    def _object(self, schema: dict[str, Any], namespace: str) -> _Type:
        kind = schema.get("type")
        if kind == "array":
            items = self.compile(schema.get("items"), namespace)
            return _array_type(items)
        if kind == "map":
            values = self.compile(schema.get("values"), namespace)
            return _map_type(values)
        if kind in ("record", "fixed", "enum"):
            return self._define(schema, kind, namespace)
        return self.compile(kind, namespace)

    def _define(self, schema: dict[str, Any], kind: str, namespace: str) -> _Type:
        """Return a type with a name. PyIceberg defines one again where it is used again; then it must be the same."""
        name = schema.get("name")
        own = schema.get("namespace", namespace)
        if not isinstance(name, str) or not isinstance(own, str) or not name:
            raise Malformed("a type of its schema has no name")
        full = _full_name(name, own)
        if full in self._named:
            known, _ = self._named[full]
            if known != schema:
                raise Malformed("its schema has two types of one name")
        self._named[full] = schema, None
        if kind == "record":
            inside, _, _ = full.rpartition(".")
            compiled = self._record(schema.get("fields"), inside)
        elif kind == "fixed":
            compiled = _fixed_type(schema.get("size"))
        else:
            compiled = _enum_type(schema.get("symbols"))
        self._named[full] = schema, compiled
        return compiled

    def _record(self, fields: Any, namespace: str) -> _Type:
        if not isinstance(fields, list):
            raise Malformed("a record of its schema has no fields")
        compiled: list[_Field] = []
        for each in fields:
            if not isinstance(each, dict):
                raise Malformed("a field of its schema is no object")
            number = each.get("field-id")
            if number is not None and type(number) is not int:
                raise Malformed("a field-id of its schema is no number")
            inner = self.compile(each.get("type"), namespace)
            compiled.append(_Field(number, inner))
        types = [each.type for each in compiled]
        return _Type(
            skip=_skip_all(types),
            least=sum(each.least for each in types),
            form=_form_of_all(types),
            fields=compiled,
        )

    def _union(self, schemas: list[Any], namespace: str) -> _Type:
        if not 1 <= len(schemas) <= limits.UNION_BRANCHES:
            raise Malformed(f"a union of its schema has no branches, or more than {limits.UNION_BRANCHES}")
        branches = [self.compile(each, namespace) for each in schemas]
        readers = [each.read for each in branches]
        return _Type(
            skip=_skip_union(branches),
            least=1 + min(each.least for each in branches),
            form=_form_of_any(branches),
            read=_read_union(readers, branches),
            branches=branches,
        )


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _fixed_type(size: Any) -> _Type:
    if type(size) is not int or size < 0:
        raise Malformed("a fixed type of its schema has no size")
    if not size:
        return _NULL
    return _Type(
        skip=_skip_fixed(size),
        least=size,
        form=_fixed_form(size),
    )


def _enum_type(symbols: Any) -> _Type:
    if not isinstance(symbols, list):
        raise Malformed("an enum of its schema has no symbols")
    most = len(symbols)

    def skip(data: bytes, at: int) -> int:
        number, at = read_int(data, at)
        if not 0 <= number < most:
            raise Malformed("an enum has no such symbol")
        return at

    return _Type(skip, 1)


# -- records and unions ----------------------------------------------------------------------------------------


def _form_of_all(types: Sequence[_Type]) -> bytes | None:
    """Return the form of one value of each of the types, if they have one."""
    form = b""
    for each in types:
        if each.form is None or len(form) + len(each.form) > _FORM_BYTES:
            return None
        form += each.form
    return form


def _form_of_any(branches: Sequence[_Type]) -> bytes | None:
    """Return the form of a union, if its branches have one; each alternative begins with the number of its branch."""
    alternatives: list[bytes] = []
    for number, each in enumerate(branches):
        if each.form is None:
            return None
        number_in_the_file = number << 1
        alternatives.append(b"\\x%02x%b" % (number_in_the_file, each.form))
    form = b"(?:%b)" % b"|".join(alternatives)
    return form if len(form) <= _FORM_BYTES else None


def _steps(types: Sequence[_Type]) -> list[Step]:
    """Return what passes over a value of each of the types: one step for all that follow each other and have a form."""
    steps: list[Step] = []
    run: list[_Type] = []
    for each in types:
        if each.skip is None:
            continue
        if _form_of_all([*run, each]) is None:
            steps += _steps_of_run(run)
            run = []
        run.append(each)
    return steps + _steps_of_run(run)


def _steps_of_run(run: Sequence[_Type]) -> list[Step]:
    form = _form_of_all(run)
    if len(run) > 1 and form is not None:
        return [_skip_form(form)]
    return [each.skip for each in run if each.skip is not None]


def _skip_all(types: Sequence[_Type]) -> Step | None:
    """Return what passes over a value of each of the types; ``None`` if they take no bytes."""
    steps = _steps(types)
    if not steps:
        return None
    if len(steps) == 1:
        return steps[0]
    if len(steps) == 2:
        return _skip_pair(*steps)

    def skip(data: bytes, at: int) -> int:
        for step in steps:
            at = step(data, at)
        return at

    return skip


def _skip_pair(first: Step, second: Step) -> Step:
    """Return what passes over two values: the entries of maps are pairs, and there are many of them."""
    return lambda data, at: second(data, first(data, at))


def _branch(data: bytes, at: int, branches: int) -> int:
    """Return the number of the branch that a union is of; it is one byte."""
    byte = data[at]
    if byte & 1 or byte >> 1 >= branches:
        raise Malformed("a union has no such branch")
    return byte >> 1


def _skip_union(branches: Sequence[_Type]) -> Step:
    steps = [each.skip for each in branches]
    most = len(steps)

    def skip(data: bytes, at: int) -> int:
        branch = _branch(data, at, most)
        step = steps[branch]
        if step is None:
            return at + 1
        return step(data, at + 1)

    return skip


def _read_union(readers: Sequence[Read | None], branches: Sequence[_Type]) -> Read | None:
    """Return what reads a union, if all its branches are ``null`` or can be read."""
    if not any(readers):
        return None
    for reader, branch in zip(readers, branches, strict=True):
        if reader is None and branch is not _NULL:
            return None
    most = len(readers)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch = _branch(data, at, most)
        reader = readers[branch]
        if reader is None:
            return None, at + 1
        return reader(data, at + 1)

    return read


# -- arrays and maps -------------------------------------------------------------------------------------------


def _array_type(items: _Type) -> _Type:
    if items.skip is None or not items.least:
        raise Malformed("an array of its schema has items that take no bytes")
    if items.form is None:
        skip_items = _skip_each(items.skip)
    else:
        skip_items = _skip_forms(items.form)
    skip = _skip_blocks(skip_items)
    return _Type(skip, least=1)


def _map_type(values: _Type) -> _Type:
    """Return the type of a map; its keys are texts."""
    skip_entry: Step = _skip_bytes
    if values.skip is not None:
        skip_entry = _skip_pair(_skip_bytes, values.skip)
    skip_entries = _skip_each(skip_entry)
    skip = _skip_blocks(skip_entries)
    return _Type(skip, least=1)


def _skip_forms(form: bytes) -> Callable[[bytes, int, int], int]:
    """Return what passes over so many items of a form."""

    def skip(data: bytes, at: int, count: int) -> int:
        while count > _FORM_REPEATED:
            skip_many = _skip_form(form, _FORM_REPEATED)
            at = skip_many(data, at)
            count -= _FORM_REPEATED
        skip_rest = _skip_form(form, count)
        return skip_rest(data, at)

    return skip


def _skip_each(step: Step) -> Callable[[bytes, int, int], int]:
    """Return what passes over so many items, one by one."""

    def skip(data: bytes, at: int, count: int) -> int:
        for _ in range(count):
            at = step(data, at)
        return at

    return skip


def _skip_blocks(skip_items: Callable[[bytes, int, int], int]) -> Step:
    """Return what passes over an array or a map: blocks of items, each after its count, and a count of zero."""

    def skip(data: bytes, at: int) -> int:
        while True:
            count, at = read_long(data, at)
            if not count:
                return at
            end = None
            if count < 0:  # then the size of the block follows
                count = -count
                size, at = read_size(data, at)
                end = at + size
            if count > len(data) - at:  # each item takes a byte at the least
                raise Malformed("an array has more items than bytes are left")
            at = skip_items(data, at, count)
            if end is not None and at != end:
                raise Malformed("a block of an array does not end where it says")

    return skip


# -- columns ---------------------------------------------------------------------------------------------------


def _read_record(fields: Sequence[_Field], columns: Sequence[Column]) -> Read:
    """Return what reads of a record the columns that are asked for, as a tuple."""
    slots: dict[int, int] = {}
    missing: set[int] = set()
    for slot, column in enumerate(columns):
        slots[column.number] = slot
        if not column.optional:
            missing.add(column.number)
    found: set[int] = set()
    steps: list[tuple[int | None, Any]] = []
    between: list[_Type] = []
    for field in fields:
        number = field.number
        if number is None or number not in slots:
            between.append(field.type)
            continue
        if number in found:
            raise Malformed(f"its schema has two columns with the field-id {number}")
        found.add(number)
        steps += _steps_over(between)
        between = []
        slot = slots[number]
        read_value = _read_column(field, columns[slot])
        steps.append((slot, read_value))
    missing -= found
    if missing:
        raise Malformed(f"its schema has no column with the field-id {min(missing)}")
    steps += _steps_over(between)
    width = len(columns)

    def read(data: bytes, at: int) -> tuple[Row, int]:
        values: list[Any] = [None] * width
        for slot, step in steps:
            if slot is None:
                at = step(data, at)
            else:
                values[slot], at = step(data, at)
        return tuple(values), at

    return read


def _steps_over(types: Sequence[_Type]) -> list[tuple[None, Step]]:
    """Return the step over values that are not asked for, if they take bytes."""
    step = _skip_all(types)
    return [] if step is None else [(None, step)]


def _read_column(field: _Field, column: Column) -> Read:
    if column.raw:
        return _read_raw(field.type.skip)
    read = _read_inside(field.type, column.inside) if column.inside else field.type.read
    if read is None:
        raise Malformed(f"the column with the field-id {field.number} is of a type that it cannot have")
    return read


def _read_raw(step: Step | None) -> Read:
    """Return what reads the bytes of a value, as they are."""

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at if step is None else step(data, at)
        if end > len(data):
            raise Malformed("a value is longer than what is left of its block")
        return data[at:end], end

    return read


def _read_inside(record: _Type, columns: Sequence[Column]) -> Read | None:
    """Return what reads columns of a record, or of a union of ``null`` and records: BigQuery writes one."""
    if record.fields is not None:
        return _read_record(record.fields, columns)
    if record.branches is None:
        return None
    readers = [_read_inside(each, columns) for each in record.branches]
    return _read_union(readers, record.branches)
