"""How much a client, a principal and all of them together can take of an endpoint, and that others are served."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response

from tests.core.test_rest import Client
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg.reading.json_size import measure_json
from trinitylake_core.rest import Limits, Principals, Warehouses, application
from trinitylake_core.rest.answers import SlowlyRead
from trinitylake_core.rest.principals import Principal, hash_token
from trinitylake_core.rest.serving import running
from trinitylake_core.rest.turns import Pulse, Turns

_NAMESPACES: Final = "/v1/lake/namespaces"


@contextmanager
def _shared(lake: Lakehouse, limits: Limits) -> Iterator[tuple[Client, Client]]:
    """Serve a lakehouse to two principals who may do everything."""
    known = {hash_token(name): Principal(name, {"manage": ["*"]}) for name in ("greedy", "other")}
    with running(application(Warehouses({"lake": lambda: lake}), Principals(known), limits)) as uri:
        yield Client(uri, "greedy"), Client(uri, "other")


def _connect(client: Client) -> socket.socket:
    at = urlsplit(client.uri)
    return socket.create_connection((at.hostname, at.port), timeout=20)


def _head(client: Client, length: int, *more: str) -> bytes:
    lines = [f"POST {_NAMESPACES} HTTP/1.1", "host: localhost", f"authorization: Bearer {client.token}"]
    lines += ["content-type: application/json", f"content-length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def _answer(at: socket.socket) -> bytes:
    """Return what a connection still gives, until it is closed."""
    found = b""
    try:
        while part := at.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _gauge(client: Client, name: str) -> float:
    lines = client("GET", "/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


# -- before a token is seen ----------------------------------------------------------------------------


def test_headers_without_end_are_refused_after_some_kilobytes(lake: Lakehouse) -> None:
    with _shared(lake, Limits()) as (greedy, other), _connect(greedy) as at:
        at.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n")
        taken = 0
        try:
            while taken < 64 << 20:
                at.sendall(b"a: " + b"x" * 8000 + b"\r\n")
                taken += 8000
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert taken < 16 << 20  # what the buffers of two sockets hold, at most
        assert 200 == other("GET", _NAMESPACES).status


def test_too_many_headers_are_refused_in_words(lake: Lakehouse) -> None:
    with _shared(lake, Limits(headers=50)) as (greedy, _), _connect(greedy) as at:
        at.sendall(_head(greedy, 0, *(f"x{number}: 1" for number in range(60))))
        answer = b""
        while b"there are too many" not in answer and (part := at.recv(1000)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"there are too many" in answer


def test_connections_beyond_the_limit_are_told_to_come_again(lake: Lakehouse) -> None:
    """Those that are there go on. A proxy closes what does nothing: the benchmark ``attacks`` proves it of ours."""
    with _shared(lake, Limits(connections=20)) as (greedy, other), ExitStack() as held:
        working = held.enter_context(_connect(other))
        working.sendall(_head(other, 1000) + b"{")
        _until(lambda: _gauge(other, "trinitylake_requests_current") == 1)
        flood = [held.enter_context(_connect(greedy)) for _ in range(20)]
        assert 503 == other("GET", _NAMESPACES).status
        working.sendall(b'"namespace": ["a"]}' + b" " * 980)
        assert working.recv(1000).startswith(b"HTTP/1.1 200 ")
        for each in flood:
            each.close()
        _until(lambda: other("GET", _NAMESPACES).status == 200)


def test_a_body_in_large_chunks_is_taken(lake: Lakehouse) -> None:
    with _shared(lake, Limits()) as (greedy, _), _connect(greedy) as at:
        at.sendall(_head(greedy, 0, "transfer-encoding: chunked").replace(b"content-length: 0\r\n", b""))
        for part in (b'{"namespace":', b' ["a"]' + b" " * 5000 + b"}", b""):
            at.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        assert at.recv(1000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("lengths", [["transfer-encoding: chunked"], ["content-length: 7"]])
def test_a_request_with_two_lengths_is_refused(lake: Lakehouse, lengths: list[str]) -> None:
    """What one reader takes for the end of it is in the middle for the other: a request inside a request."""
    with _shared(lake, Limits()) as (greedy, _), _connect(greedy) as at:
        at.sendall(_head(greedy, 5, *lengths) + b"0\r\n\r\n")
        assert _answer(at).startswith(b"HTTP/1.1 400 ")


# -- JSON ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"namespace": ["a"], "x": [' + b"{}," * 200 + b"{}]}", 413, "more than 100 values"),
        (b'{"namespace": ["a"], "x": [' + b"1," * 200 + b"1]}", 413, "more than 100 values"),
        (b'{"namespace": ["a"], "x": ' + b"[" * 30 + b"]" * 30 + b"}", 400, "more than 20 levels deep"),
        (b'{"namespace": ["a"], "x": "' + b"[{," * 200 + b'\\"' + b"[" * 200 + b'"}', 200, ""),
        ('{"namespace": ["a"]}'.encode("utf-16"), 400, "UTF-8"),
        (b'{"namespace": ["a"], "x": NaN}', 400, "NaN"),
    ],
)
def test_values_and_depth_are_counted_before_json_is_parsed(
    lake: Lakehouse, body: bytes, status: int, message: str
) -> None:
    with _shared(lake, Limits(elements=100, depth=20)) as (greedy, _):
        answer = greedy("POST", _NAMESPACES, body)
    assert (status, True) == (answer.status, message in answer.text), answer.text


_JSON = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(_JSON, st.booleans())
def test_the_size_of_json_is_that_of_its_parsed_value(value: Any, is_ascii: bool) -> None:
    size = measure_json(json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass"))
    assert (_elements(value), _depth(value)) == (size.elements, size.depth)


def _elements(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(inner) - 1) + sum(_elements(each) for each in inner)


def _depth(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(map(_depth, inner), default=0)


# -- what one principal takes --------------------------------------------------------------------------


def test_half_sent_bodies_take_the_places_of_their_principal_only(lake: Lakehouse) -> None:
    with _shared(lake, Limits(threads=4, waiting=4)) as (greedy, other), ExitStack() as held:
        for _ in range(4):
            held.enter_context(_connect(greedy)).sendall(_head(greedy, 1000) + b"{")
        _until(lambda: _gauge(other, "trinitylake_requests_current") == 4)
        refused = greedy("POST", _NAMESPACES, {"namespace": ["a"]})
        assert (503, "1") == (refused.status, refused.headers["retry-after"])
        assert 200 == other("POST", _NAMESPACES, {"namespace": ["a"]}).status


def test_memory_is_taken_before_a_body_is_read(lake: Lakehouse) -> None:
    with _shared(lake, Limits(memory_bytes=4 << 20)) as (greedy, other), _connect(greedy) as at:
        at.sendall(_head(greedy, 1 << 20) + b"{")
        _until(lambda: _gauge(other, "trinitylake_request_memory_bytes") == 1 << 20)
        with _connect(greedy) as another:
            another.sendall(_head(greedy, 3 << 20))  # without its body: who is refused early may not get to send it
            answer = b""
            while b"too much memory" not in answer and (more := another.recv(1 << 16)):
                answer += more
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"too much memory" in answer
        assert 200 == other("POST", _NAMESPACES, b'{"namespace": ["a"]}' + b" " * (1 << 18)).status


def test_threads_whose_clients_have_gone_count_until_they_end(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that hangs holds them: their principal gets no more of them, and others get theirs."""
    released = threading.Event()
    create = type(lake.storage).create

    def hang(*given: Any) -> Any:
        released.wait(60)
        return create(*given)

    body = json.dumps({"namespace": ["a"]}).encode()
    with _shared(lake, Limits(threads=4, waiting=100, seconds=2)) as (greedy, other):
        monkeypatch.setattr(type(lake.storage), "create", hang)
        for _ in range(10):
            with _connect(greedy) as at:
                at.sendall(_head(greedy, len(body)) + body)
                time.sleep(0.05)
        _until(lambda: _gauge(other, "trinitylake_threads_current") == 2)
        assert 503 == greedy("GET", _NAMESPACES).status
        assert 200 == other("GET", _NAMESPACES).status
        released.set()
        _until(lambda: _gauge(other, "trinitylake_threads_current") == 0)
        assert 200 == greedy("GET", _NAMESPACES).status


