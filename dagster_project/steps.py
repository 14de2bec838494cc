"""How a job that people start by hand is made: one step, one call, a launchpad that is checked before a run exists."""

from collections.abc import Callable
from typing import Any, Final

import dagster as dg

from dagster_project import launchpads
from dagster_project.assets import key
from dagster_project.config.settings import LakehouseSettings
from dagster_project.launchpads import Launchpad
from dagster_project.metadata import health
from dagster_project.scope import Scope
from dagster_project.supervised import RETRY, advice
from trinitylake_core import TrinityLakeError

_NEVER_AGAIN: Final = ("rollback", "restore", "undo")
"""What another writer's commit may have made wrong meanwhile is not retried."""
_READS: Final = ("verify", "history", "diff")


def job(scope: Scope, name: str, op: dg.OpDefinition) -> dg.JobDefinition:
    """Return the job of one step. Its launchpad starts with the fields that people have to fill in."""
    chosen = {"ops": {op.name: {"config": launchpads.defaults(scope.known)[name]}}}
    description = f"{op.description}\n\n{scope.label[0].upper()}{scope.label[1:]}."

    @dg.job(
        name=f"{scope.slug}_{name}",
        description=description,
        config=chosen,
        tags=dict(scope.tags),
        partitions_def=scope.partitions,
        executor_def=dg.in_process_executor,
    )
    def made() -> None:
        op()

    return made


def step(
    scope: Scope, name: str, launchpad: type[Launchpad], description: str
) -> Callable[[Callable[..., Any]], dg.OpDefinition]:
    """Return the decorator of a step that takes a launchpad, checked before a run is made.

    Those that write do so one at a time. When the storage fails, a step is retried if repeating is safe.
    """

    def decorate(work: Callable[..., Any]) -> dg.OpDefinition:
        op: dg.OpDefinition = dg.op(
            name=key(scope, name).to_python_identifier(),
            description=description,
            out=dg.Out(dg.Nothing),
            pool=None if name in _READS else scope.pool,
            retry_policy=None if name in _NEVER_AGAIN else RETRY,
            tags={"kind": "spark"},
        )(work)
        return checked(op, launchpad, f"{scope.slug}_{name}", scope.known)

    return decorate


def checked(
    op: dg.OpDefinition, launchpad: type[Launchpad], job: str, known: LakehouseSettings | None
) -> dg.OpDefinition:
    """Return a step whose launchpad is checked where Dagster resolves the configuration: before it creates a run.

    The webserver itself checks names, types and choices only. The code server then makes the plan of the run, and what
    is refused there is the answer to ``launchRun``; no run exists.
    """

    def refuse(given: dict[str, Any]) -> dict[str, Any]:
        try:
            launchpad(**given).check(known)
        except TrinityLakeError as error:
            said = f"{job}: {error}\n{advice(error)}".strip()
            raise dg.DagsterInvalidConfigError(said, [], given) from None  # type: ignore[no-untyped-call]
        return given

    made = op.configured(refuse, name=op.name, config_schema=launchpads.fields_of(launchpad))
    if not isinstance(made, dg.OpDefinition):
        raise TypeError(type(made))
    return made


def tell(context: dg.OpExecutionContext, metadata: health.Metadata) -> None:
    """Log the outcome, and show everything at the output of the step."""
    context.log.info(metadata["outcome"])
    context.add_output_metadata(health.with_sizes(metadata))


def engine(settings: LakehouseSettings, chosen: str | None) -> str:
    """Return the engine that somebody chose, or that of the stanza."""
    return chosen or settings.compaction.engine


def chosen(settings: LakehouseSettings, config: Launchpad) -> dict[str, Any]:
    """Return the launchpad options as arguments of the ``Config`` of a pipeline, whose fields have the same names."""
    given = config.model_dump()
    return given | {"engine": engine(settings, given["engine"])}
