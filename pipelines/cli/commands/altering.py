"""Commands that change one thing by hand: alter, rename."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pipelines.cli import report
from pipelines.cli.command import Call, Result, command, in_order, key_value, option
from pipelines.cli.commands.objects import destination, find_object
from pipelines.cli.commands.options import DRY_RUN, KIND, REASON, WITHIN
from pipelines.summary import qualified
from trinitylake_core import Lakehouse, ObjectEntry, Transaction
from trinitylake_core.definitions import NamespaceDef, TableDef, ViewDef
from trinitylake_core.errors import InvalidInput, Refused
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW
from trinitylake_core.properties import Alteration
from trinitylake_core.tables import METADATA_LOCATION

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
    lake, said = call.open(), {}
    if options.object is None:
        if options.kind is not None or options.within is not None:
            raise InvalidInput("--kind and --namespace are about an OBJECT: name it")
        done = lake.alter(changed, reason=options.reason, dry_run=options.dry_run)
    else:
        entry = find_object(lake, options.object, kind=options.kind, namespace=options.within)
        done = _altered(lake, entry, changed, reason=options.reason, dry_run=options.dry_run)
        said = {"kind": entry.kind, "namespace": entry.namespace, "name": entry.name}
    if done.version_after is not None:
        first = f"version {done.version_after} committed"
    else:
        first = "dry run, nothing changed" if done.changes else "nothing to change"
    rows = ([report.plain(name), before, after] for name, (before, after) in done.changes.items())
    return Result({**said, **asdict(done)}, in_order([first], report.table(["property", "before", "after"], rows)))


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
    definition = _with_properties(txn, entry, changed)
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


def _with_properties(
    txn: Transaction, entry: ObjectEntry, changed: Mapping[str, str | None]
) -> NamespaceDef | TableDef | ViewDef:
    if entry.kind == NAMESPACE:
        return txn.alter_namespace(entry.namespace, changed)
    alter_one = txn.alter_table if entry.kind == TABLE else txn.replace_view
    return alter_one(entry.namespace, entry.name or "", properties=changed)


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
It is one transaction: nobody sees both names, or neither. The object's ID and definition stay as they are, and so do
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
