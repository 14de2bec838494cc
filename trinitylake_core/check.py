"""Integrity: the rules of the invariants of ``docs/format.md``, each stated once, and the walk that proves one version.

The rules are pure: they get a node, or a key, and the expectation of the parents. ``pipelines.integrity`` applies the
same rules to the nodes of many versions, and a rollback to the nodes that it brings back. The walk here takes one
version, of any generation of the format. It reads the files themselves, past every cache. A file that cannot be read
is reported, the subtree below it is skipped, and the walk goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Final, NamedTuple, TypeAlias

from trinitylake_core import spec
from trinitylake_core.catalog import codec_of
from trinitylake_core.definitions import (
    DECODERS,
    LakehouseDef,
    ObjectDef,
    has_checksum,
)
from trinitylake_core.diff import Change
from trinitylake_core.errors import (
    MAYBE_THE_STORE,
    Corrupt,
    CorruptDefinition,
    CorruptNode,
    FileMissing,
    InvalidDefinition,
    InvalidLocation,
    InvalidName,
    LostRoot,
)
from trinitylake_core.keys import KINDS, NAMESPACE, TABLE, VIEW, KeyCodec, NameParts, label
from trinitylake_core.locations import validate_path, validate_paths
from trinitylake_core.storage import Storage
from trinitylake_core.tree import nodefile, search
from trinitylake_core.tree.node import Node
from trinitylake_core.versions import MENDED, ObjectCounts, Root, RootRows, Versions, is_number, parse_bounds

Named = tuple[str, str, str]
"""Kind, label and path of a definition."""
MALFORMED: Final = "malformed"
"""Stands in the place of a kind."""


HINT_OF_SNAPSHOT: Final = "`trinitylake mend ROOT --from BACKUP` puts its files back; or drop the snapshot"
_HINTS: Final = {
    "I1": "the file is damaged: `trinitylake mend ROOT --from BACKUP` puts it back; or roll back to a version "
    "that does not use it",
    "I10": "`trinitylake mend ROOT --from BACKUP` puts the file back; or roll back to a version that does not use it",
    "I13": "`trinitylake mend ROOT --from BACKUP` puts the file back; without a backup of it `trinitylake alter ROOT "
    "--set KEY=VALUE` writes the definition anew while the lakehouse can be opened; else roll back",
    "I12": "create the namespace again, or drop what lies in it; a compaction changes neither",
    "I14": "the content of this version is still readable. Where a root is missing, `trinitylake mend ROOT "
    f"--from BACKUP` puts it back, and `mend ROOT --lost V` marks a version that nobody has. {MAYBE_THE_STORE}",
    "I15": "`trinitylake mend ROOT --from BACKUP` puts the file back; or `restore --from … --damaged`, or drop or "
    "re-create it",
    "I16": "run `trinitylake expire` again: it rewrites the boundary",
    "I18": "another file lies in its place: `trinitylake mend ROOT --from BACKUP` puts it back; or roll back",
    "I17": HINT_OF_SNAPSHOT,
    "I19": "an engine may have expired it: restore the table from a version whose metadata file exists; if "
    "there is none, register the table again with the one that its engine uses, or drop it",
    "I20": "copy the file back from a backup of the data, or roll back or restore the table to a version that does not "
    "need it; if no version can be read, drop the table",
    "I21": "nothing is lost: the next commit, or `trinitylake compact`, pushes down what finds no room in the root",
    "I22": "see which of the tables is the one that its owner means, and drop the other, or roll it back",
}
_RECOUNT: Final = "run `trinitylake compact --full`: it counts the objects again; versions before keep what they say"
_REWRITE: Final = "run `trinitylake compact`: it rewrites the nodes; if the finding stays, restore from an export"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant: its number, the file, what is wrong, and what to do."""

    invariant: str
    file: str
    message: str
    hint: str


