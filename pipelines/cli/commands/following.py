"""``history --follow``: one JSON document on a line for each version, to standard output, a file or a webhook."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Final

from pipelines.cli import output
from pipelines.cli.command import Call, Result, option
from pipelines.cli.report import to_json
from pipelines.source import version_ref
from pipelines.webhook import post_json
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
class FollowedVersion:
    """One version.

    Attributes:
        version: number, time, operation, author and reason of the version.
        not_compared: why the objects that it changed are not known, ``None`` if they are.
        changed: the objects that it changed. They are read as the caller asks for them.
    """

    version: VersionInfo
    not_compared: str | None
    changed: Iterator[Change]


def read_versions(lake: Lakehouse, after: int) -> Iterator[FollowedVersion]:
    """Yield the versions after one, up to that of the handle, oldest first.

    Two ``get`` for each, and the nodes that it does not share with the version before it; maintenance, which changes
    no object, costs no node. A version that expired after ``after`` is left out: the first one that is kept names those
    that are missing. A version that cannot be read comes with the reason, and so does the one after it.

    Raises:
        VersionNotFound: ``after`` is beyond the newest version.
    """
    if after > lake.version:
        raise VersionNotFound(f"version {after} does not exist; the newest version is {lake.version}")
    before, why_not_before = _read_version(lake, after)
    number = after + 1
    while number <= lake.version:
        this, why_not = _read_version(lake, number)
        if this is None:
            oldest = lake.backend.versions.kept_from(lake.version)
            if oldest > number:
                before = None
                why_not_before = f"versions {number} to {oldest - 1} have expired"
                number = oldest
                continue
            info = version_info(unreadable_root(number, "", why_not or ""))
            yield FollowedVersion(info, why_not, iter(()))
        else:
            info = this.info()
            changed: Iterator[Change] = iter(())
            if before is not None and info.operation not in QUIET_OPERATIONS:
                changed = before.diff(before, this)
            yield FollowedVersion(info, why_not_before, changed)
        before = this
        why_not_before = why_not
        number += 1


def _read_version(lake: Lakehouse, version: int) -> tuple[Lakehouse | None, str | None]:
    """Return a version, or why it cannot be read."""
    try:
        return lake.at(version), None
    except VersionExpired:
        return None, f"version {version} has expired"
    except Corrupt as error:
        return None, f"version {version} cannot be read: {error}"


OPTIONS: Final = (
    option("--follow", is_flag=True, help="print one JSON document a line for each later version, with its objects"),
    option(
        "--after", metavar="V", help="with --follow: begin after version V, also HEAD~3 (default: after the newest)"
    ),
    option("--to", metavar="PLACE", help="with --follow: append to this file, or post to this URL"),
    option("--every", metavar="AGE", default="5s", help="with --follow: how often to look for versions (default 5s)"),
    option("--once", is_flag=True, help="with --follow: end at the newest version instead of waiting for the next"),
)
_BLOCK: Final = 1 << 16
Send = Callable[[bytes], None]


class WebhookFailed(StorageError):
    """The webhook did not accept a line."""


def follow(call: Call) -> Result:
    """Print or send versions, each once and in order, until SIGINT or SIGTERM.

    A storage or a webhook that fails for a while is reported, and asked again. A line is complete before this ends.

    Raises:
        InvalidInput: options that contradict each other.
    """
    options = call.options
    every = parse_age(options.every)
    _refuse_contradictions(options)
    lake = call.open()
    with _open_sink(options.to) as (send, last), _until_signal() as stop:
        if last is not None:
            after = last
        elif options.after is not None:
            after = version_ref.number(lake, options.after) or 0
        else:
            after = lake.version
        while not stop.is_set():
            try:
                for each in read_versions(lake.refresh(), after):
                    send(_line(lake.root, each))
                    after = each.version.version
                    if stop.is_set():
                        break
            except StorageError as error:
                # No later attempt can succeed where rights are missing, or creation is not exclusive.
                if options.once or isinstance(error, StorageDenied | UnsafeStorage):
                    raise
                output.say(f"warning: {error}; trying again in {options.every}")
            if options.once or stop.wait(every):
                break
    return Result(None)


def _refuse_contradictions(options: Any) -> None:
    if options.json or options.format != "table":
        raise InvalidInput("--follow prints one JSON document a line, and takes no --json and no --format")
    for name in ("limit", "since", "operation", "changed"):
        if getattr(options, name):
            shown = "object" if name == "changed" else name
            raise InvalidInput(f"--follow prints every version: leave out --{shown}")
    if options.after is not None and re.fullmatch("-[0-9]+", options.after):
        raise InvalidInput(f"--after must not be negative: {options.after}")


def _line(root: str, entry: FollowedVersion) -> bytes:
    """Return the document of a version; where its nodes cannot be read (any more) it has the reason."""
    changed = None
    why = entry.not_compared
    if why is None:
        try:
            changed = [_describe_change(each) for each in entry.changed]
        except Corrupt as error:
            why = str(error)
    info = entry.version
    fields = {"root": root, **asdict(info), "author": info.author, "reason": info.reason}
    document = to_json({**fields, "not_compared": why, "changed": changed})
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _describe_change(change: Change) -> dict[str, Any]:
    return {name: getattr(change, name) for name in ("change", "kind", "namespace", "name", "old_path", "new_path")}


# -- where to ------------------------------------------------------------------------------------------


@contextmanager
def _open_sink(place: str | None) -> Iterator[tuple[Send, int | None]]:
    """Lend what takes a line, and the last version that it has already, if it knows."""
    if place is None:
        yield _print, None
        return
    if place.startswith(("http://", "https://")):
        yield partial(_post, place), None
        return
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
    try:
        post_json(url, line)
    except OSError as error:
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
    size = file.seek(0, os.SEEK_END)
    begin = size
    tail = b""
    while begin > 0 and tail.count(b"\n") < 2:
        begin = max(0, begin - _BLOCK)
        file.seek(begin)
        tail = file.read()
    complete, newline, incomplete = tail.rpartition(b"\n")
    if incomplete:
        file.truncate(size - len(incomplete))
    if not newline:
        return None
    _, _, last_line = complete.rpartition(b"\n")
    try:
        return int(json.loads(last_line)["version"])
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"the last line of {place} is not one of history --follow; choose another file") from None


@contextmanager
def _until_signal() -> Iterator[threading.Event]:
    """Lend an event that SIGINT and SIGTERM set; a second one interrupts at once."""
    stop = threading.Event()
    before: dict[int, Any] = {}

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
