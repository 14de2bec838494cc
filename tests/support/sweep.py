"""The crash sweep: every operation, disturbed at every one of its storage requests, on any storage.

To join, an operation adds one :class:`Operation` to ``OPERATIONS``. It is prepared once on a disk and run once
unharmed; then its requests are failed, lost and killed one after another, each time from the same files. What
is left is looked at without the storage that was disturbed: it is copied to a directory first.
"""

from __future__ import annotations

import abc
import hashlib
import json
import os
import pickle
import re
import signal
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from google.protobuf.message import Message
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssignUUIDUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    UpgradeFormatVersionUpdate,
)

from pipelines import clean, compaction, expire, export, load, tables_clean, tables_compact, upgrade, verify
from tests.support.faults import FaultPlan, Mode, attach
from tests.support.icebergs import SCHEMA, request_key, rows
from tests.support.lakes import FAST, CancelBy, filled, in_memory, new_lake
from tests.support.proofs import prove_for_long
from tests.support.s3_servers import RAW, S3Server
from tests.support.writers import forking
from trinitylake_core import Lakehouse
from trinitylake_core.check import Violation, check_lakehouse, check_version
from trinitylake_core.clock import now_millis
from trinitylake_core.definitions import TableDef
from trinitylake_core.errors import (
    AlreadyExists,
    NotALakehouse,
    SnapshotNotFound,
    StorageError,
    TransactionNotFound,
    TrinityLakeError,
)
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.locations import lakehouse_def_path, node_path, root_path, transaction_path
from trinitylake_core.rest import Warehouses
from trinitylake_core.rest.principals import MANAGE, Principal
from trinitylake_core.rest.requests import Request
from trinitylake_core.rest.table_routes import commit_tables
from trinitylake_core.spec import BOUNDARY_FILE, HINT_FILE
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.tables import DIRECTORY as TABLES
from trinitylake_core.tables import METADATA_LOCATION, base_uri
from trinitylake_core.transactions.requests import Repeated, RequestKey, asked_by
from trinitylake_core.transactions.transaction import Transaction
from trinitylake_core.versions import from_millis

Files = dict[str, bytes]
Open = Callable[[str], Storage]
"""Opens the storage at a path below the place of the sweep."""
Action = Callable[[], object]
State = dict[str, Any]
MODES: Final[tuple[Mode, ...]] = ("kill", "fail", "fail_from", "lose_from", "kill_after", "lose")
"""In an order in which every third request of each leaves, all of them together, what each request may leave last."""
_DECIDES: Final = frozenset({"create", "swap"})
MENDED: Final = frozenset({"fail", "lose"})
"""One request that fails, or whose answer is lost, is no failure of the operation."""
HURRY: Final = {"retries": 2, "retry_base_seconds": 0}
_DAY: Final = 86_400_000
_CHILD_SECONDS: Final = 300
_TEMPORARY: Final = re.compile(r"_tmp-([0-9a-f]{32}|lock)")