def violation(invariant: str, file: str, message: str, hint: str | None = None) -> Violation:
    """Return a finding with the advice that goes with its invariant, if there is no better one."""
    return Violation(invariant, file, message, hint or _HINTS.get(invariant, _REWRITE))


# -- roots and the lakehouse -----------------------------------------------------------------------


_FENCES = (spec.VOID_BEFORE_MILLIS, spec.TABLES_VOID_BEFORE_MILLIS)
_ONLY_GROW = (*_FENCES, spec.REQUESTS_UNTIL_MILLIS)
_COUNTS = (spec.NAMESPACES, spec.TABLES, spec.VIEWS)
_NUMBERS = {spec.FITS: "I21"} | dict.fromkeys(_ONLY_GROW, "I14") | dict.fromkeys(_COUNTS, "I9")
"""Rows of a root that must be numbers, and the invariant that requires it. Others are read to follow the history."""


def check_version(versions: Versions, version: int, *, definitions: bool = False) -> Iterator[Violation]:
    """Yield every broken invariant of a version. One ``get`` per node, with ``definitions`` one per object.

    Raises:
        VersionNotFound, VersionExpired: there is no such version.
        StorageError: the storage failed; the state of the version is unknown.
    """
    head = read_head(versions, versions.path(version), lambda: versions.root(version))
    if head is None or isinstance(head, Violation):
        yield from [] if head is None else [head]
        return
    yield from check_root(versions, head[0])
    yield from check_tree(versions, *head, definitions=definitions)


def read_head(
    versions: Versions, path: str, read: Callable[[], Root | None]
) -> tuple[Root, LakehouseDef] | Violation | None:
    """Return the root that ``read`` returns and its lakehouse definition, or why there are none (I13 or I1).

    One ``get`` for the definition.
    """
    try:
        root = read()
        return None if root is None else (root, versions.definition_file(root))
    except (Corrupt, InvalidDefinition) as error:  # a root of an older generation is explained by its definition
        invariant = "I13" if isinstance(error, CorruptDefinition | InvalidDefinition) else error.invariant
        return violation(invariant, getattr(error, "path", None) or path, str(error))


def check_root(versions: Versions, root: Root) -> Iterator[Violation]:
    """Yield the defects of a root's system rows and its link to the version before. One ``get``."""
    if root.node.canonical and spec.VERSION not in root.system:
        yield violation("I13", root.path, "the root does not contain its version")
    for name, invariant in _NUMBERS.items():
        text = root.system.get(name, "0")
        if not is_number(text):
            hint = _RECOUNT if name in _COUNTS else None
            yield violation(invariant, root.path, f"{name} is {text[:40]!r}, not a number", hint)
    fits = root.system.get(spec.FITS, "")
    if is_number(fits) and root.node.estimated_bytes() > int(fits):
        yield violation("I21", root.path, f"the root takes {root.node.estimated_bytes()} bytes, more than its {fits}")
    bounds = root.system.get(spec.COUNT_BOUNDS)
    if bounds is not None and parse_bounds(bounds) is None:
        what = f"{spec.COUNT_BOUNDS} is {bounds[:40]!r}, not three pairs of ascending numbers"
        yield violation("I9", root.path, what, _RECOUNT)
    try:
        if root.oldest_version > root.version:
            yield violation("I14", root.path, f"oldest_version is {root.oldest_version}, beyond the version itself")
        yield from _check_link(versions, root)
    except Corrupt as error:
        yield violation("I14", root.path, f"the history cannot be followed: {error}")


