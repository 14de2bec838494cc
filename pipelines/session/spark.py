"""The only builder of Spark sessions: this machine, a cluster, or a Spark Connect server.

Nothing secret is put into Spark's configuration, which Spark shows in its UI and its logs: tasks get the
storage options inside the functions they run.

Importing this module does not import pyspark: commands that never start Spark must not wait for it.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pipelines
import trinitylake_core
from pipelines.session import compat
from pipelines.session.packages import source_directories, zipped
from pipelines.session.parallelism import (
    PARTITIONS,
    PARTITIONS_PER_CORE,
    is_connect,
    local_cores,
    note,
    on_one_machine,
)
from pipelines.session.prerequisites import check_connect_server, check_java, check_pyspark
from pipelines.session.starting import no_java_left_behind, told_by_java
from pipelines.session.stderr import without_start_up_noise
from trinitylake_core.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODES: Final = ("local", "master", "connect")
LOG_LEVELS: Final = ("ALL", "DEBUG", "ERROR", "FATAL", "INFO", "OFF", "TRACE", "WARN")

_SQL: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.inMemoryColumnarStorage.batchSize": "16",
}
"""What may be set on a running session, also over Spark Connect.

What is kept on disk between two jobs is read back in batches of rows, and Java's serializer holds on to a hundred of
them. A row may be all that a node says: batches of 10,000 rows or 4 MB, Spark's own choice, fill a gigabyte of Java as
soon as two tasks read some.
"""
_CORE: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
}
"""What must be set before Spark starts."""
_LOOPBACK: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_SMALL_JAVA: Final[Mapping[str, str]] = {
    "spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30",
}
"""For Java on this machine with Spark's own gigabyte: a heap as large as what is alive, not as what is allowed."""
_CHOOSES_JAVA: Final = ("spark.driver.memory", "spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")

_shipped: weakref.WeakSet[SparkSession] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Which Spark to use.

    Attributes:
        mode: ``local`` (this machine), ``master`` (a cluster, by its master URL) or ``connect`` (a Spark
            Connect server).
        master: the master URL: ``local[*]``, ``local[2]``, ``spark://host:7077``, ``yarn``, ``k8s://…``.
        remote: the server of mode ``connect``, ``sc://host:15002``; may carry a token, and is not shown.
        app_name: what Spark calls the application.
        conf: more Spark settings; they win over ours. No place for secrets.
        log_level: from which level on Spark logs to standard error.
        parallelism: how many tasks run at once; by default found out when the first job needs to know.
    """

    mode: str = "local"
    master: str = "local[*]"
    remote: str | None = field(default=None, repr=False)
    app_name: str = "trinitylake"
    conf: Mapping[str, str] = field(default_factory=dict)
    log_level: str = "ERROR"
    parallelism: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidInput(f"the mode of a Spark session must be one of {', '.join(MODES)}, not {self.mode!r}")
        if self.mode == "connect" and not (self.remote or "").startswith("sc://"):
            raise InvalidInput("mode 'connect' needs remote, the URL of a Spark Connect server: sc://host:15002")
        if self.mode == "local" and local_cores(self.master) is None:
            raise InvalidInput(f"master of mode 'local' must be local, local[N] or local[*], not {self.master!r}")
        if not self.master:
            raise InvalidInput("mode 'master' needs a master URL such as spark://host:7077")
        if self.parallelism is not None and self.parallelism < 1:
            raise InvalidInput(f"parallelism must be at least 1, not {self.parallelism}")
        if self.log_level not in LOG_LEVELS:
            raise InvalidInput(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")


def java_settings(conf: Mapping[str, str]) -> Mapping[str, str]:
    """Return how Java is to manage its memory on this machine; nothing where ``conf`` says a word about it."""
    return {} if any(name in conf for name in _CHOOSES_JAVA) else _SMALL_JAVA


def get_session(config: SessionConfig | None = None) -> SparkSession:
    """Return the running Spark session, or start one.

    A session that runs already is returned as it is, whatever ``config`` says.

    Raises:
        InvalidInput: Java is missing or too old, no Spark Connect server or master answers, or a package is missing
            that Spark Connect needs; Spark was not started.
    """
    config = config or SessionConfig()
    running = active_session()
    if running is not None:
        return running
    return _connect(config) if config.mode == "connect" else _start(config)


def active_session() -> SparkSession | None:
    """Return the Spark session of this process if one runs, whichever thread started it. Never imports pyspark."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.active()
    except PySparkRuntimeError:  # there is none
        return None
    if is_connect(session):
        return session
    return session if session.sparkContext._jsc is not None else None  # noqa: SLF001 - no public way to ask


def stop_session() -> None:
    """Stop the running Spark session; nothing happens if there is none."""
    session = active_session()
    if session is not None:
        _shipped.discard(session)
        session.stop()


