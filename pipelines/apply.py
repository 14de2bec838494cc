"""Hand-made changes: a YAML or JSON list of them, carried out as one transaction.

    - create_namespace: {namespace: sales, properties: {owner: emea}}
    - create_table:
        namespace: sales
        name: orders
        schema:
          - {name: id, type: bigint, nullable: false}
          - {name: price, type: "decimal(10, 2)"}
        primary_keys: [id]
    - drop_view: {namespace: sales, name: top}

Each entry is the name of a method of ``Transaction`` and its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipelines.columns import schema_of, unknown
from trinitylake_core import Lakehouse, Transaction
from trinitylake_core.errors import (
    AlreadyExists,
    InvalidInput,
    NamespaceNotEmpty,
    ObjectNotFound,
    TrinityLakeError,
)
from trinitylake_core.tree import search

_TEXT: Final = "text"
_FLAG: Final = "true or false"
_MAPPING: Final = "a mapping"
_LIST: Final = "a list"
_SCHEMA: Final = "a schema"
_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    _TEXT: lambda value: isinstance(value, str),
    _FLAG: lambda value: isinstance(value, bool),
    _MAPPING: lambda value: isinstance(value, Mapping),
    _LIST: lambda value: isinstance(value, list),
    _SCHEMA: lambda value: isinstance(value, list | Mapping),
}
_OBJECT: Final = {"namespace": _TEXT, "name": _TEXT}
_TABLE: Final = _OBJECT | {
    "schema": _SCHEMA,
    "table_format": _TEXT,
    "table_type": _TEXT,
    "primary_keys": _LIST,
    "distribution_keys": _LIST,
    "sort_keys": _LIST,
    "unique_columns": _LIST,
    "format_properties": _MAPPING,
    "properties": _MAPPING,
}
_VIEW: Final = _OBJECT | {
    "sql": _TEXT,
    "dialect": _TEXT,
    "sql_representations": _LIST,
    "schema": _SCHEMA,
    "schema_binding": _FLAG,
    "referenced_object_full_names": _LIST,
    "properties": _MAPPING,
}
ACTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "create_namespace": {"namespace": _TEXT, "properties": _MAPPING},
    "alter_namespace": {"namespace": _TEXT, "properties": _MAPPING},
    "drop_namespace": {"namespace": _TEXT, "cascade": _FLAG},
    "create_table": _TABLE,
    "alter_table": _TABLE,
    "drop_table": _OBJECT,
    "create_view": _VIEW,
    "replace_view": _VIEW,
    "drop_view": _OBJECT,
}
"""What an entry may be, and its arguments with what each must be."""
_REQUIRED: Final = ("namespace", "name")


@dataclass(frozen=True, slots=True)
class Entry:
    """One change: the method of ``Transaction`` and its arguments."""

    number: int
    action: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        name = self.arguments.get("name")
        namespace = self.arguments["namespace"]
        return f"entry {self.number} ({self.action} {namespace if name is None else f'{namespace}.{name}'})"


@dataclass(frozen=True, slots=True)
class Changed:
    """One object that the transaction changes: ``added``, ``changed`` or ``removed``."""

    change: str
    kind: str
    namespace: str
    name: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """What was, or would be, committed. ``version_after`` is ``None`` after a dry run."""

    version_before: int
    version_after: int | None
    dry_run: bool
    entries: int
    transaction: str
    isolation: str
    changes: list[Changed]


def run(
    lake: Lakehouse,
    entries: Sequence[Entry],
    *,
    dry_run: bool = False,
    reason: str | None = None,
    isolation: str | None = None,
) -> Report:
    """Carry out changes as one transaction, all or none.

    Raises:
        InvalidInput, AlreadyExists, ObjectNotFound, NamespaceNotEmpty: an entry cannot be carried out; the
            message names it. Nothing was changed.
        CommitConflict: somebody else changed the same meanwhile.
        ReadOnly, StorageError.
    """
    transaction = lake.transaction(isolation=isolation, reason=reason)
    for entry in entries:
        _carry_out(transaction, entry)
    changes = _changes(lake, transaction)
    before = lake.version
    if dry_run:
        transaction.abort()
    else:
        transaction.commit()
    after = None if dry_run else transaction.version
    return Report(before, after, dry_run, len(entries), transaction.id, transaction.isolation, changes)


def _carry_out(transaction: Transaction, entry: Entry) -> None:
    arguments = dict(entry.arguments)
    positional = [arguments.pop(name) for name in _REQUIRED if name in arguments]
    try:
        if "schema" in arguments:
            arguments["schema"] = schema_of(arguments["schema"])
        if "referenced_object_full_names" in arguments:
            names = arguments["referenced_object_full_names"]
            arguments["referenced_object_full_names"] = [tuple(n) if isinstance(n, list) else n for n in names]
        getattr(transaction, entry.action)(*positional, **arguments)
    except (InvalidInput, AlreadyExists, ObjectNotFound, NamespaceNotEmpty) as error:
        raise _naming(entry, error) from error


def _naming(entry: Entry, error: TrinityLakeError) -> TrinityLakeError:
    return type(error)(f"{entry}: {error}")


def _changes(lake: Lakehouse, transaction: Transaction) -> list[Changed]:
    found = []
    for key, path, _ in transaction.messages():
        there = search(lake.store, lake.root_node.node, key) is not None
        if there or path is not None:
            change = "removed" if path is None else "changed" if there else "added"
            found.append(Changed(change, *lake.codec.split(key)))
    return found


# -- reading the list ------------------------------------------------------------------------------------


def parse(text: str, name: str = "the list of changes") -> list[Entry]:
    """Return the entries in a YAML or JSON text.

    Raises:
        InvalidInput: it is neither, or an entry is not one; the message names the entry.
    """
    values = _loaded(text, name)
    if not isinstance(values, list):
        raise InvalidInput(
            f"{name} must hold a list of changes, each such as '- create_namespace: {{namespace: sales}}'"
        )
    if not values:
        raise InvalidInput(f"{name} holds no changes")
    return [_entry(number, value) for number, value in enumerate(values, 1)]


def _loaded(text: str, name: str) -> Any:
    if text.lstrip().startswith("["):  # JSON, or YAML that looks like it
        try:
            return json.loads(text)
        except ValueError:
            pass
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is there twice, where YAML would take the last one."""

    def mapping(loader: Loader, node: yaml.MappingNode) -> dict[Any, Any]:
        loader.flatten_mapping(node)
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            if isinstance(key, dict | list) or key in found:
                line = key_node.start_mark.line + 1
                raise InvalidInput(f"{name}, line {line}: {key!r} {'is there twice' if key else 'cannot be a key'}")
            found[key] = loader.construct_object(value_node, deep=True)
        return found

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise InvalidInput(f"{name} is neither YAML nor JSON: {' '.join(str(error).split())}") from None


