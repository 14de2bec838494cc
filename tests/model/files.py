"""The judge of files: what retained versions need is there, and after a cleaning at age zero nothing else is."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from tests.model.tree import Node, TreeJudge, parse, root_path
from tests.model.wire import read_saved

UNCOUNTED: Final = re.compile(r"_latest_hint\.txt|_oldest_version\.txt|_tmp-.*|_doctor-.*|tables/.*")
SAVED: Final = re.compile(r"(.*/)?[01]{8}-txn-[^/]*\.binpb")
ABORTED: Final = 2


class Files(Protocol):
    """What lies below a root, without the product's storage."""

    def read(self, path: str) -> bytes:
        """Return a file; raises ``FileNotFoundError``."""

    def exists(self, path: str) -> bool:
        """Whether a file is there."""

    def names(self) -> Iterator[str]:
        """Yield the paths of all files."""


class Directory:
    """Files on a disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory) + "/"

    def read(self, path: str) -> bytes:
        """Return a file."""
        with open(self.directory + path, "rb") as file:  # noqa: PTH123 - a Path costs as much as the read
            return file.read()

    def exists(self, path: str) -> bool:
        """Whether a file is there."""
        return os.path.exists(self.directory + path)  # noqa: PTH110

    def names(self) -> Iterator[str]:
        """Yield the paths of all files."""
        for above, _, files in os.walk(self.directory):
            for name in files:
                yield os.path.join(above, name)[len(self.directory) :]  # noqa: PTH118


def needed_by(node: Node) -> set[str]:
    """Return the files that a tree names: nodes, and definitions, those that a message replaces, too."""
    found = set()
    for each in node.walk():
        found.add(each.path)
        found.update(each.values)
        found.update(value for _, value, _ in each.messages if value is not None)
        if "lakehouse_def" in each.system:
            found.add(each.system["lakehouse_def"])
    return found


def reachable(files: Files, path: str, order: int) -> set[str]:
    """Return what a tree names, as far as it is there."""
    if not files.exists(path):
        return set()
    node = parse(path, files.read(path), order)
    found = {path, *node.values, *(value for _, value, _ in node.messages if value is not None)}
    found |= {value for name, value in node.system.items() if name == "lakehouse_def"}
    return found.union(*(reachable(files, child, order) for child in node.children))


def saved_transactions(files: Files, judge: TreeJudge, now_millis: int) -> tuple[set[str], set[str]]:
    """Return what saved transactions that are alive need, and what those have that can never be committed."""
    needed, may_stay = set[str](), set[str]()
    for path in [each for each in files.names() if SAVED.fullmatch(each)]:
        saved = read_saved(files.read(path))
        if saved["state"] == ABORTED or int(saved["expires"]) < now_millis:
            continue
        has_base = files.exists(str(saved["beginning"]))  # where it has expired, the base's own files may be gone
        found = needed if has_base else may_stay
        found.add(path)
        for name in ("beginning", "running", "pending"):
            root = str(saved[name])
            if root and files.exists(root):
                if has_base:
                    found |= needed_by(judge.judge(root))
                else:
                    found |= reachable(files, root, judge.order)
    return needed, may_stay


def needed(
    files: Files, judge: TreeJudge, versions: range, snapshots: set[str], now_millis: int
) -> tuple[set[str], set[str]]:
    """Return the files that retained versions, snapshots and saved transactions need, and those that may stay."""
    found, may_stay = saved_transactions(files, judge, now_millis)
    for path in {*map(root_path, versions), *snapshots}:
        found |= needed_by(judge.judge(path))
    return found, may_stay


def refuse_wrong_files(files: Files, expected: set[str], may_stay: set[str], young: int, *, cleaned: bool) -> None:
    """Fail if a needed file is missing, or after a cleaning another one is there."""
    there = {name for name in files.names() if not UNCOUNTED.fullmatch(name)}
    missing = sorted(expected - there)
    assert not missing, f"files that a retained version needs are missing: {missing[:5]}, {len(missing)} in all"
    if cleaned:
        left = sorted(there - expected - may_stay)
        assert len(left) <= young, f"{len(left)} files are left after a cleaning of age zero: {left[:5]}"


def remove(directory: Path) -> None:
    """Remove a directory that processes, which have just been killed, may have written to."""
    shutil.rmtree(directory, ignore_errors=True)
