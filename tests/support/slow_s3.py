"""An S3 server of our own: objects in memory, a delay for every request, and faults by chance.

    with run_slow_s3(directory) as server:
        server.set(delay=0.03, share=0.01, seed=7)
        storage = open_storage(server.new_root(), server.options)
        ...
        server.faults()   # which faults there were, and how often

It answers a few thousand requests per second on one core, so that a cluster can wait for its answers at the same
time. What it does not know: multipart uploads, signatures (everything is let in). Decisions about preconditions are
atomic: it has one thread. A stalled request is carried out when the stall ends, long after its client has given up: a
request without a waiting client is the hardest to get right.

``kind`` makes it another store: ``versioned`` keeps versions as S3 does; ``forgetful`` as Ceph 16 does, which ignores
``If-None-Match`` from the moment on at which versioning is switched on; ``hasty`` looks whether a file is there and
writes it a moment later; ``careless`` does so where a file is replaced, as s3proxy does; ``locked`` wants a checksum
with every write, as a bucket with object lock does; ``lawless`` ignores ``If-None-Match`` and says nothing of it;
``overwriting`` ignores ``If-Match``.

It also knows the generations of Google Cloud Storage, whose XML requests are those of S3 otherwise: what is asked with
``x-goog-if-generation-match`` is decided by them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import ssl
import sys
import time
import urllib.request
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape

from tests.support.authority import Certificate
from tests.support.s3_servers import BUCKET, S3Server, free_port, server_process

PLAIN, VERSIONED, FORGETFUL, HASTY, LOCKED = "plain", "versioned", "forgetful", "hasty", "locked"
CARELESS = "careless"
LAWLESS, OVERWRITING = "lawless", "overwriting"
_KEEPING: Final = {VERSIONED, FORGETFUL}
_GAP_SECONDS: Final = 0.002
FAULTS: Final = ("slow down", "drop after", "late", "stall", "trickle")
"""503; the connection is reset after the work; an answer after 2 s; one after 40 s; one that comes byte by byte."""
ADMIN: Final = "/_admin"
_LATE_SECONDS: Final = 2.0
_STALL_SECONDS: Final = 40.0
_BYTE_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 0.02
_END: Final = b"\r\n\r\n"
_KEYS: Final = re.compile(r"<Key>(.*?)</Key>", re.DOTALL)
_CHECKSUM: Final = "x-amz-checksum-"
_REMEMBERED: Final = 300
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class SlowS3(S3Server):
    """The running server, seen from a test."""

    @property
    def options(self) -> dict[str, Any]:
        """Return fresh storage options: those of everybody, late requests asked for twice."""
        return {name: value for name, value in super().options.items() if name != "hedged_share"}

    @property
    def google(self) -> dict[str, Any]:
        """Return fresh options that reach this server by the client for Google Cloud Storage."""
        kept = ("retry_base_seconds", "retry_max_seconds")
        own = {name: value for name, value in self.options.items() if name in kept}
        return {"endpoint_url": self.endpoint, "bearer_token": "of a test", "hedged_share": 0, **own}

    def raw(self, method: str, root: str, path: str, data: bytes | None = None) -> bytes:
        """Send a request for a path below a root behind the storage API's back; return the body of the answer."""
        url = f"{self.endpoint}/{root.split('/', 2)[2]}{quote(path)}"
        with urllib.request.urlopen(urllib.request.Request(url, data=data, method=method), timeout=60) as answer:
            body: bytes = answer.read()
        return body

    def set(self, **settings: float | str) -> None:
        """Set ``delay`` (seconds for each request), ``share`` (of each fault) and ``seed``; forget what was.

        Also ``kind``, one of the kinds of stores, which stays as it is otherwise; and ``refuse``, a code by which every
        request is refused with status 403.
        """
        self._admin(json.dumps(settings).encode())

    def requests_seen(self) -> list[dict[str, str]]:
        """Return the last requests since :meth:`set`: method, host, target, and the headers that say who asks how."""
        return list(self._admin(b"")["seen"])

    def faults(self) -> Counter[str]:
        """Return the number of requests since :meth:`set`, by their outcome."""
        return Counter(self._admin(b"")["faults"])

    def busy(self) -> dict[str, float]:
        """Return since :meth:`set`: ``requests``, also by kind; ``seconds`` with any, ``waited``: the sum over all."""
        return dict(self._admin(b"")["busy"])

    def held(self) -> dict[str, float]:
        """Return for how many seconds a client waited, since :meth:`set`, for an answer that did not come in time.

        ``longest`` is of one request, ``once`` the sum over those that are not sent a second time.
        """
        return dict(self._admin(b"")["held"])

    def _admin(self, body: bytes) -> dict[str, Any]:
        asked = urllib.request.Request(self.endpoint + ADMIN, data=body, method="POST")
        trusting = ssl._create_unverified_context()
        with urllib.request.urlopen(asked, timeout=60, context=trusting) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


