"""Lists that must be complete: modules in docs/architecture.md, terms in docs/glossary.md, a test for each module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("trinitylake_core", "pipelines", "dagster_project")
ELSEWHERE = {
    # module without a test_<module>: the test file that exercises it
    "core/launch": "pipelines/test_cli_terminal",
    "core/brief": "pipelines/test_reprs",
    "core/violations": "core/test_check",
    "core/catalog": "core/test_model",  # every read, against a dictionary
    "core/changes": "core/test_transaction",  # compactions, rollbacks and definitions that race with commits
    "core/aborts": "core/test_saved",
    "core/files": "core/test_transaction",
    "core/root_flush": "core/test_costs",  # by what commits write
    "core/loaded": "pipelines/test_load",
    "core/rolled_back": "core/test_recovery",
    "core/acknowledge": "core/test_versions",
    "core/creation": "core/test_transaction",  # every test creates its lakehouse
    "core/handle": "core/test_model",  # every read, against a dictionary
    "core/selection": "core/test_recovery",
    "core/patterns": "core/test_recovery",
    "core/target": "core/test_recovery",
    "core/edits": "core/test_saved",
    "core/commit": "core/test_races",
    "core/proof": "pipelines/test_compaction_proof",
    "core/subtree_store": "core/test_rewrite",
    "core/lakehouse": "core/test_transaction",  # the front door is what these tests call
    "core/encoded": "pipelines/test_columns",
    "core/checksum": "core/test_nodefile",
    "core/leafbuild": "core/test_rewrite",
    "core/leaffile": "core/test_leafrun",
    "core/leafflush": "core/test_leafrun",
    "core/leafframe": "core/test_leafbatch",
    "core/node": "core/test_nodefile",  # pure data; tested as what a file round-trips to
    "core/nodestore": "core/test_costs",  # cached reads and batched writes, by their requests
    "core/saved": "core/test_transaction",
    "core/savedfile": "core/test_saved",
    "core/snapshots": "core/test_recovery",
    "core/spec": "core/test_golden",  # constants; files of older releases still open
    "core/storage": "core/test_storage_local",  # one suite for all backends, and a file for each
    "core/subtree": "core/test_rewrite",
    "core/tree": "core/test_model",  # lookups and scans, against a dictionary
    "core/search": "core/test_model",
    "core/commits": "core/test_races",
    "core/transactions": "core/test_transaction",
    "core/recover": "core/test_recovery",
    "core/plan": "core/test_recovery",
    "dagster/preloaded": "dagster/test_warm",
    "dagster/scope": "dagster/test_fleet",  # the definitions of a fleet beside those of one lakehouse
    "dagster/verdicts": "dagster/test_checks",
    "pipelines/apply": "pipelines/test_cli",  # entries are what a user writes into a file
    "pipelines/diff": "pipelines/test_rollback",  # both engines yield the same plan
    "pipelines/job": "pipelines/test_compaction",  # every engine gives the same
    "pipelines/processes": "pipelines/test_workers",
    "pipelines/restore": "pipelines/test_rollback",  # one pre-flight serves both
    "pipelines/upgrade": "core/test_older_generations",
    "pipelines/cli": "pipelines/test_cli",
    "dagster/factory": "dagster/test_definitions",
    "dagster/jobs": "dagster/test_definitions",
    "dagster/launchpads": "dagster/test_operations",
    "dagster/lost_runs": "dagster/test_postgres",  # runs of a real instance whose processes were killed
    "dagster/metadata": "dagster/test_assets",
    "dagster/pacing": "dagster/test_sensors",
    "dagster/resources": "dagster/test_s3",
    "dagster/schedules": "dagster/test_definitions",
    "dagster/steps": "dagster/test_operations",  # each launchpad, refused before there is a run
    "dagster/watched": "dagster/test_cancel",
}
ROOMS = {"commits", "recovery", "transactions", "tree"}
"""Rooms of the core whose modules have tests each; the others have one suite."""
FOLDERS = {"trinitylake_core": "core", "pipelines": "pipelines", "dagster_project": "dagster"}


def _modules(package: str) -> set[str]:
    """Return the dotted names of all modules and rooms of a package, itself left out."""
    paths = (path.relative_to(ROOT / package).with_suffix("").parts for path in (ROOT / package).rglob("*.py"))
    names = {".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in paths if parts[-1] != "__main__"}
    return names - {""}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_lists_every_module_once(package: str) -> None:
    """Each module on disk has one line under its package, in docs/architecture.md, and no other has."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.partition(f"\n### {package}\n")[2].partition("\n### ")[0]
    listed = re.findall(r"^\| `([\w.]+)` \| \S", section, re.MULTILINE)
    assert sorted(_modules(package)) == sorted(listed)


