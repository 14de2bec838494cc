"""What must hold when the actors of a run have ended. Each broken promise is a sentence.

The true history is the one that was watched (``world``); what versions say is read by ``reading``. The product's
own code is asked only what a user would ask it: to open, to refresh, and to be maintained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pyiceberg.exceptions import CommitFailedException, ValidationError

from tests.simulation.actors import FREEZES, ICEBERGS, KINDS, WRITES
from tests.simulation.clocks import AGES
from tests.simulation.ground import COUNTER, LOADED, SAVED
from tests.simulation.reading import Content, Tree, counter, node_file, tree
from tests.simulation.scheduler import Actor
from tests.simulation.tablefiles import files_of
from tests.simulation.world import COPY, Changes, Subject, Version, World
from trinitylake_core import Lakehouse
from trinitylake_core.definitions import LakehouseDef, NamespaceDef, TableDef, TransactionDef
from trinitylake_core.errors import (
    ClocksDisagree,
    CommitConflict,
    Corrupt,
    LakehouseFrozen,
    OutcomeUnknown,
    StorageError,
    TrinityLakeError,
)
from trinitylake_core.locations import parse, root_path, transaction_path
from trinitylake_core.spec import BOUNDARY_FILE, FREEZE, LAKEHOUSE_DEF, TABLES_VOID_BEFORE_MILLIS, VOID_BEFORE_MILLIS

_TABLES: Final = "C==="
"""What the keys of tables begin with."""
_TREES_REPLACED: Final = ("load", "rollback")


def _key(name: str, namespace: str = "a") -> str:
    return f"C==={namespace:4}{name:4}"


class Oracle:
    """Judges one world after its run."""

    def __init__(self, world: World, actors: Sequence[Actor]) -> None:
        self.world = world
        self.actors = actors
        self.objects = world.store.objects
        self._trees: dict[int, Tree] = {}

    def violations(self) -> Iterator[str]:
        """Yield every broken promise that one look at the store tells."""
        yield from self.world.violations
        checks: tuple[Callable[[], Iterator[str]], ...] = (
            self.ends, self.acknowledged, self.refused, self.changes, self.retained, self.snapshots, self.saved,
            self.readers, self.recovered, self.copies, self.copy_kept, self.copy_torn, self.copy_refused,
            self.taken_back, self.icebergs, self.rows, self.kept, self.frozen, self.aborted, self.answers, self.fences,
            self.young,
        )  # fmt: skip
        for check in checks:
            yield from check()

    # -- what the actors were told -----------------------------------------------------------------

    def ends(self) -> Iterator[str]:
        """Everybody ended, with success or with an error that is right for them."""
        for actor in self.actors:
            disturbed = actor.disturbed or actor.name in self.world.copy_torn
            right = KINDS[kind_of(actor)].may_raise + ((StorageError,) if disturbed else ())
            others = {kind_of(each) for each in self.actors if each is not actor}
            # The key of a client comes from the future where the clock of the endpoint is far behind: it is refused.
            refuses_keys = kind_of(actor).startswith("request") and actor.ahead_millis < 0
            fails_alone = refuses_keys or kind_of(actor) == "group-same"  # whose second transaction meets its first
            if kind_of(actor) in WRITES and others == {"compact"} and not fails_alone:
                right = tuple(each for each in right if each not in {CommitConflict, CommitFailedException})
            if kind_of(actor) in WRITES and any(kind_of(each) in FREEZES for each in self.actors):
                right += (LakehouseFrozen, CommitFailedException)
            if kind_of(actor) == "set-ref" and any(kind_of(each) == "rename" for each in self.actors):
                right += (ValidationError,)  # the table that has its name now does not have the snapshot
            if actor.ahead_millis:
                right += (ClocksDisagree,)
            may_be_unknown = actor.preempted or self.world.boundary_moved or self.world.damaged
            unknown = isinstance(actor.error, OutcomeUnknown) and may_be_unknown
            named = isinstance(actor.error, Corrupt) and self.world.names_damage(actor.error)
            named = named or (isinstance(actor.error, Corrupt) and bool(self.world.copy_gone) and "copy" in actor.name)
            if actor.error is not None and not isinstance(actor.error, right) and not unknown and not named:
                yield f"{actor.name} ended with {type(actor.error).__name__}: {actor.error}"

    def acknowledged(self) -> Iterator[str]:
        """Every acknowledged version is in the history, once, and is what its actor made."""
        for ack in self.world.acks:
            version = self.world.history[ack.version] if ack.version < len(self.world.history) else None
            made = None if version is None else version.node.system.get("txn") if ack.txn else version.creator
            member = version is not None and ack.txn is not None and ack.txn in _made_of(version)
            if made != (ack.txn or ack.actor) and not member:
                yield f"{ack.actor} was told that it made version {ack.version}, but {made} made it"
        txns = [txn for version in self.world.history for txn in _made_of(version)]
        for txn in self.world.intents:
            if txns.count(txn) > 1:
                yield f"transaction {txn} is in the history {txns.count(txn)} times"

    def refused(self) -> Iterator[str]:
        """Who was refused left no version."""
        told = {ack.txn for ack in self.world.acks}
        for actor in self.actors:
            if actor.error is None or isinstance(actor.error, StorageError):
                continue
            for version in self.world.history:
                own = version.creator == actor.name and version.node.system.get("operation") != "abort"
                if own and any(txn in self.world.intents and txn not in told for txn in _made_of(version)):
                    yield f"{actor.name} was refused ({actor.error}), but version {version.number} is its own"

    # -- what the versions say -----------------------------------------------------------------------

    def tree(self, version: Version) -> Tree:
        """Return the content of a version, its nodes read from all files that ever existed."""
        if version.number not in self._trees:
            self._trees[version.number] = tree(version.data, self.world.files)
        return self._trees[version.number]

    def changes(self) -> Iterator[str]:
        """Every version says what the one before says, and what its operation adds."""
        for before, version in zip(self.world.history[:-1], self.world.history[1:], strict=True):
            if before.number < self.world.ground.newest:
                continue
            said, says = self.tree(before).content, self.tree(version).content
            operation = version.node.system.get("operation")
            if says != self.expected(said, version, str(operation)):
                yield f"version {version.number} ({operation} by {version.creator}) does not say what it should"
            yield from self.counted(said, says, version)

    def expected(self, said: Content, version: Version, operation: str) -> Content:
        """Return the expected content of a version; of a load, whose paths are its own, take the loaded ones."""
        if operation == "rollback" and self.world.rollback_target is not None:
            return self.tree(self.world.history[self.world.rollback_target]).content
        if operation == "load":
            says = self.tree(version).content
            return said | {key: says.get(key, "") for key in (_key(name, "b") for name in LOADED)}
        if operation not in {"commit", "restore"}:
            return said
        own = version.node.own
        kept = {key: path for key, path in said.items() if key not in own}
        return kept | {key: path for key, path in own.items() if path is not None}

    def counted(self, said: Content, says: Content, version: Version) -> Iterator[str]:
        """What a transaction read is what the version before said, and what it wrote is there."""
        if version.node.system.get("operation") == "abort":
            return
        for txn in _made_of(version):
            intents = self.world.intents.get(txn)
            if intents and not any(self.matches(said, says, changes) for changes in intents):
                yield f"version {version.number} by {version.creator} lost an update: it did not read what it replaced"

    def matches(self, said: Content, says: Content, changes: Changes) -> bool:
        """Whether the counters before and after a version are those of a transaction."""
        return all(
            (self.count(said, name), self.count(says, name)) == (str(read), str(wrote))
            for name, (read, wrote) in changes.items()
        )

    def count(self, content: Content, name: str) -> str | None:
        """Return a counter of a table of namespace ``a``."""
        path = content.get(_key(name))
        return None if path is None or path not in self.world.files else counter(self.world.files[path])

    # -- what is there ---------------------------------------------------------------------------------

    def lost(self, tree: Tree, what: str) -> Iterator[str]:
        """Yield the files of a tree that are not what was written."""
        for path in sorted({*tree.nodes, *tree.content.values()}):
            if path not in self.objects:
                yield f"{what} needs {path}, which is gone"
            elif self.objects[path].data != self.world.files[path]:
                yield f"{what} needs {path}, which was overwritten"

    def retained(self) -> Iterator[str]:
        """Every version from the boundary on is whole, and the boundary file tells no more than the newest root."""
        newest = self.world.newest
        for version in self.world.history[newest.oldest :]:
            stored = self.objects.get(root_path(version.number))
            if version.number in self.world.lost:
                continue
            if stored is None or (stored.data != version.data and version.number not in self.world.damaged):
                yield f"version {version.number} of {newest.oldest} to {newest.number} is gone"
                continue
            yield from self.lost(self.tree(version), f"version {version.number}")
            if version.node.system[LAKEHOUSE_DEF] not in self.objects:
                yield f"the lakehouse definition of version {version.number} is gone"
        stored = self.objects.get(BOUNDARY_FILE)
        if stored is not None and int(stored.data) > newest.oldest:
            yield f"the boundary file says {int(stored.data)}, the newest root {newest.oldest}"

    def snapshots(self) -> Iterator[str]:
        """Every snapshot is whole."""
        path = self.world.newest.node.system[LAKEHOUSE_DEF]
        if path not in self.objects:
            return
        for name, snapshot in LakehouseDef.FromString(self.objects[path].data).snapshots.items():
            stored = self.objects.get(snapshot.root_node_file_path)
            if stored is None:
                yield f"the root of snapshot {name} is gone"
            else:
                yield from self.lost(tree(stored.data, self.world.files), f"snapshot {name}")

    def icebergs(self) -> Iterator[str]:
        """A version has all tables of a transaction of the PyIceberg catalog or none, and their metadata is there."""
        keys = [_key(table, namespace) for namespace, _, table in (name.partition(".") for name in ICEBERGS)]
        for version in self.world.history[self.world.newest.oldest :]:
            said = self.tree(version).content
            there = [said[key] for key in keys if key in said]
            if len(there) not in {0, len(keys)}:
                yield f"version {version.number} has {len(there)} of {len(keys)} tables of one transaction"
            for path in there:
                metadata = TableDef.FromString(self.world.files[path]).format_properties["metadata_location"]
                if metadata not in self.objects:
                    yield f"version {version.number} needs the table metadata {metadata}, which is gone"

    def rows(self) -> Iterator[str]:
        """Every file that the table with rows needs is there, in each retained version that names its metadata."""
        if not self.world.rows:
            return
        for version in self.world.history[self.world.newest.oldest :]:
            for each in self.of_tables(version) - self.objects.keys():
                yield f"version {version.number} needs {each} of a table, which is gone"

    def of_tables(self, version: Version) -> set[str]:
        """Return the files of tables that a version needs."""
        found: set[str] = set()
        for key, path in self.tree(version).content.items():
            if not key.startswith(_TABLES):
                continue
            table = TableDef.FromString(self.world.files[path])
            metadata = table.format_properties.get("metadata_location")
            found |= files_of(self.world.files, metadata) if metadata else set()
        return found

    def kept(self) -> Iterator[str]:
        """What was read by its number was a version, no root below the boundary."""
        for each in self.world.kept:
            if each.version < each.boundary:
                yield f"{each.actor} was given version {each.version}, and the boundary was {each.boundary} before"

    def frozen(self) -> Iterator[str]:
        """Between a freeze and its thaw there is no ordinary commit, and a rollback does not thaw."""
        for before, version in zip(self.world.history[:-1], self.world.history[1:], strict=True):
            operation = version.node.system.get("operation")
            if not self.is_frozen(before):
                continue
            if operation in {"commit", "load"}:
                yield f"version {version.number} ({operation} by {version.creator}) came while the lakehouse was frozen"
            if operation != "alter" and not self.is_frozen(version):
                yield f"version {version.number} ({operation} by {version.creator}) thawed the lakehouse"

    def is_frozen(self, version: Version) -> bool:
        """Return whether the lakehouse definition of a version freezes it; none here ends by itself."""
        data = self.world.files.get(version.node.system[LAKEHOUSE_DEF], b"")
        return FREEZE in LakehouseDef.FromString(data).properties

    def answers(self) -> Iterator[str]:
        """What an endpoint said was true at some time between the question and the answer."""
        for each in self.world.told:
            versions = self.world.history[each.began_at : each.ended_at + 1]
            found = [self.said_of(version, each.about) for version in versions]
            if each.value not in found:
                yield f"{each.actor} was told that {each.about} is {each.value}, and it was {found}"

    def said_of(self, version: Version, about: Subject) -> str | None:
        """Return what a version says about something, ``None`` where it says nothing."""
        content = self.tree(version).content
        namespace, _, name = about.of.partition(".")
        path = content.get(_key(name, namespace) if name else f"B==={namespace:4}")
        if path is None:
            return None
        if about.kind == "namespace":
            return NamespaceDef.FromString(self.world.files[path]).properties.get(about.name)
        table = TableDef.FromString(self.world.files[path])
        metadata = json.loads(self.world.files[table.format_properties["metadata_location"]])
        if about.kind == "table":
            value = metadata["properties"].get(about.name)
        else:
            value = metadata["refs"].get(about.name, {}).get("snapshot-id")
        return None if value is None else str(value)

    def aborted(self) -> Iterator[str]:
        """What was aborted, acknowledged, is in no version."""
        for version in self.world.history:
            for txn in set(_made_of(version)) & set(self.world.aborts):
                yield f"{txn} was aborted, acknowledged, and version {version.number} contains it"

    def fences(self) -> Iterator[str]:
        """No version makes files void that are not yet written."""
        for version in self.world.history[self.world.ground.newest + 1 :]:
            for row in (VOID_BEFORE_MILLIS, TABLES_VOID_BEFORE_MILLIS):
                ahead = version.node.number(row) - self.world.store.now_millis
                if ahead > 0:
                    yield f"version {version.number} by {version.creator}: {row} lies {ahead} ms in the future"

    def young(self) -> Iterator[str]:
        """A cleaning removes nothing that is younger than its safety age, and an expiration no version that is."""
        ages = {actor.name: AGES[kind_of(actor)] for actor in self.actors if kind_of(actor) in AGES}
        for each in self.world.removed:
            if each.age_millis < ages.get(each.actor, 0) * 1000:
                yield f"{each.actor} deleted {each.path}, which was {each.age_millis} ms old"

    # -- saved transactions ----------------------------------------------------------------------------

    def saved(self) -> Iterator[str]:
        """A saved transaction can be resumed as it was last saved, or was committed like that, or aborted, once."""
        committed = {version.node.system.get("txn"): version for version in self.world.history}
        for txn in dict.fromkeys(txn for txn, _ in self.world.saves):
            if txn in committed and committed[txn].node.system.get("operation") == "commit":
                if set(committed[txn].node.own) not in self.right(txn):
                    yield f"a save of {txn} was acknowledged, and an older one was committed"
                if txn in self.world.aborts:
                    yield f"{txn} was aborted, acknowledged, and committed"
            elif txn not in self.world.aborts and not self.over(txn):
                yield from self.resumable(txn)

    def right(self, txn: str) -> list[set[str]]:
        """Return the keys of the last save that was acknowledged, and of later ones with an unknown outcome."""
        last = next(changes for saved, changes in reversed(self.world.saves) if saved == txn)
        if all(actor.error is None and actor.state != "dead" for actor in self.actors):
            return [keys_of(last)]
        intents = self.world.intents[txn]
        return [keys_of(changes) for changes in intents[intents.index(last) :]]

    def over(self, txn: str) -> bool:
        """Whether a saved transaction says that it was aborted, or its time is over."""
        path = transaction_path(txn)
        definition = TransactionDef.FromString(self.world.files[path])
        if definition.expire_at_millis <= self.world.store.now_millis:
            return True
        return path in self.objects and definition.state == TransactionDef.ABORTED

    def resumable(self, txn: str) -> Iterator[str]:
        """Yield what a saved transaction lacks."""
        stored = self.objects.get(transaction_path(txn))
        running = None
        if stored is not None:
            running = self.objects.get(TransactionDef.FromString(stored.data).running_root_node_file_path)
        if running is None:
            yield f"saved transaction {txn} is gone"
            return
        own = {key: path for key, path, of in node_file(running.data).messages if of == txn}
        if set(own) not in self.right(txn):
            yield f"saved transaction {txn} is not what was saved last"
        for path in own.values():
            if path not in self.objects:
                yield f"saved transaction {txn} needs {path}, which is gone"

    # -- readers -----------------------------------------------------------------------------------------

    def readers(self) -> Iterator[str]:
        """A reader was given a version of the true history, and one that was not outdated when it began."""
        for each in self.world.opened:
            true = self.world.history[each.version] if each.version < len(self.world.history) else None
            if self.world.lost:
                continue
            if true is None or (true.data != each.data and each.version not in self.world.damaged):
                yield f"{each.actor} was given a root of version {each.version} that is not in the history"
            elif each.version < each.began_at:
                yield f"{each.actor} was given version {each.version}, and {each.began_at} was there when it began"

    def recovered(self) -> Iterator[str]:
        """The actor that was to recover from a damaged root has done so; other actors may report it as unreadable."""
        for actor in self.actors:
            kind, error = kind_of(actor), actor.error
            # Unknown where the version that recovered expired before its maker could check.
            may_raise = (*KINDS[kind].may_raise, ClocksDisagree, OutcomeUnknown)
            excused = error is None or actor.disturbed or isinstance(error, may_raise)
            if kind.startswith("recover") and not excused:
                yield f"{actor.name} did not recover: {error}"

    def copies(self) -> Iterator[str]:
        """The versions that were reported to be at the copy are there, and each version that opens has its content."""
        if not self.world.exported or self.world.copy_gone:
            return
        own = min(self.world.copy_own, default=self.world.newest.number + 1)
        files = {path: each.data for path, each in self.world.copy.objects.items()}
        versions = Lakehouse.open(COPY).backend.versions
        newest, boundary = versions.latest().version, versions.boundary()
        last = max(each.last for each in self.world.exported)
        for each in self.world.exported:
            if each.last < each.at_least:
                yield f"version {each.last} was exported as the newest one, and {each.at_least} was there before"
        if newest < last:
            yield f"the copy opens at version {newest}, and version {last} was exported"
        if self.world.copy_given_back:  # versions expired there
            return
        kept = max((each.first for each in self.world.exported if each.first < each.last), default=boundary)
        if boundary > max(kept, self.world.newest.oldest):
            yield f"the copy begins at version {boundary}, and its history at {kept} was exported"
        for version in range(boundary, min(newest + 1, own)):
            yield from self.whole(version, files, self.tree(self.world.history[version]).content)
            tables = any(each.tables and each.first <= version <= each.last for each in self.world.exported)
            for path in self.of_tables(self.world.history[version]) - files.keys() if tables else ():
                yield f"version {version} of the copy lacks {path} of a table"

    def copy_kept(self) -> Iterator[str]:
        """What was committed to the copy, acknowledged, is there and whole, until it expires there."""
        acks = [ack for ack in self.world.copy_acks if ack.txn not in self.world.copy_gone]
        # Whoever deletes a lakehouse has to stop first what writes to it.
        if not acks or self.world.copy_cleared > 1 or self.world.copy_torn:
            return
        files = {path: each.data for path, each in self.world.copy.objects.items()}
        try:
            newest = Lakehouse.open(COPY).root_node
        except TrinityLakeError as error:
            yield f"the copy, which was committed to, cannot be opened: {error}"
            return
        stored = self.world.copy.objects.get(BOUNDARY_FILE)
        boundary = 0 if stored is None else int(stored.data)
        for ack in acks:
            if newest.oldest_version <= ack.version:
                below = ack.version < boundary <= newest.version
                root = files.get(root_path(ack.version))
                if (
                    root is None
                    or below
                    or node_file(root).system.get("txn") != ack.txn
                    or ack.version > newest.version
                ):
                    yield (
                        f"{ack.actor} committed version {ack.version} to the copy, which opens at version "
                        f"{newest.version} without it"
                    )
        first = boundary if boundary <= newest.version else min(ack.version for ack in acks)
        for version in range(max(first, newest.oldest_version), newest.version + 1):
            yield from self.whole(version, files)

    def copy_torn(self) -> Iterator[str]:
        """An export whose target was deleted before it created roots there does not report success."""
        if self.world.copy_cleared != 1:  # when it was deleted once more, the export may have found nothing there
            return
        for actor in self.actors:
            ended = actor.state == "ended" and actor.error is None
            if ended and kind_of(actor).startswith("export") and actor.name in self.world.copy_torn_roots:
                yield f"{actor.name} reported success, and what it was compared with was deleted before the roots came"

    def whole(self, version: int, files: dict[str, bytes], content: Content | None = None) -> Iterator[str]:
        """Yield what a version of the copy lacks, and whether it says something else than this content."""
        root = files.get(root_path(version))
        if root is None:
            yield f"the copy has no root of version {version}"
            return
        if self.world.is_damaged(version, root):
            return
        try:
            found = tree(root, files)
        except KeyError as missing:
            yield f"version {version} of the copy lacks {missing}"
            return
        if content is not None and found.content != content:
            yield f"version {version} of the copy does not say what that version says"
        lacks = {*found.content.values(), node_file(root).system[LAKEHOUSE_DEF]} - files.keys()
        yield from (f"version {version} of the copy lacks {path}" for path in sorted(lacks))

    def copy_refused(self) -> Iterator[str]:
        """Who was told that nothing was committed to the copy has left no version there that counts."""
        if not self.world.copy_tried:
            return
        try:
            newest = Lakehouse.open(COPY).root_node
        except TrinityLakeError:  # it was deleted, or `copy_kept` has said why
            return
        told = {ack.txn for ack in self.world.copy_acks}
        certain = {each.name for each in self.actors if each.error and not isinstance(each.error, StorageError)}
        for path, stored in self.world.copy.objects.items():
            named = parse(path)
            if named is None or named.version is None or self.world.is_damaged(named.version, stored.data):
                continue
            txn = node_file(stored.data).system.get("txn", "")
            actor = self.world.copy_tried.get(txn)
            if newest.oldest_version <= named.version <= newest.version and actor in certain and txn not in told:
                yield f"{actor} was refused, but version {named.version} of the copy is its own"

    def taken_back(self) -> Iterator[str]:
        """What was restored from the copy says what some version said."""
        said = {
            self.count(self.tree(version).content, "t31") for version in self.world.history[: self.world.ground.newest]
        }
        for version in self.world.restored:
            if self.count(self.tree(self.world.history[version]).content, "t31") not in said:
                yield f"version {version}, restored from the copy, says what no version said"


def keys_of(changes: Changes) -> set[str]:
    """Return the keys of the tables that a transaction changes."""
    return {_key(name) for name in changes}


def kind_of(actor: Actor) -> str:
    """Return the kind of an actor: its name without the number that tells it from another one."""
    return actor.name.partition("#")[0]


def outcome(world: World, actors: Sequence[Actor]) -> tuple[object, ...]:
    """Return a value that identifies an outcome: the results of all actors, the history, and the files."""
    told = tuple((actor.name, actor.state, str(actor.result), type(actor.error).__name__) for actor in actors)
    since = world.history[world.ground.newest + 1 :]
    history = tuple(
        (each.creator, each.node.system.get("operation"), each.oldest, each.node.own != {}) for each in since
    )
    small = tuple(
        each.data for path, each in sorted(world.store.objects.items()) if path in {BOUNDARY_FILE, "_latest_hint.txt"}
    )
    copy = tuple(sorted((path, each.data) for path, each in world.copy.objects.items() if path.startswith("_")))
    return told, history, small, frozenset(world.store.objects), copy


__all__ = ["COUNTER", "SAVED", "Oracle", "kind_of", "outcome"]


def _made_of(version: Version) -> list[str]:
    """Return the transactions that became a version: its own, or the members of a group."""
    if version.node.system.get("operation") == "abort":  # it says that a transaction is not committed
        return []
    summary = json.loads(version.node.system.get("summary") or "{}")
    members = [member["txn"] for member in summary.get("members", ())]
    return members or [version.node.system.get("txn", "")]
