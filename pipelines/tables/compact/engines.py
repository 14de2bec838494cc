"""The choice of the engine, table by table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pipelines.job import Cancel, Session
from pipelines.tables.compact.local import LocalRewriter
from pipelines.tables.compact.model import (
    UNSUPPORTED,
    Outcome,
    PlannedGroup,
    PlannedTable,
    Settings,
    TableEngine,
    join_outcomes,
)
from pipelines.tables.compact.spark import SparkRewriter
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput

LOCAL: Final = "local"
SPARK: Final = "spark"


class Engines:
    """The engines of one run: that of this process, and Spark, which is started only if a table needs it.

    Attributes:
        default: the name of the engine that is asked first.
    """

    def __init__(self, lake: Lakehouse, engine: str, settings: Settings, spark: Session, cancel: Cancel) -> None:
        """Raise ``InvalidInput`` if an engine was asked for that is not there."""
        self._engines: list[TableEngine] = []
        if engine != SPARK:
            self._engines.append(LocalRewriter(lake, settings, cancel))
        if engine != LOCAL:
            by_spark = SparkRewriter(lake, settings, spark, cancel)
            missing = by_spark.what_is_missing()
            if engine == SPARK and missing is not None:
                raise InvalidInput(f"tables cannot be compacted by engine 'spark': {missing}")
            self._engines.append(by_spark)
        self.default = self._engines[0].name

    @property
    def versions(self) -> int:
        """How many versions they have committed."""
        return sum(each.versions for each in self._engines)

    def why_not(self, table: PlannedTable) -> str | None:
        """Return why no engine can rewrite a table as planned; ``None`` if one can. Starts nothing."""
        reasons = [each.why_not(table) for each in self._engines]
        if None in reasons:
            return None
        return "; ".join(filter(None, reasons))

    def able_part(self, table: PlannedTable) -> tuple[PlannedTable | None, str | None]:
        """Return a table with the partitions that one engine can rewrite, and why others are left.

        All of them, and ``None``, where an engine can rewrite the whole table; ``None`` where none can rewrite any.
        Starts nothing.
        """
        why = self.why_not(table)
        if why is None:
            return table, None
        if table.manifests and table.groups and self.why_not(replace(table, manifests=0)) is None:
            return replace(table, manifests=0), why
        for engine in self._engines:
            able: list[PlannedGroup] = []
            left: list[PlannedGroup] = []
            for group in table.groups:
                if engine.why_not(replace(table, groups=(group,))) is None:
                    able.append(group)
                else:
                    left.append(group)
            merges = table.manifests > 0 and engine.why_not(replace(table, groups=())) is None
            if able or merges:
                # One is left: an engine that refuses the table, and not every partition, refuses it for one of them.
                reason = self.why_not(replace(table, groups=(left[0],)))
                shown = f"{len(left):,} of {len(table.groups):,} partitions are left, one with {left[0].paths[0]}"
                why = f"{shown}: {reason}"
                return replace(table, groups=tuple(able)), why
        return None, why

    def of(self, table: PlannedTable) -> TableEngine:
        """Return the engine of a table: the first that can. REQUIRES: one can."""
        return next(each for each in self._engines if each.why_not(table) is None)

    def rewrite(self, tables: Sequence[PlannedTable]) -> Iterator[Outcome]:
        """Have each table rewritten by its engine; yield what became of it. Raises as ``TableEngine.rewrite``.

        What an engine leaves, as it sees when it reads the files, goes to the next one that can.
        """
        begun: dict[str, Outcome] = {}
        handed: list[PlannedTable] = []
        for engine in self._engines:
            own = [each for each in tables if self.of(each) is engine] + handed
            handed = []
            for outcome in engine.rewrite(own):
                left = engine.left.pop(outcome.table, None)
                reasons: list[str | None] = []
                if left is not None and outcome.outcome == UNSUPPORTED:
                    reasons = self._why_not_after(engine, left)
                if left is not None and None in reasons:
                    handed.append(left)
                    begun[outcome.table] = outcome
                else:
                    why = "; ".join(filter(None, [outcome.reason, *reasons]))
                    yield join_outcomes(begun.get(outcome.table), replace(outcome, reason=why))

    def _why_not_after(self, engine: TableEngine, left: PlannedTable) -> list[str | None]:
        """Return why each engine after one cannot rewrite what that has left; ``None``: it can."""
        after = self._engines.index(engine) + 1
        return [each.why_not(left) for each in self._engines[after:]]

    def close(self) -> None:
        """Give back what the engines hold."""
        for each in self._engines:
            each.close()
