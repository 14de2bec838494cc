"""The judge, for two minutes with fixed seeds; what it once found; and that every public operation is among its own."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pipelines
from pipelines.cli import program
from tests.model.mutants import MUTANTS, texts_of
from tests.model.operations.base import OPERATIONS, Step
from tests.model.processes import run as run_processes
from tests.model.runner import FOUND, SIZES, Budget, Found, again, play_new, run
from tests.model.world import Size, Spent
from trinitylake_core import Lakehouse, Transaction
from trinitylake_core.rest.app import HANDLERS

SEEDS = (1, 2)
READS = "a reading of the base: the judge reads committed versions"
UNUSED = {
    **{f"{method} {path}": "answers keys" for method, path in HANDLERS if path.endswith(("/credentials", "/sign"))},
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics": "figures of clients, which are not kept",
    "Lakehouse.create": "each world is made by it",
    "Lakehouse.backend": "for pipelines",
    "Lakehouse.nodes": "for pipelines",
    "Lakehouse.codec": "for pipelines",
    "Lakehouse.root_node": "for pipelines",
    "Lakehouse.storage": "for pipelines",
    "Lakehouse.root": "a constant of the handle",
    "Lakehouse.version": "each operation looks at it",
    "Lakehouse.definition": "the judge reads the file",
    "Lakehouse.read_only": "only of lakehouses that the SDK wrote, which no operation changes",
    "Lakehouse.look_ahead": "a hint without any effect; `trinitylake apply` gives it",
    "Lakehouse.unreadable": "only of damaged lakehouses",
    **{f"Transaction.{name}": READS for name in dir(Lakehouse) if name in dir(Transaction)},
    **{f"Transaction.{name}": "a constant" for name in ("base_version", "began_at_millis", "id", "reason")},
    "Transaction.resume": "`Lakehouse.resume_transaction` calls it",
    "Transaction.require": "for restores, which use it",
    "Transaction.close_namespace": "for restores, which use it",
    "Transaction.need_absent": "`trinitylake rename` uses it",
    "Transaction.need_unchanged": "for the Iceberg catalog, which uses it",
    "fleet.run": "reads `stats` of many lakehouses",
    "trial.run": "a demonstration, made of other operations",
    "trinitylake serve": "the worlds of several processes start it (processes.py)",
    "trinitylake tree": "prints what `stats.deep` returns",
    "trinitylake fleet": "prints what `fleet.run` returns",
    "trinitylake create": "each world is made by the library",
    "trinitylake doctor": "of the storage, not of a lakehouse",
    "trinitylake try": "a demonstration, made of other operations",
    "trinitylake ui": "starts Dagster",
    "trinitylake completion": "for shells",
}


def public_operations() -> set[str]:
    """Return the names of everything that a user can do."""
    found = {f"Lakehouse.{name}" for name in dir(Lakehouse) if not name.startswith("_")}
    found |= {f"Transaction.{name}" for name in dir(Transaction) if not name.startswith("_")}
    for module in pkgutil.iter_modules(pipelines.__path__):
        if hasattr(importlib.import_module(f"pipelines.{module.name}"), "run"):
            found.add(f"{module.name}.run")
    found |= {f"trinitylake {name}" for name in program.ENTRIES}
    found |= {f"{method} {path}" for method, path in HANDLERS}
    return found


def test_the_judge_uses_every_public_operation() -> None:
    """A new one joins the judge, or says in a line of UNUSED why not."""
    used = {name for operation in OPERATIONS.values() for name in operation.uses}
    public = public_operations()
    assert set() == public - used - UNUSED.keys()
    assert {"stats.deep", "Lakehouse.open"} >= used - public, "an operation says that it uses what is not there"


@pytest.mark.slow
def test_each_mutant_changes_one_place() -> None:
    """What `python -m tests.model.mutants` puts into the product, one after the other."""
    for mutant in MUTANTS:
        text, wrong = texts_of(mutant)
        assert text != wrong


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.json")), ids=lambda path: path.stem)
def test_what_the_judge_once_found_is_mended(path: Path) -> None:
    """Each list of operations is done again, whole and in its world."""
    found = Found.load(path)
    assert again(found.size, found.steps) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_the_judge_finds_nothing(seed: int, record_property: Callable[[str, object], None]) -> None:
    """Random public operations on lakehouses of many sizes: about a minute of one core for each seed.

    Repeat one with `python -m tests.model --tested --operations 120 --worlds 9 --seed SEED`.
    """
    spent, found = run(Budget(seconds=3600, seed=seed, shorten=60, operations=120, worlds=len(SIZES), sizes=SIZES))
    assert [] == [each.sentence for each in found]
    done = {name for name, _ in spent.outcomes}
    assert set() == OPERATIONS.keys() - done
    record_property("operations", spent.operations)
    record_property("versions", spent.versions)
    record_property("pairs", len(spent.pairs))


@pytest.mark.parametrize("size", [SIZES[0], SIZES[1]], ids=str)
def test_a_seed_repeats_every_operation_and_outcome(size: Size) -> None:
    """What is found once is found again: nothing depends on names of files, on the order of sets, or on the time."""
    first, second = list[Step](), list[Step]()
    outcomes = play_new("seed", size, Spent(), first, 25)
    assert outcomes == play_new("seed", size, Spent(), second, 25)
    assert first == second


@pytest.mark.parametrize(
    ("storage", "seconds"),
    [("memory", 6), *(pytest.param(storage, 40, marks=pytest.mark.slow) for storage in ("memory", "s3", "lossy"))],
)
def test_the_judge_of_processes_finds_nothing(storage: str, seconds: float) -> None:
    """Three writers, two jobs and two endpoints, killed and stopped for longer than a transaction lives."""
    told = run_processes(seconds=seconds, seed=1, storage=storage)
    assert "told done" in told, "no request to an endpoint was answered"


@pytest.mark.slow
def test_the_judge_on_spark_finds_nothing() -> None:
    """In a process of its own, for its session has Iceberg from the start; with Maven Central."""
    words = ("--spark", "1", "--worlds", "2", "--seed", "3", "--minutes", "60", "--operations", "200")
    ran = subprocess.run((sys.executable, "-m", "tests.model", *words), capture_output=True, text=True, check=False)
    assert "0 findings" in ran.stdout, ran.stdout + ran.stderr
