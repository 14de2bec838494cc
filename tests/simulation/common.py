"""What actors of all kinds have in common: how they are prepared, and how what they were told is noted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError

from tests.simulation.fileio import SIM_FILE_IO
from tests.simulation.ground import count_up
from tests.simulation.scheduler import running_actor
from tests.simulation.world import Ack, Changes, World
from trinitylake_core.errors import (
    CommitConflict,
    LakehouseReplaced,
    NotFound,
    PlanOutdated,
    TransactionExpired,
    TrinityLakeError,
    VersionExpired,
)
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.transactions.transaction import Transaction

Action = Callable[[], Any]
REFUSED: Final = (CommitConflict, LakehouseReplaced, TransactionExpired)
OUTDATED: Final = (*REFUSED, PlanOutdated, VersionExpired)
TABLES: Final = (*REFUSED, CommitFailedException, NoSuchTableError, TableAlreadyExistsError, NotFound)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of actor: what prepares it and returns its action, and which refusals are right for it."""

    prepare: Callable[[World], Action]
    may_raise: tuple[type[Exception], ...] = ()


def commit_intended(world: World, txn: Transaction, changes: Changes) -> int:
    world.intents.setdefault(txn.id, []).append(changes)
    version = txn.commit()
    world.acks.append(Ack(running_actor(), version, txn.id))
    return version


def count_intended(txn: Transaction, *tables: str) -> Changes:
    return {name: (before, before + 1) for name, before in count_up(txn, *tables).items()}


def note_made(world: World, version: int | None) -> int | None:
    if version is not None:
        world.acks.append(Ack(running_actor(), version))
    return version


def catalog_with_rows(world: World) -> TrinityLakeCatalog:
    world.bring_rows()
    return TrinityLakeCatalog.over(world.handle(), **{"py-io-impl": SIM_FILE_IO})


def raise_ours(act: Action) -> Any:
    try:
        return act()
    except Exception as error:  # PyIceberg's exception for one of ours
        raise (error.__cause__ if isinstance(error.__cause__, TrinityLakeError) else error) from error
