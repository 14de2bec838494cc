"""Stores that others wrote, as servers on this machine: ``scripts/stores.sh`` finds or builds them.

Each is started on a free port of 127.0.0.1 with dummy credentials, on a directory of its own, and can be killed and
started again on the same data.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support import azurite
from tests.support.authority import Certificate
from tests.support.s3_servers import BUCKET, KEY, SECRET, S3Server, free_port, wait_for_port

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "trinitylake-stores"
_VERSITYGW: Final = CACHE / "bin/versitygw"
_MINIO: Final = CACHE / "bin/minio"
_S3MOCK: Final = CACHE / "jars/s3mock-5.2.0-exec.jar"
_S3PROXY: Final = CACHE / "jars/s3proxy-4.1.0-jar-with-dependencies.jar"
_START_SECONDS: Final = 300.0
_SETTLED_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 20.0


@dataclass(frozen=True)
class Kind:
    """A store, and how its bucket is made.

    Attributes:
        name: what tables call it.
        needs: the file without which it cannot run.
        keeps_versions: whether versioning is switched on in the bucket.
        locks_objects: whether the bucket has object lock.
        has_tls: whether it has a certificate of a private authority.
        is_azure: whether it speaks Azure's protocol, and not S3's.
        forgets_seconds: what it acknowledged in so many seconds before it is killed may be lost.
        breaks: the checks of the doctor that it must fail, each time.
    """

    name: str
    needs: Path
    command: Callable[[int, Path], list[str]]
    variables: Mapping[str, str] = field(default_factory=dict)
    keeps_versions: bool = False
    locks_objects: bool = False
    has_tls: bool = False
    is_azure: bool = False
    forgets_seconds: float = 0.0
    breaks: frozenset[str] = frozenset()

    @property
    def is_there(self) -> bool:
        """Whether it can be started here."""
        has_java = self.needs.suffix != ".jar" or shutil.which("java") is not None
        return self.needs.exists() and has_java


def _versitygw(port: int, data: Path) -> list[str]:
    (data / "files").mkdir(parents=True, exist_ok=True)
    return [str(_VERSITYGW), "--port", f"127.0.0.1:{port}", "posix", str(data / "files")]


def _versitygw_versioned(port: int, data: Path) -> list[str]:
    *front, files = _versitygw(port, data)
    (data / "versions").mkdir(exist_ok=True)
    return [*front, "--versioning-dir", str(data / "versions"), files]


def _versitygw_tls(port: int, data: Path) -> list[str]:
    program, *rest = _versitygw(port, data)
    return [program, "--cert", str(data / "server.pem"), "--key", str(data / "server.key"), *rest]


def _minio(port: int, data: Path) -> list[str]:
    return [str(_MINIO), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(data / "files")]


def _s3mock(port: int, data: Path) -> list[str]:
    return [
        *("java", "-Xmx512m", "-jar", str(_S3MOCK)),
        "--server.address=127.0.0.1",
        f"--server.port={free_port()}",
        f"--com.adobe.testing.s3mock.http-port={port}",
    ]


def _s3proxy(port: int, data: Path) -> list[str]:
    (data / "files").mkdir(parents=True, exist_ok=True)
    settings = {
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": KEY,
        "s3proxy.credential": SECRET,
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(data / "files"),
    }
    file = data / "s3proxy.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return ["java", "-Xmx512m", "-jar", str(_S3PROXY), "--properties", str(file)]


_ROOT: Final = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
_MINIO_ROOT: Final = {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET}
_AZURITE_FORGETS_SECONDS: Final = 20.0
"""It keeps its index in memory and writes it down every 5 s, and later where the machine is busy."""
FIT: Final = (
    Kind("versitygw 1.8.0", _VERSITYGW, _versitygw, _ROOT),
    Kind("versitygw 1.8.0, versions", _VERSITYGW, _versitygw_versioned, _ROOT, keeps_versions=True),
    Kind("versitygw 1.8.0, TLS", _VERSITYGW, _versitygw_tls, _ROOT, has_tls=True),
    Kind("MinIO", _MINIO, _minio, _MINIO_ROOT),
    Kind("MinIO, versions", _MINIO, _minio, _MINIO_ROOT, keeps_versions=True),
    Kind("MinIO, object lock", _MINIO, _minio, _MINIO_ROOT, locks_objects=True),
    Kind(
        "Azurite 3.37.0",
        azurite.PROGRAM,
        azurite.command_on_disk,
        is_azure=True,
        forgets_seconds=_AZURITE_FORGETS_SECONDS,
    ),
)
UNFIT: Final = (
    Kind("S3Mock 5.2.0", _S3MOCK, _s3mock, breaks=frozenset({"racing writers", "compare and set"})),
    Kind("s3proxy 4.1.0", _S3PROXY, _s3proxy, breaks=frozenset({"compare and set"})),
)


class RunningStore:
    """A store that runs, and can be killed and started again on the same data."""

    def __init__(self, kind: Kind, directory: Path, certificate: Certificate) -> None:
        self.kind = kind
        self._directory = directory
        self._certificate = certificate
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "log"
        scheme = "https" if kind.has_tls else "http"
        self._server: S3Server | azurite.Azurite = S3Server(f"{scheme}://127.0.0.1:{self._port}", self._log)
        if kind.is_azure:
            self._server = azurite.azurite_at(self._port)

    @property
    def options(self) -> dict[str, Any]:
        """Return fresh storage options, with the file of the authority where there is one."""
        options = self._server.options
        if self.kind.has_tls:
            options["client_kwargs"] = {"verify": str(self._certificate.authority)}
        return options

    def new_root(self) -> str:
        """Return a root URI that no other test uses."""
        return self._server.new_root()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        data = self._directory / "data"
        data.mkdir(exist_ok=True)
        shutil.copy(self._certificate.chain, data / "server.pem")
        shutil.copy(self._certificate.key, data / "server.key")
        command = self.kind.command(self._port, data)
        variables = {**os.environ, **self.kind.variables}
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT)
        wait_for_port(self._process, self._port, self._log, _START_SECONDS)
        time.sleep(_SETTLED_SECONDS)  # it listens a moment before it can answer

    def kill(self) -> None:
        """Kill it as a crash does, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)

    def make_bucket(self) -> None:
        """Make its bucket as its kind wants it."""
        if isinstance(self._server, azurite.Azurite):
            azurite.make_container(self._server)
            return
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self._server.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            verify=str(self._certificate.authority) if self.kind.has_tls else None,
        )
        client.create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=self.kind.locks_objects)
        if self.kind.keeps_versions:
            client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})


@contextmanager
def run_store(kind: Kind, directory: Path, certificate: Certificate) -> Iterator[RunningStore]:
    """Run a store with its bucket until the block ends."""
    store = RunningStore(kind, directory, certificate)
    store.start()
    try:
        store.make_bucket()
        yield store
    finally:
        store.kill()
