"""Commands that make a lakehouse, or many changes at once: create, apply."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from pipelines import apply as changes
from pipelines.cli import report
from pipelines.cli.command import Call, Result, command, in_order, key_value, option
from pipelines.cli.commands.options import DRY_RUN, REASON
from trinitylake_core import SERIALIZABLE, SNAPSHOT, Lakehouse
from trinitylake_core.definitions import to_dict
from trinitylake_core.errors import InvalidInput

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
