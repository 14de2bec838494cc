"""Plans as data: what a job would delete, as one Parquet file that people can read, and that the job acts on later.

Columns: ``path``, ``kind``, ``bytes``, ``modified_millis``, ``reason``. The file's metadata key
``trinitylake.plan`` holds a JSON object: which lakehouse, which version, which boundary, when, how old.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyarrow import parquet

from pipelines.engine.model import LONG, TEXT
from pipelines.job import Review, dry_run
from pipelines.reach.kept_roots import GcRoots
from pipelines.reach.listing import Listed, listed_file, split_uri
from trinitylake_core import clock
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.errors import FileMissing, InvalidInput, PlanOutdated
from trinitylake_core.storage import Options, Storage, open_storage, options_for, same_place
from trinitylake_core.versions import Root

R = TypeVar("R")
_METADATA: Final = b"trinitylake.plan"
TABLE: Final = "planned table"
"""The kind of a row that names a table that the plan was made for: an object as JSON. No file is of this kind."""
_FORMAT: Final = 1
_ROWS: Final = 50_000
_SCHEMA: Final = pa.schema({"path": TEXT, "kind": TEXT, "bytes": LONG, "modified_millis": LONG, "reason": TEXT})


@dataclass(frozen=True, slots=True)
class Header:
    """What a plan was made for.

    Attributes:
        job: ``clean`` or ``expire``.
        root: the root URI.
        lakehouse_id: the ID in the lakehouse definition.
        version: the newest version then.
        txn: the transaction that made it: the same number in another history is another version.
        boundary: the boundary then.
        created_at_millis: when the plan was made.
        safety_age_seconds: how old a file had to be (``clean``).
        oldest_version: the boundary that the plan makes (``expire``).
        files: the number of rows.
        bytes: the sum of their sizes.
    """

    job: str
    root: str
    lakehouse_id: str
    version: int
    txn: str
    boundary: int
    created_at_millis: int
    safety_age_seconds: float
    oldest_version: int
    files: int
    bytes: int
    format: int = _FORMAT


class PlanRow(NamedTuple):
    """One file to delete, and why."""

    file: Listed
    reason: str


@dataclass(frozen=True, kw_only=True)
class PlannedConfig:
    """The options of every job whose plan can be stored.

    Attributes:
        plan_to: URI to write the plan to, before it is reviewed; without a review nothing is done.
        plan: URI of a plan to carry out, if it still holds: exactly that.
        plan_options: storage options for these, and for an inventory; by default those of the lakehouse that apply.
        now_millis: the time, for tests.
        reason: why, for the history.
    """

    as_it_is: ClassVar[str] = "--plan cannot be combined with a PATTERN, --dry-run or --plan-to"
    """What is said where a plan is given beside something else."""
    plan_to: str | None = None
    plan: str | None = None
    plan_options: Mapping[str, Any] | None = field(default=None, repr=False)
    now_millis: int | None = None
    reason: str | None = None

    def now(self) -> int:
        """Return the time."""
        return clock.now_millis() if self.now_millis is None else self.now_millis


def refuse_beside_plan(config: PlannedConfig, *options: object) -> None:
    """Raise ``InvalidInput`` where one of some options is given beside a plan, which is carried out as it is."""
    is_given = any(each is not None for each in (config.plan_to, *options))
    if config.plan is not None and is_given:
        raise InvalidInput(config.as_it_is)


def review_of(config: PlannedConfig, review: Review[R] | None) -> Review[R] | None:
    """Return the review of a job that has plans: one that writes a plan, and has no review, is a dry run.

    Raises ``InvalidInput``: a plan is carried out as it is, so that it cannot be a dry run.
    """
    if config.plan is not None and review is dry_run:
        raise InvalidInput(config.as_it_is)
    return dry_run if config.plan_to is not None and review is None else review


def options_of(uri: str | None, given: Options | None, storage: Storage) -> dict[str, Any]:
    """Return the storage options for a plan or an inventory: those given, else those of the lakehouse that apply."""
    return dict(given) if given is not None else options_for(uri or storage.root, *storage.spec())


def header(
    job: str,
    backend: LakehouseBackend,
    retained: GcRoots,
    total: tuple[int, int],
    *,
    age: float = 0.0,
    oldest_version: int = 0,
) -> Header:
    """Return the header of a plan made now."""
    newest, root = retained.newest, backend.storage.root
    made_for = (job, root, retained.definition.id, newest.version, newest.txn or "", retained.boundary)
    return Header(*made_for, clock.now_millis(), age, oldest_version, *total)


def write(uri: str, options: Options, head: Header, rows: Iterable[PlanRow]) -> None:
    """Write a plan; an older one of this name is replaced. One ``put``. Memory: the compressed file."""
    above, name = split_uri(uri)
    described = json.dumps(asdict(head)).encode()
    schema = _SCHEMA.with_metadata({_METADATA: described})
    remaining = ({**row.file._asdict(), "reason": row.reason} for row in rows)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "plan.parquet"
        with parquet.ParquetWriter(path, schema) as writer:
            while some := list(islice(remaining, _ROWS)):
                table = pa.Table.from_pylist(some, schema=schema)
                writer.write_table(table)
        data = path.read_bytes()
    open_storage(above, options).replace(name, data)


class StoredPlan:
    """A plan as read back: its header, and its files."""

    def __init__(self, uri: str, options: Options) -> None:
        above, name = split_uri(uri)
        try:
            data = open_storage(above, options).read(name)
        except FileMissing:
            raise InvalidInput(f"there is no plan at {uri}") from None
        try:
            self._file = parquet.ParquetFile(pa.BufferReader(data))
            head = json.loads((self._file.schema_arrow.metadata or {})[_METADATA])
            self.header = Header(**{each.name: head[each.name] for each in fields(Header)})
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{uri} is not a plan: {error}") from None
        if self.header.format != _FORMAT or self._file.metadata.num_rows != self.header.files:
            raise InvalidInput(f"the plan {uri} is incomplete, or was made by another release; make a new one")

    def names_of_kind(self, kind: str) -> Iterator[str]:
        """Yield what the rows of a kind name, as it was written."""
        for batch in self._file.iter_batches(_ROWS, columns=["path", "kind"]):
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            yield from (path for path, each in rows if each == kind)

    def files(self) -> Iterator[Listed]:
        """Yield the files to delete; their names decide of which kind they are, not the plan. Tables are left out."""
        for batch in self._file.iter_batches(_ROWS, columns=["kind", "path", "bytes", "modified_millis"]):
            for kind, *row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if kind != TABLE:
                    yield listed_file(*row)


def refuse_other(head: Header, job: str, backend: LakehouseBackend, retained: GcRoots) -> None:
    """Refuse a plan of another job or lakehouse, or one made for a history that is no longer there.

    Raises:
        InvalidInput: it is a plan of another job or lakehouse.
        PlanOutdated: the lakehouse was replaced or restored since, or its boundary was lowered.
    """
    if head.job != job:
        raise InvalidInput(f"this is a plan of `{head.job}`, not of `{job}`")
    is_same = head.lakehouse_id == retained.definition.id and same_place(head.root, backend.storage.root)
    if not is_same:
        raise InvalidInput(f"this plan was made for another lakehouse, {head.root} with ID {head.lakehouse_id}")
    newest = retained.newest
    if newest.version < head.version or retained.boundary < head.boundary:
        raise PlanOutdated(
            f"the plan was made at version {head.version}, boundary {head.boundary}, and the lakehouse is back at "
            f"version {newest.version}, boundary {retained.boundary}; make a new plan"
        )
    if head.version >= retained.boundary:
        root: Root | None = newest
        if head.version != newest.version:
            root = backend.versions.try_root(head.version)
        if root is None or (root.txn or "") != head.txn:
            raise PlanOutdated(f"version {head.version} is not the one that the plan was made at; make a new plan")
