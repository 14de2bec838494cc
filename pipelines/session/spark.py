"""The only builder of Spark sessions: this machine, a cluster, or a Spark Connect server.

Nothing secret is put into Spark's configuration, which Spark shows in its UI and its logs, but the secret of the
cluster itself: tasks get the storage options inside the functions they run. These wait in Spark's processes for
whoever asks for them, on ports that every user of a machine reaches. So each session authenticates and encrypts.

Importing this module does not import pyspark: commands that never start Spark must not wait for it.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import marshal
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, find_spec, source_hash
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pipelines
import trinitylake_core
from pipelines.session import compat
from pipelines.session.authentication import (
    CONNECT_PORT,
    PRIVATE,
    SECRET,
    explain_no_start,
    new_secret,
    refuse_open_remote,
    refuse_open_server,
    start_java,
)
from pipelines.session.iceberg import (
    EXTENSION,
    EXTENSIONS,
    how_to_get_iceberg,
    iceberg_settings,
    refuse_session_without_iceberg,
)
from trinitylake_core.errors import InvalidInput
from trinitylake_core.extras import install_command

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
PARTITIONS: Final = "spark.sql.shuffle.partitions"
PARTITIONS_PER_CORE: Final = 3
_REGISTERED_SECONDS: Final = 15.0
"""How long executors may take to register, as long as there are more and more of them."""
_ASK_AGAIN_SECONDS: Final = 0.5
_QUIET_ASKS: Final = 4
"""So often it is asked in vain for more executors: they register about a second apart on a busy cluster."""
_MOST: Final = 1 << 20
"""More executors or cores than that mean: no limit."""
_LOCAL: Final = re.compile(r"local(?:\[(\*|[1-9][0-9]*)(?:,[0-9]+)?\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,")


def local_cores(master: str) -> int | None:
    """Return the number of cores of ``local``, ``local[N]`` or ``local[*]`` here; ``None`` for other masters."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return None
    cores = match[1] or "1"
    if cores == "*":
        return os.cpu_count() or 1
    return int(cores)


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
    return ".connect." in type(spark).__module__


def on_one_machine(spark: SparkSession) -> bool:
    """Whether tasks of a session run on this machine, as processes beside this one."""
    return not is_connect(spark) and local_cores(spark.conf.get("spark.master") or "") is not None