# -- operations ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of operation.

    Attributes:
        name: what the tests call it.
        prepare: makes the lakehouse before the operation below a directory, and returns an argument for ``begin``.
        begin: opens what the operation needs, which is not disturbed, and returns the operation, which is.
        done: what the operation raises when it is repeated although it was done.
        repeat: the repetition, if it is another one; takes whether the operation was acknowledged.
        target: where the lakehouse lies that the operation makes or changes.
        steps: whether it makes more than one version, so that a failure may leave some of them.
        expect: proves by the requests of the unharmed run that this is the operation it claims to be.
        reads: that it reads so much that reads are disturbed in one way each; all else is disturbed in every way.
    """

    name: str
    prepare: Callable[[Path], Any]
    begin: Callable[[Open, Any], Action]
    done: tuple[type[TrinityLakeError], ...] = ()
    repeat: Callable[[Open, Any, bool], object] | None = None
    target: str = ""
    steps: bool = False
    expect: Callable[[list[tuple[str, str]], list[State | None]], bool] = lambda log, states: True
    reads: bool = False


SAVED: Final = "5a5e0000-0000-4000-8000-000000000001"
SIZES: Final[dict[str, Any]] = {"order": 4, "node_file_max_size_bytes": 4500}


def _empty(directory: Path) -> None:
    (directory / "lake").mkdir()


def _lake(directory: Path) -> Lakehouse:
    return filled(new_lake(directory), tables=12, namespaces=2, changes=4)


def _some(directory: Path) -> None:
    _lake(directory)


def _with_key(directory: Path) -> str:
    _lake(directory)
    return request_key()


def _with_snapshot(directory: Path) -> None:
    _lake(directory).create_snapshot("old")


def _frozen(directory: Path) -> None:
    _lake(directory).freeze(reason="sweep")


def _with_saved(directory: Path) -> None:
    _save(_lake(directory))


def _with_drops(directory: Path) -> int:
    lake = _lake(directory)
    version = lake.version
    with lake.transaction() as txn:
        txn.drop_namespace("ns0", cascade=True)
        txn.alter_table("ns1", "t001", properties={"a": "b"})
    return version


def _source(directory: Path) -> None:
    above = directory / "lake" / "src"
    above.mkdir(parents=True, exist_ok=True)
    lake = filled(new_lake(above), tables=2, namespaces=1, changes=2)
    with lake.transaction() as txn:
        txn.drop_table("ns0", "t001")


def _before(happens: Callable[[Lakehouse, Lakehouse, int], bool]) -> Callable[[Path], int]:
    """Return a preparation that stops before the commit of two tables in which something happens."""

    def prepare(directory: Path) -> int:
        lake = _lake(directory)
        for number in range(60):
            files = read_files(directory / "lake")
            before = lake.at(version=lake.version)
            _commit_pair(lake, number)
            nodes = sum("-node-" in path for path in read_files(directory / "lake").keys() - files.keys())
            if happens(before, lake.refresh(), nodes):
                write_files(directory / "lake", files)
                return number
        raise AssertionError("it never happened")

    return prepare


def _commit_pair(lake: Lakehouse, number: int) -> None:
    with lake.transaction() as txn:
        txn.create_table("ns0", f"a{number:03}")
        txn.create_table("ns1", f"z{number:03}")


def _flushes(before: Lakehouse, after: Lakehouse, nodes: int) -> bool:
    return nodes > 0 and before.stats().height == after.stats().height


def _splits(before: Lakehouse, after: Lakehouse, nodes: int) -> bool:
    return nodes > 0 and before.stats().height != after.stats().height


def _iceberg(open_at: Open, arg: Any) -> Action:
    """Two tables made and a namespace changed by one transaction of the PyIceberg catalog."""
    catalog = TrinityLakeCatalog.over(Lakehouse.open(open_at("")))

    def act() -> None:
        try:
            with catalog.transaction() as txn:
                txn.create_table("ns0.iceberg", SCHEMA)
                txn.create_table("ns1.iceberg", SCHEMA)
                txn.update_namespace_properties("ns1", updates={"owner": "me"})
        except TableAlreadyExistsError as error:
            raise AlreadyExists(str(error)) from error
        except Exception as error:  # PyIceberg's exception for one of ours
            raise (error.__cause__ if isinstance(error.__cause__, TrinityLakeError) else error) from error

    return act


def _endpoint(open_at: Open, arg: Any) -> Action:
    """Two tables created by one `transactions/commit` of the REST endpoint, in a group; ``arg`` is its key."""
    lake = Lakehouse.open(open_at(""))
    warehouse = Warehouses({"lake": lambda: lake}).get("lake")
    changes, columns = [], assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(SCHEMA))
    for namespace in ("ns0", "ns1"):
        where = f"{base_uri(lake.root)}tables/{namespace}/rest-0123456789ab"  # as the catalog names directories
        made = new_table_metadata(columns, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, where)
        updates = [
            AssignUUIDUpdate(uuid=made.table_uuid),
            UpgradeFormatVersionUpdate(format_version=2),
            AddSchemaUpdate(schema_=made.schema()),
            SetCurrentSchemaUpdate(schema_id=-1),
            AddPartitionSpecUpdate(spec=made.spec()),
            SetDefaultSpecUpdate(spec_id=-1),
            AddSortOrderUpdate(sort_order=made.sort_order()),
            SetDefaultSortOrderUpdate(sort_order_id=-1),
            SetLocationUpdate(location=made.location),
        ]
        commit = {
            "identifier": {"namespace": [namespace], "name": "rest"},
            "requirements": [{"type": "assert-create"}],
            "updates": [each.model_dump(mode="json", by_alias=True) for each in updates],
        }
        changes.append(commit)
    body = json.dumps({"table-changes": changes}).encode()
    request = Request(warehouse, Principal("sweep", {MANAGE: ("*",)}), {}, {}, {}, body)

    def act() -> None:
        try:
            with asked_by(None if arg is None else RequestKey.of(arg, "sweep")):
                commit_tables(request)
        except Repeated:
            return
        except CommitFailedException as error:
            raise AlreadyExists(str(error)) if "already exists" in str(error) else error from error
        except Exception as error:  # PyIceberg's exception for one of ours
            raise (error.__cause__ if isinstance(error.__cause__, TrinityLakeError) else error) from error

    return act


def _small_commit(txn: Transaction) -> None:
    with txn:
        txn.create_table("ns0", "new", properties={"owner": "me"})
        txn.alter_table("ns1", "t001", properties={"a": "b"})


def _late(lake: Lakehouse) -> Transaction:
    began = now_millis() - lake.definition.txn_ttl_millis * 6 // 10
    return Transaction(lake.backend, lake.root_node, began_at_millis=began)


def _save(lake: Lakehouse) -> None:
    with Transaction(lake.backend, lake.root_node, transaction_id=SAVED) as txn:
        txn.create_table("ns0", "saved1")
        txn.create_table("ns1", "saved2")
        txn.save()


def _resume(lake: Lakehouse) -> None:
    lake.resume_transaction(SAVED).commit()


def _with_taken(directory: Path) -> None:
    """A transaction that a process took before it died."""
    lake = _lake(directory)
    _save(lake)
    file = lake.resume_transaction(SAVED)._file
    assert file is not None
    file.take()


def _save_again(lake: Lakehouse) -> None:
    with lake.resume_transaction(SAVED) as txn:
        txn.create_table("ns0", "saved3")
        txn.save()


def _publish_or_save_again(open_at: Open, arg: Any, acknowledged: bool) -> None:
    """What was saved first or second is there, whole, and can be saved again and published."""
    lake = Lakehouse.open(open_at(""))
    if "saved3" not in lake.resume_transaction(SAVED).tables("ns0"):
        assert not acknowledged, "a second save was acknowledged, and the first one is found"
        _save_again(lake)
    _resume(lake)
    assert {"saved1", "saved3"} <= set(lake.refresh().tables("ns0"))


def _abort(lake: Lakehouse) -> None:
    lake.resume_transaction(SAVED).abort()


def _abort_again(open_at: Open, arg: Any, acknowledged: bool) -> None:
    """Once it is aborted no process can resume it; until then any process may abort it."""
    lake = Lakehouse.open(open_at(""))
    try:
        _abort(lake)
    except TransactionNotFound:
        pass
    else:
        assert not acknowledged, "an abort was acknowledged, and the transaction could be resumed"
    try:
        _resume(lake)
    except TransactionNotFound:
        return
    raise AssertionError("a transaction that was aborted was committed")


def _replaces_saved(log: list[tuple[str, str]]) -> bool:
    return ("put", transaction_path(SAVED)) in log


def _save_or_publish(open_at: Open, arg: Any, acknowledged: bool) -> None:
    lake = Lakehouse.open(open_at(""))
    try:
        _resume(lake)
    except TransactionNotFound:
        assert not acknowledged, "a saved transaction was acknowledged and is gone"
        _save(lake)
        _resume(lake)


def _create(open_at: Open, arg: Any) -> Action:
    storage = open_at("")
    return lambda: Lakehouse.create(storage, **SIZES)


def _compact(lake: Lakehouse) -> None:
    compaction.run(lake, compaction.Config(engine="local", reason="sweep"))


def _compact_rebased(open_at: Open, arg: Any) -> Action:
    lake, writer = Lakehouse.open(open_at("")), Lakehouse.open(open_storage(*open_at("").spec()))

    def write_meanwhile() -> None:
        if "meantime" not in writer.refresh().tables("ns0"):
            with writer.transaction() as txn:
                txn.create_table("ns0", "meantime")

    cancel = CancelBy(write_meanwhile)
    return lambda: compaction.run(lake, compaction.Config(engine="local"), cancel=cancel)


def _with_expiring_snapshot(directory: Path) -> None:
    lake = _lake(directory)
    lake.create_snapshot("old", version=1, expires_at=from_millis(now_millis() + _DAY))


def _with_orphans(directory: Path) -> None:
    lake = _lake(directory)
    lake.create_snapshot("old", version=1)
    _expire(lake)
    _save(lake.refresh())
    lake.storage.write_many([(node_path(), b"left over"), (lakehouse_def_path(), b"left over")])


def _expire(lake: Lakehouse) -> None:
    config = expire.Config(engine="local", keep_last=2, now_millis=now_millis() + 30 * _DAY)
    expire.run(lake, config)


def _clean(lake: Lakehouse) -> None:
    clean.run(lake, clean.Config(engine="local", now_millis=now_millis() + 4 * _DAY))


def _with_leaking_tables(directory: Path) -> None:
    """A table that stays, and one that was dropped, in versions that have expired: nothing names its metadata."""
    lake = _lake(directory)
    catalog = TrinityLakeCatalog.over(lake)
    for name in ("ns0.iceberg", "ns1.iceberg"):
        catalog.create_table(name, SCHEMA).append(rows(1))
    catalog.drop_table("ns1.iceberg")
    _compact(lake.refresh())
    catalog.create_namespace("later")
    _expire(lake.refresh())


def _clean_tables(lake: Lakehouse) -> None:
    tables_clean.run(lake, tables_clean.Config(engine="local", now_millis=now_millis() + 4 * _DAY))


def _compact_tables(open_at: Open, arg: Any) -> Action:
    """A table of six files, which are worth one; they are written before, as their metadata name the place."""
    lake = Lakehouse.open(open_at(""))
    catalog = TrinityLakeCatalog.over(lake)
    if not catalog.table_exists("ns0.iceberg"):
        table = catalog.create_table("ns0.iceberg", SCHEMA)
        for number in range(6):
            table.append(rows(number))

    def act() -> None:
        report = tables_compact.run(lake, tables_compact.Config(engine="local"))
        if report.failures:
            raise StorageError(f"not compacted: {report.failures}")

    return act


def _rewrites_files(log: list[tuple[str, str]], states: list[State | None]) -> bool:
    """Whether one file of data takes the place of others, and is there before the root that names it."""
    data = [number for number, (kind, path) in enumerate(log) if kind == "put" and path.endswith(".parquet")]
    return len(data) == 1 and data[0] < _first(log, "create")


def _first(log: list[tuple[str, str]], wanted: str) -> int:
    return next((number for number, (kind, _) in enumerate(log) if kind == wanted), len(log))


def _load(lake: Lakehouse) -> None:
    how = load.Config(existing="skip", engine="local")
    load.run(lake, str(Path(__file__).parent / "objects.jsonl"), how, source_options={})


def _upgrade(open_at: Open, history: bool) -> Action:
    source = Lakehouse.open(open_at("src/lake/"))
    target = open_at("dst/")
    config = upgrade.Config(history=history, engine="local")
    return lambda: upgrade.run(source, target, config)


def _with_place(directory: Path) -> None:
    """A lakehouse with a history that expired up to version 1 and a snapshot, and a place beside it."""
    above = directory / "lake" / "src"
    above.mkdir(parents=True)
    lake = filled(new_lake(above), tables=8, namespaces=2, changes=4)
    lake.create_snapshot("old", version=1)
    _expire_to(lake, 1)


def _expire_to(lake: Lakehouse, version: int) -> None:
    keep = lake.refresh().version - version + 1
    expire.run(lake, expire.Config(engine="local", keep_last=keep, now_millis=now_millis() + 30 * _DAY))
    assert version == lake.refresh().stats().oldest_version


def _with_copy(*, history: bool) -> Callable[[Path], None]:
    """Return a preparation of a place that holds an export of an older version, or of an older history."""

    def prepare(directory: Path) -> None:
        _with_place(directory)
        root = directory / "lake"
        lake = Lakehouse.open((root / "src/lake").as_uri(), storage_options=FAST)
        config = export.Config(engine="local", history=history)
        export.run(lake, (root / "dst").as_uri(), config, storage_options=FAST)
        _small_commit(lake.transaction())
        _compact(lake.refresh())
        _expire_to(lake, 3)

    return prepare


def _with_copied_tables(directory: Path) -> None:
    """A lakehouse with an Iceberg table, a copy with its data, and an append since."""
    above = directory / "lake" / "src"
    above.mkdir(parents=True)
    lake = new_lake(above)
    catalog = TrinityLakeCatalog.over(lake)
    catalog.create_namespace("ns0")
    catalog.create_table("ns0.iceberg", SCHEMA).append(rows(1))
    root, config = (directory / "lake" / "dst").as_uri(), export.Config(engine="local", history=True, tables=True)
    export.run(lake.refresh(), root, config, storage_options=FAST)
    catalog.load_table("ns0.iceberg").append(rows(2))


def _data_before_roots(log: list[tuple[str, str]], states: list[State | None]) -> bool:
    """Whether files of tables are written, and all of them before the root that names them."""
    del states
    written = [path for kind, path in log if kind in {"put", "create"}]
    last = max(number for number, path in enumerate(written) if path.startswith(TABLES))
    return last < min(number for number, path in enumerate(written) if path.startswith(("_0", "_1")))


def _export(*, history: bool, tables: bool = False) -> Callable[[Open, Any], Action]:
    def begin(open_at: Open, arg: Any) -> Action:
        source, target = Lakehouse.open(open_at("src/lake/")), open_at("dst/")
        return lambda: export.run(source, target, export.Config(engine="local", history=history, tables=tables))

    return begin


def _hint_comes_last(log: list[tuple[str, str]], states: list[State | None]) -> bool:
    """Whether the hint is written last, after root and boundary."""
    last = {path: number for number, (kind, path) in enumerate(log) if kind in {"put", "create", "swap"}}
    return max(last[root_path(len(states) - 1)], last[BOUNDARY_FILE]) < last[HINT_FILE]


def _with_another(directory: Path) -> None:
    _lake(directory)
    _source(directory)


def _restore_from(open_at: Open, arg: Any) -> Action:
    del arg
    lake, other = Lakehouse.open(open_at("")), Lakehouse.open(open_at("src/lake/"))
    return lambda: lake.restore(["ns0", "ns0.*"], source=other, exact=True, damaged=True, reason="sweep")


def _on(action: Callable[[Lakehouse], object]) -> Callable[[Open, Any], Action]:
    """Return a ``begin`` for an operation on an open lakehouse."""

    def begin(open_at: Open, arg: Any) -> Action:
        lake = Lakehouse.open(open_at(""))
        return lambda: action(lake)

    return begin


def _with_argument(action: Callable[[Lakehouse, Any], object]) -> Callable[[Open, Any], Action]:
    def begin(open_at: Open, arg: Any) -> Action:
        lake = Lakehouse.open(open_at(""))
        return lambda: action(lake, arg)

    return begin


def _height(states: list[State | None]) -> list[int | None]:
    return [None if state is None else state["height"] for state in states]


def _writes_nodes(log: list[tuple[str, str]]) -> bool:
    return any(kind == "put" and "-node-" in path for kind, path in log)


_WHERE = Literal["disk", "s3"]
OPERATIONS: Final[dict[str, Operation]] = {
    operation.name: operation
    for operation in (
        Operation(
            "create",
            _empty,
            _create,
            done=(AlreadyExists,),
        ),
        Operation("commit", _some, _on(lambda lake: _small_commit(lake.transaction())), done=(AlreadyExists,)),
        Operation("commit-late", _some, _on(lambda lake: _small_commit(_late(lake))), done=(AlreadyExists,)),
        Operation(
            "commit-flushes",
            _before(_flushes),
            _with_argument(_commit_pair),
            done=(AlreadyExists,),
            expect=lambda log, states: _writes_nodes(log) and _height(states)[-2] == _height(states)[-1],
        ),
        Operation(
            "commit-splits",
            _before(_splits),
            _with_argument(_commit_pair),
            done=(AlreadyExists,),
            expect=lambda log, states: _writes_nodes(log) and _height(states)[-2] != _height(states)[-1],
        ),
        Operation(
            "iceberg",
            _some,
            _iceberg,
            done=(AlreadyExists,),
            expect=lambda log, states: sum(path.endswith(".metadata.json") for _, path in log) == 2,
        ),
        Operation(
            "endpoint",
            _some,
            _endpoint,
            done=(AlreadyExists,),
            expect=lambda log, states: sum(path.endswith(".metadata.json") for _, path in log) == 2,
        ),
        Operation("endpoint-key", _with_key, _endpoint),
        Operation("compact", _some, _on(_compact), expect=lambda log, states: _writes_nodes(log)),
        Operation("compact-rebased", _some, _compact_rebased, steps=True),
        Operation("upgrade", _source, lambda open_at, arg: _upgrade(open_at, history=False), target="dst/", steps=True),
        Operation(
            "upgrade-history",
            _source,
            lambda open_at, arg: _upgrade(open_at, history=True),
            target="dst/",
            steps=True,
            expect=lambda log, states: len(states) == 4,
            reads=True,
        ),
        Operation("load", _some, _on(_load), expect=lambda log, states: _writes_nodes(log), reads=True),
        Operation("freeze", _some, _on(lambda lake: lake.freeze(reason="sweep"))),
        Operation("thaw", _frozen, _on(lambda lake: lake.thaw())),
        Operation("save", _some, _on(_save), repeat=_save_or_publish),
        Operation(
            "resume",
            _with_saved,
            _on(_resume),
            done=(TransactionNotFound,),
            expect=lambda log, states: _replaces_saved(log),
        ),
        Operation(
            "resume-taken",
            _with_taken,
            _on(_resume),
            done=(TransactionNotFound,),
            expect=lambda log, states: _replaces_saved(log),
        ),
        Operation(
            "save-again",
            _with_saved,
            _on(_save_again),
            repeat=_publish_or_save_again,
            expect=lambda log, states: _replaces_saved(log),
        ),
        Operation(
            "abort",
            _with_saved,
            _on(_abort),
            repeat=_abort_again,
            expect=lambda log, states: _replaces_saved(log) and not any(kind == "create" for kind, _ in log),
        ),
        Operation(
            "abort-taken",
            _with_taken,
            _on(_abort),
            repeat=_abort_again,
            steps=True,
            expect=lambda log, states: _replaces_saved(log) and any(kind == "create" for kind, _ in log),
        ),
        Operation("snapshot", _some, _on(lambda lake: lake.create_snapshot("new")), done=(AlreadyExists,)),
        Operation(
            "snapshot-partial",
            _some,
            _on(lambda lake: lake.create_snapshot("new", kind="partial")),
            done=(AlreadyExists,),
            expect=lambda log, states: _writes_nodes(log),
        ),
        Operation(
            "snapshot-drop", _with_snapshot, _on(lambda lake: lake.drop_snapshot("old")), done=(SnapshotNotFound,)
        ),
        Operation(
            "rollback",
            _with_drops,
            _with_argument(lambda lake, version: lake.rollback(version=version, reason="sweep")),
        ),
        Operation(
            "restore",
            _with_drops,
            _with_argument(lambda lake, version: lake.restore(["ns0", "ns0.*"], version=version, reason="sweep")),
        ),
        Operation("restore-from", _with_another, _restore_from),
        Operation(
            "expire",
            _with_expiring_snapshot,
            _on(_expire),
            steps=True,
            expect=lambda log, states: states[0] is None and sum(kind == "delete" for kind, _ in log) == 1,
        ),
        Operation(
            "tables clean",
            _with_leaking_tables,
            _on(_clean_tables),
            steps=True,
            expect=lambda log, states: _first(log, "create") < _first(log, "delete") < len(log),
            reads=True,
        ),
        Operation("tables compact", _some, _compact_tables, steps=True, expect=_rewrites_files, reads=True),
        Operation(
            "clean",
            _with_orphans,
            _on(_clean),
            steps=True,
            expect=lambda log, states: _first(log, "create") < _first(log, "delete") < len(log),
            reads=True,
        ),
        Operation(
            "export",
            _with_place,
            _export(history=False),
            target="dst/",
            expect=_hint_comes_last,
            reads=True,
            steps=True,
        ),
        Operation(
            "export-again",
            _with_copy(history=False),
            _export(history=False),
            target="dst/",
            reads=True,
            steps=True,
            expect=lambda log, states: _hint_comes_last(log, states) and _first(log, "delete") < len(log),
        ),
        Operation(
            "export-history",
            _with_place,
            _export(history=True),
            target="dst/",
            reads=True,
            steps=True,
            expect=lambda log, states: [state is None for state in states] == [True, False, False, False, False, False],
        ),
        Operation(
            "export-history-again",
            _with_copy(history=True),
            _export(history=True),
            target="dst/",
            reads=True,
            steps=True,
            expect=lambda log, states: len(states) == 9 and _first(log, "delete") < len(log),
        ),
        Operation(
            "export-tables",
            _with_copied_tables,
            _export(history=True, tables=True),
            target="dst/",
            reads=True,
            steps=True,
            expect=_data_before_roots,
        ),
    )
}


# -- places --------------------------------------------------------------------------------------------


class Place(abc.ABC):
    """Where a sweep happens; its files are read and set behind the storage's back."""

    name: _WHERE
    root: str
    options: Mapping[str, Any]

    def open(self, path: str) -> Storage:
        """Return a new storage object at a path below the place."""
        return open_storage(self.root + path, self.options)

    @abc.abstractmethod
    def files(self) -> Files:
        """Return every file."""

    @abc.abstractmethod
    def reset(self, files: Files) -> None:
        """Make the files exactly these."""

    def close(self) -> None:  # noqa: B027 - most places need no cleaning
        """Clean up."""