@contextmanager
def run_slow_s3(directory: Path, certificate: Certificate | None = None) -> Iterator[SlowS3]:
    """Run the server until the block ends; its log goes to ``directory``. With a certificate it speaks TLS alone."""
    port = free_port()
    log = directory / f"slow-s3-{port}.log"
    command = [sys.executable, "-m", __name__, str(port)]
    scheme = "http"
    if certificate is not None:
        command += [str(certificate.chain), str(certificate.key)]
        scheme = "https"
    with server_process(command, port, log):
        yield SlowS3(f"{scheme}://127.0.0.1:{port}", log)


# -- the server ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    etag: str
    stored: float
    generation: int
    version: str = "null"

    @property
    def headers(self) -> dict[str, str]:
        """The headers that each answer about this object has."""
        found = {"ETag": self.etag, "x-goog-generation": str(self.generation)}
        if self.version != "null":
            found["x-amz-version-id"] = self.version
        return found


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    host: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def summary(self) -> dict[str, str]:
        """What a test asks about: who is asked for what, and how it is signed and checked."""
        found = {"method": self.method, "host": self.host, "key": self.key, "bucket": self.bucket}
        told = ("authorization", "x-amz-security-token", "proxy-authorization", "content-md5")
        found |= {name: text for name, text in self.headers.items() if name in told or name.startswith(_CHECKSUM)}
        return found

    @property
    def is_google(self) -> bool:
        """Whether a client of Google's asks: those of S3 sign, or name their service."""
        return not any(name.startswith("x-amz-") for name in self.headers)

    @property
    def is_once(self) -> bool:
        """Whether this creates, replaces on a condition, or deletes: a client waits for its answer."""
        conditions = ("if-match", "if-none-match", "x-goog-if-generation-match")
        return self.method in {"POST", "DELETE"} or any(name in self.headers for name in conditions)


