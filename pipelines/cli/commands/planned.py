"""What the commands share that show a plan before they delete or rewrite files: their options, and the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelines.clean import SAFETY_AGE_SECONDS
from pipelines.cli.command import DONE, Call, Option, Result, age, option, report_result
from pipelines.cli.commands.options import DRY_RUN, ENGINE, REASON, SPARK, VERBOSE, YES

SOME_FAILED = 4
PLANNED = (
    DRY_RUN,
    VERBOSE,
    YES,
    option("--plan-to", metavar="URI", help="write the plan to this Parquet file; change nothing"),
    option("--plan", metavar="URI", help="carry out this plan, if it is still valid"),
)


def cleaning_options(under_way: str, *more: Option) -> tuple[Option, ...]:
    """Return the options of a cleaning, with what may have to start over while it runs."""
    return (
        age(
            "--older-than",
            "older_than_seconds",
            default=SAFETY_AGE_SECONDS,
            help="safety age: keep younger files (default 3d)",
        ),
        option(
            "--allow-recent", is_flag=True, help=f"allow a safety age below 24h; {under_way} under way may start over"
        ),
        *PLANNED,
        *more,
        REASON,
        ENGINE,
        *SPARK,
    )


def _has_failures(done: Any) -> bool:
    return bool(done.failures)


def run_planned(
    call: Call, job: Any, config: Any, *spark: Any, failed: Callable[[Any], bool] = _has_failures
) -> Result:
    """Run a job that shows its plan first; the exit code is 4 if it ``failed`` at something."""

    def show(done: Any) -> Result:
        return report_result(call, done, code=SOME_FAILED if failed(done) else DONE)

    done = job.run(
        call.open(),
        config,
        *spark,
        review=call.review(show),
        progress=call.progress,
    )
    return show(done)