def _entry(number: int, value: Any) -> Entry:
    where = f"entry {number}"
    if not isinstance(value, Mapping) or len(value) != 1:
        raise InvalidInput(
            f"{where} must be one action with its arguments, such as create_namespace: {{namespace: sales}}"
        )
    action, arguments = next(iter(value.items()))
    if action not in ACTIONS:
        raise InvalidInput(f"{where}: {unknown('action', str(action), list(ACTIONS))}")
    where, known = f"{where} ({action})", ACTIONS[action]
    if isinstance(arguments, str) and "name" not in known:
        arguments = {"namespace": arguments}
    if not isinstance(arguments, Mapping):
        raise InvalidInput(f"{where} needs its arguments as a mapping; it takes {', '.join(known)}")
    _check_arguments(where, arguments, known)
    return Entry(number, action, {key: each for key, each in arguments.items() if each is not None})


def _check_arguments(where: str, arguments: Mapping[Any, Any], known: Mapping[str, str]) -> None:
    for name, value in arguments.items():
        if name not in known:
            raise InvalidInput(f"{where}: {unknown('field', str(name), list(known))}")
        if value is not None and not _CHECKS[known[name]](value):
            quotes = " (put it in quotes)" if known[name] == _TEXT and not isinstance(value, list | Mapping) else ""
            raise InvalidInput(f"{where}: {name} must be {known[name]}, not {value!r}{quotes}")
    for name in _REQUIRED:
        if name in known and arguments.get(name) is None:
            raise InvalidInput(f"{where}: {name} is missing")
