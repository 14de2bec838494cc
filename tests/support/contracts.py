"""The contracts of ``pipelines.job``, held against the jobs by the type checker: a job that breaks one does not pass.

The lists are for tests that hold the same jobs against what no type says.
"""

from __future__ import annotations

from typing import Any, Final

from pipelines import compaction, expiration, orphans, restore, rollback, undo
from pipelines.job import Estimated, Job, Planned

CLEAN: Final[Planned[orphans.Config, orphans.Report]] = orphans
EXPIRE: Final[Planned[expiration.Config, expiration.Report]] = expiration
RESTORE: Final[Planned[restore.Config, restore.Report]] = restore
ROLLBACK: Final[Planned[rollback.Config, rollback.Report]] = rollback
UNDO: Final[Planned[undo.Config, undo.Report]] = undo
COMPACT: Final[Estimated[compaction.Config, compaction.Plan]] = compaction
COMPACTS: Final[Job[compaction.Config, compaction.Report]] = compaction

PLANNED: Final[dict[str, tuple[Planned[Any, Any], Any]]] = {
    "clean": (CLEAN, orphans.Config(engine="local", older_than_seconds=0, allow_recent=True)),
    "expire": (EXPIRE, expiration.Config(engine="local", keep_last=2)),
    "restore": (RESTORE, restore.Config(version=2, only=("ns0.*",), reason="test", engine="local")),
    "rollback": (ROLLBACK, rollback.Config(version=2, reason="test", engine="local")),
    "undo": (UNDO, undo.Config(matching="last", reason="test", engine="local")),
}
"""Jobs whose plan is the report of a dry run, each with what it is asked for in tests."""
