"""What processes do in the simulation: each is one operation on the real ``Lakehouse`` and the real pipelines.

An actor is prepared without being scheduled, so that it may hold a handle of an older version, and then acts.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile

from pipelines import clean, compaction, expire, export, load, restore, rollback, tables_clean
from tests.simulation import store as stores
from tests.simulation.changing_store import CHANGING_STORES
from tests.simulation.clocks import CLOCKS
from tests.simulation.common import (
    OUTDATED,
    REFUSED,
    TABLES,
    Action,
    Kind,
    catalog_with_rows,
    commit_intended,
    count_intended,
    note_made,
    raise_ours,
)
from tests.simulation.endpoints import ENDPOINTS
from tests.simulation.engines import ENGINES
from tests.simulation.ground import ROWS, SAVED, SNAPSHOT, SOURCE, TARGET, count_up, create_tables
from tests.simulation.schedule import DURATIONS
from tests.simulation.scheduler import acting, running_actor
from tests.simulation.shared_files import SHARED_FILES
from tests.simulation.store import SimStorage, Store
from tests.simulation.tablefiles import commit_deletes
from tests.simulation.world import COPY, DAMAGES, Ack, Exported, Kept, World
from tests.support.icebergs import SCHEMA, rows
from trinitylake_core import Lakehouse
from trinitylake_core.errors import (
    AlreadyExists,
    NotALakehouse,
    Refused,
    SnapshotNotFound,
    StorageError,
    TransactionExpired,
    TransactionNotFound,
    VersionExpired,
)
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.storage.port import Data
from trinitylake_core.transactions.transaction import Transaction

STALE: Final = 3
"""The version that stale handles stand on."""
ICEBERGS: Final = ("a.ib0", "b.ib1")
"""The Iceberg tables that one transaction of a PyIceberg catalog creates."""
SAVED_ANEW: Final = "5a5e0000-0000-4000-8000-000000000002"


# Transactions.


def _writer(*tables: str, version: int | None = None, isolation: str | None = None) -> Callable[[World], Action]:
    def prepare(world: World) -> Action:
        lake = world.handle(version)

        def act() -> int:
            txn = lake.transaction(isolation=isolation)
            return commit_intended(world, txn, count_intended(txn, *tables))

        return act

    return prepare


def _large_writer(world: World) -> Action:
    lake = world.handle()

    def act() -> int:
        txn = lake.transaction()
        create_tables(txn, *(f"w{number}" for number in range(9)))
        return commit_intended(world, txn, {})

    return act


def _icebergs(world: World) -> Action:
    """Two Iceberg tables by one transaction of a PyIceberg catalog."""
    lake = world.handle()

    def act() -> int:
        catalog = TrinityLakeCatalog.over(lake, **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"})

        def create() -> int | None:
            with catalog.transaction() as txn:
                for name in ICEBERGS:
                    txn.create_table(name, SCHEMA)
            return txn.version

        return int(note_made(world, raise_ours(create)) or 0)

    return act


def _twice(world: World) -> Action:
    """One process that commits, and commits again on the same handle."""
    lake = world.handle(STALE)

    def act() -> int:
        txn = lake.transaction()
        commit_intended(world, txn, count_intended(txn, "t11"))
        txn = lake.transaction()
        return commit_intended(world, txn, count_intended(txn, "t11"))

    return act


def _retry(world: World) -> Action:
    """One process that commits, and the same once more when the network is back, if it does not know the outcome."""
    lake = world.handle()

    def act() -> int:
        txn = lake.transaction()
        changes = count_intended(txn, "t11")
        for _ in range(2):
            try:
                return commit_intended(world, txn, changes)
            except StorageError:
                acting().outage = False
        return commit_intended(world, txn, changes)

    return act


def _later(world: World) -> Action:
    """A process that commits a month later, and expires all but the newest version after another month."""
    lake = world.handle()

    def act() -> int | None:
        time.sleep(DURATIONS["month"] / 1000)
        txn = lake.refresh().transaction()
        commit_intended(world, txn, count_intended(txn, "t22"))
        time.sleep(DURATIONS["month"] / 1000)
        return note_made(world, _expire(1)(world, lake).version_after)

    return act


def _create(world: World) -> Action:
    """A process that found no lakehouse, and stood still before it wrote the first file of its own."""
    storage = _StoodStill(world.store)

    def act() -> int:
        lake = Lakehouse.create(storage)
        world.acks.append(Ack(running_actor(), lake.version, lake.root_node.txn))
        return lake.version

    return act


class _StoodStill(SimStorage):
    """A handle of a place that was empty when it was read, and is not when it is first written to."""

    def __init__(self, later: Store) -> None:
        super().__init__()
        self.store = Store(now_millis=later.now_millis)
        self._later = later

    def _put(self, path: str, data: Data) -> None:
        self.store = self._later
        super()._put(path, data)


def _purge(world: World) -> Action:
    """Drop the Iceberg table with rows, for a cleaning of tables to remove its files."""
    catalog = catalog_with_rows(world)
    return lambda: raise_ours(lambda: catalog.purge_table(ROWS))


def _append(world: World) -> Action:
    """A writer whose data file is written, and that commits a month later."""
    table = catalog_with_rows(world).load_table(ROWS)
    transaction = table.transaction()
    transaction.append(rows(3))

    def act() -> str:
        time.sleep(DURATIONS["month"] / 1000)
        transaction.commit_transaction()
        return "appended"

    return lambda: raise_ours(act)


def _append_deletes(world: World) -> Action:
    """A writer whose file of deletes is written, and that makes manifest and snapshot of it a month later."""
    table = catalog_with_rows(world).load_table(ROWS)
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    _put(table, path)

    def act() -> str:
        time.sleep(DURATIONS["month"] / 1000)
        commit_deletes(table, path)
        return "deleted"

    return lambda: raise_ours(act)


def _append_statistics(world: World) -> Action:
    """A writer whose file of statistics is written, and that commits it a month later."""
    table = catalog_with_rows(world).load_table(ROWS)
    snapshot, path = table.metadata.current_snapshot_id or 0, f"{table.location()}/metadata/of.stats"
    _put(table, path)
    found = StatisticsFile(
        snapshot_id=snapshot, statistics_path=path, file_size_in_bytes=1, file_footer_size_in_bytes=1, blob_metadata=[]
    )

    def act() -> str:
        time.sleep(DURATIONS["month"] / 1000)
        with table.update_statistics() as update:
            update.set_statistics(found)
        return "described"

    return lambda: raise_ours(act)


def _put(table: Table, path: str) -> None:
    with table.io.new_output(path).create() as stream:
        stream.write(b"x")


def _alter(world: World) -> Action:
    """Set a property of the Iceberg table with rows: its commit adds a metadata file, and nothing else."""
    table = catalog_with_rows(world).load_table(ROWS)

    def act() -> str:
        with table.transaction() as change:
            change.set_properties(owner="me")
        return "altered"

    return lambda: raise_ours(act)


def _name_again(register: bool) -> Callable[[World], Action]:
    """Drop the Iceberg table with rows, let all versions that name it expire, and name its metadata again."""

    def prepare(world: World) -> Action:
        catalog, lake = catalog_with_rows(world), world.handle()
        location = catalog.load_table(ROWS).metadata_location

        def act() -> str:
            catalog.drop_table(ROWS)
            note_made(world, _compact(world, lake.refresh()).version_after)
            time.sleep(DURATIONS["month"] / 1000)
            note_made(world, _expire(1)(world, lake.refresh()).version_after)
            if register:
                catalog.register_table(ROWS, location)
                return "registered"
            namespace, _, name = ROWS.partition(".")
            with lake.refresh().transaction() as txn:
                named = {"metadata_location": location.removeprefix(stores.ROOT)}
                txn.create_table(namespace, name, table_format="ICEBERG", format_properties=named)
            return "named"

        return lambda: raise_ours(act)

    return prepare


def _tables_cleaner(world: World) -> Action:
    catalog_with_rows(world)
    lake = world.handle()
    config = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
    return lambda: tables_clean.run(lake, config).deleted


def _rename(world: World) -> Action:
    """Rename the Iceberg table with rows, and create another one of its name."""
    catalog = catalog_with_rows(world)

    def act() -> str:
        catalog.rename_table(ROWS, "a.old")
        catalog.create_table(ROWS, SCHEMA)
        return "renamed"

    return lambda: raise_ours(act)


def _save(world: World) -> Action:
    lake = world.handle()

    def act() -> str:
        txn = Transaction(lake.backend, lake.root_node, transaction_id=SAVED_ANEW)
        changes = count_intended(txn, "t20")
        world.intents.setdefault(SAVED_ANEW, []).append(changes)
        txn.save()
        world.saves.append((SAVED_ANEW, changes))
        return "saved"

    return act


def _save_fresh(world: World) -> Action:
    """A process that begins at the newest version and saves, beside cleanings that came before and come later."""

    def act() -> str:
        lake = world.cold()
        txn = Transaction(lake.backend, lake.root_node, transaction_id=SAVED_ANEW)
        changes = count_intended(txn, "t20")
        world.intents.setdefault(SAVED_ANEW, []).append(changes)
        txn.save()
        world.saves.append((SAVED_ANEW, changes))
        return "saved"

    return act


def _save_and_publish(world: World) -> Action:
    """Save a transaction, resume it, and commit it."""
    save, lake = _save(world), world.handle()

    def act() -> int:
        save()
        return commit_intended(world, lake.resume_transaction(SAVED_ANEW), world.saves[-1][1])

    return act


def _publish_and_wait(world: World) -> Action:
    """Commit the saved transaction, and go on as a process that comes later does."""
    publish, later = _resumed(_publish)(world), _later(world)

    def act() -> Any:
        publish()
        return later()

    return act


def _resumed(end: Callable[[World, Transaction], object]) -> Callable[[World], Action]:
    def prepare(world: World) -> Action:
        lake = world.handle()
        return lambda: end(world, lake.resume_transaction(SAVED))

    return prepare


def _publish(world: World, txn: Transaction) -> int:
    return commit_intended(world, txn, world.saves[0][1])


def _save_again(world: World, txn: Transaction) -> str:
    changes = world.saves[0][1] | count_intended(txn, "t21")
    world.intents[SAVED].append(changes)
    with txn:  # which gives it up where it fails
        txn.save()
    world.saves.append((SAVED, changes))
    return "saved again"


def _abort(world: World, txn: Transaction) -> str:
    txn.abort()
    world.aborts.append(SAVED)
    return "aborted"


# Maintenance and recovery.


def _pipeline(run: Callable[[World, Lakehouse], Any], version: int | None = None) -> Callable[[World], Action]:
    """Return a function that prepares an actor that runs a pipeline whose report names the version it made."""

    def prepare(world: World) -> Action:
        lake = world.handle(version)
        return lambda: note_made(world, run(world, lake).version_after)

    return prepare


def _compact(world: World, lake: Lakehouse) -> Any:
    return compaction.run(lake, compaction.Config(engine="local"))


def _load(world: World, lake: Lakehouse) -> Any:
    return load.run(lake, f"{SOURCE}objects.jsonl", load.Config(engine="local", existing="skip"))


def _expire(keep: int) -> Callable[[World, Lakehouse], Any]:
    return lambda world, lake: expire.run(lake, expire.Config(engine="local", keep_last=keep))


def _cleaner(age_seconds: float) -> Callable[[World], Action]:
    def prepare(world: World) -> Action:
        lake = world.handle()
        config = clean.Config(engine="local", older_than_seconds=age_seconds, allow_recent=True)
        return lambda: clean.run(lake, config).deleted

    return prepare


def _rollback(world: World, lake: Lakehouse) -> Any:
    world.rollback_target = TARGET
    return rollback.run(lake, rollback.Config(version=TARGET, reason="simulated", engine="local"))


def _recoverer(damaged: int, how: str = "short") -> Callable[[World], Action]:
    """Return a function that prepares a rollback after a root became unreadable, by a process that starts then."""

    def prepare(world: World) -> Action:
        version = world.ground.newest + damaged
        world.damage(version, how)
        world.rollback_target = TARGET

        def act() -> int | None:
            lake = Lakehouse.open(SimStorage(), damaged=True)
            config = rollback.Config(version=TARGET, reason="simulated", engine="local", force=True)
            return note_made(world, rollback.run(lake, config).version_after)

        return act

    return prepare


def _restore(world: World, lake: Lakehouse) -> Any:
    config = restore.Config(only=["a.t31"], version=TARGET, reason="simulated", engine="local")
    return restore.run(lake, config)


def _freeze(world: World) -> Action:
    """Freeze the lakehouse for good."""
    lake = world.handle()

    def act() -> int | None:
        lake.freeze(reason="simulated")
        return note_made(world, lake.backend.newest_seen.version)

    return act


def _freeze_and_thaw(world: World) -> Action:
    lake = world.handle(STALE)

    def act() -> int | None:
        lake.freeze(reason="simulated")
        return note_made(world, lake.thaw().version_after)

    return act


def _snapshotter(kind: str, version: int | None) -> Callable[[World], Action]:
    def prepare(world: World) -> Action:
        lake = world.handle()
        return lambda: lake.create_snapshot("new", version=version, kind=kind).name

    return prepare


def _dropper(world: World) -> Action:
    lake = world.handle()
    return lambda: lake.drop_snapshot(SNAPSHOT)


def _exporter(*, begun: bool = False, copied: bool = False, **how: Any) -> Callable[[World], Action]:
    """Return a function that prepares an export; if it has ``begun``, the copy has an older version or history.

    If it has ``copied``, another one was ended when everything was there but the roots.
    """

    def prepare(world: World) -> Action:
        config = export.Config(engine="local", **how)
        if config.tables:
            world.bring_rows()
        lake = world.handle()
        if begun and not world.copy.objects:
            _export_older(world, config)
        for path, stored in world.store.objects.items() if copied else ():
            if path not in world.copy.objects and "/" in path:
                world.copy.put("put", path, stored.data)

        def act() -> str:
            newest, boundary = world.newest.number, world.boundary()
            with world.working_at_copy():
                done = _export(world, lake, config, newest if config.version is None else config.version)
            if config.version is not None:
                world.kept.append(Kept(running_actor(), config.version, boundary))
            return done

        return act

    return prepare


def _export_older(world: World, config: export.Config) -> None:
    storage = SimStorage()
    storage.store = world.ground.at[STALE]
    _export(world, Lakehouse.open(storage), config, at_least=STALE)


def _export(world: World, lake: Lakehouse, config: export.Config, at_least: int = 0) -> str:
    done = export.run(lake, COPY, config).plan
    world.exported.append(Exported(done.first, done.version, at_least, config.tables))
    return f"{done.first} to {done.version}"


def _at_copy(act: Callable[[World, Lakehouse], Any]) -> Callable[[World], Action]:
    """Return a function that prepares a process at the copy of an older version."""

    def prepare(world: World) -> Action:
        if not world.copy.objects:
            _export_older(world, export.Config(engine="local"))
        lake = Lakehouse.open(COPY)

        def run() -> Any:
            with world.working_at_copy():
                return act(world, lake)

        return run

    return prepare


def _copy_write(world: World, lake: Lakehouse, change: Callable[[Transaction], object]) -> int:
    txn = lake.transaction()
    change(txn)
    world.copy_tried[txn.id] = running_actor()
    version = txn.commit()
    world.copy_acks.append(Ack(running_actor(), version, txn.id))
    return version


def _copy_writer(table: str) -> Callable[[World, Lakehouse], int]:
    return lambda world, lake: _copy_write(world, lake, lambda txn: count_up(txn, table))


def _copy_create(world: World) -> Action:
    """Create a lakehouse where an export may go, and a namespace in it."""

    def act() -> int:
        lake = Lakehouse.create(COPY)
        world.copy_acks.append(Ack(running_actor(), lake.version, lake.root_node.txn))
        return _copy_write(world, lake, lambda txn: txn.create_namespace("new"))

    return act


def _copy_recreate(world: World, lake: Lakehouse) -> int:
    """Delete the lakehouse, create another one in its place, and commit to that."""
    stores.scheduled("delete", COPY, world.clear_copy)
    lake = Lakehouse.create(COPY, order=5)
    world.copy_acks.append(Ack(running_actor(), lake.version, lake.root_node.txn))
    for name in ("n0", "n1", "n2"):  # up to the version that others stand on
        _copy_write(world, lake, lambda txn: txn.create_namespace(name))  # noqa: B023 - called at once
    return STALE


def _copy_refresh(world: World, lake: Lakehouse) -> int:
    return _copy_write(world, lake.refresh(), lambda txn: txn.create_namespace("c0"))


def _copy_expire(world: World, lake: Lakehouse) -> int | None:
    world.copy_given_back = True
    return expire.run(lake, expire.Config(engine="local", keep_last=1)).version_after


def _copy_clean(world: World, lake: Lakehouse) -> int:
    return clean.run(lake, clean.Config(engine="local", older_than_seconds=0, allow_recent=True)).deleted


def _restore_copied(world: World, lake: Lakehouse) -> Any:
    config = restore.Config(only=["a.t31"], source=COPY, damaged=True, reason="simulated", engine="local")
    done = restore.run(lake, config)
    if done.version_after is not None:
        world.restored.append(done.version_after)
    return done


# Readers.


def _at(world: World) -> Action:
    """Read an old version by its number."""
    lake = world.handle()

    def act() -> int:
        boundary = world.boundary()
        found = lake.at(version=STALE).version
        world.kept.append(Kept(running_actor(), found, boundary))
        return found

    return act


def _compare(world: World) -> Action:
    """Compare an old version, by its number, with another."""
    lake = world.handle()

    def act() -> int:
        boundary = world.boundary()
        found = len(list(lake.diff(STALE, lake.version)))
        world.kept.append(Kept(running_actor(), STALE, boundary))
        return found

    return act


# Damage.


def _lost(kind: Kind, *versions: int) -> Kind:
    """Return an actor that begins when the roots of some versions are lost, and the hint leads to the one before."""

    def prepare(world: World) -> Action:
        world.lose(versions, versions[0] - 1)
        before, world.stands_on = world.stands_on, versions[0] - 1
        action = kind.prepare(world)
        world.stands_on = before
        return action

    return Kind(prepare, kind.may_raise)


def _with_damage(kind: Kind, version: int, how: str) -> Kind:
    """Return an actor that begins when the root of a version cannot be read."""

    def prepare(world: World) -> Action:
        world.damage(version, how)
        return kind.prepare(world)

    return Kind(prepare, kind.may_raise)


def _open(world: World) -> Action:
    return lambda: world.cold().version


def _refresher(version: int | None) -> Callable[[World], Action]:
    def prepare(world: World) -> Action:
        lake = world.handle(version)

        def act() -> int:
            began = world.newest.number
            lake.refresh()
            world.saw(began, lake)
            return lake.version

        return act

    return prepare


_EXPORTS: Final = (*OUTDATED, Refused, AlreadyExists)
_ENDED: Final = (*REFUSED, TransactionNotFound)
_COPIED: Final = (*OUTDATED, NotALakehouse)
_KINDS: Final[Mapping[str, Kind]] = {
    "write": Kind(_writer("t0"), REFUSED),
    "write-both": Kind(_writer("t0", "t1", isolation="SERIALIZABLE"), REFUSED),
    "write-other": Kind(_writer("t12"), REFUSED),
    "write-stale": Kind(_writer("t10", version=STALE), REFUSED),
    "write-twice": Kind(_twice, REFUSED),
    "write-large": Kind(_large_writer, REFUSED),
    "iceberg": Kind(_icebergs, (*REFUSED, AlreadyExists, CommitFailedException, TableAlreadyExistsError)),
    "write-retry": Kind(_retry, REFUSED),
    "later": Kind(_later, OUTDATED),
    "create": Kind(_create, (AlreadyExists, TransactionExpired)),
    "purge": Kind(_purge, TABLES),
    "append": Kind(_append, TABLES),
    "append-alter": Kind(_alter, TABLES),
    "append-deletes": Kind(_append_deletes, TABLES),
    "append-statistics": Kind(_append_statistics, TABLES),
    "register": Kind(_name_again(register=True), (*TABLES, *OUTDATED, FileNotFoundError)),
    "name-metadata": Kind(_name_again(register=False), (*TABLES, *OUTDATED)),
    "tables-clean": Kind(_tables_cleaner, OUTDATED),
    "rename": Kind(_rename, (*TABLES, FileNotFoundError)),
    "save": Kind(_save, _ENDED),
    "save-fresh": Kind(_save_fresh, _ENDED),
    "save-publish": Kind(_save_and_publish, _ENDED),
    "publish": Kind(_resumed(_publish), _ENDED),
    "publish-later": Kind(_publish_and_wait, (*_ENDED, *OUTDATED)),
    "save-again": Kind(_resumed(_save_again), _ENDED),
    "abort": Kind(_resumed(_abort), _ENDED),
    "compact": Kind(_pipeline(_compact), REFUSED),
    "load": Kind(_pipeline(_load), OUTDATED),
    "expire": Kind(_pipeline(_expire(1)), OUTDATED),
    "expire-some": Kind(_pipeline(_expire(4)), OUTDATED),
    "clean": Kind(_cleaner(0), OUTDATED),
    "clean-aged": Kind(_cleaner(3 * 86_400), OUTDATED),
    "rollback": Kind(_pipeline(_rollback), OUTDATED),
    "recover": Kind(_recoverer(0), OUTDATED),
    "recover-older": Kind(_recoverer(-1), OUTDATED),
    **{f"recover-{how}": Kind(_recoverer(0, how), OUTDATED) for how in DAMAGES if how != "short"},
    "restore": Kind(_pipeline(_restore), OUTDATED),
    "freeze": Kind(_freeze, REFUSED),
    "freeze-thaw": Kind(_freeze_and_thaw, REFUSED),
    "snapshot": Kind(_snapshotter("minimal", TARGET), (*OUTDATED, SnapshotNotFound, AlreadyExists)),
    "snapshot-partial": Kind(_snapshotter("partial", None), (*OUTDATED, SnapshotNotFound, AlreadyExists)),
    "snapshot-drop": Kind(_dropper, (*OUTDATED, SnapshotNotFound, AlreadyExists)),
    "export": Kind(_exporter(), _EXPORTS),
    "export-old": Kind(_exporter(version=TARGET), _EXPORTS),
    "export-again": Kind(_exporter(begun=True), _EXPORTS),
    "export-tables": Kind(_exporter(history=True, tables=True), _EXPORTS),
    "export-rest": Kind(_exporter(begun=True, copied=True), _EXPORTS),
    "export-history": Kind(_exporter(history=True), _EXPORTS),
    "export-history-again": Kind(_exporter(begun=True, history=True), _EXPORTS),
    "write-copy": Kind(_at_copy(_copy_writer("t11")), _COPIED),
    "write-copy-other": Kind(_at_copy(_copy_writer("t12")), _COPIED),
    "refresh-copy": Kind(_at_copy(_copy_refresh), (*_COPIED, AlreadyExists)),
    "create-copy": Kind(_copy_create, (*_COPIED, AlreadyExists)),
    "recreate-copy": Kind(_at_copy(_copy_recreate), (*_COPIED, AlreadyExists)),
    "expire-copy": Kind(_at_copy(_copy_expire), _COPIED),
    "clean-copy": Kind(_at_copy(_copy_clean), _COPIED),
    "restore-copy": Kind(_pipeline(_restore_copied), (*OUTDATED, NotALakehouse)),
    "at": Kind(_at, (VersionExpired,)),
    "diff": Kind(_compare, (VersionExpired,)),
    "open": Kind(_open),
    "refresh": Kind(_refresher(None)),
    "refresh-stale": Kind(_refresher(STALE)),
}
FREEZES: Final = frozenset({"freeze", "freeze-thaw"})
WRITES: Final = frozenset(
    {
        "write", "write-both", "write-other", "write-stale", "write-twice", "write-large", "write-retry", "iceberg",
        "later", "purge", "append", "append-alter", "append-deletes", "append-statistics", "register", "name-metadata",
        "rename", "save-publish", "publish", "publish-later", "load", *ENDPOINTS,
    }
)  # fmt: skip
"""Kinds that a frozen lakehouse refuses."""
HOLES: Final[Mapping[str, Kind]] = {
    **{f"{kind}-hole": _lost(_KINDS[kind], 5) for kind in ("export", "export-history", "expire")},
    **{f"{kind}-holes": _lost(_KINDS[kind], 5, 6) for kind in ("expire", "clean")},
    **{f"write-hole-{how}": _lost(_with_damage(_KINDS["write"], 6, how), 5) for how in ("short", "lost")},
}
"""Processes that stand before roots which were lost."""
KINDS: Final = {**_KINDS, **ENDPOINTS, **CHANGING_STORES, **CLOCKS, **ENGINES, **SHARED_FILES, **HOLES}
FOREIGN: Final = "recover-foreign"
"""The root of another lakehouse cannot be recognised by itself, and versions committed on top of it follow it."""
AT_RANDOM: Final = tuple(kind for kind in (*_KINDS, *ENDPOINTS) if kind not in {FOREIGN, "request", "idle"})
"""The kinds of random runs."""
