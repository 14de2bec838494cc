"""Azurite, the emulator of Azure Blob Storage; ``scripts/azurite.sh`` finds or installs it."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.s3_servers import free_port, server_process

ACCOUNT: Final = "devstoreaccount1"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Account and key of every Azurite, as its documentation says them."""
CONTAINER: Final = "lakes"
_OWN: Final = Path(__file__).parents[2] / ".azurite/node_modules/.bin/azurite-blob"
_NAMED: Final = os.environ.get("AZURITE") or _OWN
PROGRAM: Final = Path(shutil.which(_NAMED) or _NAMED)
"""The one that ``AZURITE`` names and no other, or where ``scripts/azurite.sh`` puts its own."""
_QUIET: Final = ("--silent", "--skipApiVersionCheck", "--disableTelemetry")


class NoAzurite(Exception):
    """There is no Azurite on this machine."""


@dataclass(frozen=True)
class Azurite:
    """A running emulator with one container."""

    endpoint: str

    @property
    def options(self) -> dict[str, Any]:
        """Return fresh storage options that reach this server and give up quickly."""
        return {
            "account_name": ACCOUNT,
            "account_key": KEY,
            "endpoint_url": self.endpoint,
            "hedged_share": 0,
            "retry_base_seconds": 0.01,
            "retry_max_seconds": 0.05,
        }

    def new_root(self) -> str:
        """Return a root URI that no other test uses."""
        return f"az://{CONTAINER}/{uuid.uuid4().hex}/"

    def store(self) -> Any:
        """Return an obstore store, to look and write beside the storage API."""
        from obstore.store import AzureStore

        config: Any = {"account_name": ACCOUNT, "account_key": KEY, "endpoint": self.endpoint}
        return AzureStore(CONTAINER, config=config, client_options={"allow_http": True})


@contextmanager
def run_azurite(directory: Path) -> Iterator[Azurite]:
    """Run Azurite with its files in memory. Raises ``NoAzurite``."""
    if not PROGRAM.exists():
        raise NoAzurite("no Azurite: scripts/azurite.sh installs it where there is npm")
    port = free_port()
    command = [str(PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", *_QUIET]
    with server_process(command, port, directory / f"azurite-{port}.log"):
        server = azurite_at(port)
        make_container(server)
        yield server


def command_on_disk(port: int, directory: Path) -> list[str]:
    """Return the command of an Azurite with its files in a directory."""
    return [str(PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(directory), *_QUIET]


def azurite_at(port: int) -> Azurite:
    """Return the emulator that listens at a port of this machine."""
    return Azurite(f"http://127.0.0.1:{port}/{ACCOUNT}")


def make_container(server: Azurite) -> None:
    """Make the container by hand: obstore makes none."""
    import base64
    import hashlib
    import hmac
    import urllib.request
    from email.utils import formatdate

    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    signed = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    text = f"PUT\n{chr(10) * 11}{signed}/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
    url = f"{server.endpoint}/{CONTAINER}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=30).close()