def _check_link(versions: Versions, root: Root) -> Iterator[Violation]:
    """Yield what is wrong between a version and the one before it, if that is kept."""
    if root.version == 0 or root.version <= root.oldest_version:
        return
    try:
        before = versions.try_rows(root.version - 1)
    except Corrupt as error:
        is_left_behind = root.rollback_from_root == versions.path(root.version - 1)  # a finding of its own
        if not is_left_behind and not isinstance(error, LostRoot):  # an operator has accepted that
            yield violation("I14", root.path, f"the previous root cannot be read: {error}")
        return
    if before is None:
        if versions.boundary() < root.version:
            yield violation("I14", root.path, f"the previous root, version {root.version - 1}, is missing")
        return
    if root.rollback_from_root == before.path and spec.PREVIOUS_TXN not in root.system:
        return  # made over a root that could not be read; what stands there is another finding, and no measure
    if not root.follows(before) and versions.boundary() >= root.version:
        return  # the version before has expired, and a writer that stood still took its name; `expire` removes that
    if root.previous_root != before.path:
        yield violation("I14", root.path, f"previous_root is {root.previous_root!r} instead of {before.path!r}")
    if not root.follows(before):
        txn, made = root.system.get(spec.PREVIOUS_TXN), before.txn
        yield violation("I14", root.path, f"previous_txn is {txn!r}, and transaction {made!r} made the version before")
    if root.created_at_millis <= before.created_at_millis:
        yield violation("I14", root.path, f"was not created after version {before.version}, by created_at_millis")
    if root.oldest_version < before.oldest_version:
        yield violation("I14", root.path, f"oldest_version fell from {before.oldest_version} to {root.oldest_version}")
    yield from _check_fences(before, root)


def mended_fences(root: RootRows) -> frozenset[str]:
    """Return the rows of fences that a version set back because they lay in the future."""
    found = root.summary.get(MENDED)
    if root.operation != spec.OP_CLEAN or not isinstance(found, dict):
        return frozenset()
    return frozenset(found) & frozenset(_FENCES)


def _check_fences(before: RootRows, root: Root) -> Iterator[Violation]:
    for name in _ONLY_GROW:
        old = before.system.get(name, "0")
        new = root.system.get(name, old if name == spec.REQUESTS_UNTIL_MILLIS else "0")  # writers may drop that one
        if name in mended_fences(root):
            continue
        are_numbers = is_number(old) and is_number(new)
        if are_numbers and int(new) < int(old):
            yield violation("I14", root.path, f"{name} fell from {old} to {new}")


def check_lakehouse(versions: Versions, newest: Root, only: Container[str] | None = None) -> Iterator[Violation]:
    """Yield the defects of boundary, newest versions and snapshots, or of those that have ``only`` such roots.

    A stale hint is fine.

    Two ``get``, one per snapshot, and one ``list`` for a thousand roots.
    """
    boundary = versions.boundary()
    if boundary > newest.version:
        if not versions.is_claimed():  # by an export that has not put its first version here: all is as it was
            why = f"the boundary {boundary} lies beyond the newest version {newest.version}"
            yield violation("I16", spec.BOUNDARY_FILE, why)
    else:
        with suppress(Corrupt):  # a finding in that version, not in the boundary
            if versions.try_root(boundary) is None:
                why = f"version {boundary}, the oldest one by the boundary, does not exist"
                yield violation("I16", spec.BOUNDARY_FILE, why)
    try:
        versions.refuse_hole(newest.version)
    except CorruptNode as error:
        yield violation(error.invariant, error.path or newest.path, str(error))
    definition = versions.definition(newest)
    for name, snapshot in sorted(definition.snapshots.items()):
        path = snapshot.root_node_file_path
        try:
            if not snapshot.target_uri and (only is None or path in only):
                nodefile.decode(versions.storage.read(validate_path(path)), path)
        except (FileMissing, Corrupt, InvalidLocation) as error:
            yield violation("I17", path, f"snapshot {name!r} cannot be read: {error}")


# -- one node --------------------------------------------------------------------------------------


Claim: TypeAlias = tuple[int, int]
"""The least and the largest number that the parents of a node record of it."""


