"""The repository itself: pins, documents and rules of the test run that no other tool looks at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import _skip_is_failure

ROOT = Path(__file__).parent.parent
PACKAGES = ("trinitylake_core", "pipelines", "dagster_project")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MAKE = re.compile(r"(?:(?<=`)|^(?: {4,}|\$ )?)make ([a-z-]+)(?=`|\s*(?:#.*)?$)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
COLLECTED = time.monotonic()
"""When this process collected its tests."""


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_constraints_pin_every_dependency_within_its_bounds() -> None:
    """Each line is ``name==version`` and nothing else; what pyproject.toml asks for is among them."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [] == [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!+-]+", line)]
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    for requirement in map(Requirement, wanted):
        if requirement.name == project["name"]:  # an extra made of others
            assert project["optional-dependencies"].keys() >= requirement.extras
            continue
        assert pins.get(canonicalize_name(requirement.name), "no pin") in requirement.specifier, requirement


def test_the_hashes_are_of_the_versions_that_are_tested() -> None:
    """scripts/hashes.sh makes them. Beside what is tested there is only what builds our own package."""
    pins = {canonicalize_name(name): version for name, version in _pins("constraints.txt")}
    hashed = {canonicalize_name(name): version for name, version in _pins("constraints-hashes.txt")}
    assert {"hatchling", "trove-classifiers"} == hashed.keys() - pins.keys()
    assert {name: pins[name] for name in hashed if name in pins} == {n: v for n, v in hashed.items() if n in pins}
    assert {"pyiceberg", "starlette", "uvicorn", "h11", "dagster", "pyspark", "s3fs"} < hashed.keys()
    text = (ROOT / "constraints-hashes.txt").read_text()
    assert "://" not in text
    entries = re.split(r"^(?=\S+==)", text.partition("hashes.sh makes this file.")[2], flags=re.MULTILINE)[1:]
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}$", entry, re.MULTILINE) for entry in entries)


def _pins(name: str) -> list[tuple[str, str]]:
    return re.findall(r"^([A-Za-z0-9_.-]+)==([A-Za-z0-9_.!+-]+)", (ROOT / name).read_text(), re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_only_what_exists(document: Path) -> None:
    """Every ``make`` target and every link to a file or heading of this repository is there."""
    text = document.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set() == set(MAKE.findall(text)) - targets
    for link in LINK.findall(text):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = document.parent / path if path else document
            assert target.exists(), link
            assert not anchor or anchor in _anchors(target.read_text(encoding="utf-8")), link


def test_code_cites_the_invariants_of_the_format() -> None:
    """docs/format.md numbers its invariants without gaps, and the code cites each and no other."""
    documented = re.findall(r"^\* \*\*I(\d+)\*\* ", (ROOT / "docs/format.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [str(number) for number in range(1, 23)] == documented
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("trinitylake_core/**/*.py")))
    assert set(documented) == set(re.findall(r"\bI(\d{1,2})\b", code))


def test_no_file_names_the_machine_it_was_made_on() -> None:
    """A path of this checkout in a file would be wrong everywhere else."""
    here = str(ROOT) + "/"
    suffixes = (".py", ".pyi", ".md", ".toml", ".txt", ".yaml", ".yml", ".sh", ".proto")
    roots = (*PACKAGES, "tests", "docs", "examples", "benchmarks", "scripts")
    files = [path for name in roots for path in (ROOT / name).rglob("*") if path.suffix in suffixes]
    files += [path for path in ROOT.iterdir() if path.suffix in suffixes]
    assert [] == [str(path) for path in files if here in path.read_text(encoding="utf-8")]


def test_nothing_is_committed_that_git_is_told_to_ignore() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("this is no clone")
    assert [] == listed.stdout.splitlines()


def _settings_of_dagster() -> list[tuple[str, dict[str, Any]]]:
    """Return each ``dagster.yaml`` that is written here, or that a page says to write."""
    found = [(path, (ROOT / path).read_text()) for path in ("dagster_project/dagster.yaml", "deploy/dagster.yaml")]
    for page in DOCUMENTS:
        blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        found += [(page.name, block) for block in blocks if block.startswith("concurrency:")]
    return [(name, yaml.safe_load(text)) for name, text in found]


def test_every_dagster_yaml_ends_dead_runs_and_frees_their_slots() -> None:
    """A killed run kept the slot of its pool for ever wherever this stood in one of them only."""
    written = _settings_of_dagster()
    assert "dagster.md" in {name for name, _ in written}
    for name, settings in written:
        monitoring = settings["run_monitoring"]
        assert (True, 10) == (monitoring["enabled"], monitoring["free_slots_after_run_end_seconds"]), name
        assert 1 == settings["concurrency"]["pools"]["default_limit"], name
        assert [False, False] == [settings[each]["enabled"] for each in ("telemetry", "nux")], name


def test_packages_tell_type_checkers_that_they_are_typed() -> None:
    """Each package has its ``py.typed``."""
    assert [] == [name for name in PACKAGES if not (ROOT / name / "py.typed").is_file()]


def test_a_skip_fails_in_ci() -> None:
    """The rule of conftest.py turns a skip into a failure that tells why, and leaves an expected failure alone."""
    skip = pytest.TestReport("t.py::t", ("t.py", 1, "t"), {}, "skipped", ("t.py", 1, "Skipped: no Java"), "call")
    _skip_is_failure(skip)
    assert ("failed", True) == (skip.outcome, "no Java" in str(skip.longrepr))
    expected = pytest.TestReport("t.py::t", ("t.py", 1, "t"), {}, "skipped", None, "call", wasxfail="known")
    _skip_is_failure(expected)
    assert "skipped" == expected.outcome


@pytest.mark.slow  # xdist compares what its processes collect, each time
def test_another_process_collects_the_same_tests_in_the_same_order(request: pytest.FixtureRequest) -> None:
    """Tests are shared out by ID: none depends on the time, on randomness or on an address.

    The other process begins seconds later, with another seed of the hashes that sets are ordered by.
    """
    time.sleep(max(0.0, COLLECTED + 2 - time.monotonic()))
    here = [item.nodeid for item in request.session.items]
    files = dict.fromkeys(name.partition("::")[0] for name in here)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    environment["PYTHONHASHSEED"] = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", *files]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert 0 == run.returncode, run.stdout[-2000:] + run.stderr
    chosen = set(here)  # not those that this run left out by -m or -k
    assert here == [line for line in run.stdout.splitlines() if line in chosen]
