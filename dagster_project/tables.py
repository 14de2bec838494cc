"""The assets of Iceberg tables: health, expiration of snapshots, and cleaning of files.

They come after the steps of the catalog. A table that cannot be read stops none of them: the others go on, and a check
of the same step names it.
"""

import warnings
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import dagster as dg

from dagster_project import assets
from dagster_project.config.settings import TablePolicy, Tables, TablesCompact
from dagster_project.metadata import reports
from dagster_project.retention import ASK, NOTHING_DONE, deleting
from dagster_project.scope import Scope
from dagster_project.supervised import Launch
from pipelines import doctor, tables_clean, tables_compact, tables_expire, tables_health
from pipelines.reports.summary import count
from pipelines.tables.compact.model import DONE, UNPROVEN, WRONG
from trinitylake_core import Lakehouse
from trinitylake_core.recovery.patterns import first_match

READABLE: Final = "tables_readable"
SMALL_FILES: Final = "small_files"
ENGINES: Final = "no_engine_deletes"
PROVED: Final = "compactions_proved"
WIN: Final = "compactions_win"
PAY: Final = "compactions_pay"
EXPIRED: Final = "snapshots_expired"
CERTAIN: Final = "no_table_in_doubt"
_NAMED: Final = 5
_REPAIR: Final = (
    "Bring the missing file back from a backup of the data, or `restore` or `rollback` the table to a version that can "
    "be read; or drop the table"
)
_REPORT: Final = (
    "The reason says whether the table is as it was. If it is not, `restore` it to the version before, or compare it; "
    "report other rows with the log of the run: they are a defect of the engine"
)
_CHECKS: Final = {
    assets.TABLE_HEALTH: {
        READABLE: "Warns when the metadata of a table cannot be read, and names the table. The others are measured.",
        SMALL_FILES: "Warns when a table has `small_files` small files, by its policy in lakehouses.yaml.",
        ENGINES: "Warns when engines delete, or may delete, files that older versions of the lakehouse need.",
    },
    assets.TABLE_COMPACTION: {
        PROVED: "Fails when a rewrite changed rows of a table, or was committed and could not be proved, which only "
        "Spark does; no snapshot expires in this run.",
        WIN: "Warns when tables were not compacted: lost to their writers, unreadable, or not by this engine.",
        PAY: "Warns when a compaction made more files than it had planned.",
    },
    assets.TABLE_EXPIRATION: {
        EXPIRED: "Warns when the snapshots of a table could not expire, and when a policy counts for no table.",
    },
    assets.TABLE_CLEANING: {
        CERTAIN: "Warns when a directory was left alone because it is unknown which of its files are needed.",
    },
}


def tables_of(scope: Scope) -> list[dg.AssetsDefinition]:
    """Return the assets of Iceberg tables, if there are any."""
    if not has_tables(scope):
        return []
    made = [table_health(scope), table_snapshot_expiration(scope), table_cleaning(scope)]
    if compacts_tables(scope):
        made.append(table_compaction(scope))
    return made


def has_tables(scope: Scope) -> bool:
    """Whether lakehouses.yaml has ``tables`` for the lakehouse; always for a fleet, where each run reads it."""
    return scope.known is None or scope.known.tables is not None


def compacts_tables(scope: Scope) -> bool:
    """Whether lakehouses.yaml has ``tables.compact`` for the lakehouse; always for a fleet, where each run reads it."""
    if scope.known is None:
        return True
    return scope.known.tables is not None and scope.known.tables.compact is not None


def _specs(scope: Scope, name: str) -> list[dg.AssetCheckSpec]:
    with warnings.catch_warnings():  # checks of partitions are a preview in Dagster 1.13
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(
                check,
                asset=assets.key(scope, name),
                description=text,
                partitions_def=scope.partitions,
                blocking=check == PROVED,
            )
            for check, text in _CHECKS[name].items()
        ]


