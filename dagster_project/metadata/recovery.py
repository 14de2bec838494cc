"""Results of rollback, restore, export, verify, upgrade and the backup check, as Dagster metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import dagster as dg

from dagster_project.metadata.health import FINDINGS_LIMIT, Metadata, given, table
from pipelines import backup, export, restore, rollback, undo, upgrade, verify
from pipelines.integrity.findings import Finding
from pipelines.summary import human_bytes, utc
from trinitylake_core import Alteration, RecoveryPlan

DEFINITION_FIELDS: Final = frozenset(
    {
        "order",
        "namespace_name_max_size_bytes",
        "table_name_max_size_bytes",
        "view_name_max_size_bytes",
        "node_file_max_size_bytes",
        "txn_ttl_millis",
        "txn_isolation_level",
        "properties",
    }
)
_CHANGES: Final = ("change", "kind", "namespace", "name")
_SINCE: Final = ("version", "created_at", "operation", "changes", "author", "reason")
_UNREAD: Final = ("after", "before", "file", "why")
_VIOLATIONS: Final = ("invariant", "file", "message", "hint", "versions")
_LOGGED: Final = 20
_SAID: Final = 3


def plan_text(plan: RecoveryPlan) -> str:
    """Return a plan as text, for the log: the first changes, and whose versions would be undone."""
    lines = [_summary(plan)]
    changes = plan.changes[:_LOGGED]
    lines += [f"  {each.change} {each.kind} {'.'.join(filter(None, (each.namespace, each.name)))}" for each in changes]
    lines += ["  ... more in the metadata of this step"] if len(plan.changes) > _LOGGED else []
    lines += [
        f"  not compared, from {each.after or 'the beginning'} to {each.before or 'the end'}: {each.why}"
        for each in plan.not_compared[:_LOGGED]
    ]
    lines += [
        f"  undoes version {each.version} by {each.author}: {each.reason or each.operation}" for each in plan.since
    ]
    return "\n".join(lines)


def _summary(plan: RecoveryPlan) -> str:
    counts = ", ".join(f"{count} {what}" for what, count in (plan.counts or {}).items())
    objects = f"; objects: {counts}" if counts else ""
    unread = "; not all could be compared, see `not_compared`" if plan.not_compared else ""
    when = f"{utc(plan.target_created_at)}{_at(plan)}"
    return f"plan made at version {plan.version}: {_to(plan)} of {when}{objects}{unread}"


def _unnamed(message: str, file: str) -> str:
    """Return a message about a file without its name, which stands beside it."""
    return message.replace(f"'{file}' ", "")


def _to(plan: RecoveryPlan) -> str:
    way = "from" if plan.operation == "restore" else "to"
    return f"{plan.operation} {way} version {plan.target_version}"


def _at(plan: RecoveryPlan) -> str:
    return "" if plan.source is None else f" at {plan.source}"


def _of_plan(plan: RecoveryPlan) -> Metadata:
    changes = [{name: getattr(each, name) for name in _CHANGES} for each in plan.changes]
    since = [{name: getattr(each, name) for name in _SINCE} for each in plan.since]
    unread = [
        {
            "after": each.after or "the beginning",
            "before": each.before or "the end",
            "file": each.file,
            "why": _unnamed(each.why, each.file),
        }
        for each in plan.not_compared
    ]
    counts = {f"objects_{what}": count for what, count in (plan.counts or {}).items()}
    return given(
        not_compared=table(unread, _UNREAD) if unread else None,
        plan=table(changes, _CHANGES),
        undone=table(since, _SINCE) if since else None,
        planned_at_version=plan.version,
        target_version=plan.target_version,
        source=plan.source,
        target_created_at=utc(plan.target_created_at),
        versions_undone=plan.versions_undone,
        reason=plan.reason,
        **counts,
    )


def of_rollback(planned: rollback.Report, done: rollback.Report) -> Metadata:
    """Return the plan of a rollback, and its result; first what people read first."""
    outcome = _recovered(planned.plan, done.version_after, dry_run=done.dry_run)
    return _first(planned.plan, outcome, done.version_after, dry_run=done.dry_run) | given(
        engine=done.engine,
        nodes_checked=done.nodes_checked,
        definitions_checked=done.definitions_checked,
        bytes_read=done.bytes_read,
        seconds=round(sum(done.seconds.values()), 3),
    )


def _first(plan: RecoveryPlan, outcome: str, version_after: int | None, *, dry_run: bool) -> Metadata:
    """Return the outcome, what to launch next, and the plan."""
    again = (
        f"launch again with dry_run: false and expected_version: {plan.version}; the run stops if objects have changed "
        "by then"
    )
    return given(
        outcome=outcome,
        carry_out=again if dry_run and (plan.changes or plan.operation != "restore") else None,
        dry_run=dry_run,
        version_committed=version_after,
    ) | _of_plan(plan)


def of_undo(planned: undo.Report, done: undo.Report) -> Metadata:
    """Return what was found, the plan of the rollback to before it, and its result."""
    found = [{name: getattr(each, name) for name in _SINCE} for each in planned.undone]
    others = [{name: getattr(each, name) for name in _SINCE} for each in planned.others]
    told = of_rollback(planned.rollback, done.rollback)
    told = given(
        outcome=told["outcome"],
        carry_out=told.get("carry_out"),
        found=table(found, _SINCE),
        versions_of_others=table(others, _SINCE) if others else None,
        **{name: value for name, value in told.items() if name not in {"outcome", "carry_out"}},
    )
    if others and done.rollback.dry_run:
        told["carry_out"] += (
            f". It would also undo {len(others)} versions of others: set `others: true`, or restore single objects"
        )
    return told


def of_restore(planned: restore.Report, done: restore.Report) -> Metadata:
    """Return the plan of a restore, and its result."""
    outcome = _recovered(planned.plan, done.version_after, dry_run=done.dry_run)
    if done.version_after is None and not planned.plan.changes:
        outcome = f"nothing to do: the matching objects are as they were in version {planned.plan.target_version}"
    return _first(planned.plan, outcome, done.version_after, dry_run=done.dry_run) | given(
        engine=done.engine,
        definitions_checked=done.definitions_checked,
        bytes_read=done.bytes_read,
        seconds=round(sum(done.seconds.values()), 3),
    )


def _recovered(plan: RecoveryPlan, version: int | None, *, dry_run: bool) -> str:
    if dry_run or version is None:
        return f"dry run, nothing was changed; {_summary(plan)}"
    return f"version {version} committed: {_to(plan)}{_at(plan)}"


def of_export(done: export.Report) -> Metadata:
    """Return what an export copied."""
    plan = done.plan
    does = "would be copied" if done.dry_run else "copied"
    files = plan.definitions + plan.nodes + plan.roots
    return given(
        outcome=f"{done.target}: versions {plan.first} to {plan.version}, {files} files of {human_bytes(plan.bytes)} "
        f"{does}, {plan.files_there} were there already{_not_copied(plan)}",
        not_copied=[each.version for each in plan.unreadable] or None,
        target=done.target,
        dry_run=done.dry_run,
        version=plan.version,
        first_version=plan.first,
        definitions_copied=done.definitions_copied,
        nodes_copied=done.nodes_copied,
        roots_created=done.roots_created,
        bytes_copied=done.bytes_copied,
        files_there=plan.files_there,
        snapshots_left_out=plan.snapshots_left_out,
        engine=plan.engine,
        seconds=round(sum(done.seconds.values()), 3),
    )


def _not_copied(plan: export.Plan) -> str:
    if not plan.unreadable:
        return ""
    which = ", ".join(str(each.version) for each in plan.unreadable[:_LOGGED])
    more = "" if len(plan.unreadable) <= _LOGGED else f" and {len(plan.unreadable) - _LOGGED} more"
    return f". Not copied, because their root files cannot be read: versions {which}{more}"


def of_upgrade(done: upgrade.Report) -> Metadata:
    """Return what an upgrade wrote."""
    does = "would become" if done.dry_run else "became"
    return given(
        outcome=f"versions {done.first} to {done.last} {does} {done.target}: {done.objects} objects, digest "
        f"{done.digest}",
        target=done.target,
        dry_run=done.dry_run,
        version=done.version,
        versions=done.versions,
        objects=done.objects,
        definitions_copied=done.definitions_copied,
        bytes_copied=done.bytes_copied,
        digest=done.digest,
        seconds=round(sum(done.seconds.values()), 3),
    )


def of_verification(done: verify.Report) -> Metadata:
    """Return what a verification found."""
    count = len(done.findings) + done.more
    which = f"version {done.versions[0]}" if len(done.versions) == 1 else f"{len(done.versions)} versions"
    return given(
        outcome=f"{count} finding{'' if count == 1 else 's'} in {which}",
        violations=_violations(done.findings),
        findings=count,
        version=done.versions[0] if len(done.versions) == 1 else None,
        versions=len(done.versions),
        nodes_read=done.nodes_read,
        tables_checked=done.tables_checked or None,
        tables_unknown=done.tables_unknown or None,
        engine=done.engine,
        seconds=round(sum(done.seconds.values()), 3),
    )


def _violations(findings: Sequence[Finding]) -> dg.TableMetadataValue | None:
    """Return the first findings as a table, ``None`` if there are none."""
    rows = [
        {
            "invariant": each.invariant,
            "file": each.file,
            "message": _unnamed(each.message, each.file),
            "hint": each.hint,
            "versions": "..".join(map(str, each.versions)) or None,
        }
        for each in findings[:FINDINGS_LIMIT]
    ]
    return table(rows, _VIOLATIONS) if rows else None


def said_of_verification(done: verify.Report) -> str:
    """Return what a verification found, the first findings in full, and what to do."""
    count = len(done.findings) + done.more
    lines = [f"{count} finding{'s' if count != 1 else ''}; nothing that rewrites or deletes was started:"]
    lines += [
        f"  {each.invariant} {each.file or ''}: {each.message}" + (f". {each.hint}" if each.hint else "")
        for each in done.findings[:_SAID]
    ]
    lines += [f"  ... and {count - _SAID} more, in the metadata"] if count > _SAID else []
    lines.append("Run the job `verify`, then `rollback` to an intact version, or restore from an export.")
    return "\n".join(lines)


def said_of_backup(found: backup.Report) -> str:
    """Return what is wrong with a backup and what to do, or that it is good."""
    if found.problems:
        return "\n".join(found.problems)
    return f"version {found.version} at {found.target} is intact and matches the lakehouse: digest {found.digest}"


def of_backup(found: backup.Report) -> Metadata:
    """Return what the backup check found."""
    return given(
        outcome=said_of_backup(found),
        target=found.target,
        version=found.version,
        source_version=found.source_version,
        unsaved_since=None if found.unsaved_since is None else dg.MetadataValue.timestamp(found.unsaved_since),
        digest=found.digest,
        source_digest=found.source_digest,
        nodes_read=found.nodes_read,
        engine=found.engine,
        violations=_violations(found.findings),
        seconds=round(sum(found.seconds.values()), 3),
    )


def of_alteration(done: Alteration) -> Metadata:
    """Return which properties of a lakehouse changed."""
    rows = [{"property": name, "before": old, "after": new} for name, (old, new) in done.changes.items()]
    named = ", ".join(done.changes) or "nothing to change"
    if done.version_after is not None:
        outcome = f"version {done.version_after} committed: {named}"
    else:
        outcome = f"dry run, nothing was changed: {named}" if done.dry_run else named
    return given(
        outcome=outcome,
        dry_run=done.dry_run,
        version_committed=done.version_after,
        properties=table(rows, ("property", "before", "after")),
        reason=done.reason,
    )
