"""How often, and after which waits, a storage request is retried; the options that every backend knows."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trinitylake_core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter: at most ``retries`` further tries after the first."""

    retries: int
    base_seconds: float
    max_seconds: float

    def pause(self, attempt: int) -> None:
        """Sleep before try ``attempt + 1``; ``attempt`` counts from 0."""
        longest = min(self.max_seconds, self.base_seconds * 2.0**attempt)
        if longest > 0:
            time.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """The storage options that every backend understands; each backend has defaults of its own."""

    retries: int = 5
    retry_base_seconds: float = 0.1
    retry_max_seconds: float = 5.0
    max_concurrency: int = 32
    delete_batch: int = 1000

    def policy(self) -> RetryPolicy:
        """Return the retry policy of these options."""
        return RetryPolicy(self.retries, self.retry_base_seconds, self.retry_max_seconds)

    def override(self, options: Mapping[str, Any]) -> tuple[CommonOptions, dict[str, Any]]:
        """Return these options with those of ``options``, and what in ``options`` is the backend's own.

        Raises ``InvalidInput`` for a value that is not a number or out of range.
        """
        rest = dict(options)
        values: dict[str, Any] = {}
        for name in self.__slots__:
            default = getattr(self, name)
            given = rest.pop(name, None)
            values[name] = default if given is None else _number(name, given, type(default))
        return CommonOptions(**values), rest


def _number(name: str, value: Any, kind: type[int | float]) -> int | float:
    try:
        number = kind(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"storage option {name} must be a number, not {value!r}") from None
    least = 1 if name in {"max_concurrency", "delete_batch"} else 0
    if not number >= least:
        raise InvalidInput(f"storage option {name} must be at least {least}, not {value!r}")
    return number


def take_flag(options: dict[str, Any], name: str, *, default: bool) -> bool:
    """Remove the boolean option ``name`` from ``options`` and return it. Raises ``InvalidInput``."""
    value = options.pop(name, default)
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise InvalidInput(f"storage option {name} must be true or false, not {value!r}")
    return value


def take_number(options: dict[str, Any], name: str, *, default: float, least: float) -> float:
    """Remove the option ``name`` from ``options`` and return it as a number. Raises ``InvalidInput``."""
    value = options.pop(name, None)
    if value is None:
        return default
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"storage option {name} must be a number, not {value!r}") from None
    if not number >= least:
        raise InvalidInput(f"storage option {name} must be at least {least}, not {value!r}")
    return number
