"""The models behind ``lakehouses.yaml``, field by field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from dagster_project.config.values import ByteSize, Cron, Duration, MaybeEnv, Model, Options, Owner, Timeout, TimeZone
from pipelines.session import SessionConfig
from pipelines.source.lakehouses import look_up
from pipelines.tables.compact.decision import DELETES, MIN_FILES, GroupRules
from pipelines.tables.compact.model import NamedEndpoint, Policy
from trinitylake_core.errors import InvalidInput
from trinitylake_core.keys import NAMESPACE
from trinitylake_core.recovery.patterns import Pattern
from trinitylake_core.storage import normalise_root

LAKEHOUSE_TAG: Final = "trinitylake/lakehouse"
"""The tag of runs and assets that names their lakehouse."""
STORAGE_TAG: Final = "trinitylake/storage"
"""The tag of runs that names where their lakehouse is stored: one that hangs takes not every place in the queue."""
REASON_TAG: Final = "trinitylake/reason"
"""The tag of a run with the reason for which it was requested."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_DAY: Final = timedelta(days=1)

Engine = Literal["spark", "local", "auto"]
RootUri = Annotated[str, AfterValidator(normalise_root)]
Period = Literal["hourly", "daily", "weekly", "monthly", "yearly"]


class Spark(Model):
    """Which Spark runs the jobs: this machine, a cluster, or a Spark Connect server.

    ``iceberg`` is the release of Iceberg whose procedures compact tables, such as 1.12.0: its runtime comes from Maven
    Central when the session starts. A Spark Connect server brings its own. ``secret`` is what a standalone cluster
    authenticates by.
    """

    mode: Literal["local", "master", "connect"] = "local"
    master: str = "local[*]"
    remote: MaybeEnv = None
    conf: Options = Field(default_factory=dict)
    secret: MaybeEnv = None
    parallelism: int | None = Field(default=None, ge=1)
    iceberg: str | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        remote = self.remote if self.remote is None or isinstance(self.remote, str) else "sc://from-the-environment"
        SessionConfig(mode=self.mode, master=self.master, remote=remote, iceberg=self.iceberg)
        return self

    def session_config(self, app_name: str) -> SessionConfig:
        """Return the settings of a session, with the environment filled in."""
        conf: dict[str, str] = {}
        for name, value in look_up(self.conf).items():
            conf[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return SessionConfig(
            mode=self.mode,
            master=self.master,
            remote=look_up(self.remote),
            app_name=app_name,
            conf=conf,
            parallelism=self.parallelism,
            iceberg=self.iceberg,
            secret=look_up(self.secret),
        )


class Schedules(Model):
    """Cron schedules. A job without one runs on request only.

    Each lakehouse is late by an offset below ``spread`` that its name decides, so that not all begin at once. With
    ``enabled: false`` the schedule is there and stopped, until it is switched on in Dagster; in a fleet it is not due.
    """

    maintenance: Cron | None = None
    timezone: TimeZone = "UTC"
    spread: Duration = timedelta(minutes=30)
    enabled: bool = True


class Compaction(Model):
    """When a compaction pays, and how it runs.

    The sensor reads the root every ``poll``; if that is not given, more than 40 sensors of lakehouses tick every 1.5 s
    times their number. It requests a compaction once ``messages`` messages are buffered, those in the root take
    ``root_bytes``, or they have waited for ``older_than``, but at most one per ``min_interval``; what costs less in
    buffers than rewriting nodes is not counted. Once no version of the last ``settle`` was without messages, the next
    compaction pushes all of them down, so that cleanings find what they replace. A compaction that takes longer than
    ``timeout`` is stopped. If the backlog stays above that number of messages for ``max_age``, compactions are stale.
    """

    enabled: bool = True
    messages: int = Field(default=10_000, ge=1)
    root_bytes: int | None = Field(default=262_144, ge=1)
    older_than: Duration | None = _DAY
    settle: Duration | None = _DAY
    min_interval: Duration = timedelta(minutes=15)
    poll: Duration = timedelta(minutes=1)
    max_age: Duration = _DAY
    engine: Engine = "spark"
    timeout: Timeout = timedelta(hours=6)


class Health(Model):
    """How health is measured: by walking all ``levels`` of the tree, or from the root alone.

    From ``spark_from_objects`` objects, the walk and the integrity check run on Spark, where that runs on other
    machines. The integrity check reads every node; with ``definitions`` also every definition, one request each, and
    with ``tables`` it proves that the metadata files of this share of all Iceberg tables exist.
    """

    levels: bool = True
    spark_from_objects: int = Field(default=1_000_000, ge=0)
    definitions: bool = False
    tables: float = Field(default=0.0, ge=0, le=1)


class SnapshotPolicy(Model):
    """How many snapshots of a period are kept, and the grace period after the period starts.

    The default of ``grace`` is 1d (hourly: 1h).
    """

    keep: int = Field(ge=1)
    grace: Duration | None = None

    def grace_of(self, period: Period) -> timedelta:
        """Return the time after the start of a period for which its snapshot may be missing."""
        default = timedelta(hours=1) if period == "hourly" else _DAY
        return default if self.grace is None else self.grace


class Retention(Model):
    """Which versions maintenance keeps: the newest ``keep_last``, and all younger than ``older_than``."""

    keep_last: int = Field(default=100, ge=1)
    older_than: Duration = timedelta(days=7)


class Orphans(Model):
    """How old an orphan must be before maintenance removes it."""

    older_than: Duration = timedelta(days=3)

    @field_validator("older_than")
    @classmethod
    def _safe(cls, age: timedelta) -> timedelta:
        if age < _DAY:
            raise ValueError("must be at least 1d: jobs that take longer than this age would have to start over")
        return age


def _refuse_no_table(text: str, pattern: Pattern) -> None:
    """Raise ``ValueError`` for a pattern that can only mean a namespace."""
    if pattern.is_plain and all(each.kind == NAMESPACE for each in pattern.readings()):
        raise ValueError(f"{text!r} names no table; write {text + '.*'!r} for those of a namespace")


class CompactPolicy(Model):
    """When a partition of a table is rewritten into fewer, larger files; properties of the table win.

    From ``min_files`` small files on, or from the share ``deletes`` of deleted rows on. ``target`` is the size of new
    files, ``settled`` the time for which nothing was added, and ``where`` a condition over partition columns.
    Tables with ``manifests`` manifests of data files get fewer.
    """

    min_files: int = Field(default=MIN_FILES, ge=2)
    target: ByteSize | None = None
    settled: Duration = timedelta(0)
    where: str | None = Field(default=None, min_length=1)
    deletes: float = Field(default=DELETES, gt=0, le=1)
    manifests: int | None = Field(default=None, ge=2)

    def of_pattern(self, pattern: str | None) -> Policy:
        """Return the policy as the job takes it."""
        rules = GroupRules(
            min_files=self.min_files,
            deletes=self.deletes,
            target=self.target,
            settled_seconds=self.settled.total_seconds(),
        )
        return Policy(pattern, rules=rules, where=self.where, manifests=self.manifests)

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        self.of_pattern(None)
        return self


class CompactBudget(Model):
    """How much one compaction of tables rewrites at the most, and until when it begins a table."""

    bytes: ByteSize | None = Field(default=None, gt=0)
    time: Duration | None = None


class CompactEndpoint(Model):
    """A running ``trinitylake serve``, as a Spark reaches it that cannot reach the run: a Spark Connect server."""

    uri: str
    warehouse: str
    token: MaybeEnv = None

    @model_validator(mode="after")
    def _can_be_one(self) -> Self:
        NamedEndpoint(self.uri, self.warehouse)
        return self

    def with_environment(self) -> NamedEndpoint:
        """Return the endpoint with the environment filled in."""
        return NamedEndpoint(self.uri, self.warehouse, look_up(self.token) or "")


class TablesCompact(Model):
    """How small files of tables are merged in maintenance, before snapshots expire and files are removed.

    So many ``tables`` are rewritten at the same time; ``partial`` is how many commits a table may take; ``endpoint`` is
    for Spark Connect.
    """

    engine: Literal["auto", "local", "spark"] = "auto"
    budget: CompactBudget = CompactBudget()
    tables: int = Field(default=2, ge=1)
    partial: int = Field(default=10, ge=1)
    prove: Literal["counts", "hash", "none"] = "counts"
    endpoint: CompactEndpoint | None = None


class TablePolicy(Model):
    """What happens to the Iceberg tables of a pattern; their own properties (``history.expire.*``) decide first.

    Of each branch the newest ``keep_last`` snapshots stay, and those that are younger than ``older_than``; tags and
    branches stay for ``refs_older_than``, or for ever. A table with ``small_files`` small files fails a check.
    ``compact`` says when their files are merged; ``false``: never.
    """

    older_than: Duration = timedelta(days=5)
    keep_last: int = Field(default=1, ge=1)
    refs_older_than: Duration | None = None
    small_files: int = Field(default=1000, ge=1)
    compact: CompactPolicy | Literal[False] = CompactPolicy()


class Tables(Orphans):
    """How maintenance treats Iceberg tables: by the first pattern of ``policies`` that a table has a name of.

    Tables that none matches have the defaults of a policy. Files that nothing needs are removed once they are older
    than ``older_than``, one age for the whole lakehouse: its commits refuse files that are older than a cleaning.
    Tables whose metadata lie in the directories ``apart`` share no file with others, by the word of the operator.
    Without ``compact`` no file of a table is rewritten.
    """

    policies: Mapping[str, TablePolicy] = Field(default_factory=dict)
    apart: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    compact: TablesCompact | None = None

    @field_validator("policies")
    @classmethod
    def _each_counts(cls, policies: Mapping[str, TablePolicy]) -> Mapping[str, TablePolicy]:
        before: list[Pattern] = []
        for text in policies:
            pattern = Pattern(text)
            _refuse_no_table(text, pattern)
            if wider := next((each.text for each in before if each.covers(text)), None):
                raise ValueError(f"{text!r} never counts, because {wider!r} stands before it; the first match counts")
            before.append(pattern)
        return policies

    def by_pattern(self) -> list[tuple[Pattern, TablePolicy]]:
        """Return the policies in their order."""
        return [(Pattern(text), each) for text, each in self.policies.items()]


class Export(Model):
    """Where the jobs ``export`` and ``upgrade`` write to, and how that storage is opened.

    The default of ``storage_options`` is those of the lakehouse. Who launches a job may choose roots below one of
    ``allowed``, too, and no others.
    """

    target: RootUri | None = None
    storage_options: Options | None = None
    allowed: tuple[RootUri, ...] = ()


class Backup(Model):
    """Where maintenance keeps a copy with the whole history, and how far it may lag behind.

    The default of ``storage_options`` is those of the lakehouse. With ``definitions`` the check reads them all, too.
    With ``tables`` the files of MANAGED Iceberg tables are copied, and the check asks for each of them.
    """

    target: RootUri
    storage_options: Options | None = None
    max_age: Duration = timedelta(days=2)
    definitions: bool = True
    tables: bool = False


class LakehouseSettings(Model):
    """One lakehouse: where it is, and how it is maintained.

    ``assets`` are patterns of Iceberg tables that are assets of their own; not with ``layout: partitions``.
    """

    name: str
    root: RootUri
    description: str | None = None
    owners: tuple[Owner, ...] = ()
    storage_options: Options = Field(default_factory=dict)
    spark: Spark = Spark()
    schedules: Schedules = Schedules()
    health: Health = Health()
    compaction: Compaction = Compaction()
    snapshots: Mapping[Period, SnapshotPolicy] = Field(default_factory=dict)
    retention: Retention | None = None
    orphans: Orphans | None = None
    tables: Tables | None = None
    assets: tuple[str, ...] = ()
    backup: Backup | None = None
    export: Export = Export()
    timeout: Timeout = timedelta(hours=6)

    @field_validator("name")
    @classmethod
    def _slug_rules(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} must be 1 to 63 letters, digits, '-' or '_', starting with a letter or a digit")
        return name

    @field_validator("assets")
    @classmethod
    def _each_names_tables(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for text in patterns:
            _refuse_no_table(text, Pattern(text))
        return patterns

    @model_validator(mode="after")
    def _backup_is_elsewhere(self) -> Self:
        target = self.root if self.backup is None else self.backup.target
        if self.backup is not None and (self.root.startswith(target) or target.startswith(self.root)):
            raise ValueError(f"backup.target: {target} and the root must not contain each other")
        return self

    @property
    def slug(self) -> str:
        """The name in the form that Dagster allows for jobs, pools and groups."""
        return self.name.replace("-", "_").lower()

    @property
    def key_prefix(self) -> list[str]:
        """The prefix of the keys of this lakehouse's assets."""
        return ["lakehouse", self.name]

    @property
    def storage(self) -> str | None:
        """The endpoint, or else the bucket, that the lakehouse shares with others; ``None`` on a local disk."""
        scheme, _, rest = self.root.partition("://")
        if scheme == "file":
            return None
        endpoint = self.storage_options.get("endpoint_url")
        if isinstance(endpoint, Mapping):
            return f"{{env: {endpoint['env']}}}"
        if endpoint is not None:
            return urlsplit(str(endpoint)).netloc.rpartition("@")[2]
        return f"{scheme}://{rest.partition('/')[0]}"

    @property
    def pool(self) -> str:
        """The pool that lets one run at a time write to this lakehouse."""
        return f"lakehouse_{self.slug}"

    def refuse_unknown_place(self, root: str) -> None:
        """Refuse a root that whoever launches a job has chosen and the operator has not: our credentials reach further.

        Raises ``InvalidInput``.
        """
        uri = normalise_root(root)
        known = {self.root, self.export.target}
        if self.backup is not None:
            known.add(self.backup.target)
        if uri in known or uri.startswith(self.export.allowed):
            return
        raise InvalidInput(
            f"{uri} is not a place that lakehouses.yaml names: add it, or a prefix of it, to `export: allowed:` of "
            f"{self.name!r}"
        )

    def resolved_storage_options(self) -> dict[str, Any]:
        """Return the storage options with the environment filled in. They may hold secrets: use them only to open."""
        options: dict[str, Any] = look_up(self.storage_options)
        return options

    def resolved_target_options(self, target: str) -> dict[str, Any]:
        """Return the storage options for a copy at ``target``, likewise: those of the backup, or those of exports."""
        backs_up = self.backup is not None and normalise_root(target) == self.backup.target
        given = self.backup.storage_options if self.backup is not None and backs_up else self.export.storage_options
        if given is None:
            return self.resolved_storage_options()
        options: dict[str, Any] = look_up(given)
        return options


class Notifications(Model):
    """Where failures are reported. ``webhook`` is a URL, or better the name of a variable that holds one.

    ``ui`` is the URL of Dagster's pages: messages then have a link to the run, or to the check that fails.
    """

    webhook: MaybeEnv = None
    ui: MaybeEnv = None

    @field_validator("webhook", "ui")
    @classmethod
    def _is_a_url(cls, url: object) -> object:
        return url if url is None or isinstance(url, Mapping) else checked_url(url)


def checked_url(url: object) -> str:
    """Return the URL if a webhook may have it. Raises ``ValueError``."""
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        raise ValueError("must be a URL that starts with https:// or http://, {env: NAME} or {file: PATH}")
    return url
