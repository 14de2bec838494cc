# ruff: noqa: E501 - one fault, two lines
"""Faults by hand: each breaks a promise of the README, and the judge has to find it.

python -m tests.model.mutants                  all, with the seeds of `make test`
python -m tests.model.mutants --minutes 20     worlds of all sizes, for so long
python -m tests.model.mutants --only lost      those whose name contains a word
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SEEDS: Final = (1, 2)
"""Those of `make test`."""
ROOT: Final = Path(__file__).absolute().parents[2]
PACKAGES: Final = ("trinitylake_core", "pipelines", "trinitylake_launch", "tests")


@dataclass(frozen=True)
class Mutant:
    """One fault: in a file this text becomes that one."""

    name: str
    file: str
    old: str
    new: str


_CHANGES: Final = "trinitylake_core/commits/changes.py"
_COMMIT: Final = "trinitylake_core/commits/commit.py"
_DEPENDS: Final = "trinitylake_core/transactions/dependencies.py"
_WRITES: Final = "trinitylake_core/transactions/writes.py"
_EDITS: Final = "trinitylake_core/transactions/edits.py"
_TRANSACTION: Final = "trinitylake_core/transactions/transaction.py"
_REWRITE: Final = "trinitylake_core/tree/rewrite.py"
_SUBTREE: Final = "trinitylake_core/tree/subtree.py"
_SEARCH: Final = "trinitylake_core/tree/search.py"
_REPLACING: Final = "trinitylake_core/iceberg/rewriting/replacing.py"
_SNAPSHOTS: Final = "trinitylake_core/iceberg/commit_rules/snapshot_expiration.py"
_KEPT: Final = "pipelines/reach/kept_roots.py"
_CLEAN: Final = "pipelines/clean.py"
_EXPIRE: Final = "pipelines/expire.py"
_COMPACTION: Final = "pipelines/compaction.py"

MUTANTS: Final = (
    # compaction
    Mutant("lost: a compaction forgets what was committed meanwhile", _CHANGES,
           "self._replayed.extend(root.own_messages())", "self._replayed.extend(Messages())"),
    Mutant("counts: a compaction forgets what others gained", _CHANGES,
           "self._gained = self._gained.plus(gained_by(after, before))", "self._gained = self._gained.plus(CountBounds())"),
    Mutant("compaction: a full one leaves single messages", _SUBTREE,
           "not len(ref.pending) and ref.messages == 0", "len(ref.pending) < 2 and ref.messages in {0, 1}"),
    Mutant("compaction: a rollback meanwhile is overlooked", _CHANGES,
           "elif root.operation not in spec.QUIET_OPERATIONS:", "elif root.operation is None:"),
    Mutant("settled: a version with messages says that none waits", _COMMIT,
           "is_settled = is_counted and draft.node.subtree_messages == 0", "is_settled = is_counted"),
    # commits
    Mutant("freeze: writers overlook it", _COMMIT,
           "if draft.operation in spec.FROZEN_OPERATIONS and",
           "if draft.operation in () and"),
    Mutant("boundary: commits forget it", _COMMIT,
           'spec.OLDEST_VERSION: carried.get(spec.OLDEST_VERSION, "0"),', 'spec.OLDEST_VERSION: "0",'),
    Mutant("time: two versions of one millisecond", _COMMIT,
           "stamp = max(clock.now_millis(), base.created_at_millis + 1)", "stamp = clock.now_millis() // 50 * 50"),
    Mutant("fence: commits forget it", _COMMIT,
           "spec.VOID_BEFORE_MILLIS: carried.get(spec.VOID_BEFORE_MILLIS),", "spec.VOID_BEFORE_MILLIS: None,"),
    Mutant("chain: previous_txn names the version itself", _COMMIT,
           "spec.PREVIOUS_TXN: None if base is None else base.txn,", "spec.PREVIOUS_TXN: draft.txn,"),
    Mutant("lost: a commit does not look at what came between", _COMMIT,
           "            change.rebase(base, newer)\n", "            change.rebase(base, newer[:0] or newer[-1:])\n"),
    Mutant("fence: a cleaning sets none", _CHANGES, "str(max(so_far, self._void_before))", "str(so_far)"),
    Mutant("properties: an edit is not made again on the newest definition", _CHANGES,
           "        definition = self._edit(before, base)\n", "        definition = self._made or self._edit(before, base)\n"),
    Mutant("load: what others changed meanwhile is overwritten", _CHANGES,
           "            touched = self._find_touched(codec, root)\n", "            touched: list[str] = []\n"),
    Mutant("load: what others gained is not counted", _CHANGES,
           "return None if self._counts is None else self._counts.plus(self._gained)", "return self._counts"),
    # transactions
    Mutant("lost: writes of one key do not conflict", _DEPENDS,
           "if key in self.writes or key in self.keys or key in self.ranges:", "if key in self.keys or key in self.ranges:"),
    Mutant("orphans: a namespace is dropped beside a creation in it", _DEPENDS,
           "            return key in self.needs\n", "            return False\n"),
    Mutant("orphans: a table is created beside the drop of its namespace", _DEPENDS,
           "        return key in self.closed\n", "        return False\n"),
    Mutant("lost: a large version conflicts with nothing", _DEPENDS,
           "        for key, value in self._ask(delta):\n            if self._forbids(key, value):", "        for key, value in self._ask(delta):\n            if not key:"),
    Mutant("edits: the first write of a key counts", _WRITES,
           "        self._by_key[key] = path\n", "        self._by_key.setdefault(key, path)\n"),
    Mutant("counts: an edit takes what the same transaction has set for what was there", _EDITS,
           "return None if key in self._writes.by_key else existed", "return existed"),
    Mutant("edits: a namespace with tables can be dropped", _EDITS, "if inside and not cascade:", "if inside and None:"),
    Mutant("edits: cascade leaves what is inside", _EDITS,
           "for each in (*inside, key):", "for each in (*inside[1:], key):"),
    Mutant("edits: a rename leaves the old name", _EDITS,
           "        self._delete(self._keys.table(namespace, name))\n        return table", "        return table"),
    Mutant("edits: a transaction does not list what it has made", _EDITS,
           "            if key in within:\n", "            if key in within and not key:\n"),
    Mutant("counts: a resumed transaction forgets what was there", _TRANSACTION,
           'existed = {key: mark == "1" for', 'existed = {key: mark == "2" for'),
    Mutant("orphans: a saved transaction forgets what it needs", _TRANSACTION,
           '"footprint": self._footprint.to_json(),', '"footprint": None,'),
    # tree
    Mutant("tree: many lookups overlook messages", _SEARCH,
           "here.update(node.pending.meanings())", "here.update({})"),
    Mutant("tree: a deleted pivot comes back", _REWRITE,
           "        if isinstance(value, DeletedPivot):\n            tree = self.join_without_key",
           "        if isinstance(value, DeletedPivot) and not value:\n            tree = self.join_without_key"),
    Mutant("tree: a message for a pivot is lost", _SUBTREE,
           "    if new is not None:\n        return new\n    dead", "    if new is not None:\n        return value\n    dead"),
    Mutant("tree: a node does not count its own messages", _SUBTREE,
           "node.subtree_messages = len(node.buffer) + sum(messages)", "node.subtree_messages = sum(messages)"),
    Mutant("tree: a wide node is cut into too many", _REWRITE,
           "pieces = -(-(count + 1) // self.store.order)", "pieces = -(-(count + 1) // self.store.order) + 2"),
    # tables
    Mutant("rows: deletes meanwhile are undone by a rewrite", _REPLACING,
           "        self._refuse_new_deletes()\n", ""),
    Mutant("rows: a rewrite brings back what a writer has replaced", _REPLACING, "if found != wanted:", "if found > wanted:"),
    Mutant("rows: a rewrite leaves the old files", _REPLACING,
           "border.new_entry(border.STATUS_DELETED, self._number, entry)",
           "border.new_entry(border.STATUS_EXISTING, entry.snapshot_id, entry)"),
    Mutant("rows: the snapshot of a tag expires", _SNAPSHOTS,
           "            kept.add(ref.snapshot_id)\n            referenced.add", "            referenced.add"),
    # cleanings and expiration
    Mutant("files: those of snapshots go", _KEPT,
           "return versions + [Start(path, FOREVER, FOREVER)", "return versions or [Start(path, FOREVER, FOREVER)"),
    Mutant("files: what was committed after the marking goes", _CLEAN,
           "            marking.mark_since(fence, lambda again: refuse_guarded(again.definition))\n", ""),
    Mutant("files: those of saved transactions go", _KEPT,
           "            found.starts.extend(Start(each, FOREVER, FOREVER) for each in there)\n", ""),
    Mutant("files: those of the oldest version go", _KEPT,
           "first = self.boundary if since is None", "first = self.boundary + 1 if since is None"),
    Mutant("expire: one version too many goes", _KEPT,
           "min(newest, newest - self.keep_last + 1)", "min(newest, newest - self.keep_last + 2)"),
    Mutant("expire: the root of the oldest kept version is deleted", _EXPIRE,
           "        found = self.roots_below(below)\n", "        found = self.roots_below(below + 1)\n"),
)  # fmt: skip


def texts_of(mutant: Mutant) -> tuple[str, str]:
    """Return the file of a mutant, and the same with the fault in it."""
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert 1 == text.count(mutant.old), f"{mutant.name}: the line is no longer there, or more than once"
    return text, text.replace(mutant.old, mutant.new)


def run_judge(directory: Path, words: list[str], seconds: float) -> str:
    """Run the judge in a copy until it finds something; return what it found, or nothing."""
    command = [sys.executable, "-m", "tests.model", "--first", "--shorten", "0", "--spark", "0", *words]
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    try:
        ran = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=seconds, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return ""
    found = next((line for line in ran.stdout.splitlines() if line.startswith("FOUND")), "")
    return found if found or ran.returncode == 0 else f"crashed: {ran.stderr[-300:]}"


def try_mutant(mutant: Mutant, directory: Path, runs: list[list[str]], seconds: float) -> str:
    """Put the fault into a copy, run the judge there, and return what became of it."""
    text, wrong = texts_of(mutant)
    (directory / mutant.file).write_text(wrong, encoding="utf-8")
    began = time.monotonic()
    found = ""
    for words in runs:
        found = found or run_judge(directory, words, seconds)
    (directory / mutant.file).write_text(text, encoding="utf-8")
    return f"{time.monotonic() - began:6.0f} s  {mutant.name}: {found[:200] or 'survived'}"


def main() -> int:
    """Try mutants one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="a word in the name")
    parser.add_argument(
        "--seeds", type=int, nargs="*", default=SEEDS, help="those of `make test`, unless you name others"
    )
    parser.add_argument("--minutes", type=float, default=0, help="worlds of all sizes for so long, from the first seed")
    parser.add_argument("--seconds", type=float, default=600, help="for each run at most")
    parser.add_argument("--part", default="0/1", help="of so many parts, this one: 0/2 and 1/2 run side by side")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    chosen = [each for each in MUTANTS if options.only in each.name][part::parts]
    with tempfile.TemporaryDirectory(prefix="judge-mutants-") as name:
        directory = Path(name)
        for package in PACKAGES:
            shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
        runs = [["--tested", "--operations", "120", "--worlds", "9", "--seed", f"{seed}"] for seed in options.seeds]
        runs = [[*words, "--minutes", "60"] for words in runs]
        if options.minutes:
            runs = [["--seed", f"{options.seeds[0]}", "--minutes", f"{options.minutes}"]]
        lines = []
        for mutant in chosen:
            lines.append(try_mutant(mutant, directory, runs, options.seconds))
            print(lines[-1], flush=True)
    print(f"{sum(': FOUND' in line for line in lines)} of {len(lines)} are found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