class DiskPlace(Place):
    """A directory. Durable, so that the barriers are requests, too."""

    name = "disk"

    def __init__(self) -> None:
        self._kept = tempfile.TemporaryDirectory(prefix="sweep-", dir=in_memory())
        self.directory = Path(self._kept.name)
        self.root = self.directory.as_uri() + "/"
        self.options = HURRY

    def close(self) -> None:
        """Remove the directory."""
        self._kept.cleanup()

    def files(self) -> Files:
        """Return every file but the temporary ones that a killed process left."""
        return read_files(self.directory)

    def reset(self, files: Files) -> None:
        """Write only what differs."""
        write_files(self.directory, files)


class S3Place(Place):
    """A prefix of moto's bucket."""

    name = "s3"

    def __init__(self, server: S3Server, root: str | None = None) -> None:
        self.root = root or server.new_root()
        self.options = {**server.options, **HURRY}
        self._url = f"{server.endpoint}{RAW}{self.root.removeprefix('s3://')}"
        prove_for_long(self.root, self.options)

    def files(self) -> Files:
        """Ask the server; one request, which no storage object counts."""
        with urllib.request.urlopen(self._url, timeout=300) as answer:
            found: Files = pickle.loads(answer.read())
        return found

    def reset(self, files: Files) -> None:
        """Tell the server; one request."""
        request = urllib.request.Request(self._url, data=pickle.dumps(files), method="PUT")
        urllib.request.urlopen(request, timeout=300).close()


