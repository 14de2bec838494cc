"""Whether tests that are left kill every mutant of the product that tests killed which are to go.

    git archive COMMIT | tar -x -C /tmp/before        the checkout that still has the tests
    .venv/bin/python scripts/mutants.py --seed 7 --count 30 --before /tmp/before \
        --gone "tests/core/test_diff.py" --left "tests/core/test_rewrite.py tests/model" trinitylake_core/tree/*.py

A mutant is one syntax node, in a function that the tests in ``--gone`` call, which a seed chooses and which is changed:
a comparison, a condition, a number, an answer, a call that is left out. It is put into a copy of the older checkout,
where the tests run that are to go. If one of them fails, the mutant is put into a copy of this checkout, where the
tests in ``--left`` run until one fails. The last line counts those that only the tests killed that are to go: a test
that kills one of these stays.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).absolute().parent.parent
PRODUCT: Final = ("trinitylake_core", "pipelines", "dagster_project", "trinitylake_launch")
BESIDE: Final = ("tests", "examples", "docs", "deploy", "scripts", "pyproject.toml", "README.md")
OTHERS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
PROFILER: Final = """
import cProfile, json, os

PROFILE = cProfile.Profile()


def pytest_sessionstart():
    PROFILE.enable()


def pytest_sessionfinish():
    PROFILE.disable()
    codes = [each.code for each in PROFILE.getstats() if not isinstance(each.code, str)]
    ours = [each for each in codes if each.co_filename.startswith(os.environ["MUTANTS_ROOT"])]
    with open(os.environ["MUTANTS_CALLED"], "w") as file:
        json.dump([(each.co_filename, each.co_firstlineno) for each in ours], file)
"""
"""A plugin of pytest: which functions of the product are called in its main thread."""


@dataclass(frozen=True)
class Mutant:
    """One change: in this file, at this line, the node with this number becomes another one."""

    file: str
    line: int
    node: int
    what: str


def find_mutants(file: str, text: str, called: set[int]) -> Iterator[Mutant]:
    """Yield what can be changed in functions of a file that begin at some lines."""
    tree = ast.parse(text)
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and called & {node.lineno, *(each.lineno for each in node.decorator_list)}:
            lines |= set(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    for number, node in enumerate(ast.walk(tree)):
        if getattr(node, "lineno", 0) in lines:
            what = describe_change(node)
            if what:
                yield Mutant(file, node.lineno, number, what)  # type: ignore[attr-defined]  # has one: see above


def describe_change(node: ast.AST) -> str:
    """Return what becomes of a node, or nothing if it stays as it is."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in OTHERS:
            return f"{ast.unparse(node)}: {type(operator).__name__} -> {OTHERS[type(operator)].__name__}"
        case ast.BoolOp():
            return f"{ast.unparse(node)}: {'or' if isinstance(node.op, ast.And) else 'and'}"
        case ast.If() | ast.IfExp():
            return f"if not ({ast.unparse(node.test)})"
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return f"{ast.unparse(node)}: {'-' if isinstance(node.op, ast.Add) else '+'}"
        case ast.Constant(value=int()):
            return f"{node.value} -> {change_number(node.value)}"
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            return f"return None, not {ast.unparse(node.value)}"
        case ast.Expr(value=ast.Call()):
            return f"without {ast.unparse(node)}"
    return ""


def change_number(value: int) -> int:
    """Return another number, or the other truth."""
    return not value if isinstance(value, bool) else value + 1


def make_mutant(text: str, mutant: Mutant) -> str:
    """Return the text of a file with the change in it."""
    tree = ast.parse(text)
    node = next(each for number, each in enumerate(ast.walk(tree)) if number == mutant.node)
    match node:
        case ast.Compare():
            node.ops = [OTHERS[type(node.ops[0])]()]
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.If() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.BinOp():
            node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        case ast.Constant(value=int()):
            node.value = change_number(node.value)
        case ast.Return():
            node.value = None
        case ast.Expr():
            node.value = ast.Constant(None)
    return ast.unparse(ast.fix_missing_locations(tree))


def copy_checkout(source: Path, target: Path) -> None:
    """Copy what tests need of a checkout."""
    for name in (*PRODUCT, *BESIDE):
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("*.pyc"))
        else:
            shutil.copy(source / name, target / name)


