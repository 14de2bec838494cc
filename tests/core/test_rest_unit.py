"""The unit of the endpoint: as strict as the others, with a limit of memory, and it starts and stops."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final
from urllib.error import URLError

import pytest

from tests.core.test_rest import Client
from tests.support.s3_servers import free_port
from trinitylake_core import Lakehouse
from trinitylake_core.rest import Principals
from trinitylake_core.rest.principals import hash_token

_DEPLOY: Final = Path(__file__).parents[2] / "deploy"
_UNIT: Final = _DEPLOY / "trinitylake-serve.service"
_STRICT: Final = ("Capability", "Lock", "NoNew", "Private", "Protect", "RestrictA", "RestrictN", "RestrictR")


def _settings(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] not in "#["]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("other", ["code", "daemon", "webserver"])
def test_the_endpoint_is_shut_in_as_the_other_units_are(other: str) -> None:
    own = _settings(_UNIT)
    theirs = _settings(_DEPLOY / f"trinitylake-{other}.service")
    wanted = {name: value for name, value in theirs.items() if name.startswith(_STRICT)}
    assert len(wanted) > 15
    assert wanted == {name: own.get(name) for name in wanted}


def test_the_endpoint_may_take_so_much_memory_and_no_more() -> None:
    own = _settings(_UNIT)
    assert ("1G", "0", "0", "yes") == tuple(
        own[name] for name in ("MemoryMax", "MemorySwapMax", "LimitCORE", "MemoryDenyWriteExecute")
    )


def test_the_example_of_tokens_is_valid_and_nobody_has_them() -> None:
    assert Principals.of_file(_DEPLOY / "tokens.yaml")
    text = (_DEPLOY / "tokens.yaml").read_text(encoding="utf-8")
    assert {"0", "1"} == {line.split('"')[1][0] for line in text.splitlines() if "token_sha256:" in line}


def test_what_the_unit_starts_serves_and_ends_in_time(tmp_path: Path) -> None:
    """With the command line, the environment and the limits of the unit, for this machine."""
    lake = Lakehouse.create(tmp_path / "lake")
    (tmp_path / "tokens.yaml").write_text(
        f"principals: {{one: {{token_sha256: {hash_token('token')}, manage: ['*']}}}}"
    )
    port = free_port()
    own = _settings(_UNIT)
    command = own["ExecStart"].replace("--port 8181", f"--port {port}")
    for there, here in {
        "/opt/trinitylake/venv/bin/trinitylake": f"{sys.executable} -m pipelines.cli",
        "/etc/trinitylake": str(tmp_path),
        "/var/log/trinitylake": str(tmp_path),
    }.items():
        command = command.replace(there, here)
    environment = os.environ | {"TRINITYLAKE_ROOT": lake.root, "MALLOC_ARENA_MAX": "2"}
    process = subprocess.Popen(shlex.split(command), env=environment, stderr=subprocess.DEVNULL)
    try:
        client = Client(f"http://127.0.0.1:{port}", "token")
        while not _is_up(client):
            assert process.poll() is None
            time.sleep(0.05)
        assert 200 == client("POST", "/v1/prod/namespaces", {"namespace": ["a"]}).status
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(int(own["TimeoutStopSec"]))
    finally:
        process.kill()
        process.wait()
    assert '"operation": "create_namespace"' in (tmp_path / "audit.jsonl").read_text()


def _is_up(client: Client) -> bool:
    try:
        return client("GET", "/healthz").status == 200
    except URLError:
        return False


def test_systemd_finds_the_unit_as_closed_as_the_others(tmp_path: Path) -> None:
    """As far as systemd is on this machine: its own measure, from 0 (closed) to 10 (open)."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return
    exposed = {path.stem: _exposure(program, path) for path in _DEPLOY.glob("*.service")}
    assert 4 == len(exposed)
    assert exposed["trinitylake-serve"] == min(exposed.values())
    assert exposed["trinitylake-serve"] < 2


def _exposure(program: str, unit: Path) -> float:
    command = [program, "security", "--offline=true", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout.rsplit("exposure level for", 1)[1].split(":")[1].split()[0])
