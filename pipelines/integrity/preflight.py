"""Proving that a version is intact before it becomes the newest again: every node, every definition, by name.

On Spark level by level, so that nothing of the size of the lakehouse is on the driver; in this process
through the checker of the core. Both read each node and each definition file once, and find the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from pipelines.integrity.preflight_spark import SHOWN, Checked, check_on_spark, definitions_on_spark, in_parts
from pipelines.job import Progress, Session, engine_for, silent, started
from trinitylake_core import Change, Violation
from trinitylake_core.check import TreeCheck, check_definitions
from trinitylake_core.commit import Files
from trinitylake_core.recovery import check_lakehouse_definition
from trinitylake_core.versions import Root


@dataclass(slots=True)
class Preflight:
    """A pre-flight for :meth:`Lakehouse.rollback`; afterwards ``checked`` tells what it read.

    Attributes:
        spark: a session, or a function that returns one.
        files: of the lakehouse.
        engine: ``spark``, ``local`` or ``auto``: Spark from ``spark_from_files`` files on.
    """

    spark: Session
    files: Files
    engine: str
    spark_from_files: int
    progress: Progress = silent
    checked: Checked = field(default_factory=Checked)

    def __call__(self, target: Root) -> Iterable[Violation]:
        """Yield what is wrong with a version, at least the first few findings."""
        before = self.files.storage.counts.snapshot()
        wanted = engine_for(self.engine, (target.node.subtree_keys or 0) + 1, self.spark_from_files)
        self.checked.engine = wanted
        found = list(islice(check_lakehouse_definition(self.files.versions, target), SHOWN))
        if wanted == "local":
            check = TreeCheck(self.files.storage, self.files.definition(target), definitions=True)
            read = self.files.storage.counts.get
            found += islice(check.run(target), SHOWN)
            self.checked.definitions = check.definitions_read
            self.checked.nodes = max(0, self.files.storage.counts.get - read - check.definitions_read)
        else:
            found += check_on_spark(started(self.spark), self.files, target, self.checked, self.progress)
        spent = self.files.storage.counts - before
        self.checked.requests += spent.requests()
        self.checked.bytes += spent.bytes_read
        return found

    def definitions(self, changes: Sequence[Change]) -> Iterable[Violation]:
        """Yield what is wrong with the definitions that changes bring back, at least the first few findings."""
        before = self.files.storage.counts.snapshot()
        self.checked.engine = engine_for(self.engine, len(changes), self.spark_from_files)
        named = [(each.kind, _label(each), each.new_path or "") for each in changes]
        if self.checked.engine == "local" or not named:
            found = [each for part in in_parts(named) for each in check_definitions(self.files.storage, part)]
        else:
            found = definitions_on_spark(started(self.spark), self.files, named, self.checked)
        self.checked.definitions = len(named)
        spent = self.files.storage.counts - before
        self.checked.requests += spent.requests()
        self.checked.bytes += spent.bytes_read
        return found[:SHOWN]


def _label(change: Change) -> str:
    return change.namespace if change.name is None else f"{change.namespace}.{change.name}"
