"""Long lists as a text that fits on a screen: the first entries, and how many more there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

SHOWN: Final = 3
"""How many entries of a list are written out."""


def first_of(texts: Sequence[str], shown: int, count: int | None = None) -> str:
    """Return the first texts, separated by commas, and how many more there are of ``count``, by default of them all."""
    total = len(texts) if count is None else count
    text = ", ".join(texts[:shown])
    if total > shown:
        text += f" and {total - shown} more"
    return text


class ShortRepr:
    """Base of dataclasses made with ``repr=False``: long lists show their first entries, and how many more there are.

    What is shown is for people; fields made with ``repr=False`` are left out.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        shown = []
        for each in fields(self):  # type: ignore[arg-type] # a base of dataclasses
            if each.repr:
                value = _brief(getattr(self, each.name))
                shown.append(f"{each.name}={value}")
        return f"{type(self).__name__}({', '.join(shown)})"


def _brief(value: Any) -> str:
    if isinstance(value, list | tuple) and len(value) > SHOWN:
        first = ", ".join(map(repr, value[:SHOWN]))
        return f"[{first}, and {len(value) - SHOWN:,} more]"
    return repr(value)
