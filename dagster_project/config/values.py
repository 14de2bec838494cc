"""Values of ``lakehouses.yaml``: durations, cron schedules, and options that may come from the environment.

An ``{env: NAME}`` is looked up when a lakehouse is opened, never when definitions are loaded, and is stored nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Annotated, Any, Final

import dagster as dg
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from pipelines.lakehouses import REFUSED, looks_secret, variable
from trinitylake_core import InvalidInput
from trinitylake_core.durations import parse_age, shown

_OWNER: Final = re.compile(r"team:[A-Za-z0-9_ .-]+|[^@\s]+@[^@\s]+\.[^@\s]+")
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class EnvRef:
    """The value of an environment variable, looked up when it is needed."""

    name: str

    def resolve(self) -> str:
        """Return the value. Raises ``InvalidInput`` when the variable is not set."""
        return variable(self.name)


def parse_value(value: object, name: str = "") -> Any:
    """Return an option as a plain value, an ``EnvRef``, or a mapping of these. Raises ``ValueError``."""
    where = f"{name}: " if name else ""
    if isinstance(value, EnvRef):
        return value
    if isinstance(value, Mapping) and "env" in value:
        variable = value["env"]
        if len(value) != 1 or not isinstance(variable, str) or not _ENV_NAME.fullmatch(variable):
            raise ValueError(f"{where}write {{env: NAME}} with the name of one environment variable")
        return EnvRef(variable)
    if isinstance(value, Mapping):
        return {str(key): parse_value(each, f"{name}.{key}" if name else str(key)) for key, each in value.items()}
    if not isinstance(value, str | int | float | bool):
        raise ValueError(f"{where}must be text, a number, true, false or {{env: NAME}}")  # noqa: TRY004 - pydantic wants ValueError
    if looks_secret(name.rpartition(".")[2], value):
        raise ValueError(f"{where}{REFUSED}")
    return value


def parse_options(options: object) -> dict[str, Any]:
    """Return options by name. Raises ``ValueError``."""
    if not isinstance(options, Mapping):
        raise ValueError("must be a mapping of names to values")  # noqa: TRY004 - pydantic wants ValueError
    return {str(name): parse_value(value, str(name)) for name, value in options.items()}


def resolved(value: Any) -> Any:
    """Return an option, or a mapping of options, with the environment filled in. Raises ``InvalidInput``."""
    if isinstance(value, EnvRef):
        return value.resolve()
    if isinstance(value, Mapping):
        return {name: resolved(each) for name, each in value.items()}
    return value


def variables(value: Any) -> Iterator[str]:
    """Yield the names of the environment variables that options need."""
    if isinstance(value, EnvRef):
        yield value.name
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from variables(each)


def parse_duration(text: object) -> timedelta:
    """Return the length of time that a text such as ``15m`` means. Raises ``ValueError``."""
    if isinstance(text, timedelta):
        return text
    try:
        return timedelta(seconds=parse_age(text if isinstance(text, str) else ""))
    except InvalidInput:
        raise ValueError(f"{text!r} is not a valid duration; write 90s, 15m, 12h, 3d or 2w") from None


def format_duration(duration: timedelta) -> str:
    """Return a length of time as ``parse_duration`` reads it, in the largest unit that is exact."""
    return shown(duration.total_seconds())


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration)]
Options = Annotated[dict[str, Any], BeforeValidator(parse_options)]
MaybeEnv = Annotated[Any, BeforeValidator(parse_value)]


class Model(BaseModel):
    """Base of all stanzas: no unknown fields, immutable, and no input shown in error messages."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


@lru_cache(maxsize=1024)
def _cron(text: object) -> object:
    try:
        dg.ScheduleDefinition(name="schedule", job_name="job", cron_schedule=str(text))
    except dg.DagsterInvalidDefinitionError:
        raise ValueError(f"{text!r} is not a valid cron schedule; write five fields, such as '0 3 * * *'") from None
    return text


@lru_cache(maxsize=1024)
def _time_zone(text: str) -> str:
    try:
        dg.ScheduleDefinition(name="schedule", job_name="job", cron_schedule="0 0 * * *", execution_timezone=text)
    except dg.DagsterInvalidDefinitionError:
        raise ValueError(f"{text!r} is not a valid time zone; write UTC or Europe/Berlin, for example") from None
    return text


def _owner(text: str) -> str:
    if not _OWNER.fullmatch(text):
        raise ValueError(f"{text!r} is not a valid owner; write an e-mail address or team:NAME")
    return text


def _hashable_cron(text: object) -> object:
    return _cron(text if isinstance(text, str) else str(text))


Cron = Annotated[str, BeforeValidator(_hashable_cron)]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
Owner = Annotated[str, AfterValidator(_owner)]
