"""What people try under another name, and the call that they need: an error that names it is the shorter reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

_ROWS: Final = "rows are read by PyIceberg: trinitylake_core.iceberg.TrinityLakeCatalog (docs/iceberg.md)"
_BEGIN: Final = "with lake.transaction() as txn: "
_UNDO: Final = "rollback(version='HEAD~1', reason='...') returns to the version before; dry_run=True shows the plan"
_CLEAN: Final = "from pipelines import clean; clean.run(lake, clean.Config())"
_COMPACT: Final = "from pipelines import compaction; compaction.run(lake, compaction.Config())"
_EXPIRE: Final = (
    "from pipelines import expire; expire.run(lake, expire.Config(keep_last=100, older_than_seconds=7 * 86_400))"
)
_OF_READERS: Final = {
    "list_namespaces": "namespaces() lists them",
    "list_tables": "tables() lists them, tables(namespace) those of one namespace",
    "list_views": "views() lists them, views(namespace) those of one namespace",
    "ls": "namespaces(), tables() and views() list names, objects() yields all of them",
    "list": "namespaces(), tables() and views() list names, objects() yields all of them",
    "load_table": "table(name) returns its definition, table_info(namespace, name) what is in it",
    "get_table": "table(name) returns its definition, table_info(namespace, name) what is in it",
    "load_view": "view(name) returns its definition, view_info(namespace, name) what is in it",
    "get_view": "view(name) returns its definition, view_info(namespace, name) what is in it",
    "load_namespace": "namespace(name) returns its definition, namespace_info(name) what is in it",
    "get_namespace": "namespace(name) returns its definition, namespace_info(name) what is in it",
    "schema": "table_info(namespace, name).schema",
    "exists": "name in tables(namespace); table(name) raises ObjectNotFound where there is none",
    "table_exists": "name in tables(namespace); table(name) raises ObjectNotFound where there is none",
    "properties": "table_info(name).properties, namespace_info(name).properties, or definition.properties",
    "__len__": "len(tables()) counts the tables, objects() yields all objects",
    "scan": _ROWS,
    "read": _ROWS,
    "query": _ROWS,
    "sql": _ROWS,
    "to_pandas": _ROWS,
    "to_arrow": _ROWS,
}
OF_LAKEHOUSES: Final = {
    **_OF_READERS,
    "versions": "history() yields the versions, newest first",
    "log": "history() yields the versions, newest first",
    "latest_version": "refresh().version is the newest one, version that of this handle",
    "current_version": "refresh().version is the newest one, version that of this handle",
    "checkout": "at(version) returns a handle of another version",
    "as_of": "at(timestamp='-2h') returns a handle of the version at a time",
    "snapshot": "create_snapshot(name) makes one, snapshots() lists them, at(snapshot=name) reads one",
    "tag": "create_snapshot(name) gives a version a name, snapshots() lists them, at(snapshot=name) reads one",
    "list_snapshots": "snapshots() lists them",
    "commit": "transaction() begins a transaction, which has commit()",
    "begin": "transaction() begins a transaction, which has commit()",
    "create_namespace": f"{_BEGIN}txn.create_namespace(...)",
    "create_table": f"{_BEGIN}txn.create_table(...)",
    "create_view": f"{_BEGIN}txn.create_view(...)",
    "drop_namespace": f"{_BEGIN}txn.drop_namespace(...)",
    "drop_table": f"{_BEGIN}txn.drop_table(...)",
    "drop_view": f"{_BEGIN}txn.drop_view(...)",
    "rename_table": f"{_BEGIN}txn.rename_table(...)",
    "plan": "rollback(..., dry_run=True) and restore(..., dry_run=True) return the plan",
    "undo": _UNDO,
    "revert": _UNDO,
    "reset": _UNDO,
    "close": "nothing is open that would have to be closed",
    "catalog": _ROWS,
    "compact": _COMPACT,
    "optimize": _COMPACT,
    "expire": _EXPIRE,
    "expire_snapshots": _EXPIRE,
    "clean": _CLEAN,
    "vacuum": _CLEAN,
    "gc": _CLEAN,
    "verify": "from pipelines import verify; verify.run(lake, verify.Config())",
    "validate": "from pipelines import verify; verify.run(lake, verify.Config())",
    "export": "from pipelines import export; export.run(lake, target, export.Config())",
    "backup": "from pipelines import export; export.run(lake, target, export.Config())",
    "load": "from pipelines import load; load.run(lake, source, load.Config())",
    "upgrade": "from pipelines import upgrade; upgrade.run(lake, target)",
}
OF_TRANSACTIONS: Final = {
    **_OF_READERS,
    "rollback": "abort() gives the transaction up; Lakehouse.rollback() returns to an older version",
    "add_table": "create_table(namespace, name, schema=...)",
    "delete_table": "drop_table(namespace, name)",
    "delete_namespace": "drop_namespace(namespace)",
    "update_table": "alter_table(namespace, name, ...)",
    "set_properties": "alter_table(namespace, name, properties=...), alter_namespace(namespace, properties)",
}
_OPEN: Final = "Lakehouse.open(root) opens a lakehouse, Lakehouse.create(root) makes one"
OF_THE_PACKAGE: Final = {
    "open": _OPEN,
    "connect": _OPEN,
    "load": _OPEN,
    "create": _OPEN,
    "Catalog": _OPEN,
    "TrinityLake": _OPEN,
    "load_catalog": _ROWS,
    "TrinityLakeCatalog": _ROWS,
}
HOW_TO_OPEN: Final = _OPEN


def explain_missing(owner: str, name: str, meant: Mapping[str, str], public: Iterable[str]) -> str:
    """Return the message of an ``AttributeError``: what is not there, and what is meant, where that can be told.

    Args:
        owner: what has no such attribute, such as ``Lakehouse``.
        name: the attribute.
        meant: the calls that are needed, by other names.
        public: all names that are there; one that is spelt nearly so is proposed.
    """
    message = f"{owner} has no attribute {name!r}"
    if name in meant:
        return f"{message}; {meant[name]}"
    if name.startswith("_"):
        return message
    known = [each for each in public if not each.startswith("_")]
    close = get_close_matches(name, known, n=1)
    if close:
        return f"{message}; did you mean {close[0]!r}?"
    return message