def session_parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that the session runs at once, at least 1.

    The value of :class:`SessionConfig`, or else that of Spark's configuration, or else what there is. It is asked for
    once a session, when it is needed first: by then executors have registered that had not when the session started.
    While executors come and go (dynamic allocation without an upper limit) it is asked for each time.
    """
    known = _known.setdefault(spark, _Known())
    if known.parallelism is None:
        found = _configured_parallelism(spark)
        if found or _dynamic(spark):
            known.parallelism = found
        else:
            known.parallelism = _settled_parallelism(spark)
    parallelism = known.parallelism or _asked_parallelism(spark)
    if known.chooses_partitions:
        spark.conf.set(PARTITIONS, str(PARTITIONS_PER_CORE * parallelism))
    return parallelism


def wait_for_executor(spark: SparkSession, seconds: float) -> None:
    """Wait until a task has run on another machine. Spark itself waits for its first executor for ever.

    Costs a tiny job, once a session. Where that has no answer in time it stays with Spark, and ends with the session.

    Raises:
        TimeoutError: none has run in so many seconds.
    """
    known = _known.setdefault(spark, _Known())
    if known.has_run_a_task or on_one_machine(spark):
        return
    ended = threading.Event()
    failures = list[Exception]()

    def ask() -> None:
        try:
            _run_a_task(spark)
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            failures.append(error)
        ended.set()

    threading.Thread(target=ask, name="first executor", daemon=True).start()
    if not ended.wait(seconds):
        raise TimeoutError(f"no executor has run a task in {seconds:g} s: none is there, or others keep them busy")
    if failures:
        raise failures[0]


def _run_a_task(spark: SparkSession) -> None:
    """Run a tiny job, which waits for the first executor, unless this session has run one."""
    known = _known.setdefault(spark, _Known())
    if not known.has_run_a_task:
        spark.range(0, 1, 1, 1).count()
        known.has_run_a_task = True


@dataclass(slots=True)
class _Known:
    """The measured facts of a session; ``chooses_partitions``: its number of shuffle partitions is not configured.

    Few partitions are best: each costs a Python task.
    """

    parallelism: int | None = None
    chooses_partitions: bool = False
    has_run_a_task: bool = False


_known: weakref.WeakKeyDictionary[SparkSession, _Known] = weakref.WeakKeyDictionary()


def _configured_parallelism(spark: SparkSession) -> int | None:
    """Return the number of tasks at once in the configuration of Spark, ``None`` if it is not configured."""
    configured = _number(spark, "spark.default.parallelism")
    if configured:
        return configured
    master = spark.conf.get("spark.master", "") or ""
    cores = local_cores(master)
    if cores is not None and (not is_connect(spark) or "*" not in master):
        return cores
    match = _LOCAL_CLUSTER.match(master)
    if match:
        return max(1, int(match[1]) * int(match[2]))
    each = _number(spark, "spark.executor.cores")
    if not each and not master.startswith("spark:"):
        each = 1
    executors = _number(
        spark, "spark.dynamicAllocation.maxExecutors" if _dynamic(spark) else "spark.executor.instances"
    )
    most = _number(spark, "spark.cores.max")
    if most:
        return most
    if executors and each:
        return executors * each
    return None


def _number(spark: SparkSession, name: str) -> int | None:
    text = spark.conf.get(name, "") or ""
    if text.isdecimal() and 0 < int(text) <= _MOST:
        return int(text)
    return None


def _dynamic(spark: SparkSession) -> bool:
    return (spark.conf.get("spark.dynamicAllocation.enabled", "") or "").lower() == "true"


def _settled_parallelism(spark: SparkSession) -> int:
    """Ask how many tasks run at once until no more executors have registered for a while, or patience ends.

    Costs a tiny job, which waits for the first executor: without any, Spark's driver claims to run two tasks.
    """
    _run_a_task(spark)
    most = _asked_parallelism(spark)
    quiet = 0
    deadline = time.monotonic() + _REGISTERED_SECONDS
    while quiet < _QUIET_ASKS and time.monotonic() < deadline:
        time.sleep(_ASK_AGAIN_SECONDS)
        now = _asked_parallelism(spark)
        if now > most:
            most = now
            quiet = 0
        else:
            quiet += 1
    return most


def _asked_parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that run at once now: from Spark's driver; over Spark Connect, from a tiny job."""
    if not is_connect(spark):
        return max(1, spark.sparkContext.defaultParallelism)
    from pyspark.sql import functions

    used = spark.range(0, 1 << 16).select(functions.spark_partition_id().alias("partition"))
    return max(1, used.distinct().count())


MODES: Final = ("local", "master", "connect")
LOG_LEVELS: Final = ("ALL", "DEBUG", "ERROR", "FATAL", "INFO", "OFF", "TRACE", "WARN")