class Expected(NamedTuple):
    """The values that the parents of a node record about it: those of one tree, or of the trees of many versions.

    A node that fits all its parents fits the tightest pivots. Parents that count one child differently cannot all be
    right. The root of a tree is expected to be nothing.

    Attributes:
        height: its height, where the parents record theirs.
        low: the largest pivot before it; ``high``: the smallest after it.
        keys: the least and the largest number of keys in its subtree; ``messages``: likewise.
        parent: the path of one of them.
        depth: how many nodes lie above it, where one tree is followed.
    """

    height: int | None = None
    low: str | None = None
    high: str | None = None
    keys: Claim | None = None
    messages: Claim | None = None
    parent: str | None = None
    depth: int = 0

    def surrounds(self, key: str) -> bool:
        """Whether a key lies strictly between the pivots around the node."""
        if self.low is not None and key <= self.low:
            return False
        return self.high is None or key < self.high

    def expect_children(self, node: Node, path: str, height: int | None) -> Iterator[tuple[str, Expected]]:
        """Yield the path of each child, and the values that this node, at ``height``, and its parents record."""
        below = None if height is None else height - 1
        keys = _of_children(node.child_keys, node)
        messages = _of_children(node.child_messages, node)
        for index, child in enumerate(node.children):
            low, high = None, None
            if index <= len(node.keys):  # a damaged node may point to more children
                low, high = node.bounds(index)
            yield (
                child,
                Expected(
                    height=below,
                    low=_pick(max, low, self.low),
                    high=_pick(min, high, self.high),
                    keys=keys[index],
                    messages=messages[index],
                    parent=path,
                    depth=self.depth + 1,
                ),
            )


def _pick(choose: Callable[[str, str], str], one: str | None, two: str | None) -> str | None:
    """Return one of two pivots; of those that are there, if one is missing."""
    if one is None or two is None:
        return two if one is None else one
    return choose(one, two)


def _of_children(counts: list[int] | None, node: Node) -> Sequence[Claim | None]:
    if counts is None or len(counts) != len(node.children):
        return [None] * len(node.children)
    return [(count, count) for count in counts]


def check_place(node: Node, path: str, expected: Expected) -> Violation | None:
    """Return the reason for which nothing below a node can be followed: its place is wrong (I8, I10)."""
    height = expected.height if node.height is None else node.height
    low, high = expected.low, expected.high
    if expected.height is not None and height != expected.height:
        message = f"has height {height} below {expected.parent!r}, where height {expected.height} is expected"
        return violation("I8", path, message)
    if (height or 0) > search.MAX_HEIGHT:
        return violation("I8", path, f"height {height} is more than any tree has")
    if expected.depth >= search.MAX_HEIGHT:
        return violation("I10", path, f"is {expected.depth} nodes below the root, deeper than any tree")
    if low is not None and high is not None and low >= high:
        message = "is reached from places whose ranges exclude each other: twice from one root, or astray"
        return violation("I10", path, message)
    return None


def decode_node(path: str, data: bytes | FileMissing, parent: str | None) -> Node | Violation:
    """Return the node in a file that was read, or why there is none (I1, I2, I7, I10, I18)."""
    if isinstance(data, FileMissing):
        return violation("I10", path, "the file is missing" + (f", but {parent!r} points to it" if parent else ""))
    try:
        return nodefile.decode(data, path)
    except Corrupt as error:
        return violation(error.invariant, path, str(error))


