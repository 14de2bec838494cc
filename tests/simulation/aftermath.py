"""What a user would do afterwards, with the product's own code: open, refresh, maintain, commit.

It costs more than looking at the store, and is done once for each distinct outcome.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipelines import clean, expire
from tests.simulation.ground import count_up
from tests.simulation.oracle import Oracle
from tests.simulation.schedule import DURATIONS
from tests.simulation.scheduler import Outside
from tests.simulation.store import SimStorage
from tests.simulation.world import COPY, World
from trinitylake_core import Lakehouse
from trinitylake_core.check import check_lakehouse, check_version
from trinitylake_core.errors import Corrupt, TransactionExpired, TrinityLakeError
from trinitylake_core.locations import parse
from trinitylake_core.spec import BOUNDARY_FILE, HINT_FILE

HINTS = (None, b"0", b"3", b"4000000000", b"garbage")
"""The contents of the hint to try, independent of what was written: it is never trusted."""


def aftermath(world: World) -> Iterator[str]:
    """Yield what goes wrong for those who come later. Changes the world."""
    with Outside(world.store, "afterwards").acting():
        try:
            if world.lost:  # versions behind them are found only by a listing
                return
            if world.newest.number in world.damaged:  # it cannot be opened; each error names the file
                yield from _unreadable(world)
                return
            yield from _found(world)
            yield from _checked(world)
            yield from _maintained(world)
            yield from _copy_used(world)
        except TrinityLakeError as error:
            yield f"afterwards: {type(error).__name__}: {error}"


def _unreadable(world: World) -> Iterator[str]:
    """A damaged root is named; that of another lakehouse opens, but nothing is deleted by what it says."""
    try:
        found = Lakehouse.open(SimStorage())
        if found.version not in world.damaged or not list(found.check(definitions=True)):
            yield f"a cold open finds version {found.version}, and the newest one is damaged"
        expire.run(found, expire.Config(engine="local", keep_last=1))
    except Corrupt as error:
        if not world.names_damage(error):
            yield f"the damaged root is not named: {error}"


def _found(world: World) -> Iterator[str]:
    """A cold open under every hint, and a refresh of every handle, however old, find the newest version."""
    newest = world.newest
    hint = world.store.objects.get(HINT_FILE)
    for number, content in enumerate((b"as it is", *HINTS)):
        if content is None:
            world.store.objects.pop(HINT_FILE, None)
        elif number:
            world.store.put("put", HINT_FILE, content)
        yield from _same(Lakehouse.open(SimStorage()), newest.number, newest.data, f"a cold open with hint {content!r}")
    if hint is not None:
        world.store.objects[HINT_FILE] = hint
    handles = [
        *world.handles,
        *((f"a handle of version {version}", world.handle(version)) for version in world.ground.at),
    ]
    for name, lake in handles:
        yield from _same(lake.refresh(), newest.number, newest.data, f"a refresh of {name}")


def _copy_used(world: World) -> Iterator[str]:
    """A commit to the copy now, past every version of the source, is not lost, or is refused because of an export.

    Tried where one was not completed or roots are missing; any other copy is like any other lakehouse.
    """
    if world.copy_cleared > 1 or world.copy_torn:  # whoever deletes a lakehouse has to stop its writers first
        return
    roots = {each.version for path in world.copy.objects if (each := parse(path)) and each.version is not None}
    boundary = world.copy.objects.get(BOUNDARY_FILE)
    gaps = roots and len(roots) <= max(roots) - min(roots)
    if world.damaged or not roots or not (gaps or (boundary is not None and boundary.data.endswith(b"\n"))):
        return
    lake = Lakehouse.open(COPY)
    if world.copy_given_back and max(roots) > lake.version:  # the export went on after that, and died
        return
    _thawed(lake)
    made: list[tuple[int, str]] = []
    for number in range(world.newest.number - lake.version + 2):
        try:
            with lake.transaction() as txn:
                txn.create_namespace(f"z{number}")
        except TransactionExpired as error:
            if "Repeat the export" not in str(error) or made:
                yield f"the copy is not written to: {error}"
            return
        made.append((lake.refresh().version, txn.id))
    for content in (b"0", *(b"%d" % version for version, _ in made)):
        world.copy.put("put", HINT_FILE, content)
        found = Lakehouse.open(COPY)
        said = {info.version: info.txn for info in found.history()}
        if not said.items() >= dict(made).items():
            yield f"the copy opens at version {found.version} with hint {content!r}, without what was committed there"


def _thawed(lake: Lakehouse) -> None:
    if lake.frozen is not None:
        lake.thaw()


def _same(lake: Lakehouse, version: int, data: bytes, what: str) -> Iterator[str]:
    if lake.version != version or bytes(lake.root_node.data) != data:
        yield f"{what} finds version {lake.version}, and the newest one is {version}"


def _checked(world: World) -> Iterator[str]:
    """The product's own check finds nothing in any version that was made since, nor in what all versions share."""
    lake = Lakehouse.open(SimStorage())
    versions = lake.backend.versions
    found = check_lakehouse(versions, lake.backend.newest_seen)
    yield from (f"check: {each.message}" for each in found if not world.names_damage((each.file, each.message)))
    for number in range(max(world.newest.oldest, world.ground.newest + 1), world.newest.number + 1):
        if number in world.damaged:
            continue
        yield from (
            f"check of version {number}: {each.message}"
            for each in check_version(versions, number, definitions=True)
            if not world.names_damage((each.file, each.message))
        )
        if versions.root(number).counts is None:  # that they are right is an invariant
            yield f"version {number} does not say how many objects it holds"


def _maintained(world: World) -> Iterator[str]:
    """The lakehouse can be cleaned, a month later also expired, and written to, and nothing that is kept is lost."""
    config = clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
    if not world.damaged:
        clean.run(Lakehouse.open(SimStorage()), config)
    world.store.now_millis += DURATIONS["month"]
    expire.run(Lakehouse.open(SimStorage()), expire.Config(engine="local", keep_last=1))
    clean.run(Lakehouse.open(SimStorage()), config)
    _thawed(lake := Lakehouse.open(SimStorage()))
    with lake.transaction() as txn:
        count_up(txn, "t22")
    oracle = Oracle(world, ())
    for check in (oracle.changes, oracle.retained, oracle.snapshots):
        yield from (f"after maintenance: {each}" for each in check())
    yield from _same(
        Lakehouse.open(SimStorage()), world.newest.number, world.newest.data, "a cold open after maintenance"
    )
