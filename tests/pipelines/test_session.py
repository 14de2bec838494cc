"""Spark sessions: how they are configured, what must be there first, what tasks can import."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

import pipelines
import trinitylake_core
from pipelines.session import (
    SessionConfig,
    active_session,
    get_session,
    lazy_session,
    on_other_machines,
    session_parallelism,
    ship_packages,
)
from pipelines.session import spark as spark_session
from pipelines.session.spark import (
    _java_version,
    _set_environment,
    check_connect_server,
    check_java,
    java_settings,
    local_cores,
    zip_packages,
)
from pipelines.session.usage import measure_usage
from trinitylake_core import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def _run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the code believe that no session runs, and fail if one is started all the same."""
    monkeypatch.setattr("pipelines.session.spark.active_session", lambda: None)
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", None)


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that makes a Java that prints a text the one that Spark would start."""

    def make(text: str) -> None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir(exist_ok=True)
        java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
        java.chmod(0o755)

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    _java_version.cache_clear()
    yield make
    _java_version.cache_clear()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "cluster"}, "must be one of local, master, connect"),
        ({"mode": "connect"}, "sc://host:15002"),
        ({"mode": "connect", "remote": "http://host"}, "sc://host:15002"),
        ({"master": "spark://host:7077"}, "must be local, local"),
        ({"master": "local[0]"}, "must be local, local"),
        ({"mode": "master", "master": ""}, "needs a master URL"),
        ({"log_level": "LOUD"}, "log_level must be one of"),
    ],
)
def test_a_config_that_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SessionConfig(**settings)


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[2,4]", 2),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2,1,1024]", None),
        ("spark://h:1", None),
    ],
)
def test_local_masters_are_told_apart(master: str, cores: int | None) -> None:
    assert cores == local_cores(master)


def test_a_token_in_the_connect_url_is_not_shown() -> None:
    config = SessionConfig(mode="connect", remote="sc://host:15002/;token=s3cr3t")
    assert "s3cr3t" not in repr(config)


@pytest.mark.usefixtures("no_session")
def test_a_missing_java_is_told_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(InvalidInput, match=r"needs Java 17 or newer, and none was found.*apt install") as caught:
        get_session()
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_session")
@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "16"])
def test_a_java_that_is_too_old_is_told_before_spark_starts(fake_java: Any, version: str) -> None:
    fake_java(f'openjdk version "{version}" 2020-01-01')
    with pytest.raises(InvalidInput, match=rf"needs Java 17 or newer.* is {version}: get it with"):
        get_session()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_newer_java_is_accepted(fake_java: Any, version: str) -> None:
    fake_java(f'openjdk version "{version}" 2025-01-01')
    check_java()


@pytest.mark.usefixtures("no_session")
def test_a_spark_home_without_spark_is_told_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(InvalidInput, match=f"SPARK_HOME names {tmp_path}, and there is no Spark"):
        get_session()


@pytest.mark.usefixtures("no_session")
def test_a_connect_server_that_does_not_listen_is_told_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"sc://127.0.0.1:{unused.getsockname()[1]}/;token=s3cr3t"
        with pytest.raises(InvalidInput, match=r"no Spark Connect server answers at 127\.0\.0\.1") as caught:
            get_session(SessionConfig(mode="connect", remote=url))
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("url", ["sc://", "sc://host:port"])
def test_a_connect_url_without_host_or_port_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="not the URL of a Spark Connect server"):
        check_connect_server(url)


def test_the_name_of_the_shipped_zip_depends_on_the_sources_of_both_packages_only() -> None:
    path = zip_packages(trinitylake_core, pipelines)
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
    assert {"trinitylake_core/__init__.py", "pipelines/session/spark.py"} <= names
    assert all(f"{name}c" in names for name in names if name.endswith(".py"))
    assert path.name == zip_packages.__wrapped__(trinitylake_core, pipelines).name


@pytest.mark.parametrize("is_other_python", [False, True])
def test_a_process_of_an_executor_compiles_nothing_unless_it_is_of_another_python(
    tmp_path: Path, is_other_python: bool
) -> None:
    shipped = tmp_path / "shipped.zip"
    with zipfile.ZipFile(zip_packages(trinitylake_core, pipelines)) as archive, zipfile.ZipFile(shipped, "w") as copy:
        for name in archive.namelist():
            content = archive.read(name)
            copy.writestr(name, b"\0" + content[1:] if is_other_python and name.endswith("c") else content)
    program = "import pipelines.reach.walk as a, trinitylake_core.spec as b; print(a.__file__, b.__file__)"
    done = _run(program, PYTHONPATH=str(shipped), PYTHONSAFEPATH="1")
    endings = [name.rpartition(".")[2] for name in done.stdout.split()]
    assert ["py" if is_other_python else "pyc"] * 2 == endings, done.stderr


@pytest.mark.spark
def test_a_session_is_small_quiet_and_local(spark: SparkSession) -> None:
    assert get_session() is spark
    assert active_session() is spark
    cores = session_parallelism(spark)
    assert os.cpu_count() == cores
    wanted = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.killOnFatalError.depth": "0",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.inMemoryColumnarStorage.batchSize": "16",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": str(3 * cores),
    }
    assert wanted == {name: spark.conf.get(name) for name in wanted}


@pytest.mark.spark
def test_tasks_import_our_packages_and_run_this_python(spark: SparkSession) -> None:
    ship_packages(spark)

    def where(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        import trinitylake_core.spec as imported

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [imported.__file__], "python": [sys.executable]})

    row = spark.range(1).mapInArrow(where, "file string, python string").collect()[0]  # type: ignore[arg-type]
    assert str(Path(str(trinitylake_core.__file__)).parent / "spec.py") == row["file"]
    assert sys.executable == row["python"]


@pytest.mark.spark
def test_a_lazy_session_leaves_one_alone_that_it_did_not_start(spark: SparkSession) -> None:
    with lazy_session() as session:
        assert session() is spark
    assert active_session() is spark


@pytest.mark.spark
def test_a_session_that_runs_is_known_in_every_thread(spark: SparkSession) -> None:
    """Spark itself tells only the thread that started it: another one would stop what it has not started."""

    def elsewhere() -> tuple[bool, bool]:
        cluster = SessionConfig(mode="master", master="spark://host:7077")
        with lazy_session(cluster) as session:
            return on_other_machines(session), session() is spark

    with ThreadPoolExecutor(1) as pool:
        assert (False, True) == pool.submit(elsewhere).result()
        assert pool.submit(active_session).result() is spark
    assert 3 == spark.range(3).count()


def test_a_lazy_session_stops_what_it_started_and_prints_nothing() -> None:
    """On standard output, where a command prints JSON and nothing else; on the other one a few lines of Java's."""
    done = _run(
        """
        import os
        from pipelines.session import SessionConfig, active_session, lazy_session
        before = dict(os.environ)
        with lazy_session(SessionConfig(master="local[1]")) as session:
            assert active_session() is None
            assert session().range(5).count() == 5
            assert session() is active_session()
        assert active_session() is None
        left = {name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)}
        assert left <= {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}, left  # by Spark itself
        """
    )
    assert (0, "") == (done.returncode, done.stdout), done.stderr
    java = re.compile(
        r"WARNING: Using incu|Using Spark's def|Setting (default|Spark) log|To adjust|\S+ \S+ WARN Native"
    )
    assert [] == [line for line in done.stderr.splitlines() if not java.match(line)]


