"""Sizes of files and budgets as people write them on a command line: 1048576, 64KiB, 256MiB, 1.5GiB, 2TiB."""

from __future__ import annotations

import re
from typing import Final

from trinitylake_core.errors import InvalidInput

_UNITS: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
_TEXT: Final = re.compile(r"([0-9]{1,18})(\.[0-9]{1,3})? ?(B|KiB|MiB|GiB|TiB|PiB|)")
LARGEST: Final = (1 << 63) - 1
"""Larger ones are no number of bytes in files of tables."""


def parse_size(text: str) -> int:
    """Return the bytes that a text such as ``256MiB`` means; a number alone is bytes. Raises ``InvalidInput``."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{text!r} is not a valid size; write bytes, or 64KiB, 256MiB, 1.5GiB or 2TiB")
    whole, fraction, unit = match.groups(default="")
    size = int(whole) * _UNITS[unit] + int(float(f"0{fraction}") * _UNITS[unit])
    if size > LARGEST:
        raise InvalidInput(f"{text!r} is too large for a size")
    return size
