"""Proving what comes back before it becomes the newest again.

By default the definitions among the changes are proved here, and the nodes by the comparison that finds the changes.
With `--verify all` the whole target is: the walk of `verify` with definitions, which stops after the first few
findings. The caller has read the root, which is not read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from pipelines.engine import Engine
from pipelines.engine.local import LocalEngine
from pipelines.engine_choice import choose_engine
from pipelines.integrity.checks import Checks, Shape
from pipelines.integrity.examine import Examiner, row_of_root
from pipelines.integrity.findings import DEFINITIONS, Found
from pipelines.integrity.version_content import GatheredContent, prove_definitions
from pipelines.job import Meter, Progress, Session, silent
from pipelines.tables.files import TABLES, TABLES_UNKNOWN
from trinitylake_core import Change, Violation
from trinitylake_core.check import check_tree, read_head
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.keys import label
from trinitylake_core.versions import Root

SHOWN: Final = 10
"""After so many findings a pre-flight ends."""


@dataclass(slots=True)
class Checked:
    """What a pre-flight read."""

    engine: Engine = field(default_factory=LocalEngine)
    nodes: int = 0
    definitions: int = 0
    bytes: int = 0
    tables: int = 0
    tables_unknown: int = 0


@dataclass(slots=True)
class Preflight:
    """A pre-flight for :meth:`Lakehouse.rollback`; afterwards ``checked`` contains what it read.

    Attributes:
        spark: a session, or a function that returns one.
        files: of the lakehouse.
        engine: ``spark``, ``local`` or ``auto``: Spark on other machines from ``spark_from_files``
            files on.
        tables: the share of the Iceberg tables whose metadata file must exist, too; ``None``: none.
    """

    spark: Session
    backend: LakehouseBackend
    engine: str
    spark_from_files: int
    progress: Progress = silent
    checked: Checked = field(default_factory=Checked)
    tables: float | None = None

    def __call__(self, target: Root) -> Iterable[Violation]:
        """Return the first few findings in a version. One ``get`` per node and definition."""
        meter, found, version = Meter(self.backend.storage), Found(SHOWN, stop=True), target.version
        head = read_head(self.backend.versions, target.path, lambda: target)
        if isinstance(head, Violation):
            found.add(head, version)
        definition = self.backend.definition(target)
        shape = Shape.of(definition)
        if target.node.canonical and target.node.height is not None:
            files = (target.node.subtree_keys or 0) + 1
            self.checked.engine = choose_engine(self.engine, self.spark, files, self.spark_from_files)
            self._walk(target, shape, found)
        else:  # written by an older generation: there are no levels to go down, and the engine is this process
            for each in islice(check_tree(self.backend.versions, target, definition, definitions=True), SHOWN):
                found.add(each, version)
        self._sum_up(meter)
        return found.violations()

    def _walk(self, target: Root, shape: Shape, found: Found) -> None:
        content = GatheredContent(
            shape.codec, version=target.version, read_definitions=True, root=target, tables=self.tables
        )
        examiner = Examiner(shape.order, shape.codec, target.version)
        root = examiner.examine(row_of_root(target.path, target.version, target.version), target.node)
        checks = Checks(self.checked.engine, self.backend.storage, shape, found, self.progress)
        self.checked.nodes, elsewhere = checks.nodes([], content, visited=[root])
        self.checked.bytes += elsewhere
        self.checked.definitions = found.counts[DEFINITIONS]
        self._count_tables(found)

    def definitions(self, changes: Sequence[Change]) -> Iterable[Violation]:
        """Return the first few findings in the definitions that changes restore. One ``get`` each; may be called again.

        What is not wrong is read to the end.
        """
        meter, found = Meter(self.backend.storage), Found(SHOWN, stop=True)
        self.checked.engine = choose_engine(self.engine, self.spark, len(changes), self.spark_from_files)
        named = [(each.kind, label(each.namespace, each.name), each.new_path or "") for each in changes]
        with closing(self.checked.engine) as engine:
            nbytes = prove_definitions(engine, self.backend.storage, named, found, 0, self.tables)
        self.checked.bytes += self.checked.engine.not_counted(nbytes)
        self.checked.definitions += len(named)
        self.progress(DEFINITIONS, self.checked.definitions, None)
        self._count_tables(found)
        self._sum_up(meter)
        return found.violations()

    def _count_tables(self, found: Found) -> None:
        self.checked.tables += found.counts[TABLES]
        self.checked.tables_unknown += found.counts[TABLES_UNKNOWN]

    def _sum_up(self, meter: Meter) -> None:
        self.checked.bytes += sum(spent.bytes_read for spent in meter.spent())
