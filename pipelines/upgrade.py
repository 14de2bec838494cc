"""Upgrade: rewrite a lakehouse of any generation in the canonical format at another root URI (format, section 7).

Definitions keep their paths and bytes, so the content digest stays the same. With ``history`` every
retained version becomes a version of the new lakehouse, created at the same time, as one transaction of
its changes; without, version 0 holds the newest content, packed bottom up. An interrupted upgrade goes
on where it stopped when it is run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, starmap
from typing import Any, Final

from pipelines.copy.copying import Copied, copy_all, refuse_near
from pipelines.engine.choice import choose_engine
from pipelines.job import NEVER_CANCELLED, Cancel, JobRun, Progress, Review, Session, refuse_unknown, silent
from pipelines.reports.summary import DRY_RUN, count, human_bytes
from trinitylake_core import Lakehouse, spec
from trinitylake_core.catalog import codec_of, object_counts
from trinitylake_core.commits.changes import commit_summary, create_first
from trinitylake_core.commits.commit import Draft, new_id
from trinitylake_core.definitions import LakehouseDef, LakehouseOptions, new_lakehouse_def
from trinitylake_core.errors import AlreadyExists, Corrupt, InvalidInput, InvalidName, NotALakehouse
from trinitylake_core.keys import EVERYTHING, ObjectName
from trinitylake_core.storage import Storage, storage_at
from trinitylake_core.transactions.transaction import Transaction
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.search import Batch, scan
from trinitylake_core.versions import CountBounds, Versions

_CARRIED: Final = (
    "order",
    "namespace_name_max_size_bytes",
    "table_name_max_size_bytes",
    "view_name_max_size_bytes",
    "node_file_max_size_bytes",
    "txn_ttl_millis",
)
_SPARK_FROM_OBJECTS: Final = 400_000
"""From how many definitions on ``auto`` copies them on Spark."""


@dataclass(frozen=True, slots=True)
class Config:
    """The options of an upgrade.

    Attributes:
        history: write every retained version, one by one, instead of the newest only.
        definition: fields of the new lakehouse definition that differ from the source's, such as
            ``order`` or ``table_name_max_size_bytes``.
        engine: ``spark`` copies the definitions in Spark tasks, ``local`` in this process; ``auto``: on a
            large Spark on other machines.
    """

    history: bool = False
    definition: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "auto"

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)
        fields = sorted(LakehouseOptions.__annotations__)
        unknown = sorted(self.definition.keys() - {*fields})
        if unknown:
            raise InvalidInput(f"definition: unknown field {', '.join(unknown)}; the fields are {', '.join(fields)}")


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an upgrade: source versions ``first`` to ``last`` are versions 0 to ``version`` of the target."""

    source: str
    target: str
    dry_run: bool
    first: int
    last: int
    version: int | None
    versions: int
    objects: int
    definitions_copied: int
    definitions_skipped: int
    bytes_copied: int
    digest: str
    seconds: dict[str, float] = field(default_factory=dict)

    def summary(self) -> Iterator[str]:
        """Yield what the upgrade wrote, or would write."""
        if self.versions == 1:
            which = f"version {self.last}"
        else:
            which = f"versions {self.first} to {self.last}"
        what = f"{which} of {self.source}, {count(self.objects, 'object')}"
        if self.dry_run:
            yield f"{DRY_RUN}: {self.target} would hold {what}"
            return
        yield f"{self.target} holds {what}, as version {self.version}"
        yield f"{count(self.definitions_copied, 'definition')} copied, {human_bytes(self.bytes_copied)}"


