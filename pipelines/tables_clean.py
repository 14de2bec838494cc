"""Cleaning the files of Iceberg tables (``tables clean``): list, mark, minus, act, as ``clean`` does for nodes.

A file of the area (``tables/``) goes if no retained version, snapshot or live saved transaction names metadata that
refer to it, and if it is old enough. Every later commit reads it in the fence: the catalog asks the storage for the
times of the files that a commit adds (``trinitylake_core.iceberg.commit_rules.added``). Rollbacks take over metadata
that is marked.

Nothing is deleted from the directory of a table in doubt: two tables in one directory, an EXTERNAL table. Nothing at
all is deleted where metadata or a manifest of a retained version is missing or cannot be read: it may name any file.
A node or definition that cannot be read stops the whole cleaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, cast

from pipelines import clean
from pipelines.clean import SAFETY_AGE_SECONDS
from pipelines.job import NEVER_CANCELLED, Cancel, Progress, Review, Session, silent
from pipelines.reach import plans
from pipelines.reach.kept_roots import GcRoots, SavedTransactions
from pipelines.reach.listing import Listed, everything, label_of_directory
from pipelines.reach.sweep import Size, Totals
from pipelines.reach.table_files import refuse_no_iceberg
from pipelines.reach.table_sweep import Doubt, TableSweep
from pipelines.reports.summary import Table, count, utc
from pipelines.tables.compact.hold import held_since
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput, PlanOutdated
from trinitylake_core.recovery.patterns import Pattern
from trinitylake_core.tables import base_uri, full_uri

__all__ = ["SAFETY_AGE_SECONDS", "Config", "Report", "run"]
_SHOWN: Final = 5
"""How many doubts the sentence names."""


@dataclass(frozen=True, slots=True)
class Config(clean.Config):
    """How to clean; without an inventory.

    Attributes:
        pattern: only directories that were made for tables of these names: ``sales.*``.
        apart: directories, as URIs or paths below the root, in which the metadata of tables lie that share no file
            with other tables, by the word of the operator. If they cannot be read, other directories are cleaned all
            the same; if that word is wrong, files that these tables need are deleted.
    """

    pattern: str | None = None
    apart: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        clean.Config.__post_init__(self)
        if not all(self.apart):
            raise InvalidInput("a table that shares no file with others is named by the directory of its metadata")
        if self.inventory is not None:
            raise InvalidInput("the files of tables are listed, not taken from an inventory")


@dataclass(frozen=True, slots=True)
class Report(clean.Report):
    """What a cleaning of tables did, or on a dry run would do; the figures of ``clean.Report`` are those of the area.

    Attributes:
        files_read: how many distinct definitions, metadata files, manifest lists and manifests were read to mark.
        doubts: the directories that were left alone, each with its table and the reason.
        held_since_millis: younger files stay because of a compaction of tables that is under way, or has died; ``None``
            without one.
    """

    files_read: dict[str, int] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    held_since_millis: int | None = None

    def summary(self) -> Iterator[str]:
        """Yield what was deleted, or would be, and what was left alone."""
        yield from clean.Report.summary(self)
        if self.young.files and self.held_since_millis is not None:
            yield (
                f"a compaction of tables is under way, or died and is waited for until txn_ttl_millis have passed: "
                f"files since {utc(datetime.fromtimestamp(self.held_since_millis / 1000, UTC))} stay"
            )
        wanted = [each for each in self.doubts if each.is_wanted]
        others = [each for each in self.doubts if not each.is_wanted]
        if wanted:
            yield f"left alone, by wish of its owner ({count(len(wanted), 'finding')}): {_describe(wanted)}"
        if others:
            yield f"left alone, because of a doubt ({count(len(others), 'finding')}): {_describe(others)}"
            yield "roll back or restore what is missing, or drop the table; its files go with the versions that name it"
        if any(each.stops_all for each in others):
            yield (
                "nothing at all was deleted: what cannot be read may name any file below tables/. If these tables "
                "share no file with others, say so (--apart)"
            )

    def summary_tables(self) -> Iterator[Table]:
        """Yield the orphans by kind, the doubts, and what could not be deleted."""
        yield from clean.Report.summary_tables(self)
        rows = [[each.table, each.directory, each.reason] for each in self.doubts]
        yield Table("doubts", ("table", "directory", "reason"), rows, detail=True)


def run(
    lake: Lakehouse,
    config: Config | None = None,
    spark: Session = None,
    *,
    review: Review[clean.Report] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
) -> Report:
    """Remove the files of tables that nothing retained needs.

    Costs a listing of the area and one of the lakehouse, one ``get`` for each distinct node, definition of a table,
    metadata file, manifest list and manifest of all kept versions together, and one ``put`` and ``head`` for the
    storage's time. With orphans another listing of both, a commit, and one ``delete`` for a thousand of them.

    The arguments are those of every job (:mod:`pipelines.job`), and:
        review: called with what would be removed; ``False`` removes nothing.
        cancel: checked before the fence is committed, and before anything is deleted.

    Raises:
        InvalidInput: PyIceberg is not installed, or an inventory was given.
        Refused, PlanOutdated, CommitConflict, Corrupt, ReadOnly, StorageError: as ``clean.run``.
    """
    refuse_no_iceberg()
    cleaning = TablesCleaning(lake, config or Config(), spark, review, cancel or NEVER_CANCELLED, progress or silent)
    return cast("Report", cleaning.run())


class TablesCleaning(clean.Cleaning):
    """One cleaning of the files of tables."""

    job = "tables clean"
    of_tables = True
    sweep: TableSweep
    held_since_millis: int | None = None

    def new_sweep(self) -> TableSweep:
        """Return an empty sweep over the directories of the wanted tables."""
        config, root = cast("Config", self.config), self.backend.storage.root
        if config.pattern is None:
            wanted = everything
        else:
            wanted = partial(_matches, Pattern(config.pattern))
        apart = [_directory_uri(root, each) for each in config.apart]
        return TableSweep(self.engine, self.backend.storage, self.definition.order, self.progress, wanted, apart)

    def hold_back(self, cutoff: int, saved: SavedTransactions) -> int:
        """Return a time before the oldest compaction of tables that is under way: no metadata names its files yet.

        So it is not refused after hours of work. One that begins after the listing is younger than the time that the
        listing began at, and so are its files.
        """
        since = held_since(self.backend.storage, sorted(saved.paths))
        self.held_since_millis = since if since is not None and since < cutoff else None
        return cutoff if self.held_since_millis is None else self.held_since_millis

    def report_listed(self, listed: Size, marked: GcRoots, saved: SavedTransactions, totals: Totals) -> Report:
        """Return a report of the files that were listed."""
        found = super().report_listed(listed, marked, saved, totals)
        known = {each.name: getattr(found, each.name) for each in fields(found)}
        return Report(**known | {"held_since_millis": self.held_since_millis})

    def planned_tables(self) -> list[plans.PlanRow]:
        """Return a row for each directory with orphans that tables claim: their names, UUIDs and metadata files."""
        reason = "the plan is for these tables as they are here"
        rows: list[plans.PlanRow] = []
        for directory, owners in self.sweep.owners().items():
            text = json.dumps({"directory": directory, "tables": owners})
            rows.append(plans.PlanRow(Listed(text, 0, None, plans.TABLE, None), reason))
        return rows

    def take_from_plan(self, plan: plans.StoredPlan, marked: GcRoots, cutoff: int) -> tuple[Totals, int]:
        """Take the files of a plan, if the tables in whose directories they lie are still those that it was made for.

        Raises:
            InvalidInput, PlanOutdated: as ``clean`` does; and the directory of a file belongs to another table now.
        """
        agreed = super().take_from_plan(plan, marked, cutoff)
        planned = dict(map(_planned_owners, plan.names_of_kind(plans.TABLE)))
        for directory, owners in self.sweep.owners().items():
            before = planned.get(directory, set())
            known = {owner[:2] for owner in before}
            is_other = any(owner[:2] not in known for owner in owners) or before.isdisjoint(owners)
            if is_other:
                raise PlanOutdated(
                    f"{directory} does not belong any more to the table that the plan was made for, or all versions of "
                    "it are others by now; nothing was deleted, make a new plan"
                )
        return agreed

    def with_costs(self, found: clean.Report) -> clean.Report:
        """Return a report with what it has cost so far, and with what is in doubt."""
        read, doubts = dict(self.sweep.read), tuple(self.sweep.doubts)
        return replace(cast("Report", super().with_costs(found)), files_read=read, doubts=doubts)


def _describe(doubts: Sequence[Doubt]) -> str:
    return "; ".join(f"{each.directory or each.table}: {each.reason}" for each in doubts[:_SHOWN])


def _planned_owners(text: str) -> tuple[str, set[tuple[str, str, str]]]:
    """Return a directory and its tables, of a row of a plan. Raises ``InvalidInput``."""
    try:
        row = json.loads(text)
        return str(row["directory"]), {(str(name), str(uuid), str(path)) for name, uuid, path in row["tables"]}
    except (ValueError, KeyError, TypeError):
        raise InvalidInput("the plan names a table in an unknown way; make a new plan") from None


def _directory_uri(root: str, directory: str) -> str:
    """Return the URI of a directory that is given as one, or as a path below the root."""
    uri = full_uri(directory) if "://" in directory or directory.startswith("/") else f"{base_uri(root)}{directory}"
    return f"{uri.rstrip('/')}/"


def _matches(pattern: Pattern, directory: str) -> bool:
    """Whether a table had this name when its directory was made; other characters than those of a path are ``_``."""
    namespace, _, name = label_of_directory(directory).rpartition(".")
    return pattern.matches(namespace, name)