ADAPTIVE: Final = "spark.sql.adaptive.enabled"
_SQL: Final = {
    "spark.sql.session.timeZone": "UTC",
    ADAPTIVE: "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.inMemoryColumnarStorage.batchSize": "16",
    "spark.sql.maxPlanStringLength": str(64 << 10),
}
"""What may be set on a running session, also over Spark Connect.

Where Spark adapts a plan each shuffle is a job of its own, and so is each table that is kept: a query that counts took
two to nine jobs. There is nothing to adapt: a query has few partitions, and rows are dealt by a hash of their paths.
Spark does not know how many rows work makes of few, and without adapting would send all of them to every executor, by
way of the driver; so no table is joined in that way.
Spark keeps the texts of the plans of a thousand queries in the heap of its driver; it has no limit of its own.
What is kept on disk between two jobs is read back in batches of rows, and Java's serializer holds on to a hundred of
them. A row may be all that a node contains: batches of 10,000 rows or 4 MB, Spark's own choice, fill a gigabyte of Java
as soon as two tasks read some.
"""
SAFE_PATH: Final = "PYTHONSAFEPATH"
"""The variable that keeps Python from importing what lies in the directory where it was started."""
_CORE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
    f"spark.executorEnv.{SAFE_PATH}": "1",
}
"""What must be set before Spark starts."""
_ONE_MACHINE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.killOnFatalError.depth": "0",
}
"""For Java on this machine: its ports are for this machine, and a task that runs out of memory fails by itself. On a
cluster such an executor ends and is replaced; here the driver would end, and with it what other tasks do.
"""