def run(
    source: Lakehouse,
    target_root: str | Storage,
    config: Config | None = None,
    spark: Session = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write the newest content of ``source``, or its whole history, as a canonical lakehouse at ``target_root``.

    ``review`` is called when everything was read and checked; ``cancel`` is checked before each root is created.

    Raises:
        AlreadyExists: another lakehouse is at the target.
        InvalidName: a name does not fit into the sizes of the new definition; the message names the size to enlarge.
        InvalidInput, Corrupt, StorageError.
    """
    config = config or Config()
    source.refresh()
    target = storage_at(target_root, storage_options)
    refuse_near(target.root, source.root)
    call = (
        source,
        config,
        spark,
        review,
        cancel or NEVER_CANCELLED,
        progress or silent,
    )
    return _Upgrade(*call, target=target).run()


@dataclass(eq=False, kw_only=True)
class _Upgrade(JobRun[Config, Report]):
    target: Storage

    def __post_init__(self) -> None:
        self.source = self.lake
        config = self.config
        source = self.source
        self.definition = new_definition(source.definition, config.definition)
        self.codec = codec_of(self.definition)
        oldest = source.root_node.oldest_version
        last = source.version
        first = last
        if config.history:
            first = oldest
        self.versions: Sequence[int] = range(first, last + 1)

    def run(self) -> Report:
        existing = self.existing()
        objects = self.check_names()
        self.watch.lap("check")
        planned = Report(
            source=self.source.root,
            target=self.target.root,
            dry_run=True,
            first=self.versions[0],
            last=self.versions[-1],
            version=None,
            versions=len(self.versions),
            objects=objects,
            definitions_copied=0,
            definitions_skipped=0,
            bytes_copied=0,
            digest=self.source.digest(),
            seconds=dict.fromkeys(("check", "copy", "write"), 0.0) | self.watch.seconds,
        )
        if self.ends_with(planned):
            return planned
        copied = self.copy_definitions(objects)
        self.watch.lap("copy")
        lake = existing or self.first_version()
        for index in range(lake.version + 1, len(self.versions)):
            self.progress("write versions", index, len(self.versions))
            self.next_version(lake, self.versions[index - 1], self.versions[index])
        version = lake.refresh().version
        if Lakehouse.open(self.target).digest() != planned.digest:
            raise Corrupt("the content of the new lakehouse differs from the source's; please report this as a bug")
        self.watch.lap("write")
        return replace(
            planned,
            dry_run=False,
            version=version,
            definitions_copied=copied.copied,
            definitions_skipped=copied.skipped,
            bytes_copied=copied.bytes,
            seconds=self.watch.seconds,
        )

    def existing(self) -> Lakehouse | None:
        """Return the unfinished copy that an interrupted upgrade of the same source left at the target."""
        try:
            found = Lakehouse.open(self.target)
        except NotALakehouse:
            return None
        if found.info().operation == spec.OP_UPGRADE and found.version < len(self.versions):
            before = self.source.at(version=self.versions[found.version])
            if before.digest() == found.digest():
                return found
        raise AlreadyExists(f"{self.target.root} already holds a lakehouse, at version {found.version}")

    def check_names(self) -> int:
        """Prove that every name fits before anything is written; return the number of objects in the last version."""
        count = 0
        for version in self.versions:
            self.progress("check names", version - self.versions[0], len(self.versions))
            count = sum(len(keys) for keys, _ in self.batches(version))
        return count

    def batches(self, version: int) -> Iterator[Batch]:
        """Yield the content of a source version under the keys of the new lakehouse."""
        source = self.source.at(version=version)
        last = ""
        for keys, values in scan(source.nodes, source.root_node.node, EVERYTHING):
            new = []
            for key in keys:
                new.append(self.key(*source.codec.split(key)))
            if any(one >= two for one, two in pairwise((last, *new))):
                raise InvalidName("two names of the source become one, or change their order, in the new lakehouse")
            if new:
                last = new[-1]
            yield new, values

    def key(self, kind: str, namespace: str, name: str | None) -> str:
        try:
            return self.codec.encode(ObjectName(kind, namespace, name))
        except InvalidName as error:
            raise InvalidName(
                f"{error}; give the new lakehouse larger names, or rename the object at the source"
            ) from None

    def copy_definitions(self, objects: int) -> Copied:
        if self.spark is None:
            wanted = "local"
        else:
            wanted = self.config.engine
        engine = choose_engine(wanted, self.spark, objects, _SPARK_FROM_OBJECTS)
        try:
            return copy_all(
                engine,
                self.source.storage,
                self.target,
                self.definition_paths(),
                self.progress,
            )
        finally:
            engine.close()

    def definition_paths(self) -> Iterator[str]:
        """Yield the paths of all definitions of the versions, each once a version in which it is new."""
        for one, two in pairwise((None, *self.versions)):
            if two is None:
                continue
            if one is None:
                for _, values in self.batches(two):
                    yield from values
            else:
                for change in self.source.diff(one, two):
                    if change.new_path is not None:
                        yield change.new_path

    def first_version(self) -> Lakehouse:
        store = NodeStore(self.target, self.definition.order, self.definition.node_file_max_size_bytes)
        writer = NodeWriter(store)
        rewriter = Rewriter(writer, self.created_at(self.versions[0]))
        tree = rewriter.build(starmap(Columns.of, self.batches(self.versions[0])))
        rewriter.open(tree)
        node: Node = rewriter.node_of(tree)
        writer.flush()
        counts = CountBounds.exactly(object_counts(store, node, self.codec))
        draft = Draft(
            node=node,
            operation=spec.OP_UPGRADE,
            txn=new_id(),
            summary=self.facts(self.versions[0]),
            counts=counts,
        )
        if self.config.history:
            draft.system[spec.CREATED_AT_MILLIS] = str(self.created_at(self.versions[0]))
        self.cancel.check()
        create_first(Versions(self.target), self.definition, draft)
        return Lakehouse.open(self.target)

    def next_version(self, lake: Lakehouse, before: int, after: int) -> None:
        newest = lake.refresh().info()
        stamp = max(self.created_at(after), newest.created_at_millis + 1)
        transaction = Transaction(lake.backend, lake.root_node)
        transaction.change.operation = spec.OP_UPGRADE
        transaction.change.facts = self.facts(after)
        transaction.change.system[spec.CREATED_AT_MILLIS] = str(stamp)
        for change in self.source.diff(before, after):
            key = self.key(change.kind, change.namespace, change.name)
            transaction.put(key, change.new_path, replaces=change.old_path is not None)
        transaction.commit(allow_empty=True, before_commit=self.cancel.check)

    def created_at(self, version: int) -> int:
        return self.source.at(version=version).info().created_at_millis

    def facts(self, version: int) -> dict[str, Any]:
        info = self.source.at(version=version).info()
        return commit_summary(source=self.source.root, source_version=version, source_operation=info.operation)


def new_definition(source: LakehouseDef, changed: Mapping[str, Any]) -> LakehouseDef:
    """Return a new lakehouse definition with the fields of another one, except those that are ``changed``."""
    if source.txn_isolation_level:
        level = "SERIALIZABLE"
    else:
        level = "SNAPSHOT"
    options = {name: getattr(source, name) for name in _CARRIED}
    options["txn_isolation_level"] = level
    given = {name: value for name, value in changed.items() if value is not None}
    changed_properties = given.pop("properties", {})
    options |= given
    properties = {**source.properties, **changed_properties}
    return new_lakehouse_def(**options, properties=properties)
