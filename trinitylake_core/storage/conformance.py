"""Prove at run time that a place is fit for a lakehouse: what ``trinitylake doctor`` and the tests run.

Everything happens below a scratch prefix ``_doctor-<uuid>/`` of the root, which is removed afterwards.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trinitylake_core.errors import AlreadyExists, FileMissing, TrinityLakeError, UnsafeStorage
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.contests import SCRATCH_PREFIX, Creations, Replacements, StorageContest
from trinitylake_core.storage.opening import open_storage
from trinitylake_core.storage.port import Options
from trinitylake_core.storage.proof import prove
from trinitylake_core.storage.root_uris import local_path, normalise_root

_CLOCK_TOLERANCE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ConformanceResult:
    """One checked property: its name, whether it holds, what was seen, and how many storage requests it took."""

    name: str
    ok: bool
    detail: str
    requests: int = 0


class _Broken(Exception):
    """A property does not hold; the message contains what was found."""


def check_conformance(root: str, options: Options | None = None) -> Iterator[ConformanceResult]:
    """Yield the outcome of each check in turn. Never raises for a failing storage.

    Costs some 900 requests and 150 MiB on an object store that is fit, on a disk some 400 small files. Raises
    ``InvalidInput`` for a malformed root or option. Leaves nothing behind unless deleting fails.
    """
    normalised = normalise_root(root)
    scratch = f"{normalised}{SCRATCH_PREFIX}{uuid.uuid4()}/"
    storage = open_storage(scratch, options)
    try:
        for name, check in _CHECKS.items():
            yield _run(name, check, storage)
    finally:
        cleaned = _run("clean up", _clean_up, storage)
    yield cleaned


def _run(name: str, check: Callable[[BaseStorage], str], storage: BaseStorage) -> ConformanceResult:
    started = time.perf_counter()
    before = storage.counts.requests()
    try:
        detail = check(storage)
        millis = (time.perf_counter() - started) * 1000
        detail = f"{detail} ({millis:.1f} ms)"
        is_ok = True
    except (_Broken, TrinityLakeError) as error:
        detail = str(error)
        is_ok = False
    requests = storage.counts.requests() - before
    return ConformanceResult(name, is_ok, detail, requests)


def _expect(seen: object, wanted: object, what: str) -> None:
    if seen != wanted:
        raise _Broken(f"{what}: expected {wanted!r}, saw {seen!r}")


def _write_and_read(storage: BaseStorage) -> str:
    files = {"plain": b"plain", "empty": b"", "deep/er/größe-表.bin": b"\x00\xff" * 40_000}
    storage.write_many(files.items())
    storage.barrier()
    for path, data in files.items():
        _expect(storage.read(path), data, f"content of {path}")
    _expect(dict(storage.read_many(list(files))), files, "content of files read together")
    return f"{len(files)} files came back unchanged"


def _missing_file(storage: BaseStorage) -> str:
    try:
        storage.read("missing")
    except FileMissing:
        return "a missing file is reported as missing"
    raise _Broken("a file that was never written could be read")


def _create_refuses_existing(storage: BaseStorage) -> str:
    storage.create("exclusive", b"first")
    try:
        storage.create("exclusive", b"second")
    except AlreadyExists:
        _expect(storage.read("exclusive"), b"first", "content after a refused create")
        return "a second create was refused and the first file stayed"
    raise UnsafeStorage(
        "a second create of the same file was accepted: this storage ignores exclusive creation, "
        "and concurrent commits would overwrite each other"
    )


def _one_racer_wins(storage: BaseStorage) -> str:
    return _race(Creations(storage), storage, "create")


def _race(contest: StorageContest, storage: BaseStorage, prefix: str) -> str:
    """Run the thorough proof and return what it found; its files are left to the end."""
    rounds = prove(contest, storage.SAMPLE, f"{prefix}-")
    return f"in {rounds} rounds exactly one of the racing {contest.what} won"


def _replace(storage: BaseStorage) -> str:
    storage.replace("hint", b"1", durable=False)
    storage.replace("hint", b"22")
    _expect(storage.read("hint"), b"22", "content after two replaces")
    return "a replaced file shows its newest content"


def _compare_and_set(storage: BaseStorage) -> str:
    absent = storage.read_tagged("swapped")
    first = storage.compare_and_set("swapped", b"1", absent)
    if first is None:
        raise _Broken("making a file that was not there was refused")
    for outdated in (absent, replace(first, data=b"0", tag=first.tag and _no_tag(first.tag))):
        if storage.compare_and_set("swapped", b"lost", outdated) is not None:
            raise UnsafeStorage("an outdated compare-and-set was accepted: two expirations at a time would collide")
    _expect(storage.read("swapped"), b"1", "content after a refused compare-and-set")
    return _race(Replacements(storage), storage, "replace")


def _no_tag(tag: str) -> str:
    """Return a tag of the same form as one that was seen, but of another content: an ETag, or a generation."""
    if tag.isdecimal():
        return "1"
    return f'"{"0" * 32}"'


def _list(storage: BaseStorage) -> str:
    storage.write_many([("list/a", b"1"), ("list/ab", b"22"), ("list/sub/c", b"333"), ("listing", b"4")])
    seen = {info.path: info.size for info in storage.list("list/")}
    _expect(seen, {"list/a": 1, "list/ab": 2, "list/sub/c": 3}, "files below list/")
    beginning = sorted(info.path for info in storage.list("list/a"))
    _expect(beginning, ["list/a", "list/ab"], "files beginning with list/a")
    directories, files = storage.list_dirs("list/")
    _expect(list(directories), ["list/sub/"], "directories in list/")
    directly_inside = sorted(info.path for info in files)
    _expect(directly_inside, ["list/a", "list/ab"], "files in list/")
    return "a listing shows what was written just before"


def _clock(storage: BaseStorage) -> str:
    storage.write_many([("clock", b"tick")])
    skew = storage.info("clock").modified_millis / 1000 - time.time()
    if abs(skew) > _CLOCK_TOLERANCE_SECONDS:
        raise _Broken(f"the storage's clock differs by {skew:.0f} s from this machine's: ages cannot be trusted")
    return f"the clocks differ by {abs(skew):.1f} s"


def _delete(storage: BaseStorage) -> str:
    storage.write_many([("doomed", b"1")])
    result = storage.delete_many(["doomed", "never-written"])
    _expect(result.failed, {}, "failed deletions")
    _expect("doomed" in result.deleted, True, "deletion of an existing file")
    _expect(list(storage.list("doomed")), [], "listing after a deletion")
    if result.versions_kept:
        return (
            "deleted files are gone from listings, but the bucket keeps their versions: they take space until a "
            "lifecycle rule for noncurrent versions removes them"
        )
    return "deleted files are gone"


def _clean_up(storage: BaseStorage) -> str:
    names = [info.path for info in storage.list()]
    result = storage.delete_many(names)
    _expect(result.failed, {}, "failed deletions")
    if storage.root.startswith("file:"):
        scratch = Path(local_path(storage.root))
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):
            scratch.parent.rmdir()  # an empty root is one that the check made
    return f"{len(names)} scratch files removed"


_CHECKS: Final = {
    "write and read": _write_and_read,
    "missing file": _missing_file,
    "exclusive creation": _create_refuses_existing,
    "racing writers": _one_racer_wins,
    "replace": _replace,
    "compare and set": _compare_and_set,
    "list": _list,
    "clock": _clock,
    "delete": _delete,
}
