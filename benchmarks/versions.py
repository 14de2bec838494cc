"""Rollback over many versions, differences, time travel and export of a large lakehouse.

python -m benchmarks versions [--objects 200000] [--commits 500] [--spark] [--folder DIR]
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import lakes, report
from pipelines import compaction, diff, export, rollback
from pipelines.job import Session
from pipelines.session import get_session, stop_session
from trinitylake_core import Lakehouse, spec
from trinitylake_core.definitions import encode, namespace_def, table_def
from trinitylake_core.locations import optimised_path, root_path
from trinitylake_core.storage import open_storage
from trinitylake_core.tree.nodefile import encode as encode_node
from trinitylake_core.versions import from_millis

_SPACE = uuid.UUID(int=4)
_VERSIONS = 10_000
_LOCAL = compaction.Config(engine="local")
Figures = dict[str, Any]


def path_of(what: str | int) -> str:
    """Return the definition path of a namespace or a table, spread over prefixes as real ones are."""
    kind = "namespace" if isinstance(what, str) else "table"
    return optimised_path(f"{kind}-{what}-{uuid.uuid5(_SPACE, str(what))}.binpb")


def build(folder: Path, objects: int) -> Lakehouse:
    """Return a lakehouse whose definitions are all there."""
    lake = lakes.build(folder.as_uri(), objects, path_of)
    storage = open_storage(folder.as_uri(), {"durable": False})
    contents = {"namespace": encode(namespace_def({})), "table": encode(table_def(None))}
    storage.write_many((entry.path, contents[entry.kind]) for entry in lake.objects())
    return Lakehouse.open(folder.as_uri(), storage_options={"durable": False})


@contextmanager
def timed(figures: Figures, name: str) -> Iterator[None]:
    """Note how long a block takes."""
    started = time.perf_counter()
    yield
    figures[name] = round(time.perf_counter() - started, 2)


def rolled_back(spark: Session, lake: Lakehouse, version: int, engine: str) -> Figures:
    """Roll back and tell what it cost beyond reading the target once."""
    figures: Figures = {"versions undone": lake.refresh().version - version}
    with timed(figures, "s"):
        done = rollback.run(lake, rollback.Config(version=version, reason="benchmark", engine=engine), spark)
    read = done.nodes_checked + done.definitions_checked
    return figures | {
        "nodes": done.nodes_checked,
        "definitions": done.definitions_checked,
        "other requests": done.requests - read,
    }


def reached(lake: Lakehouse) -> set[str]:
    """Return the nodes of a version, without reading a leaf."""
    found, waiting = {lake.root_node.path}, [lake.root_node.node]
    while waiting:
        node = waiting.pop()
        found.update(node.children)
        waiting += lake.nodes.read_many(node.children) if (node.height or 0) > 1 else []
    return found


def compared(lake: Lakehouse, objects: int, changes: int) -> Figures:
    """Commit changes all over the keys, compact, and compare the versions before and after."""
    compaction.run(lake.refresh(), _LOCAL)
    before = lake.refresh().version
    lakes.change(lake, objects, changes)
    compaction.run(lake.refresh(), _LOCAL)
    after = lake.refresh().version
    differ = len(reached(lake.at(version=before)) ^ reached(lake.at(version=after)))
    cold = Lakehouse.open(lake.root)
    one, two = cold.at(version=before), cold.at(version=after)
    counted = cold.storage.counts.snapshot()
    figures: Figures = {"changes": changes}
    with timed(figures, "s"):
        figures["rows"] = sum(1 for _ in diff.run(one, two, diff.Config("local")))
    opened = (cold.storage.counts - counted).get
    return figures | {"nodes that differ": differ, "nodes opened": opened, "ratio": round(opened / differ, 2)}


def travelled(folder: Path) -> Figures:
    """Find times among many versions of a small lakehouse."""
    lake = Lakehouse.create(folder.as_uri(), storage_options={"durable": False})
    root, order, began = lake.root_node.node, lake.definition.order, lake.info().created_at_millis
    for version in range(1, _VERSIONS):
        root.system |= {spec.VERSION: str(version), spec.CREATED_AT_MILLIS: str(began + 10 * version)}
        (folder / root_path(version)).write_bytes(encode_node(root, order, root_path(version)))
    lake.storage.replace(spec.HINT_FILE, str(_VERSIONS - 1).encode())
    lake = Lakehouse.open(folder.as_uri())
    most = 0
    for wanted in range(0, _VERSIONS, 37):
        counted = lake.storage.counts.snapshot()
        found = lake.at(timestamp=from_millis(began + 10 * wanted + 5)).version
        assert found == wanted
        most = max(most, (lake.storage.counts - counted).requests())
    return {"versions": _VERSIONS, "most requests": most}


def exported(spark: Session, lake: Lakehouse, target: Path, engine: str) -> Figures:
    """Export once more."""
    figures: Figures = {}
    options = {"durable": False}
    with timed(figures, "s"):
        done = export.run(lake, target.as_uri(), export.Config(engine=engine), spark, storage_options=options)
    return figures | {
        "definitions": done.definitions_copied,
        "nodes": done.nodes_copied,
        "MB": round(done.bytes_copied / 1e6, 1),
        "requests": done.requests,
    }


def measure(folder: Path, objects: int, commits: int, engines: list[str]) -> dict[str, Figures]:
    """Return all figures."""
    figures: dict[str, Figures] = {"build": {}}
    with timed(figures["build"], "s"):
        lake = build(folder / "lake", objects)
    spark = get_session() if "spark" in engines else None
    for engine in engines:
        target = folder / f"copy-{engine}"
        version = lake.refresh().version
        figures[f"export, {engine}"] = exported(spark, lake, target, engine)
        for turn in range(commits):
            with lake.transaction() as txn:
                namespace, name = lakes.table_name(turn * 7919 % objects, objects)
                txn.alter_table(namespace, name, properties={"turn": str(turn)})
        figures[f"export after {commits} commits, {engine}"] = exported(spark, lake, target, engine)
        figures[f"rollback, {engine}"] = rolled_back(spark, lake, version, engine)
        figures[f"rollback by 1, {engine}"] = rolled_back(spark, lake, lake.refresh().version - 1, engine)
        lake.rollback(version=version, reason="benchmark")
    figures["diff"] = compared(lake, objects, 1000)
    figures["timestamp"] = travelled(folder / "times")
    return figures


def main(arguments: list[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="benchmarks versions", description=__doc__)
    parser.add_argument("--objects", type=int, default=200_000)
    parser.add_argument("--commits", type=int, default=500)
    parser.add_argument("--spark", action="store_true", help="measure Spark, too")
    parser.add_argument("--folder", help="where the lakehouses are made")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        engines = ["local", "spark"] if options.spark else ["local"]
        figures = measure(Path(folder), options.objects, options.commits, engines)
    stop_session()
    for name, row in figures.items():
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in row.items())}")
    report.save("versions", {"objects": options.objects, "commits": options.commits, "figures": figures})
