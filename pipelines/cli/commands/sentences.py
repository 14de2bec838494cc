"""Reports of jobs in a few sentences; ``--verbose`` and ``--json`` show all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pipelines.cli.command import Call, Line, Result, in_order
from pipelines.cli.report import fields, human_bytes, plain
from pipelines.durations import shown

if TYPE_CHECKING:
    from pipelines import compaction, export, load, upgrade
    from pipelines.expiration import Report as Expired
    from pipelines.files.unreadable import Unreadable
    from pipelines.orphans import Report as Cleaned

DRY_RUN: Final = "dry run, nothing was changed"
_SHOWN: Final = 5


def reported(call: Call, done: Any, *parts: Iterable[Line], code: int = 0) -> Result:
    """Return a report as a result: sentences, and with ``--verbose`` every field below them."""
    return Result(done, in_order(*parts, fields(done) if call.options.verbose else ()), code)


def count(number: int | None, what: str) -> str:
    """Return a number with what it counts: ``1 file``, ``2 files``."""
    if number is None:
        return f"an unknown number of {what}s"
    return f"{number:,} {what[:-1] + 'ie' if number != 1 and what.endswith('y') else what}{'' if number == 1 else 's'}"


def compacted(done: compaction.Report) -> Iterator[str]:
    """Say what a compaction did."""
    plan = done.plan
    messages = count(plan.messages, "message")
    if done.version_after is not None:
        written = f"{count(done.nodes_written, 'node')} written, {human_bytes(done.bytes_written)}"
        proved = ", proved to mean what was there before" if done.proved else ""
        yield f"version {done.version_after} committed: {messages} pushed down, {written}{proved}"
    elif plan.messages == 0:
        yield f"nothing to do: no message is buffered in version {done.version_before}"
    else:
        cost = f"about {count(plan.nodes, 'node')} ({human_bytes(plan.bytes)}) and {count(plan.requests, 'request')}"
        yield f"{DRY_RUN}: {messages} would be pushed down, with {cost}, engine {plan.engine}"


def loaded(done: load.Report) -> Iterator[str]:
    """Say what a load did."""
    counts = {"added": done.added, "replaced": done.replaced, "skipped": done.skipped}
    objects = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number) or "none"
    if done.version_after is not None:
        there = "" if done.objects is None else f"; it holds {count(done.objects, 'object')}"
        yield f"version {done.version_after} committed{there}"
    else:
        yield DRY_RUN if done.dry_run else "nothing to do"
    yield f"objects: {objects}, from {count(done.files, 'file')} ({human_bytes(done.source_bytes)})"


def exported(done: export.Report) -> Iterator[str]:
    """Say what an export copied, or would copy."""
    plan, target = done.plan, plain(done.target)
    which = f"version {plan.version}" if plan.first == plan.version else f"versions {plan.first} to {plan.version}"
    there = f"; {count(plan.files_there, 'file')} there already" if plan.files_there else ""
    if not (plan.definitions or plan.nodes or plan.roots or plan.roots_removed):
        yield f"nothing to copy: {target} holds {which} already, {count(plan.files_there, 'file')}"
    elif done.dry_run:
        yield f"{DRY_RUN}: {target} would hold {which}"
        yield f"to copy: {_copies(plan.definitions, plan.nodes, plan.roots)}, {human_bytes(plan.bytes)}{there}"
    else:
        yield f"{target} holds {which}"
        copied = _copies(done.definitions_copied, done.nodes_copied, done.roots_created)
        yield f"copied, read back and compared: {copied}, {human_bytes(done.bytes_copied)}{there}"
    if removed := plan.roots_removed if done.dry_run else done.roots_removed:
        yield f"{count(removed, 'older version')} {'would be ' * done.dry_run}removed there"
    if plan.snapshots_left_out:
        yield f"{count(plan.snapshots_left_out, 'snapshot')} left out: --history exports them, too"
    for each in plan.unreadable:
        yield f"version {each.version} cannot be copied: {each.why}; {not_copied(each)}"


def not_copied(each: Unreadable) -> str:
    """Say what that means for a copy, and what to do."""
    if each.at_target:
        return f"the copy has it from before, and its root file can be copied back: {each.file}"
    return "the copy has the same unreadable root, opens at every other version, and loses it when it expires"


def _copies(definitions: int, nodes: int, roots: int) -> str:
    return f"{count(definitions, 'definition')}, {count(nodes, 'node')}, {count(roots, 'root')}"


def upgraded(done: upgrade.Report) -> Iterator[str]:
    """Say what an upgrade wrote, or would write."""
    which = f"version {done.last}" if done.versions == 1 else f"versions {done.first} to {done.last}"
    what = f"{which} of {plain(done.source)}, {count(done.objects, 'object')}"
    if done.dry_run:
        yield f"{DRY_RUN}: {plain(done.target)} would hold {what}"
        return
    yield f"{plain(done.target)} holds {what}, as version {done.version}"
    yield f"{count(done.definitions_copied, 'definition')} copied, {human_bytes(done.bytes_copied)}"


def expired(done: Expired) -> Iterator[str]:
    """Say which versions expired, or would expire."""
    last = done.boundary_after - 1
    which = f"versions {done.boundary_before} to {last}" if done.versions_expired > 1 else f"version {last}"
    stay = f"{done.boundary_after} to {done.version_before} stay"
    if not done.versions_expired:
        yield f"nothing {'would expire' if done.dry_run else 'expires'}: versions {stay}"
    elif done.dry_run:
        yield f"{_unchanged(done)}: {which} would expire, {stay}"
    else:
        yield f"version {done.version_after} committed: {which} expired, {stay}"
    if done.freed is not None and done.freed.files:
        freed = f"{count(done.freed.files, 'file')}, {human_bytes(done.freed.bytes)}"
        yield f"only they hold {freed}: their roots would go at once, the rest with the next `clean`"
    if done.snapshots_expired:
        yield f"snapshots dropped, for their own time was over: {', '.join(map(plain, done.snapshots_expired))}"
    yield from _deleted(done, "root", "; `clean` removes what else only they held")


def cleaned(done: Cleaned) -> Iterator[str]:
    """Say what a cleaning deleted, or would delete, and what it left alone."""
    kinds = ", ".join(f"{each.files:,} {kind}" for kind, each in done.orphans.items())
    orphans = f"{count(done.orphan_files, 'orphan')} ({human_bytes(done.orphan_bytes)})"
    found = f"{orphans} among {count(done.listed.files, 'file')}{f': {kinds}' if kinds else ''}"
    if not done.orphan_files and not done.attempted:
        yield f"nothing to do: {found}"
    elif done.dry_run:
        yield f"{_unchanged(done)}: {found}"
    else:
        yield found
    yield from _deleted(done, "file", "")
    if done.young.files:
        age = shown(done.safety_age_seconds)
        yield f"not reached either, but younger than {age}, so that they stay: {_sizes(done.young)}"
    if done.unknown_age.files:
        yield f"not reached either, but of unknown age, so that they stay: {_sizes(done.unknown_age)}"
    if done.foreign.files or done.foreign.directories:
        names = ", ".join(map(plain, (*done.foreign.some, *done.foreign.directories)[:_SHOWN]))
        yield f"not of this lakehouse, left alone: {_sizes(done.foreign)}: {names}"


def _unchanged(done: Expired | Cleaned) -> str:
    return DRY_RUN if done.plan is None else f"plan written to {plain(done.plan)}, nothing was changed"


def _sizes(size: Any) -> str:
    return f"{count(size.files, 'file')}, {human_bytes(size.bytes)}"


def _deleted(done: Expired | Cleaned, what: str, then: str) -> Iterator[str]:
    if not done.attempted:
        return
    gone = f"; {done.already_gone:,} were gone already" if done.already_gone else ""
    yield f"{count(done.deleted, f'{what}')} deleted, {human_bytes(done.bytes)}{gone}{then}"
    yield from _failed(done.failed, done.failures)


def _failed(failed: int, failures: Mapping[str, str]) -> Iterator[str]:
    if failed:
        yield f"{count(failed, 'file')} could not be deleted; the next run tries again:"
    for path, why in list(failures.items())[:_SHOWN]:
        yield f"  {plain(path)}: {plain(why)}"
