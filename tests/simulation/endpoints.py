"""Processes that commit for clients: groups, endpoints that know nothing of each other, and requests sent again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import (
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from pipelines import expire
from tests.simulation.common import (
    REFUSED,
    TABLES,
    Action,
    Kind,
    commit_intended,
    count_intended,
    note_made,
    raise_ours,
)
from tests.simulation.fileio import SIM_FILE_IO
from tests.simulation.ground import ALSO, ROWS, create_tables
from tests.simulation.schedule import DURATIONS
from tests.simulation.scheduler import acting, running_actor
from tests.simulation.store import SimStorage
from tests.simulation.world import Ack, Subject, Told, World
from trinitylake_core import Lakehouse
from trinitylake_core.errors import AlreadyExists, CommitConflict, StorageError
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.transactions.group import CommitGroup, Entry
from trinitylake_core.transactions.requests import Repeated, RequestKey
from trinitylake_core.transactions.transaction import Transaction

_COLOR: Final = Subject("namespace", "a", "color")
_OWNER: Final = Subject("table", ROWS, "owner")
_TAG: Final = Subject("reference", ROWS, "kept")


# Transactions of one process that become one version.


def _begin(world: World, lake: Lakehouse, *tables: str, **how: Any) -> Transaction:
    """Return a transaction that counts up tables, and whose definitions are written."""
    txn = lake.transaction(**how)
    world.intents.setdefault(txn.id, []).append(count_intended(txn, *tables))
    txn.change.write_definitions()  # what `commit` does before it waits for its turn
    return txn


def _blame_none_for_others(world: World, entry: Entry) -> None:
    """Take note of it if a member was refused for keys that it does not write; a rollback refuses all members."""
    if isinstance(entry.error, CommitConflict) and "replaced the whole tree" not in str(entry.error):
        keys = entry.error.keys
        if not set(keys) & entry.change.writes.by_key.keys():
            world.violations.append(f"{running_actor()} refused a member for {keys}, which are none of its own")


def _note_outcomes(world: World, entries: list[Entry]) -> list[int]:
    """Take note of what the members of a batch were told; raise the error of one of them, if there is one."""
    for entry in entries:
        if entry.version is None and entry.error is None:
            world.violations.append(f"{running_actor()} left a member of a group without an outcome")
        if entry.version is not None:
            world.acks.append(Ack(running_actor(), entry.version, entry.change.id))
    errors = [entry.error for entry in entries if entry.error is not None]
    unknown = [each for each in errors if isinstance(each, StorageError)]
    if errors:
        raise (unknown or errors)[0]
    return [entry.version for entry in entries if entry.version is not None]


def _commit_in_groups(world: World) -> Action:
    """Three transactions in one group: one is committed after the first has begun; the last one conflicts with it."""
    lake = world.handle()

    def act() -> list[int]:
        group = lake.group()
        entries = [Entry(_begin(world, lake, *tables).change, "group") for tables in (("t0",), ("t10",), ("t0", "t20"))]
        group.commit_together(entries[1:2])
        group.commit_together(entries[::2])
        conflicting = entries.pop()
        if entries[0].error is None and not isinstance(conflicting.error, CommitConflict):
            world.violations.append(f"{running_actor()} committed two transactions that conflict, in one group")
        return _note_outcomes(world, entries)

    return act


def _commit_beside_a_broken_one(world: World) -> Action:
    """Three transactions in one group, of which the second raises when the group asks for its changes."""
    lake = world.handle()

    def act() -> list[int]:
        entries = [Entry(_begin(world, lake, table).change, "group") for table in ("t0", "t10", "t20")]
        broken = entries[1]
        broken.change.messages = _broken  # type: ignore[method-assign]
        lake.group().commit_together(entries)
        if not isinstance(broken.error, _Broken):
            world.violations.append(f"a member that is broken was told {broken.version}, {broken.error!r}")
        return _note_outcomes(world, [entries[0], entries[2]])

    return act


def _commit_to_the_same_table(world: World) -> Action:
    """Two transactions of one table that begin at the same version, one group after the other."""
    lake = world.handle()

    def act() -> list[int]:
        group = lake.group()
        entries = [Entry(_begin(world, lake, "t0").change, "group") for _ in range(2)]
        for entry in entries:
            group.commit_together([entry])
        return _note_outcomes(world, entries)

    return act


def _create_in_a_group(world: World) -> Action:
    """Two transactions in one group that create tables."""
    lake = world.handle()

    def act() -> list[int]:
        entries = []
        for name in ("w1", "w0"):
            txn = lake.transaction()
            create_tables(txn, name)
            txn.change.write_definitions()
            entries.append(Entry(txn.change, "group"))
        lake.group().commit_together(entries)
        return _note_outcomes(world, entries)

    return act


class _Broken(Exception):
    """What a transaction raises that has a fault of its own."""


def _broken() -> Any:
    raise _Broken


def _abort_after_a_group(world: World) -> Action:
    """Two transactions in one group, each of which is aborted when the network is back, if its outcome is unknown."""
    lake = world.handle()

    def act() -> str:
        group = lake.group()
        first, second = _begin(world, lake, "t0"), _begin(world, lake, "t10", group=group)
        waiting = Entry(first.change, "group")
        group._waiting.append(waiting)
        try:
            world.acks.append(Ack(running_actor(), second.commit(), second.id))
            return f"committed {_note_outcomes(world, [waiting])}"
        except StorageError:
            pass  # one of them, or both, may be committed
        except CommitConflict:
            _note_outcomes(world, [waiting])
            raise
        acting().outage = False
        first._uncertain = True  # as if it had waited in a thread of its own
        for txn in (first, second):
            with suppress(CommitConflict):  # it is committed
                txn.abort()
                world.aborts.append(txn.id)
        return "aborted"

    return act


def _key(world: World) -> RequestKey:
    """Return the key of now, which is the same for all actors."""
    clock = f"{world.store.now_millis:012x}"
    return RequestKey(f"{clock[:8]}-{clock[8:]}-7000-8000-000000000001", "the same")


def _ask(world: World, lake: Lakehouse, group: CommitGroup, key: RequestKey) -> int:
    """Carry out a request with a key over two tables, in a group with another such."""
    other = _begin(world, lake, "t20", "t21")
    txn = _begin(world, lake, "t0", "t10", group=group, request=key)
    entries = [Entry(other.change, "group"), Entry(txn.change, "group")]
    group.commit_together(entries)
    _blame_none_for_others(world, entries[0])
    if entries[0].version:
        world.acks.append(Ack(running_actor(), entries[0].version, other.id))
    return entries[1].outcome()


def _send(world: World, lake: Lakehouse, key: RequestKey) -> int:
    """Send a request to an endpoint that has just started, which tries again after a lost race, as the catalog does."""
    group = lake.group()
    for _ in range(5):
        with suppress(CommitConflict):
            try:
                version = _ask(world, lake, group, key)
            except Repeated as done:
                version = done.version
            world.acks.append(Ack(running_actor(), version, key.id))
            return version
        lake.refresh()
    raise CommitConflict("five races were lost")


def _request(world: World) -> Action:
    """A request with a key; all actors of this kind send the same one."""
    stale, key = world.handle(), _key(world)
    return lambda: _send(world, stale.refresh(), key)


def _carry_out(world: World, lake: Lakehouse, group: CommitGroup, key: RequestKey, *tables: str) -> int:
    """Carry out a request with a key that meets no other one at its endpoint; return the version that it became."""
    try:
        version = _begin(world, lake, *tables, group=group, request=key).commit()
    except Repeated as done:
        version = done.version
    world.acks.append(Ack(running_actor(), version, key.id))
    return version


def _request_alone(world: World) -> Action:
    """A request with a key that meets no other one at its endpoint, and is sent again to another endpoint."""
    key = _key(world)

    def act() -> list[int]:
        versions = []
        for _ in range(2):
            lake = Lakehouse.open(SimStorage())
            versions.append(_carry_out(world, lake, lake.group(), key, "t0"))
        return versions

    return act


def _request_at_two(world: World) -> Action:
    """A request with a key is carried out at one endpoint, and sent again to another, which has read older versions."""
    key = _key(world)

    def act() -> int:
        early = RequestKey(key.id.replace("-7000-", "-7001-"), "another")
        lake = Lakehouse.open(SimStorage())
        group = lake.group()
        _carry_out(world, lake, group, early, "t20")
        _send(world, Lakehouse.open(SimStorage()), key)
        lake.refresh()
        txn = _begin(world, lake, "t21", group=group)
        world.acks.append(Ack(running_actor(), txn.commit(), txn.id))
        return _carry_out(world, lake, group, key, "t0", "t10")

    return act


def _commit_twice(txn: Transaction) -> None:
    """Commit, and the same once more when the network is back, if the outcome is unknown."""
    try:
        txn.commit()
    except StorageError:
        acting().outage = False
        txn.commit()


def _request_again(world: World) -> Action:
    """A request with a key whose transaction is committed again after an unknown outcome; then a client repeats it."""
    lake, key = world.handle(), _key(world)

    def act() -> int:
        group = lake.group()
        waiting = Entry(_begin(world, lake, "t20").change, "group")
        txn = _begin(world, lake, "t0", "t10", group=group, request=key)
        group._waiting.append(waiting)
        try:
            _commit_twice(txn)
        except CommitConflict:
            _note_outcomes(world, [waiting])
            raise
        if waiting.version is not None:
            world.acks.append(Ack(running_actor(), waiting.version, waiting.change.id))
        return _send(world, Lakehouse.open(SimStorage()), key)

    return act


# Endpoints.


def _endpoint(lake: Lakehouse) -> TrinityLakeCatalog:
    return TrinityLakeCatalog.over(lake, **{"py-io-impl": SIM_FILE_IO, "group-commits": "true"})


def _endpoints(world: World) -> tuple[TrinityLakeCatalog, TrinityLakeCatalog]:
    """Return two endpoints that know nothing of each other, over a lakehouse with Iceberg tables."""
    world.bring_rows()
    return _endpoint(world.handle_of_rows()), _endpoint(world.handle_of_rows())


def _ask_endpoint(world: World, value: str | None, about: Subject, act: Action) -> None:
    """Ask an endpoint for something, and take note of what its answer says: at that time, this was true."""
    began = world.newest.number
    raise_ours(act)
    world.told.append(Told(running_actor(), began, world.newest.number, about, value))


def _update(catalog: TrinityLakeCatalog, *updates: TableUpdate) -> Action:
    return lambda: catalog.commit_tables([(ROWS, (), updates)])


def _remove_property(world: World) -> Action:
    """Set a property of a namespace at one endpoint, then remove it at another one, which has not seen that."""
    left, right = _endpoints(world)

    def act() -> str:
        _ask_endpoint(world, "red", _COLOR, lambda: right.update_namespace_properties("a", None, {"color": "red"}))
        _ask_endpoint(world, None, _COLOR, lambda: left.update_namespace_properties("a", {"color"}))
        return "removed"

    return act


def _remove_table_property(world: World) -> Action:
    """The same with a property of a table."""
    left, right = _endpoints(world)

    def act() -> str:
        _ask_endpoint(world, "me", _OWNER, _update(right, SetPropertiesUpdate(updates={"owner": "me"})))
        _ask_endpoint(world, None, _OWNER, _update(left, RemovePropertiesUpdate(removals=["owner"])))
        return "removed"

    return act


def _set_reference(world: World) -> Action:
    """Set a reference at one endpoint, remove it at another one, and set it again at the first, which has it."""
    left, right = _endpoints(world)
    snapshot = left.load_table(ROWS).metadata.current_snapshot_id or 0
    tag = SetSnapshotRefUpdate(**{"ref-name": "kept", "type": "tag", "snapshot-id": snapshot})
    removal = RemoveSnapshotRefUpdate(**{"ref-name": "kept"})

    def act() -> str:
        _ask_endpoint(world, str(snapshot), _TAG, _update(left, tag))
        _ask_endpoint(world, None, _TAG, _update(right, removal))
        _ask_endpoint(world, str(snapshot), _TAG, _update(left, tag))
        return "set"

    return act


def _nothing_for_one_of_two(world: World) -> Action:
    """Change two tables in one commit, where there is nothing to do for one of them, as far as the endpoint knows."""
    left, right = _endpoints(world)
    removal = RemovePropertiesUpdate(removals=["owner"])
    other = SetPropertiesUpdate(updates={"owner": "you"})

    def act() -> str:
        _ask_endpoint(world, "me", _OWNER, _update(right, SetPropertiesUpdate(updates={"owner": "me"})))
        _ask_endpoint(world, None, _OWNER, lambda: left.commit_tables([(ROWS, (), (removal,)), (ALSO, (), (other,))]))
        return "changed"

    return act


def _idle(world: World) -> Action:
    """An endpoint that nobody asks for two months, in which another process commits and expires."""
    left, lake = _endpoint(world.handle()), world.handle()

    def act() -> int:
        time.sleep(DURATIONS["month"] / 1000)
        for _ in range(2):
            txn = lake.refresh().transaction()
            commit_intended(world, txn, count_intended(txn, "t22"))
        time.sleep(DURATIONS["month"] / 1000)
        note_made(world, expire.run(lake, expire.Config(engine="local", keep_last=1)).version_after)
        _ask_endpoint(world, "red", _COLOR, lambda: left.update_namespace_properties("a", None, {"color": "red"}))
        return left.lakehouse.version

    return act


_ASKED: Final = (*TABLES, CommitFailedException)
ENDPOINTS: Final[Mapping[str, Kind]] = {
    "group": Kind(_commit_in_groups, REFUSED),
    "group-same": Kind(_commit_to_the_same_table, REFUSED),
    "group-create": Kind(_create_in_a_group, (*REFUSED, AlreadyExists)),
    "request-alone": Kind(_request_alone, REFUSED),
    "request-at-two": Kind(_request_at_two, REFUSED),
    "group-broken": Kind(_commit_beside_a_broken_one, REFUSED),
    "group-abort": Kind(_abort_after_a_group, REFUSED),
    "request": Kind(_request, REFUSED),
    "request-again": Kind(_request_again, REFUSED),
    "unset": Kind(_remove_property, _ASKED),
    "unset-table": Kind(_remove_table_property, _ASKED),
    "set-ref": Kind(_set_reference, _ASKED),
    "unset-one": Kind(_nothing_for_one_of_two, _ASKED),
    "idle": Kind(_idle, (CommitConflict, CommitFailedException)),
}
"""Kinds that commit for clients."""