class _Bucket:
    """What is stored; one answer for each request."""

    def __init__(self) -> None:
        self.kind = PLAIN
        self.objects: dict[str, _Object] = {}
        self._older: dict[str, list[_Object]] = defaultdict(list)
        """Versions that do not show any more, oldest first; below a deletion they stay."""
        self._names: list[str] | None = []
        self._generation = 1_700_000_000_000_000

    def answer(self, asked: _Request) -> bytes:
        """Carry a request out and return the whole answer."""
        match asked.method:
            case "PUT":
                return self.refusal(asked) or self.put(asked)
            case "POST":
                return self._delete_many(asked.body.decode())
            case "DELETE":
                return self._delete(asked)
            case _ if "versions" in asked.query:
                return self._list_versions(asked.query)
            case _ if "list-type" in asked.query:
                return self._list(asked.query)
        return self._get(asked)

    def refusal(self, asked: _Request) -> bytes | None:
        """Return the answer that refuses a write, ``None`` if nothing speaks against it."""
        now = self.objects.get(asked.key)
        match = None if self.kind == OVERWRITING else asked.headers.get("if-match")
        generation = asked.headers.get("x-goog-if-generation-match")
        wants_new = asked.headers.get("if-none-match") == "*" and self.kind not in {FORGETFUL, LAWLESS}
        has_checksum = "content-md5" in asked.headers or any(name.startswith(_CHECKSUM) for name in asked.headers)
        if self.kind == LOCKED and not has_checksum:
            return _error("400 Bad Request", "InvalidRequest")
        if generation is not None and int(generation) != (now.generation if now is not None else 0):
            return _error("412 Precondition Failed", "PreconditionFailed")
        if (wants_new and now is not None) or (match and now and now.etag != match):
            return _error("412 Precondition Failed", "PreconditionFailed")
        if match and now is None:
            return _error("404 Not Found", "NoSuchKey")
        return None

    def put(self, asked: _Request) -> bytes:
        """Store what was sent, whatever is there."""
        if asked.key not in self.objects:
            self._names = None
        etag = f'"{hashlib.md5(asked.body, usedforsecurity=False).hexdigest()}"'
        self._generation += 1
        version = f"v{self._generation}" if self.kind in _KEEPING else "null"
        self._hide(asked.key)
        self.objects[asked.key] = _Object(asked.body, etag, time.time(), self._generation, version)
        return _answer("200 OK", b"", **self.objects[asked.key].headers)

    def _hide(self, key: str) -> None:
        """Keep what shows under a key as an older version, if the bucket keeps any."""
        now = self.objects.pop(key, None)
        if now is not None and self.kind in _KEEPING:
            self._older[key].append(now)

    def _delete(self, asked: _Request) -> bytes:
        version = asked.query.get("versionId")
        if version is not None:
            self._remove_version(asked.key, version)
        elif asked.key not in self.objects and asked.is_google:
            return _error("404 Not Found", "NoSuchKey")
        else:
            self._drop(asked.key)
        return _answer("204 No Content")

    def _remove_version(self, key: str, version: str) -> None:
        """Remove a version for good; the one before it shows again if it was the newest."""
        older = self._older[key]
        now = self.objects.get(key)
        self._older[key] = [each for each in older if each.version != version]
        if now is not None and now.version == version:
            self._names = None
            del self.objects[key]
            if self._older[key]:
                self.objects[key] = self._older[key].pop()

    def _list_versions(self, query: Mapping[str, str]) -> bytes:
        prefix = query.get("prefix", "")
        keys = sorted({*self.objects, *(key for key, older in self._older.items() if older)})
        entries = []
        for key in keys:
            if not key.startswith(prefix):
                continue
            now = self.objects.get(key)
            for each in [*([now] if now else []), *reversed(self._older[key])]:
                is_latest = str(each is now).lower()
                entries.append(
                    f"<Version><Key>{escape(key)}</Key><VersionId>{each.version}</VersionId>"
                    f"<IsLatest>{is_latest}</IsLatest><Size>{len(each.data)}</Size></Version>"
                )
        return _xml(f"<ListVersionsResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListVersionsResult>")

    def _get(self, asked: _Request) -> bytes:
        found = self.objects.get(asked.key)
        if found is None:
            return _error("404 Not Found", "NoSuchKey")
        stored = formatdate(found.stored, usegmt=True)
        headers = {"Last-Modified": stored, "Content-Type": "application/octet-stream", **found.headers}
        if "range" not in asked.headers:
            return _answer("200 OK", found.data, **headers)
        first, _, last = asked.headers["range"].removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last) + 1, len(found.data))
        if begin >= len(found.data):
            return _error("416 Range Not Satisfiable", "InvalidRange")
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(found.data)}"
        return _answer("206 Partial Content", found.data[begin:end], **headers)

    def _drop(self, key: str) -> None:
        if key in self.objects:
            self._names = None
            self._hide(key)

    def _delete_many(self, body: str) -> bytes:
        names = _KEYS.findall(body)
        for name in names:
            self._drop(name.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
        if "<Quiet>true</Quiet>" in body:
            return _xml("<DeleteResult/>")
        marker = "<DeleteMarker>true</DeleteMarker>" if self.kind in _KEEPING else ""
        deleted = "".join(f"<Deleted><Key>{name}</Key>{marker}</Deleted>" for name in names)
        return _xml(f"<DeleteResult>{deleted}</DeleteResult>")

    def _list(self, query: Mapping[str, str]) -> bytes:
        if self._names is None:
            self._names = sorted(self.objects)
        prefix, most, delimiter = query.get("prefix", ""), int(query.get("max-keys", "1000")), query.get("delimiter")
        at = bisect_left(self._names, max(prefix, query.get("continuation-token", "")))
        at = max(at, bisect_right(self._names, query.get("start-after", "")))
        found: list[str] = []
        following, url = "", query.get("encoding-type") == "url"
        while at < len(self._names) and (name := self._names[at]).startswith(prefix):
            if len(found) >= most:
                following = name
                break
            head, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if cut:
                found.append(f"<CommonPrefixes><Prefix>{_text(prefix + head + cut, url=url)}</Prefix></CommonPrefixes>")
                at = bisect_left(self._names, prefix + head + chr(ord(cut) + 1))
            else:
                found.append(_entry(name, self.objects[name], url=url))
                at += 1
        more = f"<NextContinuationToken>{escape(following)}</NextContinuationToken>" if following else ""
        cut_short = f"<IsTruncated>{str(bool(following)).lower()}</IsTruncated>{more}"
        encoding = "<EncodingType>url</EncodingType>" if url else ""
        return _xml(f"<ListBucketResult>{encoding}{cut_short}{''.join(found)}</ListBucketResult>")


def _text(name: str, *, url: bool) -> str:
    return quote(name) if url else escape(name)


def _entry(name: str, stored: _Object, *, url: bool) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(stored.stored))
    moment += f".{int(stored.stored % 1 * 1000):03}Z"
    return (
        f"<Contents><Key>{_text(name, url=url)}</Key><LastModified>{moment}</LastModified>"
        f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.data)}</Size></Contents>"
    )