@pytest.mark.spark
@pytest.mark.slow
def test_a_java_that_was_killed_is_named_and_the_next_run_has_another_one() -> None:
    """A job says what happened; Dagster's resource, of which a retry asks the session again, starts a new one."""
    done = _run(
        """
        from dagster_project.resources import SparkResource
        from pipelines.engine.spark import SparkEngine
        from pipelines.session import SessionConfig, active_session
        from pyspark import SparkContext
        from trinitylake_core.errors import StorageError

        resource, config = SparkResource(), SessionConfig(master="local[1]")
        engine = SparkEngine(lambda: resource.session(config))
        assert engine.sql("SELECT 1 AS one").one() == {"one": 1}
        SparkContext._gateway.proc.kill()
        try:
            engine.sql("SELECT 2 AS two").one()
        except StorageError as error:
            assert "the Java process of Spark has ended" in str(error), error
        else:
            raise AssertionError("nothing was said")
        engine.close()
        SparkContext._gateway.proc.wait()
        retry = SparkEngine(lambda: resource.session(config))
        assert retry.sql("SELECT 3 AS three").one() == {"three": 3}
        resource.stop()
        assert active_session() is None
        """
    )
    assert (0, "") == (done.returncode, done.stdout), done.stderr[-4000:]
    assert "the Java process of Spark has ended with -9" in done.stderr


