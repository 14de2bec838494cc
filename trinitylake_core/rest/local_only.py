"""Requests to an endpoint without tokens, where being able to connect is the only proof of who asks.

Every web page that somebody on this machine looks at can connect, too: a browser sends a form to 127.0.0.1, or to a
name of the page's own server that suddenly means 127.0.0.1. Neither can hide from which page it comes, name this
machine as ``Host``, or send JSON without being asked whether it may. No engine does what is refused here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

from trinitylake_core.rest.problems import Problem

_NAMES: Final = frozenset({"localhost", "localhost."})


def is_loopback(host: str) -> bool:
    """Return whether an address or a name can only mean this machine."""
    if host.lower() in _NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refuse_foreign(scheme: str, headers: Mapping[str, str]) -> None:
    """Refuse what a web page can make a browser send. Raises ``Problem`` (403, 415).

    Args:
        scheme: of the request: ``http`` or ``https``.
        headers: by names in lower case.
    """
    host = headers.get("host", "")
    if not is_loopback(_without_port(host)):
        text = "without tokens this endpoint answers only as localhost, 127.0.0.1 or ::1: use one of them in 'uri'"
        raise Problem(403, "ForbiddenException", text)
    origin = headers.get("origin")
    own_origin = f"{scheme}://{host}"
    if origin is not None and origin.lower() != own_origin.lower():
        raise Problem(403, "ForbiddenException", "without tokens this endpoint answers no other web page")
    if _has_body(headers) and not _is_json(headers.get("content-type", "")):
        text = "without tokens this endpoint takes a body only with 'Content-Type: application/json'"
        raise Problem(415, "UnsupportedMediaTypeException", text)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if colon and port.isdigit():
        return name
    return host


def _has_body(headers: Mapping[str, str]) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        return True
    return kind.startswith("application/") and kind.endswith("+json")
