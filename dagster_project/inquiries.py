"""The jobs that only read: history, diff, verify. They wait for nobody."""

import dagster as dg

from dagster_project import launchpads
from dagster_project.assets import settings_of
from dagster_project.config.settings import LakehouseSettings
from dagster_project.metadata import recovery, versions
from dagster_project.resources import SparkResource
from dagster_project.scope import Scope
from dagster_project.steps import engine, step, tell
from dagster_project.supervised import Supervisor, run_supervised
from pipelines import diff, history, verify, version_ref
from trinitylake_core import Lakehouse
from trinitylake_core.storage import normalise_root


def history_step(scope: Scope) -> dg.OpDefinition:
    """Return the step that lists versions."""

    @step(
        scope,
        "history",
        launchpads.HistoryConfig,
        "Lists the versions, newest first, each with its time, operation, author and reason, as a table; all, or "
        "those of an author, since a time, with a text in their reason. Read-only.",
    )
    def look_back(context: dg.OpExecutionContext, config: launchpads.HistoryConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, _: Supervisor) -> history.Report:
            return history.run(lake, config.filters())

        tell(context, versions.of_history(run_supervised(context, settings, spark, work, damaged=True)))

    return look_back


def diff_step(scope: Scope) -> dg.OpDefinition:
    """Return the step that compares two versions."""

    @step(
        scope,
        "diff",
        launchpads.DiffConfig,
        "Lists what was added, removed and changed from one version to another, as a table. Reads only nodes that the "
        "two do not share. Read-only.",
    )
    def compare(context: dg.OpExecutionContext, config: launchpads.DiffConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Supervisor) -> diff.Report:
            other = lake if config.other is None else _other(settings, config.other)
            old, new = version_ref.at(lake, config.before, "before"), version_ref.at(other, config.after, "after")
            how = diff.Config(config.engine or "auto")
            return diff.report(old, new, how, watch.spark, progress=watch.progress, limit=config.limit)

        tell(context, versions.of_diff(run_supervised(context, settings, spark, work, damaged=True)))

    return compare


def _other(settings: LakehouseSettings, root: str) -> Lakehouse:
    options = settings.resolved_target_options(normalise_root(root))
    return Lakehouse.open(root, storage_options=options, damaged=True)


def verify_step(scope: Scope) -> dg.OpDefinition:
    """Return the step that checks every invariant."""

    @step(
        scope,
        "verify",
        launchpads.VerifyConfig,
        "Checks every invariant of the format, for the newest version or for all. Fails with a table of findings, each "
        "with its remedy. Read-only.",
    )
    def prove(context: dg.OpExecutionContext, config: launchpads.VerifyConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Supervisor) -> verify.Report:
            how = verify.Config(config.which, definitions=config.definitions, engine=engine(settings, config.engine))
            return verify.run(lake, how, watch.spark, progress=watch.progress)

        done = run_supervised(context, settings, spark, work, damaged=True)
        metadata = recovery.of_verification(done)
        if not done.ok:
            advice = "See `violations` for the remedy of each; most often: roll back to an intact version."
            raise dg.Failure(f"{metadata['outcome']}. {advice}", metadata=metadata, allow_retries=False)
        tell(context, metadata)

    return prove
