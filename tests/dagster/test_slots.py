"""A run that dies by ``kill -9`` gives back the slot of its pool, wherever Dagster was started as our pages say.

With real daemons: the settings that ``make ui`` and ``trinitylake ui`` write, and a project of somebody else that has
the component and nothing but a limit of its pools.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from dagster_project.config.settings import LakehouseSettings
from tests.dagster.conftest import filled
from tests.support.dev_server import SECONDS, UNIT, DevServer, command, dev_server
from trinitylake_core import Lakehouse

OURS = Path(__file__).parents[2] / "dagster_project" / "dagster.yaml"
BARE = "telemetry: {enabled: false}\nconcurrency: {pools: {default_limit: 1}}\n"
COMPONENT = """
import dagster as dg
from dagster_project.component import Lakehouses

component = Lakehouses(file={file!r})
defs = component.build_defs(dg.ComponentTree.for_test().load_context.for_path(__import__("pathlib").Path({home!r})))
"""


@contextmanager
def started(lake: Lakehouse, *, component: bool) -> Iterator[DevServer]:
    """Start Dagster, with its daemon, for a lakehouse that nobody compacts but the test."""
    stanza = {"name": "sales", "root": lake.root}
    stanza |= {"compaction": {"engine": "local", "messages": 10_000_000, "poll": "3s", "older_than": None}}
    module = "theirs" if component else "dagster_project.definitions"
    with dev_server(BARE if component else OURS.read_text(encoding="utf-8"), module) as server:
        named = server.home / "lakehouses.yaml"
        named.write_text(yaml.safe_dump({"lakehouses": [stanza]}), encoding="utf-8")
        (server.home / "theirs.py").write_text(COMPONENT.format(file=str(named), home=str(server.home)))
        environment = {"TRINITYLAKE_LAKEHOUSES": str(named), "TRINITYLAKE_AUTHOR": "tests@dagster"}
        environment["PYTHONPATH"] = os.pathsep.join([str(server.home), str(Path(__file__).parents[2])])
        server.begin(command(server.port, module), environment)
        yield server


def finish(server: DevServer, run_id: str) -> str:
    """Return how a run ended."""
    return str(server.finished(run_id, SECONDS)["status"])


def kill_at_work(server: DevServer) -> str:
    """Launch a compaction, and kill its process while it holds the slot of its lakehouse; return the run."""
    pool = LakehouseSettings.model_validate({"name": "sales", "root": "file:///x"}).pool
    run_id = server.launch("sales_compaction")
    server.wait_for_slot(run_id, pool)
    server.kill_run(run_id)
    return run_id


def test_the_next_run_works_soon_after_a_run_was_killed(tmp_path: Path) -> None:
    """With the settings that ``make ui`` and ``trinitylake ui`` write."""
    lake = filled((tmp_path / "lake").as_uri())
    with started(lake, component=False) as server:
        killed = kill_at_work(server)
        began = time.monotonic()
        again = server.launch("sales_compaction")
        assert "SUCCESS" == finish(server, again), server.log(UNIT)[-3000:]
        print(f"the next compaction was done {time.monotonic() - began:.0f} s after the kill")
        assert "FAILURE" == finish(server, killed)
    assert 0 == lake.refresh().stats().messages


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "component"), [("the run", True), ("everything", False), ("everything", True)])
def test_the_next_run_works_whoever_was_killed(tmp_path: Path, victim: str, *, component: bool) -> None:
    """Also where daemon and code server die with the run, and are started again; and with the component alone."""
    lake = filled((tmp_path / "lake").as_uri())
    with started(lake, component=component) as server:
        words = server.running[UNIT].args
        environment = server.processes(UNIT)[0].environ()
        assert isinstance(words, list)
        killed = kill_at_work(server)
        if victim == "everything":
            server.kill()
            server.begin(words, environment)
        began = time.monotonic()
        again = server.launch("sales_compaction")
        assert "SUCCESS" == finish(server, again), server.log(UNIT)[-3000:]
        print(f"{victim}: the next compaction was done after {time.monotonic() - began:.0f} s")
        assert "FAILURE" == finish(server, killed)
    assert 0 == lake.refresh().stats().messages
    assert [] == list(lake.check())
