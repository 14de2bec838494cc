"""The JSON of a request: what is refused before it is parsed, and what is no object."""

from __future__ import annotations

from trinitylake_core.iceberg.reading import metadata_json
from trinitylake_core.iceberg.reading.errors import Malformed
from trinitylake_core.rest.problems import Problem


class Bomb(Problem):
    """A body that would need far more than it seems to; nothing more of it is read, and its connection is closed."""

    closes = True

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, "BadRequestException", message)


def parse_object(body: bytes) -> metadata_json.JsonObject:
    """Return a body as a JSON object; one without content is an empty one. Raises ``Problem`` (400)."""
    try:
        # Only UTF-8: by itself, the parser would take UTF-16 too, in which a quote is not always a quote.
        return metadata_json.parse_object((body or b"{}").decode("utf-8"))
    except UnicodeDecodeError:
        raise Problem(400, "BadRequestException", "the body is not text in UTF-8") from None
    except Malformed as error:
        raise Problem(400, "BadRequestException", f"the body is no object of JSON: {error}") from None