def _paths(directory: Path) -> set[str]:
    return {
        str((Path(above) / name).relative_to(directory)) for above, _, names in os.walk(directory) for name in names
    }


def read_files(directory: Path) -> Files:
    """Return every file below a directory, temporary ones aside."""
    return {path: (directory / path).read_bytes() for path in _paths(directory) if not _TEMPORARY.search(path)}


def write_files(directory: Path, files: Files) -> None:
    """Make the files below a directory exactly these; empty directories may stay."""
    here = _paths(directory)
    for path in here - files.keys():
        (directory / path).unlink()
    for path, data in files.items():
        file = directory / path
        if path not in here or file.read_bytes() != data:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


# -- what a lakehouse says -----------------------------------------------------------------------------


def state_of(lake: Lakehouse) -> State:
    """Return the content of a version without random parts: paths and the IDs in definitions."""
    return {
        "height": lake.stats().height,
        "snapshots": [info.name for info in lake.snapshots()],
        "objects": {entry.key: _plain(_definition(lake, entry)) for entry in lake.objects()},
    }


def _definition(lake: Lakehouse, entry: Any) -> Message:
    if entry.kind == "namespace":
        return lake.namespace(entry.namespace)
    return lake.table(entry.namespace, entry.name)


_RANDOM: Final = {
    "metadata_location",
    "previous_metadata_location",
    "uuid",
    "current-snapshot-id",
    "current-snapshot-timestamp-ms",
    "current-snapshot-total-files-size",
}
"""What definitions of Iceberg tables say that is another thing each time."""


