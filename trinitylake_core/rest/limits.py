"""How much of an endpoint requests may take: the figures, and why each of them is there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one endpoint takes at a time; beyond it clients are refused, and may come again.

    Before a client has shown a token, only ``connections``, ``header_bytes`` and ``headers`` protect the endpoint: a
    proxy in front of it (``deploy/nginx.conf``) closes connections that are slow or do nothing. The others count for
    each principal: where there are tokens, one principal may take ``share`` of what there is of requests, threads and
    memory, so that the others always find some.

    Attributes:
        connections: at the same time; a request on a further one gets 503.
        header_bytes: of the part of a request that is not complete yet.
        headers: of one request.
        body_bytes: of one request.
        elements: values in the JSON of one request: objects, lists, and what they contain.
        depth: of objects and lists within each other.
        memory_bytes: that all requests under way may need, as estimated from their bodies before they are parsed.
        threads: requests that are worked on at the same time, those included whose client has gone.
        waiting: requests that may wait for a thread, or be read or answered; further ones get 503 with
            ``Retry-After``.
        share: of ``threads``, ``waiting`` and ``memory_bytes`` that one of several principals may take.
        seconds: after which a request is answered without its result. What it began goes on. A client has as long to
            send a body, and to read an answer, before its connection is closed.
        wrong_token_seconds: from its request until a client is told that its token is wrong. It waits without a thread
            or a place.
        stop_seconds: that requests under way have when the endpoint is ended.
    """

    connections: int = 1000
    header_bytes: int = 32 << 10
    headers: int = 100
    body_bytes: int = 16 << 20
    elements: int = 100_000
    depth: int = 100
    memory_bytes: int = 192 << 20
    threads: int = 128
    waiting: int = 512
    share: float = 0.5
    seconds: float = 60.0
    wrong_token_seconds: float = 0.5
    stop_seconds: float = 20.0
