"""What a set of definitions is for: one lakehouse, or all of a fleet.

The same functions make both. For one lakehouse the settings are known when definitions are made; for a fleet each
lakehouse is a partition, and a run reads its settings when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import dagster as dg

from dagster_project.config.settings import LAKEHOUSE_TAG, STORAGE_TAG, LakehouseSettings
from trinitylake_core.errors import InvalidInput

AssetJob: TypeAlias = Any  # what `define_asset_job` returns has no public name
PARTITION_TAG: Final = "dagster/partition"
"""The tag that Dagster gives each run of a partition."""
FLEET: Final = "lakehouses"
FLEET_SENSOR: Final = f"{FLEET}_sensor"
LAKEHOUSES: Final = dg.DynamicPartitionsDefinition(name=FLEET)
"""One partition for each lakehouse of a fleet, added and removed by the sensor."""
AT_WORK: Final = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
PRIORITY_TAG: Final = "dagster/priority"
"""The tag by which Dagster orders its queue."""
GROUP_TAG: Final = "trinitylake/group"
"""The tag of jobs, and of their runs, with what they are for: maintenance, recovery, reading or copies."""
ABOVE_MAINTENANCE: Final = "10"
"""The priority of what a person waits for: recovery after an incident, and the page of the fleet."""
_ASSET_JOB: Final = "__ASSET_JOB"
"""The job that Dagster makes for assets that are materialised or checked without one of ours."""
_MANY: Final = 200
_RECORDS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What definitions are for.

    Attributes:
        slug: the beginning of the names of jobs, and the name of the group.
        key_prefix: the prefix of the keys of assets.
        label: what people call it.
        find: returns the settings of a lakehouse by name. Raises ``InvalidInput``.
        known: the settings of the one lakehouse; ``None`` for a fleet.
        pool: the pool that lets one run at a time write; ``None`` where runs are serialised by their tag.
        owners: who owns the assets.
        partitions: the partitions of the assets.
        tags: of runs and assets. In a fleet the run's lakehouse is in Dagster's tag of the partition.
    """

    slug: str
    key_prefix: list[str]
    label: str
    find: Callable[[str], LakehouseSettings]
    known: LakehouseSettings | None = None
    pool: str | None = None
    owners: Sequence[str] = ()
    partitions: dg.PartitionsDefinition[Any] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def settings(self, context: Any) -> LakehouseSettings:
        """Return the settings of the lakehouse that a run is for. Raises ``InvalidInput``."""
        if self.known is not None:
            return self.known
        name = context.run.tags.get(PARTITION_TAG)
        if name is None:
            raise InvalidInput("choose one partition (one lakehouse): a run works on one at a time")
        return self.find(name)

    @property
    def job_tags(self) -> dict[str, str]:
        """The tags of its jobs: those of a fleet's runs differ, and come with each request."""
        return dict(self.tags) if self.known is None else run_tags(self.known)

    def partition(self, name: str) -> str | None:
        """Return the partition of a lakehouse: its name, or ``None`` without partitions."""
        return None if self.partitions is None else name


def one(settings: LakehouseSettings) -> Scope:
    """Return the scope of one lakehouse."""
    return Scope(
        slug=settings.slug,
        key_prefix=settings.key_prefix,
        label=f"lakehouse {settings.name!r}",
        find=lambda _: settings,
        known=settings,
        pool=settings.pool,
        owners=settings.owners,
        tags={LAKEHOUSE_TAG: settings.slug},
    )


def run_tags(settings: LakehouseSettings) -> dict[str, str]:
    """Return the tags of the runs of a lakehouse: which it is, and where it is stored."""
    storage = {} if settings.storage is None else {STORAGE_TAG: settings.storage}
    return {LAKEHOUSE_TAG: settings.slug, **storage}


def every(find: Callable[[str], LakehouseSettings]) -> Scope:
    """Return the scope of a fleet."""
    label = "the lakehouse of the partition"
    return Scope(slug=FLEET, key_prefix=[FLEET], label=label, find=find, partitions=LAKEHOUSES)


def compaction_job(scope: Scope) -> str:
    """Return the name of the job that compacts a lakehouse, or one of a fleet."""
    return f"{scope.slug}_compaction"


def sensor_of(tags: Mapping[str, str]) -> str:
    """Return the name of the sensor that polls a lakehouse, by the tags of its scope or of a run on it."""
    slug = tags.get(LAKEHOUSE_TAG)
    return FLEET_SENSOR if slug is None or PARTITION_TAG in tags else f"{slug}_compaction_sensor"


def lakehouse_tags(scope: Scope, settings: LakehouseSettings) -> dict[str, str]:
    """Return the tags by which the runs of a lakehouse are found."""
    return {LAKEHOUSE_TAG: settings.slug} if scope.partitions is None else {PARTITION_TAG: settings.name}


def runs_at_work(scope: Scope, settings: LakehouseSettings, instance: dg.DagsterInstance) -> Iterator[dg.DagsterRun]:
    """Yield queued and running runs on a lakehouse, at most 200 of a kind. A query, and one more without partitions.

    Most are found by their tags, in the database. Without partitions a run that was launched from the assets has no
    tag of ours, and is found by its assets.
    """
    tags = lakehouse_tags(scope, settings)
    yield from instance.get_runs(dg.RunsFilter(statuses=AT_WORK, tags=tags), limit=_MANY)
    if scope.partitions is None:
        by_hand = dg.RunsFilter(statuses=AT_WORK, job_name=_ASSET_JOB)
        for run in instance.get_runs(by_hand, limit=_MANY):
            if any(key.has_prefix(scope.key_prefix) for key in run.asset_selection or ()):
                yield run


def last_result(
    instance: dg.DagsterInstance, asset: dg.AssetKey, check: str, partition: str | None = None
) -> bool | None:
    """Return the last result of a check, of any run: whether it passed; ``None`` if it was never evaluated."""
    last = last_evaluation(instance, asset, check, partition)
    return None if last is None else last.passed


def last_evaluation(
    instance: dg.DagsterInstance, asset: dg.AssetKey, check: str, partition: str | None = None
) -> dg.AssetCheckEvaluation | None:
    """Return the last evaluation of a check; ``None`` without one.

    The newest records may belong to runs that have only planned the check, or were cancelled before it.
    """
    cursor: int | None = None
    only: Any = None if partition is None else SimpleNamespace(key=partition)  # its class has no public name
    while True:
        records = instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(asset, check), limit=_RECORDS, cursor=cursor, partition_filter=only
        )
        for each in records:
            if isinstance(each.evaluation, dg.AssetCheckEvaluation):
                return each.evaluation
        if len(records) < _RECORDS:
            return None
        cursor = records[-1].id