def check_node(node: Node, path: str, order: int, expected: Expected) -> Iterator[Violation]:
    """Yield the defects of one node, as far as its layout knows (I1 to I9)."""
    if node.table_rows is None:  # the flat table of the published SDK
        return
    is_root = expected.parent is None
    if not node.checksummed and node.height is not None:
        yield violation("I1", path, "the checksum is gone from a file that this library wrote")
    if node.table_rows != order:
        yield violation("I2", path, f"the key table has {node.table_rows} rows instead of {order}")
    if any(one >= next_one for one, next_one in pairwise(node.keys)):
        yield violation("I3", path, "keys are not strictly ascending")
    yield from _check_ranges(node, path, expected)
    most = order - 1
    fewest = 0 if is_root else -(-order // 2) - 1
    if not fewest <= len(node.keys) <= most:
        yield violation("I6", path, f"{len(node.keys)} keys in a node of order {order}")
    if is_root and node.children and not node.keys:
        yield violation("I6", path, "the root has a single child")
    if node.height is not None and (node.height == 0) != node.is_leaf:
        yield violation("I8", path, f"height {node.height}, but it has {len(node.children)} children")
    yield from _check_number_of_counts(node, path, spec.CHILD_KEYS, node.child_keys)
    yield from _check_number_of_counts(node, path, spec.CHILD_MESSAGES, node.child_messages)


def _check_number_of_counts(node: Node, path: str, row: str, counts: list[int] | None) -> Iterator[Violation]:
    if counts is not None and len(counts) != len(node.children):
        yield violation("I9", path, f"{row} counts {len(counts)} children of {len(node.children)}")


def _check_ranges(node: Node, path: str, expected: Expected) -> Iterator[Violation]:
    """Yield the keys (I4) and the messages (I5) that lie outside the pivots around a node."""
    for key in node.keys:
        if not expected.surrounds(key):
            yield violation("I4", path, f"key {key.rstrip()!r} lies outside the pivots around its node")
    for key, _, txn in node.buffer:
        if not expected.surrounds(key):
            yield violation("I5", path, f"a message for {key.rstrip()!r} lies outside the pivots around its node")
        if not txn:
            yield violation("I5", path, f"a message for {key.rstrip()!r} has no transaction ID")


def check_counts(node: Node, path: str, expected: Expected) -> Iterator[Violation]:
    """Yield wrong counts (I9): those in a node, as far as it counts its children, and those of its parents."""
    keys = _count_subtree(node, len(node.keys), node.child_keys)
    yield from _check_own_count(path, spec.SUBTREE_KEYS, node.subtree_keys, keys)
    if node.subtree_keys is not None:
        keys = node.subtree_keys
    yield from _check_count_of_parents(path, spec.CHILD_KEYS, keys, expected.keys, expected.parent)

    messages = _count_subtree(node, len(node.buffer), node.child_messages)
    yield from _check_own_count(path, spec.SUBTREE_MESSAGES, node.subtree_messages, messages)
    if node.subtree_messages is not None:
        messages = node.subtree_messages
    yield from _check_count_of_parents(path, spec.CHILD_MESSAGES, messages, expected.messages, expected.parent)


def _count_subtree(node: Node, inside: int, of_children: list[int] | None) -> int | None:
    """Return what a node and, by its counts, its children hold; ``None`` where it does not count them."""
    if node.is_leaf:
        return inside
    if of_children is None:
        return None
    return inside + sum(of_children)


def _check_own_count(path: str, row: str, recorded: int | None, counted: int | None) -> Iterator[Violation]:
    if recorded is not None and counted is not None and recorded != counted:
        yield violation("I9", path, f"{row} is {recorded}, but the node and its children count {counted}")


def _check_count_of_parents(
    path: str, row: str, held: int | None, claimed: Claim | None, parent: str | None
) -> Iterator[Violation]:
    """Yield the least and the largest count of a node's parents, if one of them is not what the node holds."""
    if held is None or claimed is None:
        return
    least, largest = claimed
    if least == held == largest:
        return
    recorded = str(least) if least == largest else f"{least} and {largest}"
    yield violation("I9", path, f"{row} of {parent!r} is {recorded}, the node records {held}")


def check_names(node: Node, path: str, codec: KeyCodec) -> Iterator[Violation]:
    """Yield malformed keys and values of the key table and of messages (I11)."""
    messages = node.buffer
    if not well_formed(node.keys, node.values, codec):
        yield from _check_entries(zip(node.keys, node.values, strict=True), path, codec)
    paths = [value for value in messages.values if value is not None]
    if not well_formed(messages.keys, paths, codec):
        yield from _check_entries(messages.meanings(), path, codec)


def _check_entries(entries: Iterable[tuple[str, str | None]], path: str, codec: KeyCodec) -> Iterator[Violation]:
    for key, value in entries:
        defect = defect_of_entry(codec, key, value)
        if defect is not None:
            yield violation("I11", path, defect)


def well_formed(keys: Sequence[str], paths: Sequence[str], codec: KeyCodec) -> bool:
    """Whether keys and paths of definitions are plainly well formed, all together; ``False`` proves nothing."""
    try:
        validate_paths(paths)
    except InvalidLocation:
        return False
    return codec.well_formed(keys)


def defect_of_entry(codec: KeyCodec, key: str, value: str | None) -> str | None:
    """Return the defect of a key or its value (I11), ``None`` if there is none."""
    try:
        codec.parts(key)
        if value is not None:
            validate_path(value)
    except (InvalidName, InvalidLocation) as error:
        return str(error)
    return None


# -- the content of a version ----------------------------------------------------------------------


@dataclass(slots=True)
class VersionContent:
    """The objects of one version, each noted once in any order.

    Attributes:
        codec: of its keys.
        whole: every node of the version could be read; only then is a namespace known to be absent.
        exists: namespaces; ``needed`` are those that tables and views lie in.
        kinds: how many objects there are of each kind; malformed keys are a kind of their own.
    """

    codec: KeyCodec
    whole: bool = True
    exists: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)

    def note(self, key: str) -> bool:
        """Note an object; return whether its key is well formed (I11)."""
        kind, namespace, _ = _parts(self.codec, key)
        if not kind:
            self.kinds[MALFORMED] += 1
            return False
        self._count(kind, namespace, 1)
        return True

    def note_many(self, keys: Sequence[str], *, well_formed: bool) -> set[str]:
        """Note objects, fast if their keys are known to be ``well_formed``; return the namespaces that they lie in."""
        if not well_formed:
            found = set()
            for key in keys:
                if self.note(key):
                    _, namespace, _ = _parts(self.codec, key)
                    found.add(namespace)
            return found
        homes = self.codec.homes(keys)
        for (kind, namespace), count in homes.items():
            self._count(kind, namespace, count)
        return {namespace for _, namespace in homes}

    def _count(self, kind: str, namespace: str, count: int) -> None:
        self.kinds[kind] += count
        if kind == NAMESPACE:
            self.exists.add(namespace)
        else:
            self.needed.add(namespace)

    def definitions(self, entries: Iterable[tuple[str, str]]) -> Iterator[Named]:
        """Note objects, and yield their definitions. An invalid path is I11."""
        noted = ((key, path) for key, path in entries if self.note(key))
        return _name_definitions(self.codec, noted)

    def check_object_counts(self, root: Root) -> Iterator[Violation]:
        """Yield the object counts in a root that are wrong (I9), if all are known."""
        if self.whole and not self.kinds[MALFORMED]:
            found = ObjectCounts(self.kinds[NAMESPACE], self.kinds[TABLE], self.kinds[VIEW])
            yield from check_object_counts(root, found)

    def missing_namespaces(self) -> list[str]:
        """Return the namespaces that are needed and do not exist (I12)."""
        return sorted(self.needed - self.exists) if self.whole else []


def _parts(codec: KeyCodec, key: str) -> NameParts:
    """Return kind, namespace and name of an object; no kind if the key is malformed."""
    try:
        return codec.parts(key)
    except InvalidName:
        return "", "", None


def _name_definitions(codec: KeyCodec, entries: Iterable[tuple[str, str]]) -> Iterator[Named]:
    """Yield the definitions of objects. A malformed key, or an invalid path, is I11."""
    for key, path in entries:
        kind, namespace, name = _parts(codec, key)
        if kind:
            with suppress(InvalidLocation):
                yield kind, label(namespace, name), validate_path(path)


def objects_without_namespace(
    reader: search.NodeReader, root: Root, codec: KeyCodec, namespace: str
) -> Iterator[Violation]:
    """Yield every table and view of a namespace that does not exist (I12). Reads the nodes of its key ranges."""
    for kind in (TABLE, VIEW):
        for keys, _ in search.scan(reader, root.node, codec.range(kind, namespace)):
            for key in keys:
                yield without_namespace(root.path, codec, key)


def without_namespace(path: str, codec: KeyCodec, key: str) -> Violation:
    """Return the finding that a table or view has no namespace (I12)."""
    kind, namespace, name = codec.split(key)
    return violation("I12", path, f"{kind} {label(namespace, name)!r} lies in a namespace that does not exist")


def check_homes(
    reader: search.NodeReader, root: Root, codec: KeyCodec, changes: Sequence[Change]
) -> Iterator[Violation]:
    """Yield tables and views without a namespace (I12), as far as changes that led to a version show.

    Reads the nodes that contain the namespaces, and those of the key ranges of namespaces that are gone.
    """
    coming = [change for change in changes if change.new_path is not None and change.kind != NAMESPACE]
    homes = {change.namespace: codec.namespace(change.namespace) for change in coming}
    there = search.lookup_many(reader, root.node, sorted(homes.values()))
    for change in coming:
        if homes[change.namespace] not in there:
            yield without_namespace(root.path, codec, change.key)
    for change in changes:
        if change.new_path is None and change.kind == NAMESPACE:
            yield from objects_without_namespace(reader, root, codec, change.namespace)


def check_object_counts(root: Root, found: ObjectCounts) -> Iterator[Violation]:
    """Yield the object counts in a root that are wrong (I9); a missing count is not wrong. No request."""
    stored = root.count_bounds
    if stored is None:
        return
    for kind, least, most, contained in zip(KINDS, stored.least, stored.most, found, strict=True):
        if not least <= contained <= most:
            recorded = str(most) if least == most else f"{least} to {most}"
            message = f"the root records {recorded} {kind}s, but the version contains {contained}"
            yield violation("I9", root.path, message, _RECOUNT)


class ReadDefinition(NamedTuple):
    """A definition file that was read.

    Attributes:
        label: the name of its object; ``path`` is that of the file.
        definition: its content; ``None`` where it is missing or damaged.
        defect: what is wrong with it (I15), if something is.
        has_checksum: whether a checksum of its own proves it.
    """

    label: str
    path: str
    definition: ObjectDef | None
    defect: Violation | None
    has_checksum: bool = False


def read_definitions(storage: Storage, named: Sequence[Named]) -> Iterator[ReadDefinition]:
    """Read and prove definition files, given as kind, name and valid path. One ``get`` each, in parallel."""
    contents = storage.read_many([path for _, _, path in named])
    for (kind, name, path), (_, data) in zip(named, contents, strict=True):
        if isinstance(data, FileMissing):
            defect = violation("I15", path, f"the definition of {kind} {name!r} is missing")
            yield ReadDefinition(name, path, None, defect)
            continue
        try:
            definition = DECODERS[kind](data, path)
        except Corrupt as error:
            defect = violation("I15", path, f"the definition of {kind} {name!r}: {error}")
            yield ReadDefinition(name, path, None, defect)
            continue
        yield ReadDefinition(name, path, definition, None, has_checksum(data))


def check_definitions(storage: Storage, named: Sequence[Named]) -> Iterator[Violation]:
    """Yield the defects of definition files, which are read as :func:`read_definitions` does."""
    for each in read_definitions(storage, named):
        if each.defect is not None:
            yield each.defect


# -- one tree --------------------------------------------------------------------------------------


