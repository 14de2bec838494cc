"""Files of table metadata: JSON, packed by gzip or not. What is too large is refused before it is parsed."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn, TypeAlias

from trinitylake_core.iceberg.reading import limits
from trinitylake_core.iceberg.reading.codecs import GZIP_MAGIC, gunzip
from trinitylake_core.iceberg.reading.errors import Malformed, UnreadableTable
from trinitylake_core.iceberg.reading.json_size import measure_json

JsonObject: TypeAlias = dict[str, Any]
"""An object of JSON, such as the metadata of a table."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def decode_metadata(data: bytes, location: str) -> JsonObject:
    """Return table metadata as JSON. Memory: some ten times the file, unpacked, and within :mod:`limits`.

    Args:
        data: the file; it is packed if it begins like a gzip file, whatever its name.
        location: its URI, for messages.

    Raises:
        UnreadableTable: it is not a JSON object, or beyond the limits. Nothing of its content is quoted.
    """
    try:
        return parse_object(bounded_text(data))
    except Malformed as error:
        raise UnreadableTable(f"it is not a file of table metadata: {error}", path=location) from None


def _unpack(data: bytes) -> bytes:
    if len(data) <= limits.METADATA_BYTES and data.startswith(GZIP_MAGIC):
        return gunzip(data, limits.METADATA_BYTES)
    if len(data) > limits.METADATA_BYTES:
        raise Malformed(f"it has more than {limits.METADATA_BYTES:,} bytes")
    return data


def bounded_text(data: bytes) -> str:
    """Return the text of a metadata file, unpacked, whose parsing takes a bounded time and memory.

    Raises ``Malformed``: it is beyond :mod:`limits`, damaged, or no text.
    """
    unpacked = _unpack(data)
    _refuse_large(unpacked)
    try:
        return unpacked.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"it is not UTF-8, at byte {error.start}") from None


def parse_object(text: str) -> JsonObject:
    """Return the JSON object that a text is. Raises ``Malformed``, which quotes nothing of it."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise Malformed(f"it is not JSON, in line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):  # a number of thousands of digits
        raise Malformed("it has a number that is none, as NaN and Infinity are, or is nested too deeply") from None
    if not isinstance(found, dict):
        raise Malformed("it is no JSON object")
    if _SURROGATE.search(text):
        _refuse_half_characters(found)
    return found


def _refuse_large(data: bytes) -> None:
    """Refuse what parsing would make large or deep."""
    size = measure_json(data)
    if size.elements > limits.METADATA_ELEMENTS:
        raise Malformed(f"it has more than {limits.METADATA_ELEMENTS:,} values")
    if size.depth > limits.METADATA_DEPTH:
        raise Malformed(f"it is nested more than {limits.METADATA_DEPTH} deep")


def _refuse_half_characters(found: JsonObject) -> None:
    """Refuse a surrogate without its other half: no file, request or answer can contain it."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Malformed("it has half a character") from None


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError
