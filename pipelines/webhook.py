"""Sending JSON to a webhook, as chat services take it."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Final

_TIMEOUT_SECONDS: Final = 10.0


def post_json(url: str, document: bytes) -> None:
    """Send a document to a URL of HTTP. Raises ``OSError`` if that fails; the message shows no part of the URL."""
    request = urllib.request.Request(url, document, {"Content-Type": "application/json"}, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):  # noqa: S310 - the caller checks the scheme
            pass
    except urllib.error.HTTPError as error:
        error.close()
        raise
