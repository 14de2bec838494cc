"""The history and the difference of two versions as Dagster metadata: tables."""

from __future__ import annotations

from typing import Final

from dagster_project.metadata.health import Metadata, given, history_table, table
from pipelines import diff, history

_CHANGES: Final = ("change", "kind", "namespace", "name")


def of_history(found: history.Report) -> Metadata:
    """Return versions, newest first."""
    count = len(found.versions)
    more = "; there are more" if found.more else ""
    return given(
        outcome=f"{count} version{'' if count == 1 else 's'} of {found.root}, newest first{more}",
        versions=count,
        newest_version=found.version,
        more=found.more,
        history=history_table(found.versions) if count else None,
    )


def of_diff(found: diff.Report) -> Metadata:
    """Return what changed, counted, and the first changes as a table."""
    shown = [{name: getattr(each, name) for name in _CHANGES} for each in found.changes]
    counts = ", ".join(f"{count:,} {what}" for what, count in found.counts.items())
    total = sum(found.counts.values())
    of_other = "" if found.other == found.root else f" of {found.other}"
    return given(
        outcome=f"from version {found.a} to version {found.b}{of_other}: {counts}" if total else "no differences",
        root=found.root,
        other=None if found.other == found.root else found.other,
        from_version=found.a,
        to_version=found.b,
        changes=table(shown, _CHANGES) if shown else None,
        changes_shown=len(shown) if len(shown) < total else None,
        **{f"objects_{what}": count for what, count in found.counts.items()},
    )