class TreeProof:
    """Examines the nodes of one tree, each when it is met for the first time, against what its parents record.

    Attributes:
        found: what is wrong, each once.
        nodes: how many nodes were examined, beside the root.
    """

    def __init__(self, root: Root, order: int, codec: KeyCodec) -> None:
        self.found: dict[Violation, None] = {}
        self.nodes = -1
        self._order = order
        self._codec = codec
        self._expected = {root.path: Expected()}
        self._taken = 0
        self.examine(root.path, root.node)

    def take_findings(self) -> Iterator[Violation]:
        """Yield what was found since this was called last."""
        new = list(islice(self.found, self._taken, None))
        self._taken += len(new)
        yield from new

    def add(self, found: Iterable[Violation]) -> None:
        """Add findings; what is known already counts once."""
        self.found.update(dict.fromkeys(found))

    def take_expected(self, path: str) -> Expected | None:
        """Return the values that a parent records about a node which was not met yet."""
        return self._expected.get(path)

    def examine(self, path: str, node: Node) -> bool:
        """Examine a node that an examined one points to, the first time; return whether it is where it belongs."""
        expected = self._expected.pop(path, None)
        if expected is None:  # of another tree, or examined already
            return True
        self.nodes += 1
        astray = check_place(node, path, expected)
        if astray is not None:
            self.add([astray])
            return False
        self.add(check_node(node, path, self._order, expected))
        self.add(check_counts(node, path, expected))
        self.add(check_names(node, path, self._codec))
        height = expected.height if node.height is None else node.height
        self._expected.update(expected.expect_children(node, path, height))
        return True


class _TreeReader:
    """Reads the files of one tree, past every cache. A node that cannot be followed is an empty leaf.

    Attributes:
        whole: whether every node so far could be followed.
    """

    def __init__(self, storage: Storage, root: Root, order: int, proof: TreeProof) -> None:
        self.whole = True
        self._storage = storage
        self._order = order
        self._proof = proof
        self._seen = {root.path}
        self._leaf_depth: int | None = None

    def read(self, path: str) -> Node:
        """Return one node. One ``get``."""
        return next(self.read_many([path]))

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in order. One ``get`` each, in parallel."""
        for path, data in self._storage.read_many(paths):
            expected = self._proof.take_expected(path) or Expected()
            node = self._follow(path, data, expected)
            if node is None:
                self.whole = False
                node = Node(height=None)
            yield node

    def _follow(self, path: str, data: bytes | FileMissing, expected: Expected) -> Node | None:
        node = decode_node(path, data, expected.parent)
        if path in self._seen:
            node = violation("I10", path, f"reached a second time, from {expected.parent!r}")
        self._seen.add(path)
        if isinstance(node, Violation):
            self._proof.add([node])
            return None
        if not self._proof.examine(path, node):
            return None
        if node.is_leaf and self._leaf_depth not in {None, expected.depth}:
            text = f"this leaf is at depth {expected.depth}, the first one at {self._leaf_depth}"
            self._proof.add([violation("I8", path, text)])
        elif node.is_leaf:
            self._leaf_depth = expected.depth
        return node


def check_tree(versions: Versions, root: Root, definition: LakehouseDef, *, definitions: bool) -> Iterator[Violation]:
    """Yield every broken invariant of the tree below a root that was read. One ``get`` per node."""
    codec = codec_of(definition, sdk=versions.sdk)
    proof = TreeProof(root, definition.order, codec)
    reader = _TreeReader(versions.storage, root, definition.order, proof)
    content = VersionContent(codec)
    for keys, paths in search.scan(reader, root.node):
        namespaces = content.note_many(keys, well_formed=not proof.found)
        lost = namespaces - content.exists
        if lost and reader.whole:
            for key in keys:
                _, namespace, _ = _parts(codec, key)
                if namespace in lost:
                    yield without_namespace(root.path, codec, key)
        yield from proof.take_findings()
        if definitions:
            yield from check_definitions(
                versions.storage, list(_name_definitions(codec, zip(keys, paths, strict=True)))
            )
    yield from proof.take_findings()
    content.whole = reader.whole
    yield from content.check_object_counts(root)