def _evaluate_tables(check: str, problems: Iterable[tuple[str, str]], fails: str, remedy: str) -> dg.AssetCheckResult:
    """Return the result of a check: tables, each with what is wrong with it, and what to do about them.

    It warns, and does not stop the steps that delete: whoever writes one table must not end the maintenance of all.
    """
    found = list(problems)
    if not found:
        return dg.AssetCheckResult(
            check_name=check,
            passed=True,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"no table {fails}",
        )
    names = [name for name, _ in found[:_NAMED]]
    if len(found) > _NAMED:
        names.append("...")
    rows = [{"table": name, "why": why} for name, why in found[: reports.PLAN_LIMIT]]
    return dg.AssetCheckResult(
        check_name=check,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{count(len(found), 'table')} {fails}: {', '.join(names)}. {remedy}",
        metadata={"tables": reports.table(rows, ("table", "why"))},
    )


# -- health --------------------------------------------------------------------------------------------


def table_health(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that measures tables by their metadata."""
    return assets.step(
        scope,
        assets.TABLE_HEALTH,
        _measure_tables,
        after=[assets.HEALTH, assets.SNAPSHOTS, assets.EXPIRATION, assets.ORPHANS],
        description="The state of the Iceberg tables, by their metadata: files, small files, delete files, bytes, "
        "manifests, snapshots, and the bytes that only old snapshots keep. The heaviest tables and those that old "
        "snapshots make heavy are tables; the sums are plotted over time.",
        policy="tables",
        without=NOTHING_DONE.format("tables"),
        writes=False,
        on_spark=False,
        check_specs=_specs(scope, assets.TABLE_HEALTH),
    )


def _measure_tables(launch: Launch) -> assets.Result:
    found = tables_health.run(launch.lake, tables_health.Config(engine="auto"), launch.spark, **launch.more)
    by_pattern, small = (launch.settings.tables or Tables()).by_pattern(), []
    for each in found.tables:
        policy = first_match(by_pattern, each.namespace, each.name, TablePolicy())
        if each.small_files >= policy.small_files:
            small.append((each.table, f"{each.small_files:,} small files"))
    rewrite = "Merge them: `trinitylake tables compact ROOT --dry-run`"
    return dg.MaterializeResult(
        metadata=reports.of_tables(found),
        data_version=dg.DataVersion(str(found.version)),
        check_results=[
            _evaluate_tables(READABLE, found.failures.items(), "cannot be read", _REPAIR),
            _evaluate_tables(SMALL_FILES, small, "has too many small files", rewrite),
            _engines(launch.lake),
        ],
    )


def _engines(lake: Lakehouse) -> dg.AssetCheckResult:
    found, problems = doctor.table_retention(lake), []
    if found is not None:
        problems += [(each, f"{doctor.DELETES_METADATA}=true") for each in found.deleting]
        problems += [(each, "files of the oldest version that is kept are gone") for each in found.lost]
    return _evaluate_tables(
        ENGINES,
        problems,
        "loses files that older versions need",
        f"Remove the property {doctor.DELETES_METADATA}, and stop what else deletes files of tables: expire_snapshots "
        "and remove_orphan_files of engines, lifecycle rules of the bucket",
    )


# -- compaction of files -------------------------------------------------------------------------------


def table_compaction(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that merges small files of tables."""
    return assets.step(
        scope,
        assets.TABLE_COMPACTION,
        _compact_files,
        after=[assets.HEALTH, assets.TABLE_HEALTH],
        description="Merges small files of Iceberg tables, by the policies of lakehouses.yaml: partition by partition, "
        "the best gain for its cost first. Many tables are one version, their rows are proved to be the same before "
        "that counts, and no file is deleted: a rollback brings the old files back.",
        options={"dry_run": False, "reason": "maintenance", "engine": None},
        policy="tables",
        without=NOTHING_DONE.format("tables"),
        on_spark=True,
        check_specs=_specs(scope, assets.TABLE_COMPACTION),
    )


def _compact_files(launch: Launch) -> assets.Result:
    stanza = launch.settings.tables or Tables()
    if stanza.compact is None and not launch.dry:
        text = "lakehouses.yaml has no `tables.compact` for this lakehouse: no file was rewritten"
        passed = [dg.AssetCheckResult(check_name=each, passed=True) for each in _CHECKS[assets.TABLE_COMPACTION]]
        return dg.MaterializeResult(metadata={"outcome": text}, check_results=passed)
    how = replace(_compaction_of(stanza, launch.options.engine), reason=launch.options.reason)
    plans: list[tables_compact.Report] = []
    done = launch.carry_out(partial(tables_compact.run, launch.lake, how, launch.spark), plans.append)
    became = reports.of_merged_tables(done)
    planned = reports.of_planned_merges(plans[0])
    metadata = reports.of_report(done, compacted=became, plan=planned, **reports.of_merges(done))
    metadata.pop("planned", None)  # the same as the plan, in more columns
    if became is None:
        metadata = reports.without_merges(metadata)
    else:
        metadata["compacted"] = became
    return _show_done(launch, done, metadata, _judge_compaction(done))


def _show_done(
    launch: Launch,
    done: tables_compact.Report | tables_expire.Report,
    metadata: reports.Metadata,
    judged: list[dg.AssetCheckResult],
) -> assets.Result:
    """Return the page of what was done to tables, with the results of its checks."""
    launch.context.log.info(metadata["outcome"])
    if not launch.dry and done.version_after is None:
        metadata = assets.page_of_idle_run(launch, metadata)
    version = dg.DataVersion(str(done.version_after or done.version))
    return dg.MaterializeResult(metadata=metadata, data_version=version, check_results=judged)


def _compaction_of(stanza: Tables, engine: str | None) -> tables_compact.Config:
    """Return how the stanza asks for a compaction: its policies in their order, then the defaults of a policy.

    ``engine``: that of the launchpad, where one was chosen there.
    """
    policies = []
    for pattern, each in stanza.policies.items():
        if each.compact is False:
            policies.append(tables_compact.Policy(pattern, enabled=False))
        else:
            policies.append(each.compact.of_pattern(pattern))
    chosen = stanza.compact or TablesCompact()
    seconds = None if chosen.budget.time is None else chosen.budget.time.total_seconds()
    return tables_compact.Config(
        policies=tuple(policies),
        engine=engine or chosen.engine,
        settings=tables_compact.Settings(
            prove=chosen.prove,
            partial=chosen.partial,
            at_once=chosen.tables,
            seconds=seconds,
            endpoint=None if chosen.endpoint is None else chosen.endpoint.with_environment(),
        ),
        budget_bytes=chosen.budget.bytes,
    )


def _judge_compaction(done: tables_compact.Report) -> list[dg.AssetCheckResult]:
    """Return the results of the checks: a proof that failed stops what deletes, all else is a warning."""
    wrong = {each.table: each.reason for each in done.outcomes if each.outcome in {WRONG, UNPROVEN}}
    others = [(name, why) for name, why in done.failures.items() if name not in wrong]
    planned = {each.table: each.after for each in done.planned}
    more = []
    for each in done.outcomes:
        if each.outcome == DONE and each.after > planned.get(each.table, each.after):
            more.append((each.table, f"{each.after:,} files instead of {planned[each.table]:,}"))
    proved = _evaluate_tables(PROVED, wrong.items(), "was rewritten, and its rows are not proved", _REPORT)
    if wrong:
        proved = proved._replace(severity=dg.AssetCheckSeverity.ERROR)
    else:
        proved = proved._replace(description=_describe_proof(done))
    return [
        proved,
        _evaluate_tables(WIN, others, "was not compacted", "The next run tries again; the reason says what it needs"),
        _evaluate_tables(PAY, more, "has more files than planned", "Raise `target`, or look at the sizes of its rows"),
    ]


def _describe_proof(done: tables_compact.Report) -> str:
    """Return what was proved of a compaction in which no proof failed: a check that passes may have seen nothing."""
    merged = [each for each in done.outcomes if each.outcome == DONE]
    proofs = sorted({each.proved for each in merged if each.proved})
    if proofs:
        return f"the rows of {count(len(merged), 'table')} are the same, proved by {' and '.join(proofs)}"
    if merged:
        return f"nothing was proved of {count(len(merged), 'table')}: lakehouses.yaml has `prove: none`"
    return "nothing was rewritten, so nothing was proved"


# -- expiration of snapshots ---------------------------------------------------------------------------


def _compaction_before(scope: Scope) -> list[str]:
    """Return the step that the expiration follows, so that what a compaction replaced goes as early as it may."""
    return [assets.TABLE_COMPACTION] if compacts_tables(scope) else []


def table_snapshot_expiration(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that expires snapshots of tables."""
    return assets.step(
        scope,
        assets.TABLE_EXPIRATION,
        _expire_snapshots,
        after=[assets.HEALTH, assets.TABLE_HEALTH, *_compaction_before(scope)],
        description="Expires old snapshots of Iceberg tables, by their own properties and the policies of "
        "lakehouses.yaml. A hundred tables of one policy are one version, and no file is deleted: a rollback brings "
        "the snapshots back. Makes a plan and shows it first. Never runs after a failed integrity check.",
        options={"dry_run": False, "delete_without_policy": False, "reason": "retention policy"},
        policy="tables",
        without=NOTHING_DONE.format("tables") + ASK,
        deletes=True,
        on_spark=False,
        check_specs=_specs(scope, assets.TABLE_EXPIRATION),
    )


def _expire_snapshots(launch: Launch) -> assets.Result:
    stanza = launch.settings.tables or Tables()
    policies = [_expiration_policy(pattern, each) for pattern, each in stanza.policies.items()]
    how = tables_expire.Config(policies=tuple(policies), reason=launch.options.reason)
    plans: list[tables_expire.Report] = []
    done = launch.carry_out(partial(tables_expire.run, launch.lake, how), plans.append)
    planned, *_ = plans[0].summary_tables()
    shown = reports.of_table(planned)
    metadata = reports.of_report(done, plan=shown)
    idle = [(each, "a policy of lakehouses.yaml that counts for no table") for each in done.idle]
    remedy = f"Correct the patterns in lakehouses.yaml. Of a table that cannot be read: {_REPAIR}"
    problems = [*done.failures.items(), *idle]
    left_alone = _evaluate_tables(EXPIRED, problems, "was left alone", remedy)
    return _show_done(launch, done, metadata, [left_alone])


def _expiration_policy(pattern: str, policy: TablePolicy) -> tables_expire.Policy:
    """Return a policy of lakehouses.yaml as the job takes it."""
    refs = None if policy.refs_older_than is None else policy.refs_older_than.total_seconds()
    return tables_expire.Policy(pattern, policy.older_than.total_seconds(), policy.keep_last, refs)


# -- cleaning of files ---------------------------------------------------------------------------------


def table_cleaning(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that removes the files of tables that nothing needs."""

    def clean(launch: Launch, plan_to: str, **writes: Any) -> tables_clean.Report:
        stanza = launch.settings.tables or Tables()
        how = tables_clean.Config(
            launch.engine,
            older_than_seconds=stanza.older_than.total_seconds(),
            plan_to=plan_to,
            plan_options={},
            reason=launch.options.reason,
            apart=stanza.apart,
        )
        return tables_clean.run(launch.lake, how, launch.spark, **writes)

    def in_doubt(done: tables_clean.Report) -> list[dg.AssetCheckResult]:
        doubts = [each for each in done.doubts if not each.is_wanted]
        named = [(each.directory or each.table, each.reason) for each in doubts]
        what = "is in doubt, and nothing of it was deleted"
        if any(each.stops_all for each in doubts):
            what = "cannot be read and may share files with others, so nothing of any table was deleted"
        return [_evaluate_tables(CERTAIN, named, what, _REPAIR)]

    return deleting(
        scope,
        assets.TABLE_CLEANING,
        "tables",
        clean,
        after=[assets.HEALTH, assets.ORPHANS, assets.TABLE_EXPIRATION],
        description="Removes files of Iceberg tables that no retained version, snapshot or live saved transaction "
        "needs: those of dropped tables, of failed commits, and of expired snapshots. Makes a plan, shows it by table, "
        "fences the files off by a version, and deletes those that nothing needs still. Nothing is deleted from a "
        "directory in doubt. Never runs after a failed integrity check.",
        check_specs=_specs(scope, assets.TABLE_CLEANING),
        evaluate=in_doubt,
    )
