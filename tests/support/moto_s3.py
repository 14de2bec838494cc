"""moto's S3 server with three things on top: preconditions that are atomic, keys that ignore them, a back door.

moto looks whether an object exists and then writes it, in threads; S3 decides in one step, and so does this server.
In the bucket ``ignores-if-match`` it is a store that knows exclusive creation and no compare-and-set.
``GET /_raw/<bucket>/<prefix>`` answers with every object below a prefix, ``PUT`` makes them exactly what was sent;
both are pickled dicts, for tests that put a lakehouse back hundreds of times. With the header ``X-Age-Seconds`` what
it writes was last modified so long ago.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import moto.server as _moto
from moto.s3.models import s3_backends
from moto.s3.responses import S3Response

from tests.support.s3_servers import IGNORES_IF_MATCH, RAW

_lock = threading.RLock()


def _put_object(response: S3Response, put: Callable[[S3Response], Any] = S3Response.put_object) -> Any:
    if IGNORES_IF_MATCH in response.path:
        response.headers = {name: value for name, value in response.headers.items() if name.lower() != "if-match"}
    with _lock:
        return put(response)


def _raw(environ: dict[str, Any], bucket: str, prefix: str) -> bytes:
    """Return the objects below a prefix, or replace them by those of the request's body."""
    backend = s3_backends["123456789012"]["aws"]
    with _lock:
        keys = backend.buckets[bucket].keys
        found = {name[len(prefix) :]: key.value for name, key in keys.items() if name.startswith(prefix)}
        if environ["REQUEST_METHOD"] == "GET":
            return pickle.dumps(found)
        wanted: dict[str, bytes] = pickle.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        for name in found.keys() - wanted.keys():
            keys.pop(prefix + name)
        for name, data in wanted.items():
            if found.get(name) != data:
                written = backend.put_object(bucket, prefix + name, data)
                written.last_modified -= timedelta(seconds=float(environ.get("HTTP_X_AGE_SECONDS", "0")))
        return b""


def _with_raw(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    def handle(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = str(environ["PATH_INFO"])
        if not path.startswith(RAW):
            return application(environ, start_response)
        bucket, _, prefix = path.removeprefix(RAW).partition("/")
        body = _raw(environ, bucket, prefix)
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    return handle


def main() -> None:
    """Run the server with the arguments of ``python -m moto.server``."""
    server: Any = _moto
    response: Any = S3Response
    run_simple = server.run_simple
    response.put_object = _put_object
    server.run_simple = lambda host, port, application, **more: run_simple(host, port, _with_raw(application), **more)
    server.MotoRequestHandler.protocol_version = "HTTP/1.1"
    server.main(sys.argv[1:])


if __name__ == "__main__":
    main()
