"""The deployment of docs/production.md on this machine: the files of ``deploy/``, started and stopped as by systemd.

Nothing of the files is changed but what differs between machines: directories, the values of the environment files, and
the webserver's port.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tests.support import postgres
from tests.support.s3_servers import free_port

DEPLOY: Final = Path(__file__).parent.parent.parent / "deploy"
UNITS: Final = ("code", "daemon", "webserver")  # in the order they start in
_OWNER: Final = "trinitylake"
"""The user of the code server."""
_GROUP: Final = 61_000
"""The number of its group, that nobody has; those of the other users follow."""
MARK: Final = "TRINITYLAKE_TEST_UNIT"  # what a cgroup is to systemd: inherited by every child
_PORT: Final = "3000"
PATIENCE_SECONDS: Final = 600.0
_ANSWER_SECONDS: Final = 120.0
"""Longer than a busy machine takes to start a process: who asks again too early launches two runs."""
_BUSY: Final = 5.0
"""How many times as long a unit may take to stop as systemd would wait: other tests use this machine."""
FORK_SERVER: Final = "multiprocessing.forkserver"
"""In the command lines of the process that runs are forked from, and of the runs."""


class Unit:
    """A unit file."""

    def __init__(self, text: str) -> None:
        """Read a unit file: every setting with all its values."""
        self._values: dict[str, list[str]] = {}
        for line in text.splitlines():
            name, equals, value = line.partition("=")
            if equals and not line.startswith(("#", ";")):
                self._values.setdefault(name.strip(), []).append(value.strip())

    def all(self, name: str) -> list[str]:
        """Return every value of a setting."""
        return self._values.get(name, [])

    def one(self, name: str) -> str:
        """Return the only value of a setting."""
        (value,) = self._values[name]
        return value


@dataclass
class Deployment:
    """Directories with the files of ``deploy/``, and what runs from them."""

    home: Path
    port: int
    server: postgres.PostgresServer | None
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    location: str = "trinitylake"

    def unit(self, name: str) -> Unit:
        """Return a unit as it is on this machine."""
        return Unit(self.unit_path(name).read_text(encoding="utf-8"))

    def unit_path(self, name: str) -> Path:
        """Return where a unit lies."""
        return self.home / "etc" / f"trinitylake-{name}.service"

    def log(self, name: str) -> str:
        """Return the output of a unit."""
        return (self.home / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment that systemd would give to a unit: few variables, and those of the unit."""
        unit, found = self.unit(name), {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        found |= {MARK: f"{self.home}/{name}", "HOME": str(self.home / "var"), "TMPDIR": str(self.home / "tmp")}
        found |= {key: os.environ[key] for key in ("JAVA_HOME",) if key in os.environ}
        # This checkout, wherever the package is installed from. Dagster takes the first entry of Python's path away
        # while it loads definitions: without a script's directory in front (PYTHONSAFEPATH) that would be this one.
        found |= {"PYTHONPATH": os.pathsep.join([str(self.home / "tmp"), str(DEPLOY.parent)])}
        found |= dict(each.split("=", 1) for each in unit.all("Environment"))
        for path in unit.all("EnvironmentFile"):
            found |= variables(Path(path.removeprefix("-")).read_text(encoding="utf-8"))
        return found

    def start(self, name: str) -> None:
        """Start a unit: what comes before it to its end, then itself, then what comes after."""
        unit, environment = self.unit(name), self.environment(name)
        directory = Path(unit.one("WorkingDirectory"))
        with (self.home / f"{name}.log").open("ab") as log:
            where: dict[str, Any] = {"cwd": directory, "env": environment, "stdout": log, "stderr": log}
            for before in unit.all("ExecStartPre"):
                subprocess.run(shlex.split(before), check=True, **where)
            command = [*_as_another_user(unit.one("User")), *shlex.split(unit.one("ExecStart"))]
            self.running[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, **where)
            where["env"] = environment | {"MAINPID": str(self.running[name].pid)}
            for after in unit.all("ExecStartPost"):
                subprocess.run(shlex.split(after), check=True, timeout=PATIENCE_SECONDS, **where)

    def start_all(self) -> None:
        """Start every unit and wait until the webserver knows the code location and the daemon is at work."""
        for name in UNITS:
            self.start(name)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until the webserver knows the code location, and every daemon has been heard of."""
        eventually(self.ready, lambda: "\n".join(self.log(name)[-3000:] for name in self.running))

    def ready(self) -> bool:
        """Return whether all of that is so. Raises ``AssertionError`` if a unit has ended."""
        dead = [name for name, process in self.running.items() if process.poll() is not None]
        if dead:
            raise AssertionError(f"{dead[0]} ended: {self.log(dead[0])[-3000:]}")
        with suppress(OSError):
            found = self.graphql(_STATUS)
            locations = found["workspaceOrError"]["locationEntries"]
            loaded = [each["locationOrLoadError"]["__typename"] for each in locations]
            daemons = found["instance"]["daemonHealth"]["allDaemonStatuses"]
            return loaded == ["RepositoryLocation"] and all(d["healthy"] for d in daemons if d["required"])
        return False

    def processes(self, name: str = "") -> list[psutil.Process]:
        """Return the processes of a unit, or of all."""
        return [process for process in psutil.process_iter() if self._belongs(process, f"{self.home}/{name}")]

    @staticmethod
    def _belongs(process: psutil.Process, mark: str) -> bool:
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            return alive and str(process.environ().get(MARK, "")).startswith(mark)
        except (psutil.Error, OSError):
            return False

    def stop(self, name: str) -> float:
        """Stop a unit: its signal to each of its processes. Returns the seconds that took.

        Raises:
            AssertionError: something is left that systemd would kill.
        """
        unit, begun = self.unit(name), time.monotonic()
        number, allowed = signal.Signals[unit.one("KillSignal")], _BUSY * float(unit.one("TimeoutStopSec"))
        self._signal(name, number)
        try:
            self.running.pop(name).wait(allowed)
            left = begun + allowed - time.monotonic()
            eventually(lambda: not self.processes(name), lambda: str(self.processes(name)), left)
        finally:
            self._signal(name, signal.SIGKILL)
        return time.monotonic() - begun

    def _signal(self, name: str, number: signal.Signals) -> None:
        for process in self.processes(name):
            with suppress(psutil.Error):
                process.send_signal(number)

    def stop_all(self) -> dict[str, float]:
        """Stop every unit, the last one first, and return the seconds each took."""
        return {name: self.stop(name) for name in reversed(UNITS) if name in self.running}

    def kill(self, name: str = "") -> None:
        """End a unit, or all, as a crash does."""
        self._signal(name, signal.SIGKILL)
        for each in [name] if name else list(self.running):
            self.running.pop(each).wait()

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the answer of the webserver. Raises ``OSError`` when there is none."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        url = f"http://127.0.0.1:{self.port}/graphql"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
            told = json.load(answer)
        if told.get("errors"):
            raise AssertionError(told["errors"])
        data: dict[str, Any] = told["data"]
        return data

    def launch(
        self,
        job: str,
        run_config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        seconds: float = PATIENCE_SECONDS,
    ) -> str:
        """Launch a job as the launchpad does, and return the ID of the run.

        Tries again while the webserver has not found a restarted code server.
        """
        selector = {"repositoryLocationName": self.location, "repositoryName": "__repository__", "jobName": job}
        params = {"selector": selector, "mode": "default", "runConfigData": run_config or {}}
        named = [{"key": name, "value": value} for name, value in (tags or {}).items()]
        params |= {"executionMetadata": {"tags": named}} if named else {}
        answer: dict[str, Any] = {}

        def launched() -> bool:
            with suppress(OSError):
                answer.update(self.graphql(_LAUNCH, params=params)["launchRun"])
            return answer.get("__typename") == "LaunchRunSuccess"

        eventually(launched, lambda: f"{answer} {self.log('webserver')[-3000:]}", seconds)
        run_id: str = answer["run"]["runId"]
        return run_id

    def run(self, run_id: str) -> dict[str, Any]:
        """Return status, times and errors of a run."""
        found: dict[str, Any] = self.graphql(_RUN, run=run_id)["runOrError"]
        return found

    def finished(self, run_id: str, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Return a run when it is over."""
        eventually(lambda: self.run(run_id)["endTime"] is not None, lambda: str(self.run(run_id)), seconds)
        return self.run(run_id)


_STATUS: Final = """{ instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } }
  workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError { __typename } } } } }"""
_LAUNCH: Final = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) { __typename
  ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
_RUN: Final = """query($run: ID!) { runOrError(runId: $run) { ... on Run { runId status startTime endTime
  stepStats { stepKey status startTime endTime }
  eventConnection(limit: 1000) { events { __typename
    ... on MessageEvent { message } ... on ExecutionStepFailureEvent { error { message } } } } } } }"""


@contextmanager
def deployed(
    lakehouses: str,
    server: postgres.PostgresServer | None,
    secrets: Mapping[str, str] | None = None,
    instance: Callable[[str], str] = lambda text: text,
    files: Path = DEPLOY,
) -> Iterator[Deployment]:
    """Yield a deployment for the text of a ``lakehouses.yaml``, nothing started; at the end its processes are killed.

    ``instance`` may change the text of ``dagster.yaml``. ``files`` is the directory of that file and of the units.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; children would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    home = Path(tempfile.mkdtemp(prefix="deploy-"))
    deployment = Deployment(home, free_port(), server)
    try:
        for name in ("etc", "var", "run", "tmp"):
            (home / name).mkdir()
        _share_directories(home)
        _write_files(deployment, files)
        config = instance((files / "dagster.yaml").read_text(encoding="utf-8"))
        (home / "var" / "dagster.yaml").write_text(config, encoding="utf-8")
        (home / "etc" / "lakehouses.yaml").write_text(lakehouses, encoding="utf-8")
        secret = "".join(f'{name}="{value}"\n' for name, value in (secrets or {}).items())
        (home / "etc" / "lakehouses.env").write_text(secret, encoding="utf-8")
        (home / "etc" / "lakehouses.env").chmod(0o600)
        yield deployment
    finally:
        deployment.kill()
        shutil.rmtree(home)


def _write_files(deployment: Deployment, files: Path) -> None:
    """Write units, workspace and the environment of the database, for this machine."""
    places = {
        "/opt/trinitylake/venv/bin/python": sys.executable,
        "/opt/trinitylake/venv/bin": sysconfig.get_path("scripts"),
        "/etc/trinitylake": str(deployment.home / "etc"),
        "/var/lib/trinitylake": str(deployment.home / "var"),
        "/run/trinitylake": str(deployment.home / "run"),
        f"-p {_PORT} ": f"-p {deployment.port} ",
    }
    for path in (*files.glob("*.service"), files / "workspace.yaml"):
        text = path.read_text(encoding="utf-8")
        for there, here in places.items():
            text = text.replace(there, here)
        (deployment.home / "etc" / path.name).write_text(text, encoding="utf-8")
    known = variables((files / "dagster.env").read_text(encoding="utf-8"))
    if deployment.server is not None:
        known |= {"DAGSTER_PG_HOST": deployment.server.host, "DAGSTER_PG_PORT": str(deployment.server.port)}
        known |= {"DAGSTER_PG_DB": postgres.DATABASE}
        known |= {"DAGSTER_PG_USER": postgres.USER, "DAGSTER_PG_PASSWORD": postgres.PASSWORD}
    text = "".join(f'{name}="{value}"\n' for name, value in known.items())
    (deployment.home / "etc" / "dagster.env").write_text(text, encoding="utf-8")


def _share_directories(home: Path) -> None:
    """Give directories the modes of a deployment: the users of the other units read, and write nothing."""
    home.chmod(0o755)
    (home / "tmp").chmod(0o1777)
    if os.geteuid() == 0:
        for name in ("var", "run"):
            os.chown(home / name, -1, _GROUP)
            (home / name).chmod(0o750)


def _as_another_user(user: str) -> list[str]:
    """Return what starts a unit as its user, in the group of the code server, where this user may do that.

    It may read everything, for Python and this checkout may lie where only this user does; it writes where the group
    of the code server may.
    """
    program = shutil.which("setpriv")
    if program is None or os.geteuid() != 0:
        return []
    if user == _OWNER:
        return [program, "--regid", str(_GROUP), "--clear-groups"]
    number = str(_GROUP + 1 + UNITS.index(user.removeprefix(f"{_OWNER}-")))
    more = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    return [program, "--reuid", number, "--regid", number, "--groups", str(_GROUP), *more]


def is_run(process: psutil.Process) -> bool:
    """Return whether a process is a run: forked from the process that has loaded everything."""
    parent = process.parent()
    return all(each is not None and FORK_SERVER in " ".join(each.cmdline()) for each in (process, parent))


def variables(text: str) -> dict[str, str]:
    """Return the variables of an environment file."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}


def eventually(
    holds: Callable[[], bool], told: Callable[[], str], seconds: float = PATIENCE_SECONDS, every: float = 0.2
) -> None:
    """Wait until something holds; an ``AssertionError`` tells what was instead."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {told()}")
        time.sleep(every)
