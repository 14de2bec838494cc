"""The command `undo`: a rollback whose target is found by time, author or reason."""

from __future__ import annotations

from collections.abc import Iterable

from pipelines import undo as undoing
from pipelines.cli import report
from pipelines.cli.commands.command import Call, Line, Result, command, in_order, option
from pipelines.cli.commands.options import DRY_RUN, ENGINE, REASON, SPARK, YES
from pipelines.cli.commands.recovery import EXPECTED_VERSION, rolled_back
from trinitylake_core import VersionInfo


@command(
    "undo ROOT",
    "find what somebody did, by time, author or reason, and roll back to before it",
    "trinitylake undo file:///data/lake --author 'deploy-bot@*' --reason 'bad deploy, ticket 4711' --dry-run",
    options=(
        option("--since", metavar="T", help="what was committed at T or later, ISO 8601, UTC"),
        option("--author", metavar="PATTERN", help="whose commits, with * and ?"),
        option("--matching", metavar="TEXT", help="commits with this text in their reason"),
        option("--others", is_flag=True, help="also undo what others committed after it"),
        REASON,
        DRY_RUN,
        YES,
        option("--force", is_flag=True, help="also undo what is committed while this runs"),
        EXPECTED_VERSION,
        ENGINE,
        *SPARK,
    ),
    details="""\
With --since alone: everything from then on. With --author or --matching: the newest commits in a row that match.
A rollback to the version before the first of them follows, with all that `rollback` proves. What others committed
after it would be undone, too, so it is refused unless --others is given; `restore` brings back single objects.""",
)
def undo(call: Call) -> Result:
    """Undo."""
    options = call.options
    config = undoing.Config(
        since=options.since,
        author=options.author,
        matching=options.matching,
        others=options.others,
        reason=options.reason,
        dry_run=options.dry_run,
        force=options.force,
        expected_version=options.expected_version,
        engine=options.engine,
    )
    done = undoing.run(call.open(damaged=True), config, call.spark, progress=call.progress)
    parts = (_versions("found", done.undone), _versions("by others, undone too", done.others))
    return Result(done, in_order(*parts, *rolled_back(done.rollback)))


def _versions(what: str, versions: tuple[VersionInfo, ...]) -> Iterable[Line]:
    if versions:
        yield f"{what}: {len(versions)}"
        rows = ([each.version, each.created_at, each.operation, each.author, each.reason] for each in versions[:20])
        yield from report.table(["version", "created", "operation", "author", "reason"], rows)
