"""Commands that make or change a lakehouse: create, apply, alter, rename."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pipelines import apply as changes
from pipelines.cli import report
from pipelines.cli.command import Call, Result, command, in_order, key_value, option
from pipelines.cli.commands.objects import destination, find_object
from pipelines.cli.commands.options import DRY_RUN, KIND, REASON, WITHIN
from pipelines.summary import qualified
from trinitylake_core import SERIALIZABLE, SNAPSHOT, Alteration, Lakehouse, ObjectEntry, Transaction
from trinitylake_core.definitions import NamespaceDef, TableDef, ViewDef, to_dict
from trinitylake_core.errors import InvalidInput, Refused
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW
from trinitylake_core.tables import METADATA_LOCATION

_NUMBERS = {
    "order": "number of rows in a node key table, at least 3 (default 512, less with long names or small nodes)",
    "namespace_name_max_size_bytes": "maximum size of a namespace name, in bytes of UTF-8 (default 100)",
    "table_name_max_size_bytes": "maximum size of a table name, likewise (default 100)",
    "view_name_max_size_bytes": "maximum size of a view name, likewise (default 100)",
    "node_file_max_size_bytes": "target size of a node file, in bytes (default 1048576)",
    "txn_ttl_millis": "how long a transaction may stay open, in milliseconds, 1000 or more (default 604800000: a week)",
}
_LEAST = {"txn_ttl_millis": click.IntRange(1000)}
DEFINITION = (
    *(
        option(f"--{name.replace('_', '-')}", type=_LEAST.get(name, click.INT), metavar="N", help=meaning)
        for name, meaning in _NUMBERS.items()
    ),
    option(
        "--txn-isolation-level",
        choices=(SNAPSHOT, SERIALIZABLE),
        help="default isolation level of transactions (default SNAPSHOT)",
    ),
    option(
        "--property",
        "--properties",
        "properties",
        multiple=True,
        metavar="KEY=VALUE",
        help="a property of the lakehouse, or a JSON object of several; may be repeated",
    ),
)
"""One option for each field of the lakehouse definition."""


def definition_of(call: Call) -> dict[str, Any]:
    """Return the fields of the lakehouse definition that the options of ``DEFINITION`` set."""
    names = (*_NUMBERS, "txn_isolation_level")
    given = {name: value for name in names if (value := getattr(call.options, name)) is not None}
    properties: dict[str, Any] = {}
    for text in call.options.properties:
        properties |= _json_object(text) if text.startswith("{") else dict([key_value("--property", text)])
    return {**given, "properties": properties} if properties else given


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"--properties is not a JSON object: {error}") from None
    return dict(found)


@command(
    "create",
    "trinitylake create file:///data/lake --order 128 --property owner=platform",
    options=DEFINITION,
    details="If ROOT already holds a lakehouse, the exit code is 2. Other files at ROOT are left alone.",
)
def create(call: Call) -> Result:
    """Create a lakehouse."""
    lake = Lakehouse.create(call.root, storage_options=call.options_for(call.root), **definition_of(call))
    definition = to_dict(lake.definition)
    data = {"root": lake.root, "version": lake.version, "definition": definition}
    lines = in_order([f"created {lake.root}, version {lake.version}"], report.fields(definition))
    return Result(data, lines, committed=lake.version)


@command(
    "apply",
    "trinitylake apply file:///data/lake changes.yaml --reason 'new tables for sales' --dry-run",
    options=(
        DRY_RUN,
        REASON,
        option(
            "--allow-loss",
            is_flag=True,
            help="a new schema may leave out columns, or make a primary key nullable",
        ),
        option(
            "--isolation", choices=(SNAPSHOT, SERIALIZABLE), help="isolation level (default: that of the lakehouse)"
        ),
    ),
    arguments={"FILE": "the list of changes; - reads standard input"},
    details="""\
All changes of the list are made, or none:

  - create_namespace: {namespace: sales, properties: {owner: emea}}
  - create_table:
      namespace: sales
      name: orders
      schema:
        - {name: id, type: bigint, nullable: false}
        - {name: price, type: "decimal(10, 2)"}
        - {name: tags, type: list, element: varchar}
      primary_keys: [id]
      properties: {owner: emea}
  - create_view: {namespace: sales, name: top, sql: "SELECT * FROM orders", dialect: spark}
  - alter_table: {namespace: sales, name: old, properties: {owner: null}}
  - drop_namespace: {namespace: attic, cascade: true}