@pytest.mark.spark
@pytest.mark.slow
def test_packages_are_shipped_to_the_executors_of_a_cluster() -> None:
    """A local-cluster has executors of its own, whose imports come out of the zip. `ps` does not show its secret."""
    done = _run(
        """
        import psutil
        from pipelines.session import SessionConfig, get_session, session_parallelism, ship_packages, stop_session

        def where(batches):
            import pyarrow as pa, pipelines.session, trinitylake_core
            for _ in batches:
                yield pa.RecordBatch.from_pydict({"f": [trinitylake_core.__file__, pipelines.session.__file__]})

        spark = get_session(SessionConfig(mode="master", master="local-cluster[2,1,1024]"))
        assert session_parallelism(spark) == 2
        secret = spark.sparkContext.getConf().get("spark.authenticate.secret")
        words = [word for each in psutil.process_iter(["cmdline"]) for word in each.info["cmdline"] or ()]
        assert secret and any("spark.authenticate=true" in word for word in words)
        assert not any(secret in word for word in words)
        ship_packages(spark)
        files = [row.f for row in spark.range(1).mapInArrow(where, "f string").collect()]
        assert len(files) == 2 and all(".zip/" in file for file in files), files
        stop_session()
        """
    )
    assert (0, "") == (done.returncode, done.stdout), done.stderr


def test_java_keeps_small_unless_somebody_gives_it_memory() -> None:
    assert "-XX:+UseSerialGC" in java_settings({"spark.ui.enabled": "true"})["spark.driver.defaultJavaOptions"]
    assert {} == java_settings({"spark.driver.memory": "8g"})
    assert {} == java_settings({"spark.driver.extraJavaOptions": "-XX:+UseG1GC"})


@pytest.mark.spark
def test_java_was_told_so(spark: SparkSession) -> None:
    """What is set before Java starts reaches it."""
    told = spark.conf.get("spark.driver.defaultJavaOptions", "")
    running = spark.sparkContext._jvm.java.lang.management.ManagementFactory
    flags = [str(flag) for flag in running.getRuntimeMXBean().getInputArguments()]
    assert told
    assert set(told.split()) <= set(flags)


class _Session:
    """A session of a cluster: its configuration, and how many tasks run at once each time that it is asked."""

    def __init__(self, conf: dict[str, str], *seen: int) -> None:
        self.settings = {"spark.master": "spark://host:7077", **conf}
        self.asked = 0
        self._seen = seen
        self.jobs = 0
        self.conf = self.sparkContext = self

    def get(self, name: str, default: str) -> str:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def range(self, *_: int) -> _Session:
        return self

    def count(self) -> int:
        self.jobs += 1
        return 1

    @property
    def defaultParallelism(self) -> int:  # noqa: N802 - Spark's name
        self.asked += 1
        return self._seen[min(self.asked, len(self._seen)) - 1]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session, "_ASK_AGAIN_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
