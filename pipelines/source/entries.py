"""Changes of objects as people write them, each the name of a method of ``Transaction`` and its arguments.

create_table:
  namespace: sales
  name: orders
  schema:
    - {name: id, type: bigint, nullable: false}
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pipelines.source.columns import as_bytes, describe_unknown, new_schema_of, schema_of
from trinitylake_core.definitions import ObjectDef, namespace_def, table_def, view_def
from trinitylake_core.definitions.objects import new_id
from trinitylake_core.errors import InvalidInput
from trinitylake_core.keys import ObjectName

_TEXT: Final = "text"
_FLAG: Final = "true or false"
_MAPPING: Final = "a mapping"
_LIST: Final = "a list"
_SCHEMA: Final = "a schema"
_MAPPINGS: Final = (dict, Mapping)
"""The usual one first: to ask whether something else is a mapping takes ten times as long."""
_TYPES: Final = {
    _TEXT: (str,),
    _FLAG: (bool,),
    _MAPPING: _MAPPINGS,
    _LIST: (list,),
    _SCHEMA: (list, *_MAPPINGS),
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
ACTIONS: Final = {
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
_NO_RENAME: Final = (
    "nothing is renamed in place: create it under the new name and drop the old one, in one list; "
    "`trinitylake rename` keeps its ID"
)
_REQUIRED: Final = ("namespace", "name")


@dataclass(frozen=True, slots=True)
class WrittenChange:
    """One change: where it is written, the method of ``Transaction``, and its arguments."""

    where: str
    action: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        shown = self.arguments["namespace"]
        name = self.arguments.get("name")
        if name is not None:
            shown = f"{shown}.{name}"
        return f"{self.where} ({self.action} {shown})"

    def names(self) -> list[str]:
        """Return the names of what it changes: a namespace, or a namespace and what is in it."""
        return [self.arguments[name] for name in _REQUIRED if name in self.arguments]

    def object(self) -> ObjectName:
        """Return the name of the object that it changes."""
        _, _, kind = self.action.rpartition("_")
        return ObjectName(kind, *self.names())

    def make_definition(self) -> ObjectDef:
        """Return the definition of the new object, with an ID of its own; what many share is read and checked once.

        Raises ``InvalidInput``, ``InvalidDefinition``.
        """
        shared = {name: value for name, value in self.arguments.items() if name not in _REQUIRED}
        written = as_bytes(shared)
        if written is None:
            return _MAKERS[self.action](**self.definition())
        new = deepcopy(_definition_like(self.action, written))
        new.id = new_id()
        return new

    def definition(self) -> dict[str, Any]:
        """Return the other arguments as ``Transaction`` takes them. Raises ``InvalidInput`` for an invalid schema."""
        found = {name: value for name, value in self.arguments.items() if name not in _REQUIRED}
        if "schema" in found:
            if self.action.startswith("create"):
                read_schema = new_schema_of
            else:
                read_schema = schema_of
            found["schema"] = read_schema(found["schema"])
        if "referenced_object_full_names" in found:
            names = found["referenced_object_full_names"]
            full_names = []
            for name in names:
                if isinstance(name, list):
                    full_names.append(tuple(name))
                else:
                    full_names.append(name)
            found["referenced_object_full_names"] = full_names
        return found


_MAKERS: Final[Mapping[str, Callable[..., ObjectDef]]] = {
    "create_namespace": namespace_def,
    "create_table": table_def,
    "create_view": view_def,
}


@lru_cache(maxsize=1024)
def _definition_like(action: str, written: bytes) -> ObjectDef:
    arguments = marshal.loads(written)  # noqa: S302 - written by this process
    return _MAKERS[action](**WrittenChange("", action, arguments).definition())


def parse_change(where: str, value: Any, actions: Collection[str] = ACTIONS) -> WrittenChange:
    """Return the change that a value means; ``where`` it is written goes into errors, with the ``actions`` that may be.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(value, _MAPPINGS) or len(value) != 1:
        raise InvalidInput(
            f"{where} must be one action with its arguments, such as create_namespace: {{namespace: sales}}"
        )
    action, arguments = next(iter(value.items()))
    if action not in ACTIONS:
        if str(action).startswith("rename"):
            raise InvalidInput(f"{where}: unknown action {action!r}; {_NO_RENAME}")
        raise InvalidInput(f"{where}: {describe_unknown('action', str(action), list(actions))}")
    known = ACTIONS[action]
    if isinstance(arguments, str) and "name" not in known:
        arguments = {"namespace": arguments}
    _check_arguments(f"{where} ({action})", arguments, known)
    given = {key: each for key, each in arguments.items() if each is not None}
    return WrittenChange(where, action, given)


def _check_arguments(where: str, arguments: Any, known: Mapping[str, str]) -> None:
    if not isinstance(arguments, _MAPPINGS):
        raise InvalidInput(f"{where} needs its arguments as a mapping; it takes {', '.join(known)}")
    for name, each in arguments.items():
        if name not in known:
            raise InvalidInput(f"{where}: {describe_unknown('field', str(name), list(known))}")
        wanted = known[name]
        if each is None or isinstance(each, _TYPES[wanted]):
            continue
        hint = ""
        if wanted == _TEXT and not isinstance(each, list | Mapping):
            hint = " (put it in quotes)"  # YAML takes yes, 12 and 2026-01-01 for something else than text
        raise InvalidInput(f"{where}: {name} must be {wanted}, not {each!r}{hint}")
    for name in _REQUIRED:
        if name in known and arguments.get(name) is None:
            raise InvalidInput(f"{where}: {name} is missing")