Actions: create_, alter_ and drop_namespace; create_, alter_ and drop_table; create_, replace_ and
drop_view. Types: those of the format (INT8, DECIMAL(p, s), VARCHAR(n), TIMESTAMPTZ6, …) and the usual SQL
names. The schema printed by `show --json` is accepted, too. Columns are matched by name and keep their ids; a column
that a new schema does not list is dropped, which --allow-loss has to allow.""",
)
def apply(call: Call) -> Result:
    """Carry out a list of changes."""
    options = call.options
    text, source = _read(options.file)
    done = changes.run(
        call.open(),
        changes.parse(text, source),
        reason=options.reason,
        isolation=options.isolation,
        allow_loss=options.allow_loss,
        review=call.review(),
    )
    needed = done.losses and options.dry_run and not options.allow_loss
    more = ["--allow-loss is needed to carry this out"] if needed else []
    return Result(done, in_order(*report.summarised(done, *more, rows=len(done.changes))))


def _read(file: str) -> tuple[str, str]:
    if file == "-" and sys.stdin is None:
        raise InvalidInput("standard input is closed: there is no list of changes to read")
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig"), "standard input" if file == "-" else file
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not UTF-8 text") from None


_COMMENT = "comment"


# -- alter ---------------------------------------------------------------------------------------------


@command(
    "alter",
    "trinitylake alter file:///data/lake sales --set owner=emea --unset team --reason 'new owner' --dry-run",
    options=(
        option("--set", multiple=True, metavar="KEY=VALUE", help="set a property; may be repeated"),
        option("--unset", multiple=True, metavar="KEY", help="remove a property; may be repeated"),
        option("--comment", metavar="TEXT", help="set the property comment; an empty text removes it"),
        KIND,
        WITHIN,
        REASON,
        DRY_RUN,
    ),
    arguments={"OBJECT": "sales, or sales.orders (default: the lakehouse itself)"},
    details="""\
Properties of the lakehouse are set by a new version that conflicts with nothing: other commits go on, and properties
that others set meanwhile stay. With maintenance.delete.enabled=false, expire and clean refuse to delete anything.
Properties that begin with "maintenance." stay as they are when the lakehouse is rolled back.

