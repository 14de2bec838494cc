"""Long lists as a text that fits on a screen: the first entries, and how many more there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

SHOWN: Final = 3
"""How many entries of a list are written out."""


def first_of(texts: Sequence[str], shown: int, count: int | None = None) -> str:
    """Return the first texts, separated by commas, and how many more there are of ``count``, by default of them all."""
    more = (len(texts) if count is None else count) - shown
    return ", ".join(texts[:shown]) + (f" and {more} more" if more > 0 else "")


class ShortRepr:
    """Base of dataclasses made with ``repr=False``: long lists show their first entries, and how many more there are.

    What is shown is for people; fields made with ``repr=False`` are left out.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        shown = (each.name for each in fields(self) if each.repr)  # type: ignore[arg-type] # a base of dataclasses
        return f"{type(self).__name__}({', '.join(f'{name}={_brief(getattr(self, name))}' for name in shown)})"


def _brief(value: Any) -> str:
    if isinstance(value, list | tuple) and len(value) > SHOWN:
        first = ", ".join(map(repr, value[:SHOWN]))
        return f"[{first}, and {len(value) - SHOWN:,} more]"
    return repr(value)
