"""The image of ``deploy/executor.Dockerfile``: its steps, carried out in a fresh environment of this Python."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import pipelines
import trinitylake_core
from pipelines.session.spark import zip_packages
from tests.support.lakes import content, filled, reopened
from tests.support.slow_s3 import run_slow_s3
from trinitylake_core import Lakehouse

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "executor.Dockerfile"
_INSIDE = "/opt/trinitylake"


def _steps(prefix: str) -> list[str]:
    """Return the commands of the file that begin so."""
    found = re.findall(r"^RUN (.*)$", FILE.read_text(encoding="utf-8"), re.MULTILINE)
    return [step for step in found if step.startswith(prefix)]


def _carried_out(step: str, environment: Path, version: str) -> subprocess.CompletedProcess[str]:
    """Carry out a step, the environment elsewhere, as the shell of an image would."""
    command = step.replace(_INSIDE, str(environment)).replace("python3 -m", f"{sys.executable} -m")
    command = command.replace("/tmp/executor-hashes.txt", str(ROOT / "deploy" / "executor-hashes.txt"))
    command = command.replace("${PYTHON_VERSION}", version)
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=800, check=False, cwd="/")


def test_the_image_has_what_the_archive_has() -> None:
    """Both recipes install the same packages, with the hashes of a deployment, and the page names the file.

    All are requirements: no pip before 26 takes hashes of constraints.
    """
    page = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
    archive = re.search(r"--constraint constraints\.txt ([a-z0-9 -]+) venv-pack\n", page)
    script = (ROOT / "scripts" / "hashes.sh").read_text(encoding="utf-8")
    hashed = re.search(r"^executors='(.*)'$", script, re.MULTILINE)
    (image,) = [step for step in _steps(_INSIDE) if "pip install" in step]
    assert archive is not None
    assert hashed is not None
    assert archive[1] == hashed[1]
    assert image.endswith("--require-hashes --only-binary :all: --requirement /tmp/executor-hashes.txt")
    needed = _pinned("deploy/executor-hashes.txt")
    assert {*archive[1].split()} <= {line.partition("==")[0] for line in needed}
    assert {*needed} <= {*_pinned("constraints-hashes.txt")}
    assert "--file deploy/executor.Dockerfile" in page


@pytest.mark.slow
def test_the_bill_of_materials_names_the_files_that_pip_takes(tmp_path: Path) -> None:
    """The steps of a release make it; a validator, this file and pip, which did not, read it. With the index."""
    environment, made = tmp_path / "release", tmp_path / "sbom.cdx.json"
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    wanted = re.search(r"pip install build '(cyclonedx-bom[^']+)' '(cyclonedx-editor-validator[^']+)'", page)
    assert wanted is not None
    assert "scripts/sbom.sh dist/" in page
    assert "cdx-ev validate dist/" in page
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = str(environment / "bin" / "pip")
    subprocess.run([pip, "install", "--quiet", *wanted.groups()], check=True)
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    subprocess.run([str(ROOT / "scripts" / "sbom.sh"), str(made)], check=True, env={**os.environ, "PATH": path})
    subprocess.run([str(environment / "bin" / "cdx-ev"), "validate", str(made)], check=True)
    lines = {each["name"]: _requirement(each) for each in json.loads(made.read_text())["components"]}
    assert sorted(_pinned("constraints-hashes.txt")) == sorted(lines.values())
    small = "\n".join(lines[name] for name in ("mmh3", "fsspec", "h11"))
    for hashes, is_taken in ((small, True), (re.sub(r"sha256:[0-9a-f]{4}", "sha256:0000", small), False)):
        (tmp_path / "lines.txt").write_text(hashes)
        asked = [pip, "install", "--dry-run", "--quiet", "--no-deps", "--require-hashes", "-r", "lines.txt"]
        done = subprocess.run(asked, check=False, cwd=tmp_path, capture_output=True, text=True)
        assert is_taken == (done.returncode == 0), done.stderr


def _pinned(name: str) -> list[str]:
    """Return the requirements of a file, each with its hashes on one line."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", "")
    return [" ".join(line.split()) for line in text.splitlines() if "==" in line and not line.startswith("#")]


def _requirement(component: dict[str, Any]) -> str:
    """Return a component as a line of requirements."""
    files = [each for reference in component["externalReferences"] for each in reference["hashes"]]
    hashes = [f"--hash=sha256:{each['content']}" for each in files if each["alg"] == "SHA-256"]
    return " ".join([f"{component['name']}=={component['version']}", *hashes])


_PROGRAM = """
    import json, sys
    root, options, package = sys.argv[1:]
    sys.path = [package, *(path for path in sys.path if path)]
    import pipelines.engine.spark, pipelines.trees.subtrees
    from trinitylake_core import Lakehouse

    lake = Lakehouse.open(root, storage_options=json.loads(options))
    with lake.transaction() as txn:
        txn.create_namespace("made_by_the_image")
    print(pipelines.engine.spark.__file__)
"""


@pytest.mark.slow
def test_the_steps_make_an_environment_that_tasks_need_nothing_beside(tmp_path: Path) -> None:
    environment, version = tmp_path / "trinitylake", f"{sys.version_info.major}.{sys.version_info.minor}"
    steps = [*_steps("python3 -m venv"), *_steps(_INSIDE)]
    assert len(steps) == 4
    for step in steps:
        done = _carried_out(step, environment, version)
        assert done.returncode == 0, done.stderr[-3000:]
    (checked,) = [step for step in steps if "PYTHON_VERSION" in step]
    assert _carried_out(checked, environment, "3.1").returncode != 0, "another Python is refused"
    with run_slow_s3(tmp_path) as server:
        lake = filled(Lakehouse.create(server.new_root(), storage_options=server.options, order=4), tables=20)
        before = content(lake.refresh())
        arguments = [lake.root, json.dumps(server.options), str(zip_packages(trinitylake_core, pipelines))]
        python = str(environment / "bin" / "python")
        done = subprocess.run(
            [python, "-I", "-c", textwrap.dedent(_PROGRAM), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert ".zip" in done.stdout, "our packages came from what the driver sends"
        assert len(before) + 1 == len(content(reopened(lake)))


def test_image_and_driver_are_of_one_release_wherever_the_page_names_one() -> None:
    """Executors of one release do not understand a driver of another."""
    page = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
    images = re.findall(r"apache/spark:([\d.]+)-python3", page + FILE.read_text(encoding="utf-8"))
    drivers = re.findall(r"pip install pyspark==([\d.]+)", page)
    assert drivers
    assert 1 == len({*images, *drivers})
