"""Terminate, with the real machinery: a code server, a run process of its own, Spark, and a storage that hangs.

One node of the tree is a named pipe: whoever reads it waits for ever, as on a network mount whose server is gone. So
Spark is at work when the run is terminated, and nothing but that ends it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dagster as dg
import pytest
from dagster._cli.job import _create_run
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget

from dagster_project import config
from tests.dagster.test_assets import STEP
from tests.support.lakes import new_lake
from trinitylake_core import Lakehouse

ROOT = Path(__file__).parent.parent.parent
STANZA = """
lakehouses:
  - name: sales-eu
    root: {root}
    spark: {{master: "local[2]"}}
    compaction: {{engine: spark}}
"""
PROGRESS = "flush subtrees: 0 of"


def hanging(directory: Path) -> tuple[Lakehouse, Path]:
    """Return a lakehouse that needs a compaction, and the leaf of it that cannot be read to the end."""
    lake = new_lake(directory)
    for part in range(3):
        with lake.refresh().transaction() as txn:
            if not part:
                txn.create_namespace("ns")
            for number in range(part, 900, 3):
                txn.create_table("ns", f"t{number:03}")
    node = lake.refresh().root_node.node
    key, path = node.buffer.keys[0], ""
    while not node.is_leaf:
        path = node.children[node.child_index(key)]
        node = lake.store.read(path)
    leaf = Path(unquote(urlsplit(lake.root).path)) / path
    leaf.unlink()
    os.mkfifo(leaf)
    return lake, leaf


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """Return an instance on disk, as ``make ui`` has one."""
    home = tmp_path / "dagster-home"
    home.mkdir()
    (home / "dagster.yaml").write_text((ROOT / "scripts/dagster.yaml").read_text())
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as found:
        yield found


def launched(instance: dg.DagsterInstance, workspace: WorkspaceProcessContext, job: str) -> str:
    """Launch a job as the webserver does, in a process of its own; return the ID of the run."""
    request = workspace.create_request_context()
    (location,) = request.code_locations
    (repository,) = location.get_repositories().values()
    run = _create_run(instance, location, repository, repository.get_full_job(job), {}, {}, None, None)
    return instance.launch_run(run.run_id, request).run_id


def eventually(what: Callable[[], Any], seconds: float = 240.0) -> Any:
    """Return what is true at last."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
    return found


def processes(home: str, *names: str) -> dict[int, str]:
    """Return the processes that were started for an instance, which its environment tells, and that are alive."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            environment = (directory / "environ").read_bytes()
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended, or is somebody else's
            continue
        mine = f"DAGSTER_HOME={home}\0".encode() in environment + b"\0"
        if mine and int(directory.name) != os.getpid() and any(name in command for name in names):
            found[int(directory.name)] = command
    return found


def said(instance: dg.DagsterInstance, run_id: str) -> str:
    return "\n".join(f"{each.dagster_event_type}: {each.user_message}" for each in instance.all_logs(run_id))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks processes up in /proc")
def test_a_compaction_that_is_terminated_leaves_no_commit_and_no_java_behind(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canceled within seconds, and not tried again, though the step may be: nothing of the run is left but orphans."""
    lake, _ = hanging(tmp_path)
    file = tmp_path / "lakehouses.yaml"
    file.write_text(STANZA.format(root=lake.root))
    monkeypatch.setenv(config.ENV_FILE, str(file))
    home, version = str(tmp_path / "dagster-home"), lake.version
    with WorkspaceProcessContext(instance, WorkspaceFileTarget([str(ROOT / "workspace.yaml")])) as workspace:
        run_id = launched(instance, workspace, "sales_eu_compaction")
        eventually(lambda: PROGRESS in said(instance, run_id))
        assert processes(home, "java")
        assert processes(home, "pyspark")
        assert instance.run_launcher.terminate(run_id)
        status = eventually(lambda: (run := instance.get_run_by_id(run_id)) and run.is_finished and run.status, 60)
        eventually(lambda: not processes(home, "java", "pyspark", run_id), 30)
        events = said(instance, run_id)
    assert dg.DagsterRunStatus.CANCELED == status, events
    assert "the run was cancelled; Spark was stopped and nothing was committed" in str(instance.all_logs(run_id))
    assert "STEP_UP_FOR_RETRY" not in events
    assert "STEP_RESTARTED" not in events
    assert version == Lakehouse.open(lake.root).version
    assert f"{STEP}tree_compaction" in str(instance.all_logs(run_id))
    eventually(lambda: not processes(home, ""), 30)  # the code server has ended, too
