"""The slot of a pool: who gives it back, and who does not wait for it.

A run that dies by ``kill -9`` gives it back, wherever Dagster was started as our pages say. What leads back after an
incident takes none.

With real daemons: the settings that ``make ui`` and ``trinitylake ui`` write, and a project of somebody else that has
the component and nothing but a limit of its pools.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from dagster_project.config.settings import LakehouseSettings
from tests.dagster.conftest import filled
from tests.support.deployment import eventually
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
SLOW = """
import time
from pathlib import Path
from pipelines import compaction

def hold(*words, cancel, **more):
    Path({held!r}).touch()
    while True:
        time.sleep(1)
        cancel.check()

compaction.run = hold
from dagster_project.definitions import defs
"""
"""Our definitions, with a compaction that goes on until it is cancelled."""


@contextmanager
def started(lake: Lakehouse, *, component: bool, slow: bool = False, layout: str = "assets") -> Iterator[DevServer]:
    """Start Dagster, with its daemon, for a lakehouse that nobody compacts but the test."""
    stanza = {"name": "sales", "root": lake.root}
    stanza |= {"compaction": {"engine": "local", "messages": 10_000_000, "poll": "3s", "older_than": None}}
    module = "theirs" if component or slow else "dagster_project.definitions"
    with dev_server(BARE if component else OURS.read_text(encoding="utf-8"), module) as server:
        named = server.home / "lakehouses.yaml"
        named.write_text(yaml.safe_dump({"lakehouses": [stanza], "layout": layout}), encoding="utf-8")
        text = SLOW if slow else COMPONENT
        words = {"file": str(named), "home": str(server.home), "held": str(server.home / "held")}
        (server.home / "theirs.py").write_text(text.format(**words))
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


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["assets", "partitions"])
def test_a_rollback_waits_for_no_maintenance_and_can_stop_it(tmp_path: Path, layout: str) -> None:
    """While a compaction holds the pool, or in a fleet the only place of its lakehouse in the queue.

    First the plan, then what the plan offers, over a version that changes nothing; then with ``stop_maintenance``.
    """
    lake = filled((tmp_path / "lake").as_uri())
    good = lake.version - 1
    slug, step = ("lakehouses", "lakehouses") if layout == "partitions" else ("sales", "lakehouse__sales")
    tags = {"dagster/partition": "sales"} if layout == "partitions" else {}
    with started(lake, component=False, slow=True, layout=layout) as server:

        def roll_back(**config: Any) -> str:
            wanted = {"ops": {f"{step}__rollback": {"config": config}}}
            run_id = server.launch(f"{slug}_rollback", wanted, tags)
            assert "SUCCESS" == finish(server, run_id), server.log(UNIT)[-3000:]
            return run_id

        held = server.launch(f"{slug}_compaction", tags=tags)
        eventually((server.home / "held").exists, lambda: server.log(UNIT)[-3000:], SECONDS)
        planned = roll_back(version=good, reason="bad deploy")
        lake.alter({"mark": "1"}, reason="may I write?")
        roll_back(**offered(server, planned)["ops"][f"{step}__rollback"]["config"])
        assert "STARTED" == server.run(held)["status"]
        assert lake.at(good).digest() == lake.refresh().digest()
        roll_back(version=good - 1, reason="more", dry_run=False, stop_maintenance=True)
        assert lake.at(good - 1).digest() == lake.refresh().digest()
        assert "CANCELED" == finish(server, held)


def offered(server: DevServer, run_id: str) -> Any:
    """Return the configuration that a plan offers."""
    with dg.DagsterInstance.from_config(str(server.home)) as instance:
        records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_OUTPUT).records
    event = records[0].event_log_entry.dagster_event
    assert event is not None
    return yaml.safe_load(str(event.step_output_data.metadata["configuration"].value))


@pytest.mark.slow
@pytest.mark.parametrize("component", [False, True])
@pytest.mark.parametrize("victim", ["the run", "everything"])
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
