"""Errors of this library that a Spark task raised, as themselves again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trinitylake_core import errors

_RAISED: Final = re.compile(r"^(?:trinitylake_core\.errors\.)(\w+): (.*)$", re.MULTILINE)


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise what a task raised, if it was one of ours: whoever waits for a driver must know what to do next."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
            raise
        found = _RAISED.search(str(error))
        kind = getattr(errors, found[1], None) if found is not None else None
        if found is None or not (isinstance(kind, type) and issubclass(kind, errors.TrinityLakeError)):
            raise
        raise kind(found[2]) from error