_SMALL_JAVA: Final = {
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
        conf: more Spark settings; they win over ours. No place for secrets. ``spark.authenticate: false`` is the
            word for a cluster without authentication, which is refused otherwise.
        log_level: from which level on Spark logs to standard error.
        parallelism: how many tasks run at once; by default found out when the first job needs to know.
        iceberg: the release of Iceberg whose runtime the session has, from Maven Central; ``None``: none.
        secret: what master and workers of a standalone cluster know each other by, their ``spark.authenticate.secret``;
            is not shown, and stands on no command line.
    """

    mode: str = "local"
    master: str = "local[*]"
    remote: str | None = field(default=None, repr=False)
    app_name: str = "trinitylake"
    conf: Mapping[str, str] = field(default_factory=dict)
    log_level: str = "ERROR"
    parallelism: int | None = None
    iceberg: str | None = None
    secret: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if SECRET in self.conf:
            raise InvalidInput(f"{SECRET} is shown where it stands in conf: pass it as secret, from the environment")
        if self.iceberg is not None and self.mode == "connect":
            raise InvalidInput("with mode 'connect' the server brings Iceberg's runtime: leave iceberg out")
        if self.iceberg is not None:
            iceberg_settings(self.iceberg, {})  # it says now what would fail at the start
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
    """Return the memory options of Java for this machine; none where ``conf`` contains any."""
    if any(name in conf for name in _CHOOSES_JAVA):
        return {}
    return _SMALL_JAVA


def get_session(config: SessionConfig | None = None) -> SparkSession:
    """Return the running Spark session, or start one.

    A session that runs already is returned unchanged; ``config`` is ignored then.

    Raises:
        InvalidInput: Java is missing or too old, no Spark Connect server or master answers, or a package is missing
            that Spark Connect needs; Spark was not started.
    """
    config = config or SessionConfig()
    running = active_session()
    if running is not None:
        return running
    return _start(config)


def active_session() -> SparkSession | None:
    """Return the Spark session of this process if one runs, of any thread. Never imports pyspark."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    _forget_dead_java()
    try:
        session = SparkSession.active()
    except PySparkRuntimeError:  # there is none
        return None
    if is_connect(session):
        return session
    if session.sparkContext._jsc is None:  # noqa: SLF001 - no public way to ask whether it was stopped
        return None
    return session


def stop_session() -> None:
    """Stop the running Spark session; nothing happens if there is none."""
    session = active_session()
    if session is not None:
        end_session(session)


def has_ended(session: SparkSession) -> bool:
    """Whether a session can do nothing any more: its Java process, or its application, has ended."""
    if is_connect(session):
        return False
    if _forget_dead_java() or session.sparkContext._jsc is None:  # noqa: SLF001
        return True
    return bool(session.sparkContext._jsc.sc().isStopped())  # noqa: SLF001


def end_session(session: SparkSession) -> None:
    """Stop a session; of one whose Java process has ended, what is left in this process is forgotten."""
    _shipped.discard(session)
    if is_connect(session) or not _forget_dead_java():
        session.stop()


def abandon_session(session: SparkSession) -> None:
    """Give up a session that answers no more: its Java process on this machine is ended if it has not ended itself."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - there is no public way
    if process is not None and not is_connect(session):
        process.kill()
        process.wait()
    end_session(session)


def _forget_dead_java() -> bool:
    """Forget the Java process of this process if it has ended: pyspark itself would call it for ever.

    Returns whether there is none any more.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway  # noqa: SLF001 - there is no public way to any of this
    process = getattr(gateway, "proc", None)
    if process is not None and process.poll() is not None:
        _LOG.warning("the Java process of Spark has ended with %s; the next session has a new one", process.returncode)
        SparkContext._active_spark_context = None  # noqa: SLF001
        SparkContext._gateway = None  # noqa: SLF001
        SparkContext._jvm = None  # noqa: SLF001
        SparkSession._instantiatedSession = None  # noqa: SLF001
        gateway = None
    return gateway is None


@dataclass(frozen=True, slots=True)
class LazySession:
    """A session that is started when a job first needs it. Its place is known before.

    Attributes:
        config: which Spark, or a function that returns that, and is called when Spark is needed and no sooner.
        start: the function that starts it.
        failures: why it could not be started, where the job went on without it (``pipelines.engine.choice``).
        choices: the engines that were chosen with it, each with the reason, as ``local: the work is ...``.
    """

    config: SessionConfig | Callable[[], SessionConfig]
    start: Callable[[SessionConfig], SparkSession] = get_session
    failures: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    choices: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __call__(self) -> SparkSession:
        """Return the session, started if need be. Raises ``InvalidInput`` as :func:`get_session`."""
        return self.start(self.choose_config())

    def choose_config(self) -> SessionConfig:
        """Return the configuration of the session. Raises ``InvalidInput`` where it is not possible."""
        if callable(self.config):
            return self.config()
        return self.config


def on_other_machines(spark: SparkSession | Callable[[], SparkSession] | None) -> bool:
    """Whether tasks run elsewhere; of a session that does not run yet, only a :class:`LazySession` knows.

    Raises ``InvalidInput`` for a session that cannot be started.
    """
    if callable(spark):
        session = active_session()
    else:
        session = spark
    if session is not None:
        return not on_one_machine(session)
    if not isinstance(spark, LazySession):
        return False
    config = spark.choose_config()
    return config.mode == "connect" or (config.mode == "master" and local_cores(config.master) is None)


def missing_iceberg(spark: SparkSession | Callable[[], SparkSession] | None) -> str | None:
    """Return what a session lacks to run Iceberg's procedures, and how to get it; ``None``: nothing that is known.

    Nothing is started: of a session that does not run yet, only a :class:`LazySession` tells. Raises ``InvalidInput``
    for a session that cannot be started.
    """
    if callable(spark):
        session = active_session()
    else:
        session = spark
    if session is not None:
        try:
            refuse_session_without_iceberg(session)
        except InvalidInput as error:
            return str(error)
        return None
    if not isinstance(spark, LazySession):
        return None
    config = spark.choose_config()
    has_it = config.mode == "connect" or config.iceberg is not None or EXTENSION in config.conf.get(EXTENSIONS, "")
    return None if has_it else how_to_get_iceberg()


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
        archive = zip_packages(trinitylake_core, pipelines)
        compat.ship(spark, str(archive), connect=is_connect(spark))
    _shipped.add(spark)


# -- our packages, for the executors ----------------------------------------------------------------

_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNCHECKED: Final = (1).to_bytes(4, "little")
"""The mark of compiled code that is not compared with its source."""


@cache
def zip_packages(*packages: ModuleType) -> Path:
    """Return a zip file of the Python sources of packages, and of what this Python compiles of them.

    It exists as long as this process. Its name holds a hash of the sources: a Spark session refuses another file of a
    known name.
    """
    sources: list[tuple[str, Path]] = []
    for package in packages:
        place = Path(_place_of(package))
        for file in (place / package.__name__).rglob("*.py"):
            sources.append((file.relative_to(place).as_posix(), file))
    sources.sort()
    digest = hashlib.sha256()
    files: list[tuple[str, bytes]] = []
    for name, file in sources:
        content = file.read_bytes()
        digest.update(name.encode() + b"\0" + content + b"\0")
        # Python keeps nothing of what it compiles from an archive: each process of an executor would do it again.
        files += [(name, content), (f"{name}c", _compile(file, content))]
    directory = Path(tempfile.mkdtemp(prefix="trinitylake-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    target = directory / f"trinitylake-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return target


def _compile(file: Path, content: bytes) -> bytes:
    """Return a source as this Python compiles it, and has it in its cache. One of another release takes the source."""
    code = SourceFileLoader(file.stem, str(file)).get_code(file.stem)
    return MAGIC_NUMBER + _UNCHECKED + source_hash(content) + marshal.dumps(code)


def _place_of(package: ModuleType) -> str:
    """Return the directory that a package is imported from."""
    return str(Path(str(package.__file__)).resolve().parents[1])


# -- before Spark starts ----------------------------------------------------------------------------

MIN_JAVA: Final = 17
_GET_JAVA: Final = (
    'get it with "sudo apt install openjdk-17-jre-headless" (Debian, Ubuntu) or "brew install openjdk@17" (macOS), '
    'or name one with "export JAVA_HOME=/path/to/jdk-17"'
)
_PROBE_SECONDS: Final = 5.0


def check_spark_home() -> None:
    """Prove that there is a Spark where ``SPARK_HOME`` says, if it says anything: pyspark starts that one.

    Raises:
        InvalidInput: there is none.
    """
    home = os.environ.get("SPARK_HOME")
    if not home or (Path(home) / "bin" / "spark-submit").is_file():
        return
    raise InvalidInput(
        f"the environment variable SPARK_HOME names {home}, and there is no Spark: no bin/spark-submit; unset it to "
        "start the Spark of the installed pyspark, or correct it"
    )


def check_java() -> None:
    """Prove that the Java that Spark would start is new enough.

    Raises:
        InvalidInput: it is missing or too old; the message shows how to get one.
    """
    home = os.environ.get("JAVA_HOME")
    java = "java"
    if home:
        java = str(Path(home) / "bin" / "java")
    version = _java_version(java)
    if version is None:
        raise InvalidInput(f'Spark needs Java {MIN_JAVA} or newer, and none was found at "{java}": {_GET_JAVA}')
    if _major_version(version) < MIN_JAVA:
        raise InvalidInput(f'Spark needs Java {MIN_JAVA} or newer, and "{java}" is {version}: {_GET_JAVA}')


def _major_version(version: str) -> int:
    if version.startswith("1."):  # as old ones count: 1.8
        return 8
    digits = re.match(r"[0-9]+", version)
    if digits is None:
        return 0
    return int(digits[0])


@cache
def _java_version(java: str) -> str | None:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - the Java that Spark would start
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    if match is None:
        return None
    return match[1]


def check_pyspark() -> None:
    """Prove that pyspark is installed. Raises ``InvalidInput``, which names the extra."""
    if find_spec("pyspark") is None:
        raise InvalidInput(f"Spark is not installed: {install_command('spark')}, or choose engine 'local'")


def check_connect_server(remote: str) -> None:
    """Prove that a server accepts connections at a Spark Connect URL: without one the client waits for ever.

    Raises:
        InvalidInput: no server does, or it is no such URL; the message shows no token of it.
    """
    try:
        parts = urlsplit(remote)
        host = parts.hostname
        port = parts.port or CONNECT_PORT
    except ValueError:
        host = None
        port = 0
    if not host:
        raise InvalidInput("remote is not the URL of a Spark Connect server such as sc://host:15002")
    try:
        socket.create_connection((host, port), timeout=_PROBE_SECONDS).close()
    except OSError as error:
        raise InvalidInput(
            f"no Spark Connect server answers at {host}:{port} ({error}); start one with start-connect-server.sh, "
            "or correct the URL"
        ) from None


# -- starting ----------------------------------------------------------------------------------------


def _start(config: SessionConfig) -> SparkSession:
    check_pyspark()
    is_connect_mode = config.mode == "connect"
    cores = local_cores(config.master)
    if is_connect_mode:
        compat.refuse_old_connect()
        refuse_open_remote(config.remote or "", config.conf)
        check_connect_server(config.remote or "")
    else:
        check_spark_home()
        check_java()
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    if is_connect_mode:
        builder = builder.remote(config.remote)
        environment: AbstractContextManager[None] = nullcontext()
    else:
        builder = builder.master(config.master)
        environment = _set_environment(config)
    settings = _settings(config)
    try:
        with environment:
            if SECRET in settings:
                start_java({"spark.master": config.master, **settings})
            session: SparkSession = builder.appName(config.app_name).config(map=settings).getOrCreate()
    except ImportError as error:  # what Spark Connect needs is an extra of pyspark
        if not is_connect_mode:
            raise
        raise InvalidInput(f"{error}; Spark Connect needs: pip install 'pyspark[connect]'") from None
    except Exception as error:
        java = getattr(error, "java_exception", None)
        if java is None:
            raise
        lines = str(java.toString()).splitlines() or ["Java does not say why"]
        raise InvalidInput(explain_no_start(config.master, lines[0])) from None
    if is_connect_mode:
        refuse_open_server(session, config.remote or "", config.conf)
    is_elsewhere = is_connect_mode or cores is None
    chooses_partitions = is_elsewhere and PARTITIONS not in config.conf
    _known[session] = _Known(config.parallelism, chooses_partitions)
    return session


def _settings(config: SessionConfig) -> dict[str, str]:
    """Return the settings of a new session; those of ``config.conf`` win over ours."""
    settings = dict(_SQL)
    if config.mode != "connect":
        settings.update(_CORE)
        settings.update(PRIVATE)
        settings["spark.log.level"] = config.log_level
        cores = local_cores(config.master)
        if cores is not None:
            settings.update(java_settings(config.conf))
            settings.update(_ONE_MACHINE)
            settings[PARTITIONS] = str(PARTITIONS_PER_CORE * cores)
        if config.secret is not None:
            settings[SECRET] = config.secret
        elif _LOCAL_CLUSTER.match(config.master):
            settings[SECRET] = new_secret()
    for name, value in config.conf.items():
        if config.mode != "connect" or name not in PRIVATE:  # a server has its own, which no client changes
            settings[name] = str(value)
    if config.iceberg is not None:
        settings.update(iceberg_settings(config.iceberg, config.conf))
    return settings


@contextmanager
def _set_environment(config: SessionConfig) -> Iterator[None]:
    """Give a starting Spark what it takes from the environment only: which Python runs the tasks, and from where."""
    names = ("PYSPARK_PYTHON", "SPARK_LOCAL_IP", "PYTHONPATH", SAFE_PATH)
    before = {name: os.environ.get(name) for name in names}
    os.environ[SAFE_PATH] = "1"  # Java passes it on to the Python of local tasks
    python = config.conf.get("spark.pyspark.python")  # only spark-submit reads it
    if python:
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local_cores(config.master) is not None:
        os.environ.setdefault("SPARK_LOCAL_IP", _ONE_MACHINE["spark.driver.bindAddress"])
        path = []
        for each in os.environ.get("PYTHONPATH", "").split(os.pathsep):
            if each:
                path.append(each)
        for package in (trinitylake_core, pipelines):
            place = _place_of(package)
            if place not in path:
                path.append(place)
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
