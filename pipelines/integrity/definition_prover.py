"""Proving the definitions that a rollback or a restore brings back, in this process or in tasks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

from pipelines.engine import Engine
from pipelines.engine.choice import choose_engine
from pipelines.engine.local import LocalEngine
from pipelines.integrity.findings import DEFINITIONS, Found
from pipelines.integrity.version_content import prove_definitions
from pipelines.job import Meter, Progress, Session
from pipelines.reach.table_files import TABLES, TABLES_UNKNOWN
from trinitylake_core import Change, RecoveryPlan, Violation
from trinitylake_core.keys import label
from trinitylake_core.storage import Storage

SHOWN: Final = 10
"""After so many findings a proof ends."""


class DefinitionProver:
    """Proves definitions, and counts what it read for that.

    Args:
        storage: of the lakehouse that the definitions are of.
        spark: a session, or a function that returns one.
        engine: ``spark``, ``local`` or ``auto``: Spark on other machines from ``spark_from_files`` definitions on.
        spark_from_files: where ``auto`` changes from this process to Spark.
        tables: the share of the Iceberg tables whose metadata file must exist, too; ``None``: none.
        progress: called with the number of definitions proved.

    Attributes:
        engine: the engine that the last ones were proved on.
        definitions: how many were proved; ``tables`` of them are of Iceberg tables whose metadata file exists, and
            ``tables_unknown`` of those for which this cannot be told from here.
        bytes: how many were read.
        requests_in_tasks: about how many requests tasks made, which the storage here did not count.
    """

    def __init__(
        self,
        storage: Storage,
        spark: Session,
        engine: str,
        spark_from_files: int,
        *,
        tables: float | None,
        progress: Progress,
    ) -> None:
        self.engine: Engine = LocalEngine()
        self.definitions = 0
        self.tables = 0
        self.tables_unknown = 0
        self.bytes = 0
        self.requests_in_tasks = 0
        self._storage = storage
        self._spark = spark
        self._wanted_engine = engine
        self._spark_from_files = spark_from_files
        self._share_of_tables = tables
        self._progress = progress

    def find_damaged(self, changes: Sequence[Change]) -> list[Violation]:
        """Return the first few findings in the definitions that changes bring back. One ``get`` each."""
        named = []
        for change in changes:
            name = label(change.namespace, change.name)
            named.append((change.kind, name, change.new_path or ""))
        found = Found(SHOWN)
        meter = Meter(self._storage)
        self.definitions += len(named)  # the choice is made for the parts of a recovery together
        self.engine = choose_engine(self._wanted_engine, self._spark, self.definitions, self._spark_from_files)
        with closing(self.engine) as engine:
            read_in_tasks = prove_definitions(
                engine,
                self._storage,
                named,
                found,
                self._share_of_tables,
            )
        self.bytes += self.engine.not_counted(read_in_tasks)
        self.bytes += sum(spent.bytes_read for spent in meter.list_spent())
        self.requests_in_tasks += self.engine.not_counted(len(named) + found.counts[TABLES])
        self.tables += found.counts[TABLES]
        self.tables_unknown += found.counts[TABLES_UNKNOWN]
        self._progress(DEFINITIONS, self.definitions, None)
        return list(found.violations())

    def figures_of(self, plan: RecoveryPlan) -> dict[str, Any]:
        """Return what the report of a recovery has of its plan, and of what was proved for it."""
        return {
            "plan": plan,
            "version_before": plan.version,
            "version_after": plan.version_after,
            "engine": self.engine.name,
            "definitions_checked": self.definitions,
            "bytes_read": self.bytes,
            "tables_checked": self.tables,
            "tables_unknown": self.tables_unknown,
        }
