"""Every command on one small lakehouse: its JSON, its text, its help, and what wrong command lines get.

    python tests/support/transcript.py DIRECTORY

writes one file for each command line, without what differs from run to run (times, UUIDs, seconds, paths). Two
versions of the product are compared by ``diff -r`` of their directories: ``PYTHONPATH`` chooses the version.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final
from unittest.mock import patch

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
MONTH: Final = 30 * 86_400_000
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
WRONG: Final = """

nosuch {lake}
snapshot
snapshot nosuch {lake}
ls
ls {none}
ls {lake} nosuch
ls {lake} a b
ls {lake} --nosuch
ls {lake} --limit x
ls {lake} --limit -1
ls {lake} --kind cow
ls {lake} --version
ls {lake} --version 1 --snapshot whole
ls {lake} --version nosuch
ls {lake} --storage-option x
show {lake} nosuch
history {lake} --format csv
history {lake} --format csv --json
diff {lake} 1
create {lake}
apply {lake} nosuch.yaml
alter {lake}
rename {lake} sales sales2
rollback {lake}
rollback {lake} --to-version 99 --engine local
undo {lake} --engine local
restore {lake} --version 1 --engine local
export {lake} {lake} --engine local
upgrade {lake} {lake} --engine local
verify {lake} --sample 0.5
compact {lake} --engine cow
clean {lake} --older-than 1h --engine local
expire {lake} --older-than x --engine local
load {lake} nosuch.jsonl --engine local
completion tcsh
fleet nosuch.txt
"""
"""Command lines that fail."""
_VOLATILE: Final = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", "TIME"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
    (r"\b[01]{4}/[01]{4}/[01]{4}/[01]{8}-", "BITS-"),
    (r"\b[0-9a-f]{16,}\b", "HASH"),
    (r"\b1[6-9]\d{11}\b", "MILLIS"),
    (r"[\d.]+( ms\))", r"N\1"),
    (r"\b[\d.]+ (B|KiB)\b( \(\d+\))?", "SIZE"),
    (r"(?<=,)\d{4}\b", "SIZE"),  # bytes in CSV, and in the table of an expiration
    (r"^(\s+\d+\s+\d\s+)\d{4}$", r"\1SIZE"),
    (r'("(?:list|requests|read|plan|[a-z_]*(?:bytes|seconds|dollars)[a-z_]*)": )\d[\d.e-]*', r"\1N"),
    (r"^(\s*(?:list|requests|read|plan|[a-z_]*(?:bytes|seconds)[a-z_]*) +)\d[\d.e-]*$", r"\1N"),
    (r"\b\d+\.\d+\b|\b\d+e-\d+\b", "F"),
    (r" {2,}", "  "),
)


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


@contextmanager
def a_month_later() -> Iterator[None]:
    """Let expirations see versions a month older than they are."""
    with patch("pipelines.expiration.now_millis", lambda: int(time.time() * 1000) + MONTH):
        yield


def written(words: list[str]) -> str:
    """Run one command line in this process, and return its exit code and what it printed."""
    from pipelines import cli

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = str(cli.main(words))
        except SystemExit as error:
            code = f"SystemExit {error.code}"
    return f"exit code {code}\n--- standard output\n{out.getvalue()}--- standard error\n{err.getvalue()}"


def normalised(text: str, directory: Path) -> str:
    """Return a text without what differs from run to run."""
    text = text.replace(str(directory), "DIR")
    for pattern, stands_for in _VOLATILE:
        text = re.sub(pattern, stands_for, text, flags=re.MULTILINE)
    return text


def _as_json(line: str) -> str:
    return f"{line} --json --quiet"


def _as_text(line: str) -> str:
    return f"{line} --quiet"


def _in_full(line: str) -> str:
    """Return a command line that prints every figure, or every row for programs, where its command can."""
    name = line.partition(" ")[0]
    if name in {"load", "compact", "upgrade", "expire", "clean", "export"}:
        return f"{line} --quiet --verbose"
    rows = name in {"ls", "history", "diff", "tree", "fleet"} or line.startswith("snapshot list")
    return f"{line} --quiet --format csv" if rows else f"{line} --quiet"


def record(target: Path, ways: dict[str, Callable[[str], str]]) -> None:
    """Run all command lines in each way, and write what they print to ``target``."""
    for way, spelled in ways.items():
        with tempfile.TemporaryDirectory() as scratch, a_month_later():
            directory = Path(scratch).resolve()
            os.chdir(directory)
            prepare(directory)
            roots = roots_in(directory)
            for number, line in enumerate((SCENARIO.strip() + "\n" + WRONG.strip("\n")).split("\n")):
                words = [word.format(**roots) for word in spelled(line).split()]
                name = re.sub(r"[^a-z0-9~-]+", "_", line.replace("{lake}", "").lower())[:60]
                file = target / way / f"{number:03d}_{name}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f"{line}\n{normalised(written(words), directory)}")
            os.chdir("/")


def record_help(target: Path) -> None:
    """Write the help text of every command."""
    names = {" ".join(line.split()[: 2 if line.startswith("snapshot") else 1]) for line in SCENARIO.strip().split("\n")}
    target.mkdir(parents=True, exist_ok=True)
    for name in ("", "snapshot", *sorted(names)):
        (target / (name.replace(" ", "_") or "trinitylake")).write_text(written([*name.split(), "--help"]))


if __name__ == "__main__":
    where = Path(sys.argv[1]).absolute()
    logging.disable()
    for variable in ("ROOT", "LAKEHOUSES", "STORAGE_OPTIONS"):
        os.environ.pop(f"TRINITYLAKE_{variable}", None)
    record(where, {"json": _as_json, "text": _as_text, "full": _in_full})
    record_help(where / "help")
