"""Registration of another Iceberg catalog: its namespaces and tables in a lakehouse, as one version.

Any catalog that PyIceberg opens: SQL, REST, Glue, Hive, or another lakehouse. The tables stay where they are, and the
other catalog goes on; repeated, what changed there since follows. PyIceberg is needed for nothing else here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pipelines.job import NEVER_CANCELLED, Cancel, Progress, Review, Stopwatch
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput
from trinitylake_core.extras import install_command

if TYPE_CHECKING:
    from trinitylake_core.iceberg.registration import Registered

SCHEME: Final = "iceberg:"
"""``iceberg:NAME`` stands for the catalog that PyIceberg knows by this name."""


@dataclass(frozen=True, slots=True)
class Config:
    """What to register, and how.

    Attributes:
        catalog: the name of the other catalog, as in ``~/.pyiceberg.yaml``.
        properties: its properties, as PyIceberg takes them: ``uri``, ``type``, ``warehouse``, credentials.
        existing: what becomes of another table of the same name that is here: ``refuse``, ``skip`` or ``replace``.
        reason: why, for the history.
    """

    catalog: str
    properties: Mapping[str, str] = field(default_factory=dict)
    existing: str = "refuse"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What was registered, or would be, and how long it took."""

    root: str
    registered: Registered
    seconds: dict[str, float]


def run(
    lake: Lakehouse,
    config: Config,
    *,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
) -> Report:
    """Register another catalog; the handle moves to the newest version.

    Costs and raises what ``trinitylake_core.iceberg.registration.register_all`` does, and ``InvalidInput`` where
    PyIceberg is not installed or cannot open the catalog.
    """
    try:
        from trinitylake_core.iceberg.registration import open_catalog, register_all
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"{error.name} is not installed: {install_command('iceberg')}, and what the catalog needs"
        ) from error
    watch = Stopwatch()

    def review_registered(registered: Registered) -> bool:
        if review is None:
            return True
        report = Report(lake.root, registered, dict(watch.seconds))
        return review(report)

    with open_catalog(config.catalog, config.properties) as source:
        done = register_all(
            lake,
            source,
            existing=config.existing,
            reason=config.reason,
            review=None if review is None else review_registered,
            progress=progress,
            before_commit=(cancel or NEVER_CANCELLED).check,
        )
    watch.lap("all")
    return Report(lake.root, done, watch.seconds)