Those of an object are set by one transaction, which conflicts with any other change of that object. The
properties of an Iceberg table are in its metadata file, and only an Iceberg engine can change them.""",
)
def alter(call: Call) -> Result:
    """Set or remove properties."""
    options, changed = call.options, _changed(call)
    lake, named = call.open(), {}
    if options.object is None:
        if options.kind is not None or options.within is not None:
            raise InvalidInput("--kind and --namespace are about an OBJECT: name it")
        done = lake.alter(changed, reason=options.reason, dry_run=options.dry_run)
    else:
        entry = find_object(lake, options.object, kind=options.kind, namespace=options.within)
        done = _altered(lake, entry, changed, reason=options.reason, dry_run=options.dry_run)
        named = {"kind": entry.kind, "namespace": entry.namespace, "name": entry.name}
    if done.version_after is not None:
        first = f"version {done.version_after} committed"
    else:
        first = "dry run, nothing changed" if done.changes else "nothing to change"
    rows = ([report.plain(name), before, after] for name, (before, after) in done.changes.items())
    return Result({**named, **asdict(done)}, in_order([first], report.table(["property", "before", "after"], rows)))


def _changed(call: Call) -> dict[str, str | None]:
    """Return the properties to set, and with ``None`` those to remove."""
    options = call.options
    changed: dict[str, str | None] = dict(key_value("--set", each) for each in options.set)
    if both := sorted(changed.keys() & set(options.unset)):
        raise InvalidInput(f"{', '.join(both)}: either --set or --unset")
    changed |= dict.fromkeys(options.unset)
    if options.comment is not None:
        if _COMMENT in changed:
            raise InvalidInput("--comment sets the property comment: leave out --set and --unset of it")
        changed[_COMMENT] = options.comment or None
    if not changed:
        raise InvalidInput("say what to change: --set KEY=VALUE, --unset KEY or --comment TEXT")
    return changed


def _altered(
    lake: Lakehouse, entry: ObjectEntry, changed: Mapping[str, str | None], *, reason: str | None, dry_run: bool
) -> Alteration:
    """Change properties of an object, as one transaction; nothing is committed where nothing changes."""
    txn = lake.transaction(reason=reason)
    before = dict(_definition(txn, entry).properties)
    if entry.kind == NAMESPACE:
        definition: NamespaceDef | TableDef | ViewDef = txn.alter_namespace(entry.namespace, changed)
    else:
        alter_one = txn.alter_table if entry.kind == TABLE else txn.replace_view
        definition = alter_one(entry.namespace, entry.name or "", properties=changed)
    after = dict(sorted(definition.properties.items()))
    changes = {
        name: (before.get(name), after.get(name)) for name in sorted(changed) if before.get(name) != after.get(name)
    }
    if dry_run or not changes:
        txn.abort()
        return Alteration(txn.base_version, None, dry_run, changes, after, reason)
    return Alteration(txn.base_version, txn.commit(), dry_run, changes, after, reason)


def _definition(txn: Transaction, entry: ObjectEntry) -> NamespaceDef | TableDef | ViewDef:
    """Return a definition as a transaction reads it. Raises ``Refused`` for an Iceberg table."""
    if entry.kind == NAMESPACE:
        return txn.namespace(entry.namespace)
    name = entry.name or ""
    if entry.kind == VIEW:
        return txn.view(entry.namespace, name)
    table = txn.table(entry.namespace, name)
    if METADATA_LOCATION in table.format_properties:
        raise Refused(
            f"{qualified(entry.namespace, name)!r} is an Iceberg table: its properties are in its metadata file, from "
            "which each commit of an engine copies them; set them there, as with ALTER TABLE ... SET TBLPROPERTIES"
        )
    return table


# -- rename --------------------------------------------------------------------------------------------


@command(
    "rename",
    "trinitylake rename file:///data/lake sales.orders sales.orders2 --reason 'ticket 4711' --dry-run",
    options=(
        option("--kind", choices=(TABLE, VIEW), help="OBJECT is of this kind"),
        WITHIN,
        option("--to-namespace", metavar="NS", help="the namespace it goes to; NAME is then only the name in it"),
        REASON,
        DRY_RUN,
    ),
    arguments={
        "OBJECT": "the table or view: sales.orders",
        "NAME": "its new name: orders2 in the same namespace, or archive.orders in another one, which must exist",
    },
    details="""\
It is one transaction: no reader sees both names, or neither. The object's ID and definition stay as they are, and so do
the files of an Iceberg table; older versions know it by the old name. Queries and views that use the old name are not
changed. A namespace cannot be renamed.""",
)
def rename(call: Call) -> Result:
    """Rename a table or a view."""
    options, lake = call.options, call.open()
    entry = find_object(lake, options.object, kind=options.kind, namespace=options.within)
    if entry.kind == NAMESPACE or entry.name is None:
        raise InvalidInput(
            f"{options.object!r} is a namespace, which cannot be renamed: create the new one, and rename its tables "
            "and views into it"
        )
    to_namespace, to_name = destination(lake, options.name, options.to_namespace, entry.namespace)
    txn = lake.transaction(reason=options.reason)
    txn.need_absent(VIEW if entry.kind == TABLE else TABLE, to_namespace, to_name)
    renamed = txn.rename_table if entry.kind == TABLE else txn.rename_view
    renamed(entry.namespace, entry.name, to_namespace, to_name)
    version = None if options.dry_run else txn.commit()
    data: dict[str, Any] = {
        "root": lake.root,
        "version_before": txn.base_version,
        "version_after": version,
        "dry_run": options.dry_run,
        "kind": entry.kind,
        "from": {"namespace": entry.namespace, "name": entry.name},
        "to": {"namespace": to_namespace, "name": to_name},
        "reason": options.reason,
    }
    what = f"{entry.kind} {qualified(entry.namespace, entry.name)}"
    new = qualified(to_namespace, to_name)
    first = (
        f"dry run, nothing was changed: {what} would be {new}, with the same ID, definition and files"
        if version is None
        else f"version {version} committed: {what} is now {new}"
    )
    return Result(data, [report.plain(first)])
