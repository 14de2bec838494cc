"""The engine ``auto`` where work can change hands: begun in this process, finished on Spark if that has shown to pay.

Nobody knows beforehand what a node costs on this machine and this storage. So the work begins here. When it has taken
as long as starting Spark would, and would, as fast as it went so far, take twice as long again, what nobody has begun
is handed to Spark. A Spark on this machine has no more cores than this process and its helpers, and is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipelines.session import on_other_machines

if TYPE_CHECKING:
    from pipelines.job import Session

START_SECONDS: Final = 5.0
"""What starting Spark takes, its Python workers included: 4 to 6 s."""
TASKS: Final = 16
"""For so many tasks the work is cut: what is under way when it changes hands is finished here."""


def may_move(engine: str, spark: Session) -> bool:
    """Return whether work that is begun here may be finished on Spark."""
    return engine == "auto" and on_other_machines(spark)


def is_enough(taken: float, rest: float) -> bool:
    """Return whether work that took so many seconds, and would take so many more, is to be handed to Spark."""
    return taken >= START_SECONDS and rest >= 2 * START_SECONDS
