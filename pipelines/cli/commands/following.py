"""``history --follow``: one JSON document on a line for each version, to standard output, a file or a webhook."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Final

from pipelines.cli import output
from pipelines.cli.command import Call, Result, option
from pipelines.cli.report import to_json
from trinitylake_core import (
    Change,
    Corrupt,
    Lakehouse,
    StorageDenied,
    StorageError,
    UnsafeStorage,
    VersionExpired,
    VersionInfo,
    VersionNotFound,
)
from trinitylake_core.durations import parse_age
from trinitylake_core.errors import InvalidInput
from trinitylake_core.spec import QUIET_OPERATIONS
from trinitylake_core.versions import unreadable_root, version_info


@dataclass(frozen=True, slots=True)
class Entry:
    """One version.

    Attributes:
        version: number, time, operation, author and reason of the version.
        not_compared: why the objects that it changed are not known, ``None`` if they are.
        changed: the objects that it changed. They are read as the caller asks for them.
    """

    version: VersionInfo
    not_compared: str | None
    changed: Iterator[Change]


def entries(lake: Lakehouse, after: int) -> Iterator[Entry]:
    """Yield the versions after one, up to that of the handle, oldest first.

    Two ``get`` for each, and the nodes that it does not share with the version before it; maintenance, which changes
    no object, costs no node. A version that expired after ``after`` is no entry: the first one that is kept names those
    that are missing. A version that cannot be read is an entry with the reason, and so is the one after it.

    Raises:
        VersionNotFound: ``after`` is beyond the newest version.
    """
    if after > lake.version:
        raise VersionNotFound(f"version {after} does not exist; the newest version is {lake.version}")
    before, why = _readable(lake, after)
    number = after + 1
    while number <= lake.version:
        this, missing = _readable(lake, number)
        if this is None and (kept := lake.backend.versions.kept_from(lake.version)) > number:
            before, why, number = None, f"versions {number} to {kept - 1} have expired", kept
            continue
        if this is None:
            yield Entry(version_info(unreadable_root(number, "", missing or "")), missing, iter(()))
        else:
            info = this.info()
            unchanged = before is None or info.operation in QUIET_OPERATIONS
            yield Entry(info, why, iter(()) if unchanged or before is None else before.diff(before, this))
        before, why, number = this, missing, number + 1


def _readable(lake: Lakehouse, version: int) -> tuple[Lakehouse | None, str | None]:
    """Return a version, or why it cannot be read."""
    try:
        return lake.at(version), None
    except VersionExpired:
        return None, f"version {version} has expired"
    except Corrupt as error:
        return None, f"version {version} cannot be read: {error}"


OPTIONS: Final = (
    option("--follow", is_flag=True, help="print one JSON document a line for each later version, with its objects"),
    option("--after", type=int, metavar="V", help="with --follow: begin after version V (default: after the newest)"),
    option("--to", metavar="PLACE", help="with --follow: append to this file, or post to this URL"),
    option("--every", metavar="AGE", default="5s", help="with --follow: how often to look for versions (default 5s)"),
    option("--once", is_flag=True, help="with --follow: end at the newest version instead of waiting for the next"),
)
_BLOCK: Final = 1 << 16
_TIMEOUT_SECONDS: Final = 10.0
Send = Callable[[bytes], None]


class WebhookFailed(StorageError):
    """The webhook did not accept a line."""


def follow(call: Call) -> Result:
    """Print or send versions, each once and in order, until SIGINT or SIGTERM.

    A storage or a webhook that fails for a while is reported, and asked again. A line is complete before this ends.

    Raises:
        InvalidInput: options that contradict each other.
    """
    options, every = call.options, parse_age(call.options.every)
    if options.json or options.format != "table":
        raise InvalidInput("--follow prints one JSON document a line, and takes no --json and no --format")
    if given := [each for each in ("limit", "since", "operation", "changed") if getattr(options, each)]:
        raise InvalidInput(f"--follow prints every version: leave out --{given[0].replace('changed', 'object')}")
    if options.after is not None and options.after < 0:
        raise InvalidInput(f"--after must not be negative: {options.after}")
    lake = call.open()
    with _sink(options.to) as (send, last), _until_signal() as stop:
        after = last if last is not None else lake.version if options.after is None else options.after
        while not stop.is_set():
            try:
                for each in entries(lake.refresh(), after):
                    send(_line(lake.root, each))
                    after = each.version.version
                    if stop.is_set():
                        break
            except StorageError as error:
                if options.once or isinstance(error, StorageDenied | UnsafeStorage):
                    raise
                output.say(f"warning: {error}; trying again in {options.every}")
            if options.once or stop.wait(every):
                break
    return Result(None)


def _line(root: str, entry: Entry) -> bytes:
    """Return the document of a version; where its nodes cannot be read (any more) it has the reason."""
    changed, why = None, entry.not_compared
    if why is None:
        try:
            changed = [_change(each) for each in entry.changed]
        except Corrupt as error:
            why = str(error)
    info = entry.version
    fields = {"root": root, **asdict(info), "author": info.author, "reason": info.reason}
    document = to_json({**fields, "not_compared": why, "changed": changed})
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _change(change: Any) -> dict[str, Any]:
    return {name: getattr(change, name) for name in ("change", "kind", "namespace", "name", "old_path", "new_path")}


# -- where to ------------------------------------------------------------------------------------------


@contextmanager
def _sink(place: str | None) -> Iterator[tuple[Send, int | None]]:
    """Lend what takes a line, and the last version that it has already, if it knows."""
    if place is None:
        yield _print, None
    elif place.startswith(("http://", "https://")):
        yield lambda line: _post(place, line), None
    else:
        try:
            file = Path(place).expanduser().open("a+b")
        except OSError as error:
            raise InvalidInput(f"cannot append to {place}: {error.strerror}") from None
        with file:
            last = _last_version(file, place)

            def append(line: bytes) -> None:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())

            yield append, last


def _print(line: bytes) -> None:
    output.write(line.decode("utf-8", "surrogatepass"))
    output.flush()


def _post(url: str, line: bytes) -> None:
    request = urllib.request.Request(url, line, {"Content-Type": "application/json"}, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):  # noqa: S310 - the scheme was checked
            pass
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise WebhookFailed(f"the webhook did not accept the line: {error}") from None


def _last_version(file: BinaryIO, place: str) -> int | None:
    """Return the version of the last complete line of a file, and cut off one that a killed process left incomplete.

    Raises:
        InvalidInput: another process appends to the file, or its last line is none of ours.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InvalidInput(f"another process appends to {place}") from None
    end, tail = file.seek(0, os.SEEK_END), b""
    while end and tail.count(b"\n") < 2:
        end = max(0, end - _BLOCK)
        file.seek(end)
        tail = file.read()
    whole, newline, rest = tail.rpartition(b"\n")
    if rest:
        file.truncate(file.seek(0, os.SEEK_END) - len(rest))
    if not newline:
        return None
    try:
        return int(json.loads(whole.rpartition(b"\n")[2])["version"])
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"the last line of {place} is not one of history --follow; choose another file") from None


@contextmanager
def _until_signal() -> Iterator[threading.Event]:
    """Lend an event that SIGINT and SIGTERM set; a second one interrupts at once."""
    stop, before = threading.Event(), dict[int, Any]()

    def end(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[number])

    for each in (signal.SIGINT, signal.SIGTERM):
        before[each] = signal.signal(each, end)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