def test_executors_that_register_late_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the session starts nobody asks; later, it is asked until no more executors come, and then never again.

    A job that waits for the first one comes before: Spark says 2 where there is none, as often as it is asked.
    """
    spark: Any = _Session({}, 2, 2, 4, 4, 4, 8)
    spark_session._known[spark] = spark_session._Known(None, chooses_partitions=True)
    assert (0, 0) == (spark.asked, spark.jobs)
    assert [8, 8] == [session_parallelism(spark), session_parallelism(spark)]
    assert (10, 1, "24") == (spark.asked, spark.jobs, spark.settings[spark_session.PARTITIONS])


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"spark.cores.max": "16"}, 16),
        ({"spark.master": "yarn", "spark.executor.instances": "5", "spark.executor.cores": "4"}, 20),
        ({"spark.master": "k8s://host", "spark.executor.instances": "5"}, 5),
        ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "9"}, 3),
        ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "9",
          "spark.executor.cores": "2"}, 18),
        ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "2147483647",
          "spark.executor.cores": "2"}, 3),
        ({"spark.default.parallelism": "7", "spark.cores.max": "16"}, 7),
        ({"spark.executor.cores": "many"}, 3),
    ],
)  # fmt: skip
def test_the_configuration_says_how_many_tasks_run_at_once_or_spark_does(conf: dict[str, str], expected: int) -> None:
    spark: Any = _Session(conf, 3)
    assert expected == session_parallelism(spark)
    assert spark_session.PARTITIONS not in spark.settings, "somebody else's session"


def test_while_executors_come_and_go_it_is_asked_each_time() -> None:
    spark: Any = _Session({"spark.dynamicAllocation.enabled": "true"}, 2, 6)
    spark_session._known[spark] = spark_session._Known(None, chooses_partitions=True)
    assert [(2, "6"), (6, "18")] == [
        (session_parallelism(spark), spark.settings[spark_session.PARTITIONS]) for _ in range(2)
    ]


def test_whoever_knows_better_says_how_many_tasks_run_at_once() -> None:
    spark: Any = _Session({"spark.cores.max": "16"}, 3)
    spark_session._known[spark] = spark_session._Known(64, chooses_partitions=True)
    assert (64, 0) == (session_parallelism(spark), spark.asked)
    with pytest.raises(InvalidInput, match="parallelism must be at least 1"):
        SessionConfig(parallelism=0)


def test_the_python_of_the_tasks_is_the_one_in_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark reads this setting in spark-submit only."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/other/python")
    with _set_environment(SessionConfig(conf={"spark.pyspark.python": "./environment/bin/python"})):
        assert "./environment/bin/python" == os.environ["PYSPARK_PYTHON"]
    with _set_environment(SessionConfig()):
        assert "/other/python" == os.environ["PYSPARK_PYTHON"]
    monkeypatch.delenv("PYSPARK_PYTHON")
    with _set_environment(SessionConfig()):
        assert sys.executable == os.environ["PYSPARK_PYTHON"]
    assert "PYSPARK_PYTHON" not in os.environ


@pytest.mark.spark
@pytest.mark.slow
def test_workers_without_our_packages_are_told_from_a_failure_of_the_work() -> None:
    """With the bare Python that this environment was made from."""
    done = _run(
        """
        import pathlib, sys
        from pipelines.session import SessionConfig, lazy_session
        from pipelines.engine.model import LONG
        from pipelines.engine.spark import SparkEngine
        import pyarrow as pa
        bare = pathlib.Path(sys.base_prefix, "bin", "python3")
        schema = pa.schema({"size": LONG})
        with lazy_session(SessionConfig(master="local[1]", conf={"spark.pyspark.python": str(bare)})) as session:
            try:
                engine = SparkEngine(session)
                engine.map(lambda rows: rows, engine.table([{"size": 1}], schema), schema).list()
            except Exception as error:
                print(type(error).__name__, error)
        """
    )
    assert done.stdout.startswith("InvalidInput the Python that runs the tasks of Spark has no module '"), done.stdout
    assert "docs/production.md" in done.stdout


@pytest.mark.spark
def test_a_session_that_was_given_nothing_has_spent_no_time_of_tasks(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark counts the uptime of a driver as its tasks' time. On a cluster that lent no executor none ran any."""
    before = measure_usage(spark)
    time.sleep(0.2)
    since = measure_usage(spark).since(before)
    assert (1, 0, 0, 0.0) == (since.executors, since.stages, since.tasks, since.task_seconds)
    java = Mock(wraps=spark.sparkContext._jsc.sc(), isLocal=lambda: False)
    monkeypatch.setattr(spark.sparkContext, "_jsc", Mock(sc=lambda: java))
    assert 0 == measure_usage(spark).executors
