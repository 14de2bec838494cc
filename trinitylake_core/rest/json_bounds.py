"""The JSON of a request: what is refused before it is parsed, and what is no object."""

from __future__ import annotations

import json
from typing import Any

from trinitylake_core.rest.problems import Problem


class Bomb(Problem):
    """A body that would need far more than it seems to; nothing more of it is read, and its connection is closed."""

    closes = True

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, "BadRequestException", message)


def parse_object(body: bytes) -> dict[str, Any]:
    """Return a body as a JSON object; one without content is an empty one. Raises ``Problem`` (400)."""
    try:
        # Only UTF-8: by itself, the parser would take UTF-16 too, in which a quote is not always a quote.
        found = json.loads((body or b"{}").decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise Problem(400, "BadRequestException", "the body is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        text = f"the body is not JSON: line {error.lineno}, column {error.colno}"
        raise Problem(400, "BadRequestException", text) from None
    except (ValueError, RecursionError):
        text = "the body is not JSON: a number is too long, or lists lie in each other too deeply"
        raise Problem(400, "BadRequestException", text) from None
    if not isinstance(found, dict):
        raise Problem(400, "BadRequestException", "the body is not a JSON object")
    return found


def _refuse_constant(_: str) -> None:
    raise Problem(400, "BadRequestException", "the body is not JSON: NaN and Infinity are no numbers of JSON")