def _answer(status: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items())]).encode() + _END + body


def _error(status: str, code: str) -> bytes:
    return _answer(status, f"<Error><Code>{code}</Code><Message>told by a test</Message></Error>".encode())


def _xml(text: str) -> bytes:
    return _answer("200 OK", f'<?xml version="1.0"?>{text}'.encode(), **{"Content-Type": "application/xml"})


class _Server:
    """Delays and faults, and what became of the requests."""

    def __init__(self) -> None:
        self.bucket = _Bucket()
        self.set({})

    def set(self, settings: Mapping[str, Any]) -> None:
        """Take new settings and forget what was counted."""
        self.delay, self.share = settings.get("delay", 0.0), settings.get("share", 0.0)
        self.chance = random.Random(settings.get("seed", 0))
        self.refused_by: str | None = settings.get("refuse")
        self.bucket.kind = settings.get("kind", self.bucket.kind)
        self.seen: deque[dict[str, str]] = deque(maxlen=_REMEMBERED)
        self.faults: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.held = {"longest": 0.0, "once": 0.0}
        self.waited = self.seconds = 0.0
        self.under_way = self.requests = 0
        self._since = time.perf_counter()

    def admin(self, body: bytes) -> bytes:
        """Answer the test."""
        if body:
            self.set(json.loads(body))
        busy = {"requests": self.requests, "seconds": self.seconds, "waited": self.waited, **self.kinds}
        found = {"faults": self.faults, "busy": busy, "held": self.held, "seen": list(self.seen)}
        return _answer("200 OK", json.dumps(found).encode())

    def fault(self) -> str:
        """Return the fault of the next request, or none."""
        drawn = self.chance.random()
        number = int(drawn / self.share) if self.share else len(FAULTS)
        return FAULTS[number] if number < len(FAULTS) else ""

    def began(self, number: int) -> None:
        """Note that one more (1) or one fewer (-1) request is under way."""
        now = time.perf_counter()
        self.waited += self.under_way * (now - self._since)
        self.seconds += (now - self._since) if self.under_way > 0 else 0.0
        self._since = now
        self.under_way = max(0, self.under_way + number)
        self.requests += number > 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while (asked := await _read(reader, writer)) is not None:
                if asked.key == ADMIN[1:]:
                    writer.write(self.admin(asked.body))
                elif not await self._serve(asked, reader, writer):
                    break
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client gave up
        finally:
            writer.close()

    async def _serve(self, asked: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection goes on."""
        self.seen.append(asked.summary)
        fault = self.fault()
        self.faults[fault or "none"] += 1
        self.kinds["list" if "list-type" in asked.query else asked.method.lower()] += 1
        self.began(1)
        began = time.perf_counter()
        try:
            if fault in {"late", "stall"}:
                await self._hold(asked, began, reader, _LATE_SECONDS if fault == "late" else _STALL_SECONDS)
            else:
                await asyncio.sleep(self.delay)
            if fault == "slow down":
                writer.write(_error("503 Slow Down", "SlowDown"))
                return True
            answer = await self._answer(asked)
            if fault == "drop after":
                writer.transport.abort()
                return False
            head, end, body = answer.partition(_END)
            writer.write(head + end)
            if fault == "trickle":
                for byte in body:
                    await self._hold(asked, began, reader, time.perf_counter() - began + _BYTE_SECONDS)
                    writer.write(bytes([byte]))
                    await writer.drain()
            elif asked.method != "HEAD":
                writer.write(body)
        finally:
            self.began(-1)
        return True

    async def _answer(self, asked: _Request) -> bytes:
        if self.refused_by is not None:
            return _error("403 Forbidden", self.refused_by)
        looks_first = self.bucket.kind == HASTY or (self.bucket.kind == CARELESS and "if-match" in asked.headers)
        if asked.method != "PUT" or not looks_first:
            return self.bucket.answer(asked)
        refusal = self.bucket.refusal(asked)
        await asyncio.sleep(_GAP_SECONDS)
        return refusal or self.bucket.put(asked)

    async def _hold(self, asked: _Request, began: float, reader: asyncio.StreamReader, seconds: float) -> None:
        """Let a request wait until so long after it began; note when its client goes away before that."""
        gone = reader.at_eof()
        while (waited := time.perf_counter() - began) < seconds:
            await asyncio.sleep(_LOOK_SECONDS)
            if not gone:
                self.held["longest"] = max(self.held["longest"], waited)
                self.held["once"] += _LOOK_SECONDS if asked.is_once else 0.0
            gone = gone or reader.at_eof()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Request | None:
    try:
        head = await reader.readuntil(_END)
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue" + _END)
    length = _LENGTH.search(head)
    body = await reader.readexactly(int(length[1])) if length else b""
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    host = headers.get("host", "")
    if "://" in path:  # a client that takes this server for its proxy
        host, _, path = path.partition("://")[2].partition("/")
        path = f"/{path}"
    if path == ADMIN or host.startswith(f"{BUCKET}."):
        bucket, key = "", path[1:]
    else:
        bucket, _, key = path[1:].partition("/")
    named = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
    return _Request(method, host, bucket, unquote(key), named, headers, body)


async def _main(port: int, *certificate: str) -> None:
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    served = _Server().connected
    server = await asyncio.start_server(served, "127.0.0.1", port, backlog=1024, limit=1 << 20, ssl=context)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), *sys.argv[2:]))
