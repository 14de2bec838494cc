"""The contracts of ``pipelines.job``, held against the jobs by the type checker: a job that breaks one does not pass.

The lists are for tests that hold the same jobs against what no type says.
"""

from __future__ import annotations

from typing import Any, Final

from pipelines import compaction, expiration, orphans, restore, rollback, undo
from pipelines.job import Job

CLEAN: Final[Job[orphans.Config, orphans.Report]] = orphans
EXPIRE: Final[Job[expiration.Config, expiration.Report]] = expiration
RESTORE: Final[Job[restore.Config, restore.Report]] = restore
ROLLBACK: Final[Job[rollback.Config, rollback.Report]] = rollback
UNDO: Final[Job[undo.Config, undo.Report]] = undo
COMPACT: Final[Job[compaction.Config, compaction.Report]] = compaction

REVIEWED: Final[dict[str, tuple[Job[Any, Any], Any]]] = {
    "compact": (COMPACT, compaction.Config(engine="local")),
    "clean": (CLEAN, orphans.Config(engine="local", older_than_seconds=0, allow_recent=True)),
    "expire": (EXPIRE, expiration.Config(engine="local", keep_last=2)),
    "restore": (RESTORE, restore.Config(version=2, only=("ns0.*",), reason="test", engine="local")),
    "rollback": (ROLLBACK, rollback.Config(version=2, reason="test", engine="local")),
    "undo": (UNDO, undo.Config(matching="last", reason="test", engine="local")),
}
"""Jobs, each with what it is to do in tests."""