def _plain(definition: Message) -> str:
    copy = type(definition)()
    copy.CopyFrom(definition)
    copy.ClearField("id")
    if isinstance(copy, TableDef):
        for name in _RANDOM & set(copy.format_properties):
            copy.format_properties[name] = "random"
    return str(copy)


def states(uri: str) -> list[State | None]:
    """Return the content of each version of a lakehouse; empty when there is none."""
    try:
        lake = Lakehouse.open(uri, storage_options=FAST)
    except NotALakehouse:
        return []
    oldest = _oldest(lake)
    return [None if version < oldest else state_of(lake.at(version=version)) for version in range(lake.version + 1)]


def _oldest(lake: Lakehouse) -> int:
    """Return the boundary; in a copy of one version the file alone says it, unless another version is to come there."""
    boundary = lake.backend.versions.boundary()
    if boundary > lake.version:
        return min(info.version for info in lake.history())
    return max(lake.stats().oldest_version, boundary)


def violations(uri: str, since: int) -> list[str]:
    """Return everything that is wrong with the versions from ``since`` on, definitions included."""
    lake = Lakehouse.open(uri, storage_options=FAST)
    versions = lake.backend.versions
    found = [*check_lakehouse(versions, lake.root_node)]
    for version in range(max(since, _oldest(lake)), lake.version + 1):
        found += check_version(versions, version, definitions=True)
        tables = lake.at(version=version)
        named = (tables.table(each.namespace, each.name or "") for each in tables.objects(kind="table"))
        if any(each.format_properties.get(METADATA_LOCATION) for each in named):
            deep = verify.run(lake.storage, verify.Config(version, engine="local", tables=1.0, deep=True))
            found += [Violation(each.invariant, each.file, each.message, each.hint) for each in deep.findings]
    return [f"{each.invariant} {each.file}: {each.message}" for each in found]


