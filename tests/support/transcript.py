"""Every command on one small lakehouse, in order, and the files that the commands read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

METADATA: Final = {
    "format-version": 1,
    "table-uuid": "00000000-0000-4000-8000-000000000000",
    "location": "file:///elsewhere",
    "last-updated-ms": 1_700_000_000_000,
    "last-column-id": 1,
    "schema": {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": True, "type": "long"}]},
    "partition-spec": [],
    "properties": {},
    "current-snapshot-id": 5,
    "snapshots": [
        {"snapshot-id": 4, "timestamp-ms": 1_600_000_000_000, "manifest-list": "file:///elsewhere/4.avro"},
        {"snapshot-id": 5, "timestamp-ms": 1_700_000_000_000, "manifest-list": "file:///elsewhere/5.avro"},
    ],
}
"""Of a table that lies elsewhere, with one snapshot too many."""
CHANGES: Final = """
- create_namespace: {namespace: sales, properties: {owner: emea}}
- create_table:
    namespace: sales
    name: orders
    schema: [{name: id, type: bigint, nullable: false}]
    format_properties:
      metadata_location: tables/orders/metadata/1.json
      current-snapshot-total-records: "3"
      current-snapshot-total-files-size: "2048"
- create_view: {namespace: sales, name: top, sql: "SELECT 1"}
"""
OBJECTS: Final = """{"create_namespace": {"namespace": "loaded"}}
{"create_table": {"namespace": "loaded", "name": "t"}}
"""
DROPPED: Final = "- drop_table: {namespace: sales, name: orders}"
SCENARIO: Final = """
create {lake} --order 8 --property owner=emea
apply {lake} changes.yaml --reason first --dry-run
apply {lake} changes.yaml --reason first
ls {lake}
ls {lake} --long
show {lake}
show {lake} sales
show {lake} sales.orders
show {lake} sales.top
history {lake}
diff {lake} 0 1
diff {lake} 0 1 --definitions
stats {lake}
stats {lake} --deep --storage --engine local
stats {lake} --tables
tree {lake}
fleet fleet.txt
load {lake} objects.jsonl --engine local --dry-run
load {lake} objects.jsonl --engine local
alter {lake} --set a=b --reason r
freeze {lake} --reason r --for 2h
thaw {lake} --reason r
alter {lake} sales --set a=b --comment c
alter {lake} sales --set a=c --unset comment
diff {lake} HEAD~1 HEAD --definitions
rename {lake} loaded.t t2
compact {lake} --engine local --dry-run
compact {lake} --engine local
snapshot create {lake} first --version 1 --expires-in 30d --reason r
snapshot create {lake} whole --kind full --target {full} --engine local
snapshot list {lake}
apply {lake} dropped.yaml
rollback {lake} --to-version HEAD~1 --reason r --engine local --dry-run
rollback {lake} --to-version HEAD~1 --reason r --engine local
undo {lake} --author * --reason r --engine local --dry-run
restore {lake} --only sales.orders --version HEAD~1 --reason r --engine local --dry-run
restore {lake} --only sales.orders --version 1 --reason r --engine local
snapshot drop {lake} first --dry-run
snapshot drop {lake} first
export {lake} {copy} --engine local --dry-run
export {lake} {copy} --engine local
upgrade {copy} {up} --engine local
verify {lake} --all --definitions --tables --engine local
expire {lake} --keep-last 2 --engine local --dry-run
expire {lake} --keep-last 2 --engine local
clean {lake} --engine local --dry-run
clean {lake} --engine local
tables expire {lake} --dry-run
tables clean {lake} --engine local --dry-run
doctor {lake}
completion bash
"""
"""Commands on one small lakehouse, in order."""


def roots_in(directory: Path) -> dict[str, str]:
    """Return the root URIs that the command lines name."""
    return {name: (directory / name).as_uri() for name in ("lake", "copy", "full", "up", "none")}


def prepare(directory: Path) -> None:
    """Write the files that the commands read, into the current directory too."""
    metadata = directory / "lake/tables/orders/metadata/1.json"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(json.dumps(METADATA))
    (directory / "lake/README.txt").write_text("of somebody else")
    fleet = roots_in(directory)["lake"]
    files = {"changes.yaml": CHANGES, "dropped.yaml": DROPPED, "fleet.txt": fleet, "objects.jsonl": OBJECTS}
    for name, text in files.items():
        (directory / name).write_text(text)
