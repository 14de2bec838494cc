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
from pipelines.cli.commands.objects import find_destination, find_object
from pipelines.cli.commands.options import DRY_RUN, KIND, REASON, WITHIN
from pipelines.reports.summary import qualify_name
from trinitylake_core import SERIALIZABLE, SNAPSHOT, Alteration, Lakehouse, ObjectEntry, Transaction, clock, spec
from trinitylake_core.definitions import ObjectDef, to_dict
from trinitylake_core.errors import InvalidInput, Refused
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW
from trinitylake_core.recovery.plan import require_reason
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
    given: dict[str, Any] = {}
    for name in (*_NUMBERS, "txn_isolation_level"):
        value = getattr(call.options, name)
        if value is not None:
            given[name] = value
    properties: dict[str, Any] = {}
    for text in call.options.properties:
        if text.startswith("{"):
            properties |= _read_json_object(text)
        else:
            name, value = key_value("--property", text)
            properties[name] = value
    if properties:
        given["properties"] = properties
    return given


def _read_json_object(text: str) -> dict[str, Any]:
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
    text, source = _read_file(options.file)
    done = changes.run(
        call.open(),
        changes.parse(text, source),
        reason=options.reason,
        isolation=options.isolation,
        allow_loss=options.allow_loss,
        review=call.review(),
    )
    more = []
    if options.dry_run and done.losses and not options.allow_loss:
        more.append("--allow-loss is needed to carry this out")
    return Result(done, in_order(*report.summarise(done, *more, rows=len(done.changes))))


def _read_file(file: str) -> tuple[str, str]:
    """Return the text of a file, or of standard input for ``-``, and its name in errors."""
    name = "standard input" if file == "-" else file
    if file == "-" and sys.stdin is None:
        raise InvalidInput("standard input is closed: there is no list of changes to read")
    try:
        if file == "-":
            data = sys.stdin.buffer.read()
        else:
            data = Path(file).read_bytes()
        return data.decode("utf-8-sig"), name
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
        option("--accept", is_flag=True, help="accept the history as it is, after the lakehouse went back in time"),
        KIND,
        WITHIN,
        REASON,
        DRY_RUN,
    ),
    arguments={"OBJECT": "sales, or sales.orders (default: the lakehouse itself)"},
    details="""\
Properties of the lakehouse conflict with no other commit. With maintenance.delete.enabled=false the jobs that delete
are refused. A rollback leaves the properties "maintenance.…" as they are.

Those of an object are set by one transaction, which conflicts with any other change of that object. The
properties of an Iceberg table are in its metadata file, and only an Iceberg engine can change them.""",
)
def alter(call: Call) -> Result:
    """Set or remove properties."""
    options = call.options
    wanted = _read_properties(call)
    lake = call.open()
    named: dict[str, Any] = {}
    if options.object is None:
        if options.kind is not None or options.within is not None:
            raise InvalidInput("--kind and --namespace are about an OBJECT: name it")
        done = lake.alter(wanted, reason=options.reason, dry_run=options.dry_run)
    else:
        entry = find_object(lake, options.object, kind=options.kind, namespace=options.within)
        done = _alter_object(lake, entry, wanted, reason=options.reason, dry_run=options.dry_run)
        named = {"kind": entry.kind, "namespace": entry.namespace, "name": entry.name}
    if done.version_after is not None:
        first = f"version {done.version_after} committed"
    elif done.changes:
        first = "dry run, nothing changed"
    else:
        first = "nothing to change"
    rows = [[report.plain(name), before, after] for name, (before, after) in done.changes.items()]
    lines = in_order([first], report.table(["property", "before", "after"], rows))
    return Result({**named, **asdict(done)}, lines)


