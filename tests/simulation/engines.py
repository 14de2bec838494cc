"""Jobs whose engine loses, repeats or swaps a row of an intermediate result, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from pipelines import clean, export, tables_clean
from pipelines.engine.local import LocalEngine, LocalRows
from tests.simulation.common import OUTDATED, Action, Kind
from tests.simulation.world import COPY, Exported, World
from trinitylake_core import Lakehouse
from trinitylake_core.errors import Corrupt, StorageError

How = Literal["lose", "repeat", "swap"]
HOWS: Final[tuple[How, ...]] = ("lose", "repeat", "swap")
Row = TypeVar("Row")


@dataclass
class RowFault:
    """Which row of all that an engine returns is not what it should be; counted from 0 over all results.

    Attributes:
        how: it is lost, returned twice, or replaced by a copy of the row before it.
        number: of the row; the tests try one after the other.
        seen: how many rows there were.
    """

    how: How
    number: int
    seen: int = 0

    def spoil(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield rows, one of which is spoilt if its number is among them."""
        before: Row | None = None
        for row in rows:
            is_due = self.seen == self.number
            self.seen += 1
            if is_due and self.how == "lose":
                continue
            if is_due and self.how == "swap" and before is not None:
                yield before
                continue
            yield row
            if is_due and self.how == "repeat":
                yield row
            before = row


FAULT: Final = RowFault("lose", 0)
"""The fault that strikes the next job of a kind here."""


@contextmanager
def _spoilt_rows() -> Iterator[None]:
    """Let the fault strike what is mapped as long as the context lasts."""
    true_map = LocalEngine.map
    FAULT.seen = 0

    def spoilt_map(self: LocalEngine, *args: Any, **more: Any) -> LocalRows:
        found = true_map(self, *args, **more)
        return LocalRows(self, found.column_names(), lambda: FAULT.spoil(found.tuples()))

    LocalEngine.map = spoilt_map  # type: ignore[method-assign]
    try:
        yield
    finally:
        LocalEngine.map = true_map  # type: ignore[method-assign]


def _spoilt(run: Callable[[World, Lakehouse], object]) -> Callable[[World], Action]:
    def prepare(world: World) -> Action:
        world.bring_rows()
        lake = world.handle_of_rows()

        def act() -> object:
            with _spoilt_rows():
                return run(world, lake)

        return act

    return prepare


def _clean(world: World, lake: Lakehouse) -> int:
    del world
    return clean.run(lake, clean.Config(engine="local", older_than_seconds=0, allow_recent=True)).deleted


def _clean_tables(world: World, lake: Lakehouse) -> int:
    data = next(path for path in sorted(world.rows) if "/data/" in path)
    world.store.put("put", f"{data.rpartition('/')[0]}/left-over.parquet", b"by a writer that is not done")
    config = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
    return tables_clean.run(lake, config).deleted


def _export(world: World, lake: Lakehouse) -> str:
    done = export.run(lake, COPY, export.Config(engine="local", history=True)).plan
    world.exported.append(Exported(done.first, done.version))
    return f"{done.first} to {done.version}"


_MAY_RAISE: Final = (*OUTDATED, Corrupt, StorageError)
ENGINES: Final[Mapping[str, Kind]] = {
    "clean-spoilt": Kind(_spoilt(_clean), _MAY_RAISE),
    "tables-clean-spoilt": Kind(_spoilt(_clean_tables), _MAY_RAISE),
    "export-spoilt": Kind(_spoilt(_export), _MAY_RAISE),
}
"""Kinds whose engine returns other rows than there are."""
