"""Values of ``lakehouses.yaml``: durations, cron schedules, and options that may come from the environment.

The variable of an ``{env: NAME}``, or the file of a ``{file: PATH}``, is read when a lakehouse is opened, never when
definitions are loaded, and is stored nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Annotated, Any, Final

import dagster as dg
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from pipelines.source.lakehouses import REFUSED, is_source, looks_secret
from trinitylake_core import InvalidInput
from trinitylake_core.durations import describe_duration, parse_age
from trinitylake_core.sizes import parse_size
from trinitylake_core.yaml_text import TWICE

OWNER: Final = re.compile(r"team:[A-Za-z0-9_ .-]+|[^@\s]+@[^@\s]+\.[^@\s]+")
"""What Dagster takes for an owner."""
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_value(value: object, name: str = "") -> object:
    """Return an option: a plain value, where it stands, or a mapping of these. Raises ``ValueError``."""
    where = f"{name}: " if name else ""
    if isinstance(value, Mapping) and is_source(value):
        if len(value) == 1 and isinstance(value.get("file"), str) and value["file"]:
            return value
        if len(value) != 1 or not isinstance(value.get("env"), str) or not _ENV_NAME.fullmatch(value["env"]):
            raise ValueError(
                f"{where}write {{env: NAME}} with the name of one environment variable, or {{file: PATH}} of one file"
            )
        return value
    if isinstance(value, Mapping):
        return {str(key): parse_value(each, f"{name}.{key}" if name else str(key)) for key, each in value.items()}
    if not isinstance(value, str | int | float | bool):
        raise ValueError(f"{where}must be text, a number, true, false, {{env: NAME}} or {{file: PATH}}")  # noqa: TRY004 - pydantic wants ValueError
    if looks_secret(name.rpartition(".")[2], value):
        raise ValueError(f"{where}{REFUSED}")
    return value


def parse_options(options: object) -> object:
    """Return options by name. Raises ``ValueError``."""
    if not isinstance(options, Mapping):
        raise ValueError("must be a mapping of names to values")  # noqa: TRY004 - pydantic wants ValueError
    for name in options:
        if str(name).endswith(TWICE):
            raise ValueError(f"{str(name).removesuffix(TWICE)} appears twice")
    return {str(name): parse_value(value, str(name)) for name, value in options.items()}


def parse_duration(text: object) -> timedelta:
    """Return the length of time that a text such as ``15m`` means. Raises ``ValueError``."""
    if isinstance(text, timedelta):
        return text
    try:
        return timedelta(seconds=parse_age(text if isinstance(text, str) else ""))
    except InvalidInput:
        raise ValueError(f"{text!r} is not a valid duration; write 90s, 15m, 12h, 3d or 2w") from None


def parse_bytes(given: object) -> int:
    """Return the bytes that a number or a text such as ``256MiB`` means. Raises ``ValueError``."""
    try:
        return parse_size(str(given))
    except InvalidInput as error:
        raise ValueError(str(error)) from None


def format_duration(duration: timedelta) -> str:
    """Return a length of time as ``parse_duration`` reads it, in the largest unit that is exact."""
    return describe_duration(duration.total_seconds())


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration)]


def _refuse_nothing(duration: timedelta) -> timedelta:
    if not duration:
        raise ValueError("must be longer than 0s: the work would be stopped before it began")
    return duration


Timeout = Annotated[Duration, AfterValidator(_refuse_nothing)]
ByteSize = Annotated[int, BeforeValidator(parse_bytes)]
Options = Annotated[dict[str, Any], BeforeValidator(parse_options)]
MaybeEnv = Annotated[Any, BeforeValidator(parse_value)]


class Model(BaseModel):
    """Base of all stanzas: no unknown fields, immutable, and no input shown in error messages."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _is(what: str, example: str, field: str) -> BeforeValidator:
    """Return the validator of what Dagster accepts as a field of a schedule."""

    @lru_cache(maxsize=1024)
    def validate(text: str) -> str:
        chosen: dict[str, Any] = {"cron_schedule": "0 0 * * *", field: text}
        try:
            dg.ScheduleDefinition(name="schedule", job_name="job", **chosen)
            dg.TimeWindowPartitionsDefinition(start="2024-01-01", fmt="%Y-%m-%d", cron_schedule=chosen["cron_schedule"])
        except dg.DagsterInvalidDefinitionError:
            raise ValueError(f"{text!r} is not a valid {what}, or never fires; write {example}") from None
        return text

    return BeforeValidator(lambda given: validate(str(given)))


def _owner(text: str) -> str:
    if not OWNER.fullmatch(text):
        raise ValueError(f"{text!r} is not a valid owner; write an e-mail address or team:NAME")
    return text


Cron = Annotated[str, _is("cron schedule", "five fields, such as '0 3 * * *'", "cron_schedule")]
TimeZone = Annotated[str, _is("time zone", "UTC or Europe/Berlin, for example", "execution_timezone")]
Owner = Annotated[str, AfterValidator(_owner)]
