"""How large a JSON text is before it is parsed: 16 MiB can hold five million objects.

Parsing needs a hundred times as much memory as the text, and other work waits meanwhile. So the text is measured first,
by whole arrays of bytes: numpy lets other threads go on, where a parser would not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

_BLOCK: Final = 1 << 20
_QUOTE: Final = ord('"')
_COMMA: Final = ord(",")
_LOWER: Final = 0x20
"""The bit by which ``[`` and ``]`` differ from ``{`` and ``}``."""
_OPENING: Final = ord("{")
_CLOSING: Final = ord("}")
_ELEMENT_BYTES: Final = 300
"""What a value takes once it is parsed and part of a model, measured."""


@dataclass(frozen=True, slots=True)
class JsonSize:
    """How large a JSON text is.

    Attributes:
        text_bytes: its length in UTF-8.
        elements: objects and lists, and the values in them after the first; so at least half of all its values.
        depth: of objects and lists within each other.
        is_ascii: whether each character is one byte.
    """

    text_bytes: int
    elements: int
    depth: int
    is_ascii: bool

    @property
    def memory_bytes(self) -> int:
        """About how much memory it takes when it is parsed."""
        text_copies = 2 if self.is_ascii else 6  # a character that is not Latin makes all of a text four bytes wide
        return text_copies * self.text_bytes + _ELEMENT_BYTES * self.elements


def measure_json(body: bytes) -> JsonSize:
    """Return how large a JSON text in UTF-8 is.

    What stands behind the first character that is no JSON may be measured wrongly: no parser comes so far. Takes a
    few bytes of memory for each byte of a block of 1 MiB, and two copies of a text that contains a backslash.
    """
    text = body
    if b"\\" in body:
        # From left to right, as a parser reads: an escaped backslash first, then what is left before a quote.
        text = body.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    elements = 0
    depth = 0
    deepest = 0
    is_inside = False
    for start in range(0, len(text), _BLOCK):
        block = np.frombuffer(text, np.uint8, min(_BLOCK, len(text) - start), start)
        inside = np.logical_xor.accumulate(block == _QUOTE)
        if is_inside:
            inside = ~inside
        is_inside = bool(inside[-1])
        outside = ~inside
        lowered = block | _LOWER
        opening = (lowered == _OPENING) & outside
        closing = (lowered == _CLOSING) & outside
        commas = (block == _COMMA) & outside
        elements += int(np.count_nonzero(opening)) + int(np.count_nonzero(commas))
        levels = np.cumsum(opening.astype(np.int8) - closing.astype(np.int8), dtype=np.int32)
        deepest = max(deepest, depth + int(levels.max()))
        depth += int(levels[-1])
    return JsonSize(len(body), elements, deepest, body.isascii())
