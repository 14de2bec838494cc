"""The jobs that people launch by hand: one table, :data:`TABLE`. Each has one step, which calls one pipeline.

When the storage fails, a step is retried where repeating is safe; a rollback, a restore or an undo never is: another
writer's commit may have made it wrong. Jobs that lead back show their plan before they do anything.
"""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any, Final

import dagster as dg
import yaml

from dagster_project import launchpad
from dagster_project.assets import key, may_use_spark, settings_of
from dagster_project.config.settings import LakehouseSettings
from dagster_project.instance import RECOVERY_TAG
from dagster_project.metadata import reports
from dagster_project.resources import SparkResource
from dagster_project.scope import ABOVE_MAINTENANCE, GROUP_TAG, PRIORITY_TAG, Scope, runs_at_work
from dagster_project.supervised import RETRY, Launch, Supervisor, run_supervised, tag_plan
from pipelines import diff, export, history, mend, restore, rollback, undo, upgrade, verify
from pipelines.source import version_ref
from trinitylake_core import InvalidInput, Lakehouse
from trinitylake_core.commits.commit import acting_as
from trinitylake_core.durations import parse_age
from trinitylake_core.recovery.plan import require_reason
from trinitylake_core.recovery.target import refuse_no_moment
from trinitylake_core.snapshots import AGE, HEAD
from trinitylake_core.storage import normalise_root

DRY_RUN: Final = "dry_run"
_DRY_RUN_TEXT: Final = "Show the plan and change nothing; false carries it out."
AUTHOR: Final = "launched_by"
_AUTHOR_TEXT: Final = (
    "Who launches this, for the history. Required unless this only shows a plan, or TRINITYLAKE_AUTHOR is set for the "
    "code location. Where it is empty, the user whom Dagster knows is recorded."
)
_USER_TAG: Final = "user"
"""The tag by which a Dagster that knows its users names who launched a run."""
_MOST: Final = 1000
"""So many rows a table may have that the webserver still shows quickly."""