@pytest.mark.parametrize("package", PACKAGES)
def test_tests_mirror_the_tree(package: str) -> None:
    """Each module of the top level, or room, has its test_<module>*, or a line above that names another test file.

    A room of ``pipelines`` is tested through the jobs that use it.
    """
    folder = FOLDERS[package]
    tops = {name for name in _modules(package) if "." not in name}
    if package == "trinitylake_core":
        tops |= {name.rpartition(".")[2] for name in _modules(package) if name.partition(".")[0] in ROOMS} - ROOMS
    if package == "pipelines":
        tops = {name for name in tops if (ROOT / package / f"{name}.py").is_file()} | {"cli"}
    tests = {path.stem for path in (ROOT / "tests" / folder).glob("test_*.py")}
    stems = {name: {name, name.partition("_")[0]} for name in tops}  # test_recovery is that of recovery_plan, too
    own = {
        name
        for name in tops
        if any(each == f"test_{stem}" or each.startswith(f"test_{stem}_") for each in tests for stem in stems[name])
    }
    named = {key.removeprefix(f"{folder}/"): other for key, other in ELSEWHERE.items() if key.startswith(f"{folder}/")}
    assert set() == tops - own - set(named), "give it a test_<module>, or a line in ELSEWHERE"
    assert [] == [named[name] for name in tops & set(named) if not (ROOT / "tests" / f"{named[name]}.py").is_file()]


def test_the_code_cites_sections_that_the_format_has() -> None:
    """docs/format.md numbers its sections from 1 without gaps; ``(format, section N)`` names one of them."""
    text = (ROOT / "docs/format.md").read_text(encoding="utf-8")
    numbers = re.findall(r"^## (\d+)\. ", text, re.MULTILINE)
    assert [str(number) for number in range(1, len(numbers) + 1)] == numbers
    assert [] == re.findall(r"^## (?!\d+\. ).*", text, re.MULTILINE)
    code = "\n".join(path.read_text(encoding="utf-8") for each in PACKAGES for path in (ROOT / each).rglob("*.py"))
    cited = re.findall(r"format(?:\.md)?`*,\s+sections?\s+([\d, and]+)", code)
    assert len(cited) > 50
    assert set() == {number for each in cited for number in re.findall(r"\d+", each)} - set(numbers)


def test_the_glossary_explains_every_system_row() -> None:
    """Each system row of spec.py is a term of docs/glossary.md; a new row needs one line there."""
    spec = (ROOT / "trinitylake_core/spec.py").read_text(encoding="utf-8")
    rows = set(
        re.findall(r'^[A-Z_]+: Final = "([a-z]+(?:_[a-z]+)*)"$', spec.partition("# System-internal")[2], re.MULTILINE)
    )
    operations = set(re.findall(r'^OP_[A-Z_]+: Final = "([a-z]+)"$', spec, re.MULTILINE))
    assert {"lakehouse_def", "summary", "txn"} <= rows
    terms = re.findall(r"^\| (.+?) \|", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    explained = {name for term in terms for name in re.findall(r"`([a-z_]+)`", term)}
    assert set() == rows - operations - explained


def test_the_glossary_explains_each_term_once() -> None:
    """A term with two lines would have two meanings."""
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").partition("## System rows")[0]
    terms = re.findall(r"^\| (?!Term|-)(.+?) \|", text, re.MULTILINE)
    assert sorted(set(terms)) == sorted(terms)
    assert len(terms) > 50
