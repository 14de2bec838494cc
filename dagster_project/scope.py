"""What a set of definitions is for: one lakehouse, or all of a fleet.

The same functions make both. For one lakehouse the settings are known when definitions are made; for a fleet each
lakehouse is a partition, and a run looks its settings up when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import dagster as dg

from dagster_project.config.settings import LAKEHOUSE_TAG, LakehouseSettings
from trinitylake_core.errors import InvalidInput

PARTITION_TAG: Final = "dagster/partition"
"""The tag that Dagster gives each run of a partition."""
FLEET: Final = "lakehouses"
AT_WORK: Final = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_ASSET_JOB: Final = "__ASSET_JOB"
"""The job that Dagster makes for assets that are materialised or checked without one of ours."""
_MANY: Final = 200
LAKEHOUSES: Final = dg.DynamicPartitionsDefinition(name=FLEET)


class Scope(Protocol):
    """What definitions are for.

    Attributes:
        slug: the beginning of the names of jobs, and the name of the group.
        key_prefix: the prefix of the keys of assets.
        label: what people call it.
        pool: the pool that lets one run at a time write; ``None`` where runs are serialised by their tag.
        owners: who owns the assets.
        partitions: the partitions of the assets.
        known: the settings, if they are known already.
    """

    @property
    def slug(self) -> str: ...  # noqa: D102
    @property
    def key_prefix(self) -> list[str]: ...  # noqa: D102
    @property
    def label(self) -> str: ...  # noqa: D102
    @property
    def pool(self) -> str | None: ...  # noqa: D102
    @property
    def owners(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def partitions(self) -> dg.PartitionsDefinition[Any] | None: ...  # noqa: D102
    @property
    def known(self) -> LakehouseSettings | None: ...  # noqa: D102
    @property
    def tags(self) -> Mapping[str, str]: ...  # noqa: D102
    def settings(self, context: Any) -> LakehouseSettings: ...  # noqa: D102
    def partition(self, name: str) -> str | None: ...  # noqa: D102
    def run_tags(self, settings: LakehouseSettings) -> Mapping[str, str]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class One:
    """One lakehouse, whose settings are known."""

    known: LakehouseSettings
    partitions: None = None

    @property
    def slug(self) -> str:
        """The name, as Dagster allows it."""
        return self.known.slug

    @property
    def key_prefix(self) -> list[str]:
        """The prefix with the name."""
        return self.known.key_prefix

    @property
    def label(self) -> str:
        """The name, as the file has it."""
        return f"lakehouse {self.known.name!r}"

    @property
    def pool(self) -> str:
        """The pool of the lakehouse."""
        return self.known.pool

    @property
    def owners(self) -> Sequence[str]:
        """The owners of the stanza."""
        return self.known.owners

    @property
    def tags(self) -> Mapping[str, str]:
        """The tag by which runs and assets of the lakehouse can be found."""
        return {LAKEHOUSE_TAG: self.known.slug}

    def settings(self, context: Any) -> LakehouseSettings:
        """Return the settings."""
        return self.known

    def partition(self, name: str) -> None:
        """Return ``None``: its assets have no partitions."""

    def run_tags(self, settings: LakehouseSettings) -> Mapping[str, str]:
        """Return the tags that every run of our jobs has; one that was launched from the assets has none."""
        return {LAKEHOUSE_TAG: settings.slug}


@dataclass(frozen=True, slots=True)
class Fleet:
    """All lakehouses of a file, each a partition; ``find`` returns the settings of one by name when a run starts."""

    find: Callable[[str], LakehouseSettings]
    slug: str = FLEET
    label: str = "the lakehouse of the partition"
    pool: None = None
    owners: Sequence[str] = ()
    known: None = None

    @property
    def key_prefix(self) -> list[str]:
        """The prefix of all."""
        return [self.slug]

    @property
    def partitions(self) -> dg.PartitionsDefinition[Any]:
        """One per lakehouse, added and removed by the sensor."""
        return LAKEHOUSES

    @property
    def tags(self) -> Mapping[str, str]:
        """None: Dagster's tag of the partition says which lakehouse a run is for."""
        return {}

    def settings(self, context: Any) -> LakehouseSettings:
        """Return the settings of the partition that a run is for. Raises ``InvalidInput``."""
        name = context.run.tags.get(PARTITION_TAG)
        if name is None:
            raise InvalidInput("choose one partition (one lakehouse): a run works on one at a time")
        return self.find(name)

    def partition(self, name: str) -> str:
        """Return the name: it is the key of the partition."""
        return name

    def run_tags(self, settings: LakehouseSettings) -> Mapping[str, str]:
        """Return the tag that Dagster gives every run of the partition."""
        return {PARTITION_TAG: settings.name}


def run_at_work(scope: Scope, settings: LakehouseSettings, instance: dg.DagsterInstance) -> str | None:
    """Return the ID of a queued or running run on a lakehouse; ``None`` without one.

    Most are found by their tags, in the database. Without partitions a run that was launched from the assets has no
    tag of ours, and is found by its assets.
    """
    for run in instance.get_runs(dg.RunsFilter(statuses=AT_WORK, tags=dict(scope.run_tags(settings))), limit=1):
        return run.run_id
    if scope.known is not None:
        by_hand = dg.RunsFilter(statuses=AT_WORK, job_name=_ASSET_JOB)
        for run in instance.get_runs(by_hand, limit=_MANY):
            if any(key.has_prefix(scope.key_prefix) for key in run.asset_selection or ()):
                return run.run_id
    return None
