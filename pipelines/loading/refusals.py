"""The refusals of a load: wrong lines, objects given twice, there already, or without a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pipelines.source.lines import Place, all_in_words, in_words
from trinitylake_core.errors import AlreadyExists, InvalidInput, ObjectNotFound
from trinitylake_core.keys import KeyCodec
from trinitylake_core.storage import Storage

SHOWN: Final = 5
WRONG_SHOWN: Final = 20
"""The number of wrong lines that a message lists; it counts the others."""


class Wrong(NamedTuple):
    """A line that does not describe an object, and why."""

    place: Place
    why: str


def refuse_wrong(source: Storage, count: int, found: Sequence[Wrong]) -> None:
    """Refuse lines that do not describe objects, all of them at once. Raises ``InvalidInput`` if there are several."""
    if count < 2:
        return
    first = sorted(found)[:WRONG_SHOWN]
    places = all_in_words(source, [each.place for each in first])
    listed = "".join(f"\n  {place}: {each.why}" for place, each in zip(places, first, strict=True))
    more = f"\n  ... and {count - len(first)} more" if count > len(first) else ""
    raise InvalidInput(f"{count} lines cannot be loaded; nothing was loaded:{listed}{more}")


def refuse_twice(source: Storage, codec: KeyCodec, key: str, places: Sequence[Place]) -> None:
    """Refuse an object that is given more than once. Raises ``InvalidInput``."""
    where = " and ".join(in_words(source, each) for each in places)
    raise InvalidInput(f"{_named(codec, key)} appears twice: {where}; nothing was loaded")


def refuse_there(source: Storage, codec: KeyCodec, found: Sequence[tuple[str, Place]], count: int) -> None:
    """Refuse objects that exist already. Raises ``AlreadyExists``."""
    named = ", ".join(f"{_named(codec, key)} ({in_words(source, place)})" for key, place in found[:SHOWN])
    raise AlreadyExists(
        f"{count} objects exist already: {named}{', ...' if count > SHOWN else ''}; `--existing skip` leaves such "
        "objects as they are, `--existing replace` gives them the new definition"
    )


def refuse_missing_namespaces(codec: KeyCodec, homes: Sequence[str]) -> None:
    """Refuse objects whose namespace does not exist. Raises ``ObjectNotFound``."""
    named = ", ".join(repr(codec.split(key)[1]) for key in homes[:SHOWN])
    raise ObjectNotFound(
        f"there is no namespace {named}{', ...' if len(homes) > SHOWN else ''}; load it, too: "
        '{"create_namespace": {"namespace": ...}}'
    )


def _named(codec: KeyCodec, key: str) -> str:
    name = codec.decode(key)
    return f"{name.kind} {str(name)!r}"