def _read_properties(call: Call) -> dict[str, str | None]:
    """Return the properties to set, and with ``None`` those to remove."""
    options = call.options
    wanted: dict[str, str | None] = {}
    for text in options.set:
        name, value = key_value("--set", text)
        wanted[name] = value
    both = sorted(wanted.keys() & set(options.unset))
    if both:
        raise InvalidInput(f"{', '.join(both)}: either --set or --unset")
    for name in options.unset:
        wanted[name] = None
    if options.comment is not None:
        if _COMMENT in wanted:
            raise InvalidInput("--comment sets the property comment: leave out --set and --unset of it")
        wanted[_COMMENT] = options.comment or None
    if options.accept:
        if options.object is not None:
            raise InvalidInput("--accept is about the lakehouse itself: leave out OBJECT")
        if spec.HISTORY_ACCEPTED in wanted:
            raise InvalidInput(f"--accept sets {spec.HISTORY_ACCEPTED}: leave out --set and --unset of it")
        require_reason(options.reason)
        wanted[spec.HISTORY_ACCEPTED] = str(clock.now_millis())
    if not wanted:
        raise InvalidInput("say what to change: --set KEY=VALUE, --unset KEY, --comment TEXT or --accept")
    return wanted


def _alter_object(
    lake: Lakehouse,
    entry: ObjectEntry,
    wanted: Mapping[str, str | None],
    *,
    reason: str | None,
    dry_run: bool,
) -> Alteration:
    """Change properties of an object, as one transaction; nothing is committed where nothing changes."""
    txn = lake.transaction(reason=reason)
    before = dict(_read_definition(txn, entry).properties)
    definition: ObjectDef
    if entry.kind == NAMESPACE:
        definition = txn.alter_namespace(entry.namespace, wanted)
    elif entry.kind == TABLE:
        definition = txn.alter_table(entry.namespace, entry.name or "", properties=wanted)
    else:
        definition = txn.replace_view(entry.namespace, entry.name or "", properties=wanted)
    after = dict(sorted(definition.properties.items()))
    changes = {}
    for name in sorted(wanted):
        if before.get(name) != after.get(name):
            changes[name] = (before.get(name), after.get(name))
    version = None
    if dry_run or not changes:
        txn.abort()
    else:
        version = txn.commit()
    return Alteration(txn.base_version, version, dry_run, changes, after, reason)


def _read_definition(txn: Transaction, entry: ObjectEntry) -> ObjectDef:
    """Return a definition as a transaction reads it. Raises ``Refused`` for an Iceberg table."""
    if entry.kind == NAMESPACE:
        return txn.namespace(entry.namespace)
    name = entry.name or ""
    if entry.kind == VIEW:
        return txn.view(entry.namespace, name)
    table = txn.table(entry.namespace, name)
    if METADATA_LOCATION in table.format_properties:
        raise Refused(
            f"{qualify_name(entry.namespace, name)!r} is an Iceberg table: its properties are in its metadata file, "
            "from which each commit of an engine copies them; set them there, as with ALTER TABLE ... SET TBLPROPERTIES"
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
No reader sees both names, or neither. The object's ID and definition stay, and so do the files of an Iceberg table.
Queries and views that use the old name are not changed. A namespace cannot be renamed.""",
)
def rename(call: Call) -> Result:
    """Rename a table or a view."""
    options = call.options
    lake = call.open()
    entry = find_object(lake, options.object, kind=options.kind, namespace=options.within)
    if entry.kind == NAMESPACE or entry.name is None:
        raise InvalidInput(
            f"{options.object!r} is a namespace, which cannot be renamed: create the new one, and rename its tables "
            "and views into it"
        )
    to_namespace, to_name = find_destination(lake, options.name, options.to_namespace, entry.namespace)
    txn = lake.transaction(reason=options.reason)
    # A table and a view of one name would be one name for every engine, although the keys differ.
    other_kind = VIEW if entry.kind == TABLE else TABLE
    txn.need_absent(other_kind, to_namespace, to_name)
    rename_object = txn.rename_table if entry.kind == TABLE else txn.rename_view
    rename_object(entry.namespace, entry.name, to_namespace, to_name)
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
    what = f"{entry.kind} {qualify_name(entry.namespace, entry.name)}"
    new = qualify_name(to_namespace, to_name)
    if version is None:
        first = f"dry run, nothing was changed: {what} would be {new}, with the same ID, definition and files"
    else:
        first = f"version {version} committed: {what} is now {new}"
    return Result(data, [report.plain(first)])