# -- options that the dataclasses of the pipelines do not have -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions(diff.Config):
    """Which versions to compare: each is a number, HEAD, HEAD~3, a snapshot, a time, or an age such as -2h.

    Attributes:
        before: the old version.
        after: the new version.
        other: root URI of the lakehouse of the new version, if it is another one: the backup.
        limit: so many changes are shown, up to 1000; all are counted.
    """

    before: str
    after: str = "HEAD"
    other: str | None = None
    limit: int = 500

    def __post_init__(self) -> None:
        diff.Config.__post_init__(self)
        for name, text in (("before", self.before), ("after", self.after)):
            if not text.strip():
                raise InvalidInput(f"say which version to compare: `{name}` is {version_ref.MEANING}")
        if self.other is not None:
            normalise_root(self.other)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions(export.Config):
    """What to copy, and where to.

    Attributes:
        target: root URI to write to. Its storage options are those of `export` in lakehouses.yaml, or those of `backup`
            if it is the target of the backup.
        version: copy only this version; overrides history.
        history: copy all retained versions and snapshots: a backup.
    """

    target: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "history", self.history and self.version is None)
        export.Config.__post_init__(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeOptions(upgrade.Config):
    """What to rewrite in the canonical format, and where.

    Attributes:
        target: root URI to write to. Its storage options are those of `export` in lakehouses.yaml.
    """

    target: str


@dataclass(frozen=True, slots=True)
class AlterOptions:
    """Which properties of the lakehouse to set or to remove.

    Attributes:
        properties: values by name, such as maintenance.delete.enabled: 'false'.
        remove: names of properties to remove.
        reason: why; required, and recorded in the history.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        require_reason(self.reason)
        if both := sorted(self.properties.keys() & set(self.remove)):
            raise InvalidInput(f"{', '.join(both)}: either a value or `remove`")


@dataclass(frozen=True, slots=True)
class FreezeOptions:
    """Why commits are refused, and for how long.

    Attributes:
        reason: why; required, in the history and in the error that writers get.
        lasts: how long, such as 30m or 2h; empty: until the job `thaw`.
    """

    reason: str = ""
    lasts: str | None = None

    def __post_init__(self) -> None:
        require_reason(self.reason)
        if self.lasts is not None:
            parse_age(self.lasts)


@dataclass(frozen=True, slots=True)
class ThawOptions:
    """Why commits are accepted again.

    Attributes:
        reason: why; recorded in the history.
    """

    reason: str | None = None


# -- what the jobs do: each returns what is shown of it --------------------------------------------------


def _recover(pipeline: ModuleType) -> Callable[[Launch], reports.Metadata]:
    """Return the work of a job that leads back: it logs its plan, and then carries out this plan and no other."""

    def work(launch: Launch) -> reports.Metadata:
        options = launch.options if pipeline in {rollback, undo} else _with_source(launch)
        return reports.of_recovery(_carry_out_plan(launch, pipeline, options))

    return work


def _carry_out_plan(launch: Launch, pipeline: ModuleType, options: Any) -> Any:
    """Carry out a job that logs its plan first; return its report."""
    run = partial(pipeline.run, launch.lake, options, launch.spark)
    return launch.carry_out(run, lambda planned: launch.context.log.info(reports.text_of(planned)))


def _with_source(launch: Launch) -> Any:
    """Return the options with what opens their source, a backup. Raises ``InvalidInput`` for an unknown place."""
    options = launch.options
    if options.source is None:
        return options
    launch.settings.refuse_unknown_place(options.source)
    there = launch.settings.resolved_target_options(options.source)
    return replace(options, source_options=there)


def _mend(launch: Launch) -> reports.Metadata:
    """Put back what a backup has, and say what is damaged still: the run fails then, as `mend` ends with code 1."""
    done = _carry_out_plan(launch, mend, _with_source(launch))
    metadata = reports.of_mending(done)
    if done.left and not launch.dry:
        raise dg.Failure(metadata["outcome"], metadata=metadata, allow_retries=False)
    return metadata


def _diff(launch: Launch) -> reports.Metadata:
    options = launch.options
    if options.other is None:
        other = launch.lake
    else:
        launch.settings.refuse_unknown_place(options.other)
        there = launch.settings.resolved_target_options(normalise_root(options.other))
        other = Lakehouse.open(options.other, storage_options=there, damaged=True)
    old = version_ref.at(launch.lake, options.before, "before")
    new = version_ref.at(other, options.after, "after")
    found = diff.report(old, new, options, launch.spark, limit=options.limit, **launch.more)
    return reports.of_report(found)


def _verify(launch: Launch) -> reports.Metadata:
    done = verify.run(launch.lake, launch.options, launch.spark, **launch.more)
    metadata = reports.of_report(done)
    if not done.ok:
        advice = "See `violations` for the remedy of each; most often: roll back to an intact version."
        raise dg.Failure(f"{metadata['outcome']}. {advice}", metadata=metadata, allow_retries=False)
    return metadata


def _copy(pipeline: ModuleType) -> Callable[[Launch], reports.Metadata]:
    def work(launch: Launch) -> reports.Metadata:
        target = _target(launch.options.target, launch.settings)
        launch.settings.refuse_unknown_place(target)
        there = launch.settings.resolved_target_options(target)
        done = pipeline.run(launch.lake, target, launch.options, launch.spark, storage_options=there, **launch.writes)
        return reports.of_report(done)

    return work


def _alter(launch: Launch) -> reports.Metadata:
    options = launch.options
    changed: dict[str, str | None] = {**options.properties, **dict.fromkeys(options.remove)}
    stop = launch.supervisor.check
    return reports.of_alteration(
        launch.lake.alter(changed, reason=options.reason, dry_run=launch.dry, before_commit=stop)
    )


def _freeze(launch: Launch) -> reports.Metadata:
    options = launch.options
    lasts = None if options.lasts is None else timedelta(seconds=parse_age(options.lasts))
    done = launch.lake.freeze(reason=options.reason, lasts=lasts, before_commit=launch.supervisor.check)
    return reports.keep_known(outcome=f"{done}. Commits and loads are refused", reason=done.reason, author=done.author)


# -- the table -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualJob:
    """One job.

    Attributes:
        options: the dataclass that its launchpad is derived from.
        defaults: of the launchpad, where they differ from those of the dataclass.
        filled_in: what the launchpad shows at first, besides ``defaults``; empty fields have to be filled in.
        damaged: whether it works, with these options, on a lakehouse whose newest version cannot be read.
        writes: whether it waits for other runs that write.
        repeat: whether it is retried when the storage fails.
        dry_run: whether it only shows its plan by default; ``None`` for a job that has none.
        engine: which engine it takes where none was chosen; by default that of the stanza.
    """

    options: type
    work: Callable[[Launch], reports.Metadata]
    description: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    filled_in: Mapping[str, Any] = field(default_factory=dict)
    damaged: Callable[[Any], bool] = lambda _: False
    writes: bool = True
    repeat: bool = True
    dry_run: bool | None = None
    engine: str | None = None

    def has(self, name: str) -> bool:
        """Return whether it has an option. With ``reason``, the history records why and by whom it was launched."""
        return name in {each.name for each in fields(self.options)}


TABLE: Final = {
    "freeze": ManualJob(
        options=FreezeOptions,
        work=_freeze,
        description="Refuses commits and loads of all writers, until the job `thaw` or a time: the first step before a "
        "rollback where writers commit all the time. Each writer gets the reason, the author and the time, and can try "
        "again later. Maintenance, `rollback` and `restore` go on.",
        filled_in={"reason": "", "lasts": "2h"},
        writes=False,
    ),
    "thaw": ManualJob(
        options=ThawOptions,
        work=lambda launch: reports.of_alteration(
            launch.lake.thaw(reason=launch.options.reason, before_commit=launch.supervisor.check)
        ),
        description="Accepts commits and loads again.",
        filled_in={"reason": ""},
        writes=False,
    ),
    "mend": ManualJob(
        options=mend.Config,
        work=_mend,
        description="The first step where a file cannot be read: verifies every version, and puts back from a backup "
        "what is missing or damaged, if the bytes there prove what they are. Replaces nothing that can be read. With "
        "`lost` it marks versions that nobody has any more, so that maintenance goes on without them. With neither it "
        "corrects a fence that lies in the future. With `dry_run: true`, the default, it only shows the plan.",
        dry_run=True,
        filled_in={"source": None, "lost": [], "reason": ""},
        damaged=lambda options: options.source is not None or bool(options.lost),
        engine="auto",
        writes=False,
    ),
    "rollback": ManualJob(
        options=rollback.Config,
        work=_recover(rollback),
        description="Returns the whole catalog to an older version, by committing a new version with the same content. "
        "First reads and proves the files of the target that the newest version does not use; the job `verify` proves "
        "every file of a version. Undone versions stay readable. With `dry_run: true`, the default, it only shows the "
        "plan: what would be added, removed and changed, and whose versions would be undone.",
        dry_run=True,
        filled_in={"version": None, "reason": ""},
        damaged=lambda _: True,
        engine="auto",
        writes=False,
        repeat=False,
    ),
    "restore": ManualJob(
        options=restore.Config,
        work=_recover(restore),
        description="Brings selected objects back as they were at a version, in one ordinary transaction; everything "
        "else is left alone. With `dry_run: true`, the default, it only shows what would change.",
        dry_run=True,
        filled_in={"only": [], "version": None, "reason": "", "exact": False},
        engine="auto",
        writes=False,
        repeat=False,
    ),
    "undo": ManualJob(
        options=undo.Config,
        work=_recover(undo),
        description="Finds commits by time, author or reason, and rolls back to the version before it. With "
        "`since` alone: everything from then on; with an author or a text: the newest commits in a row that match. "
        "What others committed after it is undone only with `others: true`. With `dry_run: true`, the default, it only "
        "shows what it found, and the plan.",
        dry_run=True,
        filled_in={"author": None, "since": None, "matching": None, "last": False, "reason": "", "others": False},
        damaged=lambda _: True,
        engine="auto",
        writes=False,
        repeat=False,
    ),
    "history": ManualJob(
        options=history.Config,
        work=lambda launch: reports.of_report(history.run(launch.lake, launch.options)),
        description="Lists the versions, newest first, each with its time, operation, author and reason, as a table; "
        "all, or those of an author, since a time, with a text in their reason. Read-only.",
        defaults={"limit": 200},
        damaged=lambda _: True,
        writes=False,
    ),
    "diff": ManualJob(
        options=DiffOptions,
        work=_diff,
        description="Lists what was added, removed and changed from one version to another, as a table. Reads only "
        "nodes that the two do not share. Read-only.",
        filled_in={"before": "HEAD~1", "after": "HEAD"},
        engine="auto",
        damaged=lambda _: True,
        writes=False,
    ),
    "export": ManualJob(
        options=ExportOptions,
        work=_copy(export),
        description="Copies the lakehouse to another root. Repeated, it is an incremental backup: it copies only new "
        "files, and reads each one back to compare it.",
        defaults={"history": True},
        dry_run=False,
        damaged=lambda options: options.version is not None,
    ),
    "verify": ManualJob(
        options=verify.Config,
        work=_verify,
        description="Checks every invariant of the format, for the newest version or for all. Fails with a table of "
        "findings, each with its remedy. Read-only.",
        defaults={"definitions": True},
        filled_in={"versions": "newest"},
        damaged=lambda _: True,
        writes=False,
    ),
    "upgrade": ManualJob(
        options=UpgradeOptions,
        work=_copy(upgrade),
        description="Rewrites a lakehouse of any format generation in the canonical format at another root, with its "
        "history. Only reads the source. With `dry_run: true`, the default, it checks everything and writes nothing.",
        defaults={"history": True},
        dry_run=True,
        filled_in={"definition": {}},
    ),
    "alter": ManualJob(
        options=AlterOptions,
        work=_alter,
        description="Sets or removes properties of the lakehouse, as a new version that conflicts with nothing. "
        "`maintenance.delete.enabled: 'false'` forbids every job to delete, until it is removed or set to 'true'. With "
        "`dry_run: true`, the default, it only shows what would change.",
        writes=False,
        dry_run=True,
        filled_in={"properties": {}, "remove": [], "reason": ""},
    ),
}
"""The jobs by name."""
RECOVERY: Final = frozenset({"freeze", "thaw", "mend", "rollback", "restore", "undo", "alter"})
"""The jobs of an incident. They wait for nobody: neither for a place in the queue nor for the pool of maintenance,
which may hold it for hours. What two runs commit at the same time is decided by the creation of a root."""
READING: Final = frozenset({"history", "diff", "verify"})
WITHOUT_POLICY: Final = RECOVERY | READING
"""What a lakehouse keeps whose stanza has a mistake."""
STOPS: Final = frozenset({"freeze", "rollback", "restore", "undo"})
"""Those that can stop the maintenance of their lakehouse before they act."""
STOP: Final = "stop_maintenance"
_STOP_TEXT: Final = (
    "First cancel all other runs on this lakehouse that are queued or at work: from then on they commit nothing. "
    "Without it they go on, beside this run. A plan cancels nothing."
)


def manual_jobs(scope: Scope, only: Collection[str] = TABLE) -> list[dg.JobDefinition]:
    """Return the jobs that people launch by hand, or ``only`` some."""
    return [_job(scope, name, each) for name, each in TABLE.items() if name in only]


def _job(scope: Scope, name: str, row: ManualJob) -> dg.JobDefinition:
    op, known = _op(scope, name, row), scope.known
    chosen = {**row.filled_in, **row.defaults}
    if row.has("target"):  # the defaults of a fleet are read when the run starts
        chosen["target"] = "" if known is None else known.export.target or (_backup(known) if name == "export" else "")
    chosen |= {} if row.dry_run is None else {DRY_RUN: row.dry_run}
    chosen |= {AUTHOR: None} if row.has("reason") else {}

    if name == "mend" and known is not None:
        chosen["source"] = _backup(known) or None
    urgent = {PRIORITY_TAG: ABOVE_MAINTENANCE, RECOVERY_TAG: name} if name in RECOVERY else {}
    group = {GROUP_TAG: _group_of(name)}

    @dg.job(
        name=f"{scope.slug}_{name}",
        description=f"{row.description}\n\n{scope.label[0].upper()}{scope.label[1:]}.",
        config={"ops": {op.name: {"config": chosen}}},
        tags=scope.job_tags | group | urgent,
        partitions_def=scope.partitions,
        executor_def=dg.in_process_executor,
    )
    def run_op() -> None:
        op()

    return run_op


def _group_of(name: str) -> str:
    """Return what a job is for, in a word by which the list of runs is filtered."""
    if name in RECOVERY:
        return "recovery"
    return "reading" if name in READING else "copies"


def _op(scope: Scope, name: str, row: ManualJob) -> dg.OpDefinition:
    schema = launchpad.fields_of(row.options, row.defaults)
    if row.has("reason"):
        schema[AUTHOR] = dg.Field(dg.Noneable(str), is_required=False, default_value=None, description=_AUTHOR_TEXT)
    if row.dry_run is not None:
        schema[DRY_RUN] = dg.Field(bool, is_required=False, default_value=row.dry_run, description=_DRY_RUN_TEXT)
    if name in STOPS:
        schema[STOP] = dg.Field(bool, is_required=False, default_value=False, description=_STOP_TEXT)

    def work(context: dg.OpExecutionContext, spark: SparkResource) -> None:
        context.add_output_metadata(_carry_out(scope, row, context, spark, context.op_config))

    op: dg.OpDefinition = dg.op(
        name=key(scope, name).to_python_identifier(),
        description=row.description,
        config_schema=dict(schema),
        out={"result": dg.Out(dg.Nothing)},
        pool=scope.pool if row.writes else None,
        retry_policy=RETRY if row.repeat else None,
        tags=_badge(scope, name, row),
    )(work)
    return launchpad.check_config(op, schema, f"{scope.slug}_{name}", lambda given: _check(row, given, scope.known))


def _stop_maintenance(scope: Scope, settings: LakehouseSettings, context: dg.OpExecutionContext) -> None:
    """Cancel all other runs on a lakehouse but those that lead back, too: they commit nothing any more.

    A run asks Dagster for its status right before it commits, so this does not wait until they have ended.
    """
    for run in runs_at_work(scope, settings, context.instance):
        if run.run_id == context.run.run_id or RECOVERY_TAG in run.tags:
            continue
        context.log.info("%s: run %s of %s is cancelled", STOP, run.run_id, run.job_name)
        try:
            context.instance.run_coordinator.cancel_run(run.run_id)
        except Exception as error:  # noqa: BLE001 - Dagster has noted it as cancelled before it asked the code server
            context.log.warning("run %s may take a while to end: %s", run.run_id, error)


def _badge(scope: Scope, name: str, row: ManualJob) -> dict[str, str]:
    """Return the tags by which Dagster marks a step that may start Spark."""
    return {"kind": "spark"} if row.has("engine") and may_use_spark(scope, name) else {}


def _carry_out(
    scope: Scope, row: ManualJob, context: dg.OpExecutionContext, spark: SparkResource, given: Mapping[str, Any]
) -> reports.Metadata:
    """Do the work of a job with the options of its launchpad; return what is shown of it."""
    settings = settings_of(scope, context)
    options = _options(row, given, row.engine or settings.compaction.engine)
    if given.get(DRY_RUN):
        tag_plan(context)
    elif given.get(STOP):
        _stop_maintenance(scope, settings, context)

    def work(lake: Lakehouse, supervisor: Supervisor) -> reports.Metadata:
        with acting_as(given.get(AUTHOR) or context.run.tags.get(_USER_TAG)):
            shown = row.work(Launch(lake, settings, options, given.get(DRY_RUN, False), context, supervisor))
        return shown | supervisor.engine_metadata()

    metadata = run_supervised(context, settings, spark, work, damaged=row.damaged(options))
    context.log.info(metadata["outcome"])
    if "carry_out" not in metadata:
        return metadata
    author = given.get(AUTHOR) or context.run.tags.get(_USER_TAG)
    if not (author or os.environ.get("TRINITYLAKE_AUTHOR")):
        author = f"not named, by the plan of run {context.run.run_id[:8]}"
    text = _configuration_to_act(context.op_def.name, row, given, metadata, author)
    context.log.info("to carry this plan out, launch with\n%s", text)
    first = {name: metadata[name] for name in ("outcome", "carry_out")}
    return {**first, "configuration": text, **metadata}


def _configuration_to_act(
    step: str, row: ManualJob, given: Mapping[str, Any], plan: reports.Metadata, author: str | None
) -> str:
    """Return the configuration that carries out a plan and no other, as YAML for a launchpad, which takes it as it is.

    What counts back from the newest version, or from now, becomes the version or the time that was planned.
    """
    usual = {each.name: each.default for each in fields(row.options)}
    config: dict[str, Any] = {}
    for name, each in given.items():
        is_chosen = each not in (usual.get(name, False), None, "", [], {})
        if is_chosen:
            config[name] = each
    version = str(given.get("version"))
    counts_back = HEAD.fullmatch(version) or AGE.fullmatch(version)
    if counts_back or "timestamp" in config:
        config.pop("timestamp", None)
        config["version"] = plan["plan_target_version"]
    if "since" in config:
        config["since"] = plan[reports.BEGINS_AT]
    if author:
        config[AUTHOR] = author
    config[DRY_RUN] = False
    config["expected_version"] = plan["plan_version"]
    return yaml.safe_dump({"ops": {step: {"config": config}}}, sort_keys=False, allow_unicode=True)


def _options(row: ManualJob, given: Mapping[str, Any], engine: str) -> Any:
    """Return the options; where no engine was chosen, with this one. Raises ``InvalidInput``."""
    chosen = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    for each in (DRY_RUN, AUTHOR, STOP):
        chosen.pop(each, None)
    if "engine" in chosen:
        chosen["engine"] = chosen["engine"] or engine
    return row.options(**chosen)


def _check(row: ManualJob, given: dict[str, Any], known: LakehouseSettings | None) -> None:
    """Raise ``InvalidInput`` for what can be seen to be wrong without opening anything.

    ``known``: the settings of the lakehouse; in a fleet (``None``) they are read when the run starts.
    """
    options = _options(row, given, "auto")
    if not 1 <= given.get("limit", 1) <= _MOST:
        raise InvalidInput(f"limit must be from 1 to {_MOST}, not {given['limit']}")
    nameless = not (given.get(AUTHOR) or os.environ.get("TRINITYLAKE_AUTHOR"))
    if row.has("reason") and nameless and not given.get(DRY_RUN, False):
        raise InvalidInput(f"`{AUTHOR}` is required: who launches this, for the history")
    if given.get("timestamp") is not None:
        refuse_no_moment(given["timestamp"])
    places = [place for place in (given.get("source"), given.get("other")) if place is not None]
    if "target" in given and (given["target"] or known is not None):
        places.append(_target(options.target, known))
    for place in places:
        if known is None:
            normalise_root(place)
        else:
            known.refuse_unknown_place(place)


def _target(chosen: str, settings: LakehouseSettings | None) -> str:
    """Return the chosen target, or else the default of one lakehouse: that of exports, or its backup."""
    uri = chosen or ("" if settings is None else settings.export.target or _backup(settings))
    if not uri:
        raise InvalidInput("`target` is required: the root URI to write to, such as s3://backup/lake")
    return uri


def _backup(settings: LakehouseSettings) -> str:
    return "" if settings.backup is None else settings.backup.target