def test_what_a_client_asked_for_that_left_before_its_turn_is_not_done(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    create = type(lake.storage).create

    def hang(*given: Any) -> Any:
        released.wait(60)
        return create(*given)

    def body(name: str) -> bytes:
        return json.dumps({"namespace": [name]}).encode()

    with _shared(lake, Limits(threads=2, waiting=100)) as (greedy, other), ExitStack() as held:
        monkeypatch.setattr(type(lake.storage), "create", hang)
        first = held.enter_context(_connect(greedy))
        first.sendall(_head(greedy, len(body("a"))) + body("a"))
        _until(lambda: _gauge(other, "trinitylake_threads_current") == 1)
        with _connect(greedy) as at:
            at.sendall(_head(greedy, len(body("b"))) + body("b"))
            _until(lambda: _gauge(other, "trinitylake_requests_current") == 2)
        time.sleep(0.2)  # until the endpoint knows that it is gone; if it does not, this test sees nothing
        released.set()
        assert first.recv(1000).startswith(b"HTTP/1.1 200 ")
        _until(lambda: _gauge(other, "trinitylake_requests_current") == 0)
    assert ["a"] == list(lake.refresh().namespaces())


def test_an_answer_that_is_not_read_keeps_its_place_until_its_client_is_cut_off(lake: Lakehouse) -> None:
    with _shared(lake, Limits(seconds=1.5)) as (greedy, other), _connect(greedy) as at:
        large = {"namespace": ["a"], "properties": {"x": "y" * (12 << 20)}}
        assert 200 == other("POST", _NAMESPACES, large).status
        at.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        at.sendall(f"GET {_NAMESPACES}/a HTTP/1.1\r\nhost: x\r\nauthorization: Bearer greedy\r\n\r\n".encode())
        assert at.recv(1000).startswith(b"HTTP/1.1 200 ")
        _until(lambda: _gauge(other, "trinitylake_requests_current") == 0)
        assert len(_answer(at)) < 12 << 20


def test_of_an_answer_that_is_not_read_only_one_piece_is_on_its_way() -> None:
    events: list[str] = []

    async def send(message: Any) -> None:
        events.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    def note(event: str) -> Callable[[], None]:
        return lambda: events.append(event)

    answer = SlowlyRead(Response(b"x" * (1 << 20)), seconds=0.01, drop=note("dropped"), when_over=note("over"))
    asyncio.run(answer({}, send, send))  # type: ignore[arg-type]
    assert ["http.response.start", "http.response.body", "dropped", "over"] == events


class _Late(Pulse):
    """A processor that has too much to do."""

    @property
    def is_late(self) -> bool:
        return True


def test_while_the_processor_has_too_much_to_do_nobody_gets_many_more_threads_than_another() -> None:
    async def take_all() -> int:
        turns = Turns(threads=64, threads_each=32, pulse=_Late())
        await turns.take("other")
        taking = [asyncio.ensure_future(turns.take("greedy")) for _ in range(32)]
        await asyncio.sleep(0)
        while_there = turns.running - 1
        turns.give_back("other")
        await asyncio.sleep(0)
        for each in taking:
            each.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        return while_there

    assert 8 == asyncio.run(take_all())


def test_threads_go_round_among_those_who_wait() -> None:
    async def order() -> list[str]:
        found: list[str] = []
        turns = Turns(threads=1, threads_each=1, pulse=Pulse())
        await turns.take("first")

        async def work(name: str) -> None:
            await turns.take(name)
            found.append(name)
            turns.give_back(name)

        names = ["greedy", "greedy", "greedy", "other"]
        working = [asyncio.ensure_future(work(name)) for name in names]
        await asyncio.sleep(0)
        working[1].cancel()
        turns.give_back("first")
        await asyncio.gather(*working, return_exceptions=True)
        return found

    assert ["greedy", "other", "greedy"] == asyncio.run(order())