# -- the sweep -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Prepared:
    """An operation, the files before it, and what its unharmed run does."""

    operation: Operation
    files: Files
    arg: Any
    before: list[State | None]
    after: list[State | None] = field(default_factory=list)
    removed: frozenset[str] = frozenset()
    requests: int = 0
    log: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a disturbed operation ended: acknowledged, failed, or killed."""

    mode: Mode
    at: int
    error: Exception | None = None
    killed: bool = False

    @property
    def acknowledged(self) -> bool:
        """Whether the operation said that it was done."""
        return self.error is None and not self.killed


def _digest(files: Files) -> bytes:
    """Return a hash of names and contents."""
    digest = hashlib.sha256()
    for path, data in sorted(files.items()):
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    return digest.digest()


@contextmanager
def _copy(files: Files) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sweep-", dir=in_memory()) as name:
        write_files(Path(name), files)
        yield Path(name)


def disturbed(operation: Operation, arg: Any, open_at: Open, plan: FaultPlan) -> None:
    """Run an operation with every storage it opened under one plan."""
    opened: list[Storage] = []

    def opening(path: str) -> Storage:
        opened.append(open_at(path))
        return opened[-1]

    action = operation.begin(opening, arg)
    for storage in opened:
        attach(storage, plan)
    action()


def _in_child(name: str, arg: Any, root: str, options: Mapping[str, Any], mode: Mode, at: int) -> None:
    disturbed(OPERATIONS[name], arg, lambda path: open_storage(root + path, options), FaultPlan(mode, at=at))


def _killed(prepared: Prepared, place: Place, mode: Mode, at: int) -> Outcome:
    arguments = (prepared.operation.name, prepared.arg, place.root, dict(place.options), mode, at)
    child = forking().Process(target=_in_child, args=arguments)
    child.start()
    child.join(_CHILD_SECONDS)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise AssertionError(f"{prepared.operation.name} hung under {mode} at request {at}")
    assert -signal.SIGKILL == child.exitcode, f"{mode} at request {at} ended with {child.exitcode}"
    return Outcome(mode, at, killed=True)


class Sweep:
    """One operation at one place."""

    def __init__(self, operation: Operation, place: Place) -> None:
        self.place = place
        self._proved: set[tuple[bool, bool, bytes]] = set()
        with _copy({}) as scratch:
            arg = operation.prepare(scratch)
            before = states((scratch / "lake" / operation.target).as_uri())
            self.prepared = Prepared(operation, read_files(scratch / "lake"), arg, before)
        self._unharmed()

    def _unharmed(self) -> None:
        prepared, plan = self.prepared, FaultPlan("count")
        self.place.reset(prepared.files)
        disturbed(prepared.operation, prepared.arg, self.place.open, plan)
        left = self.place.files()
        with _copy(left) as copy:
            prepared.after = states((copy / prepared.operation.target).as_uri())
        prepared.requests, prepared.log = plan.count, plan.log
        prepared.removed = frozenset(prepared.files.keys() - left.keys())
        assert prepared.operation.expect(plan.log, prepared.after), "this is not the operation it claims to be"

    def run(self, every: int = 1) -> Counter[str]:
        """Disturb every request, or for each way of disturbing every third or so; return the points by mode."""
        points: Counter[str] = Counter()
        are_few = every > len(MODES)
        for number, mode in enumerate(MODES):
            for at in range(1, self.prepared.requests + 1):
                is_its_turn = at % every == (1 + number) % every
                if is_its_turn if are_few else self._matters(number, at, every):
                    self.point(mode, at)
                    points[mode] += 1
        return points

    def _matters(self, number: int, at: int, every: int) -> bool:
        """Whether a request is disturbed in this way.

        A death beside a read leaves what a death after the last change leaves, and one read without an answer is one
        that failed. Of many listings of folders only every third is disturbed, in one way each. A request that
        decides who was first fails, and loses its answer, in every operation, beside the way that is its turn.
        """
        kind = self.prepared.log[at - 1][0]
        is_its_turn = at % every == (1 + number) % every
        if kind in _DECIDES and MODES[number] in MENDED:
            return True
        if kind not in {"get", "head", "list"}:
            return is_its_turn
        if MODES[number] in {"kill", "kill_after", "lose"}:
            return False
        if not self.prepared.operation.reads:
            return is_its_turn
        return at % (len(MODES) * every * (3 if kind == "list" else 1)) == number

    def point(self, mode: Mode, at: int) -> None:
        """Disturb one request, and prove that nothing is lost and everything goes on."""
        self.place.reset(self.prepared.files)
        outcome = self._disturb(mode, at)
        left = self.place.files()
        try:
            self._prove(outcome, left)
        except AssertionError as error:
            where = f"{self.prepared.operation.name} on {self.place.name}"
            error.add_note(f"{where}: {mode} at request {at}: {self.prepared.log[at - 1]}")
            error.add_note(f"acknowledged: {outcome.acknowledged}; error: {outcome.error!r}")
            raise

    def _disturb(self, mode: Mode, at: int) -> Outcome:
        prepared, place = self.prepared, self.place
        if mode in {"kill", "kill_after"}:
            return _killed(prepared, place, mode, at)
        try:
            disturbed(prepared.operation, prepared.arg, place.open, FaultPlan(mode, at=at))
        except StorageError as error:
            return Outcome(mode, at, error)
        return Outcome(mode, at)

    def _prove(self, outcome: Outcome, left: Files) -> None:
        assert outcome.acknowledged or mode_may_fail(outcome.mode), "one failure must be mended"
        self._prove_old_files(left)
        refused = outcome.error is not None and "unknown" not in str(outcome.error)
        same = (outcome.acknowledged, refused, _digest(left))
        if same not in self._proved:  # before its first change, an operation leaves the same files wherever it fails
            self._prove_state(outcome, left)
            self._proved.add(same)

    def _prove_state(self, outcome: Outcome, left: Files) -> None:
        with _copy(left) as copy:
            uri = (copy / self.prepared.operation.target).as_uri() + "/"
            found = states(uri)
            if self.place.name == "s3":
                assert len(found) == self._version_on_the_place() + 1
            self._prove_versions(found, outcome)
            assert not found or [] == violations(uri, len(self.prepared.before) - 1)
            self._prove_repetition(copy, outcome, done=len(found) == len(self.prepared.after))
            open_storage(uri, FAST).remove_temporary(0)

    def _prove_old_files(self, left: Files) -> None:
        """No file that was there has changed; none is gone but those that the operation removes."""
        target = self.prepared.operation.target
        mutable = self.prepared.removed | {
            target + name for name in (HINT_FILE, BOUNDARY_FILE, transaction_path(SAVED))
        }
        kept = {path: data for path, data in self.prepared.files.items() if path not in mutable}
        assert [] == [path for path, data in kept.items() if left.get(path) != data]

    def _version_on_the_place(self) -> int:
        try:
            return Lakehouse.open(self.place.open(self.prepared.operation.target)).version
        except NotALakehouse:
            return -1

    def _prove_versions(self, found: list[State | None], outcome: Outcome) -> None:
        """The newest version is one of those before, within or after the operation, whole; so are all others."""
        before, after = len(self.prepared.before), len(self.prepared.after)
        assert before <= len(found) <= after, f"{len(found) - 1} is the newest version"
        old = [*self.prepared.before, *self.prepared.after[before:]]  # an expiration removes versions
        assert all(state in pair for state, *pair in zip(found, old, self.prepared.after, strict=False))
        if outcome.acknowledged:
            assert len(found) == after, "it was acknowledged and is not there"
        elif outcome.error is not None and "unknown" not in str(outcome.error) and not self.prepared.operation.steps:
            assert len(found) == before, "it said that it failed, and is there"

    def _prove_repetition(self, copy: Path, outcome: Outcome, *, done: bool) -> None:
        operation, arg = self.prepared.operation, self.prepared.arg

        def open_at(path: str) -> Storage:
            return open_storage(f"{copy.as_uri()}/{path}", FAST)

        refused: TrinityLakeError | None = None
        try:
            if operation.repeat is not None:
                operation.repeat(open_at, arg, outcome.acknowledged)
            else:
                operation.begin(open_at, arg)()
        except operation.done as error:
            refused = error
        assert done or refused is None, f"it was not done, and its repetition says {refused!r}"
        uri = (copy / operation.target).as_uri()
        lake = Lakehouse.open(uri, storage_options=FAST)
        found, wanted = state_of(lake), self.prepared.after[-1]
        if operation.repeat is None and wanted is not None:
            assert (wanted["objects"], wanted["snapshots"]) == (found["objects"], found["snapshots"])
        assert [] == violations(uri, lake.version)


def mode_may_fail(mode: Mode) -> bool:
    """Whether an operation under this disturbance may end without an acknowledgement."""
    return mode not in MENDED