def run_tests(directory: Path, words: str, seconds: float, **environment: str) -> str:
    """Run tests in a copy until one fails; return which, or nothing."""
    command = [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    variables = {**os.environ, "PYTHONPATH": str(directory), **environment}
    try:
        ran = subprocess.run(
            [*command, *shlex.split(words)], cwd=directory, env=variables, capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "does not end"
    failed = [each for each in ran.stdout.splitlines() if each.startswith(("FAILED", "ERROR"))]
    if ran.returncode and not failed:
        failed = [(ran.stdout + ran.stderr)[-200:]]
    return failed[0].split(" - ")[0].rpartition("::")[2][:90] if failed else ""


def find_called(directory: Path, words: str, seconds: float) -> dict[str, set[int]]:
    """Return the first lines of the functions of the product that tests call, by file."""
    (directory / "mutants_called.py").write_text(PROFILER, encoding="utf-8")
    profiled = {"MUTANTS_CALLED": str(directory / "called.json"), "MUTANTS_ROOT": f"{directory}/"}
    failed = run_tests(directory, f"-p mutants_called {words}", seconds, **profiled)
    if failed:
        sys.exit(f"without a mutant: {failed}")
    found: dict[str, set[int]] = {}
    for path, line in json.loads((directory / "called.json").read_text(encoding="utf-8")):
        found.setdefault(str(Path(path).relative_to(directory)), set()).add(line)
    return found


def try_mutant(mutant: Mutant, before: Path, now: Path, options: argparse.Namespace) -> tuple[str, str]:
    """Return which test that is to go kills a mutant, and which one of those that are left."""
    text = (now / mutant.file).read_text(encoding="utf-8")
    killers = []
    for directory, words in ((before, options.gone), (now, options.left)):
        (directory / mutant.file).write_text(make_mutant(text, mutant), encoding="utf-8")
        killers.append(run_tests(directory, words, options.seconds))
        (directory / mutant.file).write_text(text, encoding="utf-8")
        if not killers[0]:
            return "", ""
    return killers[0], killers[1]


def main() -> int:
    """Try mutants one after the other; the exit code is 1 if one is killed by nothing that is left."""
    parser = argparse.ArgumentParser(prog="scripts/mutants.py", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the number of the first one: go on where a run ended")
    parser.add_argument("--before", type=Path, default=ROOT, help="a checkout with the tests that are to go")
    parser.add_argument("--gone", required=True, help="words for pytest: the tests that are to go")
    parser.add_argument("--left", required=True, help="words for pytest: those that are left, the fast ones first")
    parser.add_argument("--seconds", type=float, default=300, help="for each run of tests at most")
    parser.add_argument("files", nargs="+", help="of the product")
    options = parser.parse_args()
    alone = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        before, now = Path(name, "before"), Path(name, "now")
        for source, directory in ((options.before, before), (ROOT, now)):
            directory.mkdir()
            copy_checkout(source, directory)
        wrong = run_tests(now, f"--collect-only {options.left}", options.seconds)  # else it would kill every mutant
        if wrong:
            sys.exit(f"--left: {wrong}")
        for file in options.files:  # one mutant is tried in both: it is the same product
            shutil.copy(now / file, before / file)
        called = find_called(before, options.gone, options.seconds)
        mutants = [
            mutant
            for file in sorted(options.files)
            for mutant in find_mutants(file, (now / file).read_text(encoding="utf-8"), called.get(file, set()))
        ]
        random.Random(options.seed).shuffle(mutants)  # noqa: S311 - a seed is what is wanted
        print(f"{len(mutants)} mutants in functions that these tests call", flush=True)
        for number, mutant in enumerate(mutants[options.first :][: options.count], options.first):
            gone, left = try_mutant(mutant, before, now, options)
            alone += bool(gone and not left)
            outcome = "lives" if not gone else f"{gone} | {left or 'NOTHING THAT IS LEFT'}"
            print(f"{number} {mutant.file}:{mutant.line} {' '.join(mutant.what.split())[:90]} | {outcome}", flush=True)
    print(f"killed by nothing that is left: {alone}")
    return int(alone > 0)


if __name__ == "__main__":
    sys.exit(main())
