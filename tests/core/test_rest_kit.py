"""Apache Iceberg's REST compatibility kit (JUnit, from Maven) against this endpoint."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.lakes import FAST
from tests.support.rest_kit import class_path
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import ALLOWED_LOCATIONS
from trinitylake_core.rest import Warehouses, application
from trinitylake_core.rest.serving import running

_SUITE: Final = "org.apache.iceberg.rest.RESTCompatibilityKitSuite"
_LAUNCHER: Final = "org.junit.platform.console.ConsoleLauncher"
_MUST_FAIL: Final = {"testNamespaceWithDot()", "testCatalogWithCustomMetricsReporter()"}
"""A dot joins the levels of a namespace in the format, and no table can have a file by a relative path."""
_PASSED: Final = 145

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("mvn") is None or shutil.which("java") is None, reason="needs Maven and Java"),
]


def test_the_kit_passes_but_for_what_is_known(tmp_path: Path) -> None:
    """`--allow-location`: some tests of the kit choose directories in /tmp, or add files that are nowhere."""
    lake = Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST)
    warehouses = Warehouses({"lake": lambda: lake}, {ALLOWED_LOCATIONS: "file:///tmp,file:///path/to"})
    with running(application(warehouses)) as uri:
        text = _kit(tmp_path, uri)
    failed = {name.strip() for name in re.findall(r"─ (.*?) ✘", text)}
    assert _MUST_FAIL == failed, text
    assert f"{_PASSED} tests successful" in text
    assert [] == list(lake.refresh().check())
    members = [member for info in lake.refresh().history() for member in info.summary.get("members", ())]
    assert any("request" in member for member in members), "Iceberg sends keys where they are offered"


def _kit(tmp_path: Path, uri: str) -> str:
    """Run the kit and return its tree of tests."""
    jars = class_path(tmp_path)
    properties = {
        "rck.local": "false",
        "rck.requires-namespace-create": "true",
        "rck.supports-names-with-dot": "true",
        "uri": uri,
        "warehouse": "lake",
    }
    command = ["java", "-Xmx1g", "-cp", jars, *(f"-D{name}={value}" for name, value in properties.items())]
    command += [_LAUNCHER, "execute", "--select-class", _SUITE, "--disable-ansi-colors", "--details=tree"]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=tmp_path).stdout