@dataclass(frozen=True, slots=True)
class LazySession:
    """A session that is started when somebody calls for it, and says before where it would run.

    Attributes:
        config: which Spark, or a function that returns that, and is called when Spark is needed and no sooner.
        start: what starts it.
        failures: why it could not be started, where somebody went on without it (``pipelines.auto``).
    """

    config: SessionConfig | Callable[[], SessionConfig]
    start: Callable[[SessionConfig], SparkSession] = get_session
    failures: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __call__(self) -> SparkSession:
        """Return the session, started if need be. Raises ``InvalidInput`` as :func:`get_session`."""
        return self.start(self.chosen())

    def chosen(self) -> SessionConfig:
        """Return which Spark it is. Raises ``InvalidInput`` for one that there cannot be."""
        return self.config() if callable(self.config) else self.config


def on_other_machines(spark: SparkSession | Callable[[], SparkSession] | None) -> bool:
    """Return whether tasks run elsewhere; of a session that does not run yet, only a :class:`LazySession` tells.

    Raises ``InvalidInput`` for a session that cannot be started.
    """
    session = active_session() if callable(spark) else spark
    if session is not None:
        return not on_one_machine(session)
    if not isinstance(spark, LazySession):
        return False
    config = spark.chosen()
    return config.mode == "connect" or (config.mode == "master" and local_cores(config.master) is None)


@contextmanager
def lazy_session(config: SessionConfig | Callable[[], SessionConfig] | None = None) -> Iterator[LazySession]:
    """Yield a session that is started when it is first called for; stop at the end what that started."""
    started = False

    def start(wanted: SessionConfig) -> SparkSession:
        nonlocal started
        started = started or active_session() is None
        return get_session(wanted)

    try:
        yield LazySession(config or SessionConfig(), start)
    finally:
        if started:
            stop_session()


def ship_packages(spark: SparkSession) -> None:
    """Make ``trinitylake_core`` and ``pipelines`` importable in tasks; once a session.

    Tasks of a local session run on this machine and import them from where they are. What these packages
    import themselves (pyarrow, numpy, mmh3, protobuf, fsspec, obstore, s3fs) must be installed where the tasks run.
    """
    if spark in _shipped:
        return
    if is_connect(spark) or local_cores(spark.conf.get("spark.master", "") or "") is None:
        compat.ship(spark, str(zipped(trinitylake_core, pipelines)), connect=is_connect(spark))
    _shipped.add(spark)


# -- starting ----------------------------------------------------------------------------------------


def _start(config: SessionConfig) -> SparkSession:
    check_pyspark()
    check_java()
    from pyspark.sql import SparkSession

    settings: dict[str, str] = {**_CORE, **_SQL, "spark.log.level": config.log_level}
    cores = local_cores(config.master)
    if cores is not None:
        settings |= java_settings(config.conf)
        settings |= {**_LOOPBACK, "spark.sql.shuffle.partitions": str(PARTITIONS_PER_CORE * cores)}
    settings |= {name: str(value) for name, value in config.conf.items()}
    builder: Any = SparkSession.builder
    builder = builder.master(config.master).appName(config.app_name).config(map=settings)
    with _environment(config), without_start_up_noise(), no_java_left_behind(), told_by_java(config.master):
        session: SparkSession = builder.getOrCreate()
    note(session, config.parallelism, choose_partitions=_elsewhere(config) and PARTITIONS not in config.conf)
    return session


def _connect(config: SessionConfig) -> SparkSession:
    compat.refuse_old_connect()
    check_pyspark()
    check_connect_server(config.remote or "")
    from pyspark.sql import SparkSession

    settings = {**_SQL, **{name: str(value) for name, value in config.conf.items()}}
    builder: Any = SparkSession.builder
    builder = builder.remote(config.remote).appName(config.app_name).config(map=settings)
    try:
        session: SparkSession = builder.getOrCreate()
    except ImportError as error:  # what Spark Connect needs is an extra of pyspark
        raise InvalidInput(f"{error}; Spark Connect needs: pip install 'pyspark[connect]'") from None
    note(session, config.parallelism, choose_partitions=_elsewhere(config) and PARTITIONS not in config.conf)
    return session


@contextmanager
def _environment(config: SessionConfig) -> Iterator[None]:
    """Tell a starting Spark what it takes from the environment only: which Python runs the tasks, and from where."""
    before = {name: os.environ.get(name) for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP", "PYTHONPATH")}
    python = config.conf.get("spark.pyspark.python")  # only spark-submit reads it
    if python:
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local_cores(config.master) is not None:
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK["spark.driver.bindAddress"])
        path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        path += [each for each in source_directories(trinitylake_core, pipelines) if each not in path]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _elsewhere(config: SessionConfig) -> bool:
    """Whether the tasks run on other machines, whose cores are not known before they are asked for."""
    return config.mode == "connect" or local_cores(config.master) is None
