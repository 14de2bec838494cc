"""What a transaction gains: by how many objects a version differs from its base, as far as that is known.

Nothing is looked up. A message is known to create or to delete an object where its writer knows whether the key was
there, or where the root decides that. Of all others the gain lies between two bounds (``versions.counts``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from trinitylake_core.keys import KINDS, NAMESPACE, TABLE, VIEW, KeyCodec
from trinitylake_core.tree.leafrun import Columns, is_set
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.noderows import Texts
from trinitylake_core.versions import CountBounds, ObjectCounts

_FEW: Final = 32
"""So many keys are searched for one by one in a root: making a mapping of all its keys costs more."""

Existence = Mapping[str, bool] | bool | None
"""Whether keys exist: of each that is known, or of all the same."""


def count_gain(
    own: Messages,
    existed: Existence,
    root: Node,
    codec: KeyCodec,
) -> CountBounds:
    """Return the difference that messages make to the number of objects of a version. No request.

    Args:
        own: the messages, one for each key.
        existed: whether their keys exist in the version, where the writer knows it.
        root: the root node of the version, which decides about some of the others.
        codec: the codec of its keys.
    """
    if own.table is not None and not isinstance(existed, Mapping):
        keys, *_ = own.texts()
        may_exist, exists = _existence_columns(keys, existed, root)
        return _count_columns(own, may_exist, exists, codec)
    known: Mapping[str, bool | None]
    if isinstance(existed, Mapping):
        known = existed
    else:
        known = dict.fromkeys(own.keys, existed)
    unknown = [key for key in own.keys if known.get(key) is None]
    decided = _decide(root, unknown)
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for key, value in own.meanings():
        there = known.get(key)
        if there is None:
            there = decided.get(key)
        kind, *_ = codec.split(key)
        least[kind] += _gain(value is not None, there is not False)
        most[kind] += _gain(value is not None, there is True)
    return CountBounds(_by_kind(least), _by_kind(most))


def count_created(entries: Iterable[Columns], codec: KeyCodec) -> CountBounds:
    """Return the number of objects that new entries, in key order, are. Raises ``InvalidName``: a key is of no kind."""
    counts: Counter[str] = Counter()
    for rows in entries:
        keys = Texts(rows.keys)
        found = 0
        for kind in KINDS:
            within = codec.range(kind)
            start = bisect_left(keys, within.lo.encode())
            stop = bisect_right(keys, within.hi.encode())
            counts[kind] += stop - start
            found += stop - start
        if found < len(keys):
            is_of_kind = [_is_of_kind(rows.keys, codec.range(kind).lo) for kind in KINDS]
            _refuse_malformed(rows.keys, is_of_kind, codec)
    created = _by_kind(counts)
    return CountBounds(created, created)


def _gain(sets: bool, existed: bool) -> int:  # noqa: FBT001 - two facts about one message
    """Return how many objects a message adds to a version in which its key existed, or did not."""
    return int(sets) - int(existed)


def _by_kind(counter: Mapping[str, int]) -> ObjectCounts:
    namespaces = counter.get(NAMESPACE, 0)
    tables = counter.get(TABLE, 0)
    views = counter.get(VIEW, 0)
    return ObjectCounts(namespaces, tables, views)


def _decide(root: Node, keys: list[str]) -> dict[str, bool]:
    """Return whether keys exist, of those about which a root decides. In a leaf it decides about all."""
    if len(keys) > _FEW:
        here = _existence_in(root)
        found = {}
        for key in keys:
            if key in here:
                found[key] = here[key]
            elif root.is_leaf:
                found[key] = False
        return found
    decided = {}
    for key in keys:
        is_decided, value = root.find(key)
        if is_decided:
            decided[key] = value is not None
    return decided


def _existence_in(root: Node) -> dict[str, bool]:
    """Return whether each key exists that stands in a root: in its key table, or in a message."""
    here = dict.fromkeys(root.keys, True)
    for key, value in root.pending.meanings():
        here[key] = value is not None
    return here


def _count_columns(
    own: Messages,
    may_exist: Any,
    exists: Any,
    codec: KeyCodec,
) -> CountBounds:
    """Return the result of :func:`count_gain` for messages that are columns, with columns of what is known."""
    keys, values, _ = own.texts()
    sets = is_set(values).astype(np.int64)
    least = sets - may_exist
    most = sets - exists
    kinds = {}
    for kind in KINDS:
        beginning = codec.range(kind).lo
        kinds[kind] = _is_of_kind(keys, beginning)
    _refuse_malformed(keys, kinds.values(), codec)
    return CountBounds(_sum_by_kind(least, kinds), _sum_by_kind(most, kinds))


def _sum_by_kind(column: Any, kinds: Mapping[str, Any]) -> ObjectCounts:
    """Return the sums of a column over the rows of each kind, which columns of booleans tell."""
    sums = {}
    for kind, is_of_kind in kinds.items():
        sums[kind] = int(column[is_of_kind].sum())
    return _by_kind(sums)


def _existence_columns(keys: pa.Array, existed: Existence, root: Node) -> tuple[Any, Any]:
    """Return of each key whether it may exist, and whether it does, as columns of numbers 0 and 1."""
    if existed is not None:
        column = np.full(len(keys), bool(existed), np.int64)
        return column, column
    there = []
    gone = []
    for key, is_there in _existence_in(root).items():
        if is_there:
            there.append(key)
        else:
            gone.append(key)
    exists = _is_among(keys, there)
    if root.is_leaf:
        return exists, exists
    is_gone = _is_among(keys, gone)
    return 1 - is_gone, exists


def _is_among(keys: pa.Array, some: Sequence[str]) -> Any:
    if not some:
        return np.zeros(len(keys), np.int64)
    import pyarrow.compute as pc  # noqa: PLC0415 - a tenth of a second, which only large transactions need

    among = pc.is_in(keys, value_set=pa.array(some, pa.string()))
    return _as_numbers(among)


def _is_of_kind(keys: pa.Array, prefix: str) -> Any:
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    return _as_numbers(pc.starts_with(keys, prefix)).astype(bool)


def _as_numbers(column: pa.Array) -> Any:
    """Return a column of booleans as numbers 0 and 1."""
    return column.to_numpy(zero_copy_only=False).astype(np.int64)


def _refuse_malformed(keys: pa.Array, kinds: Iterable[Any], codec: KeyCodec) -> None:
    """Raise ``InvalidName`` if a key is of no kind."""
    of_any = np.logical_or.reduce(list(kinds))
    if of_any.all():
        return
    first = int(np.argmin(of_any))
    codec.split(keys[first].as_py())  # raises: no kind begins like it
