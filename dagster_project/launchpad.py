"""Launchpads derived from dataclasses: the fields that Dagster shows, and what is refused before a run exists.

A field's name, type and default are those of the dataclass, its description is the text of the docstring under
``Attributes``. Dagster's webserver checks names, types and choices. Everything else is checked by the dataclass itself.
"""

import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Final, Union

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster_shared.error import SerializableErrorInfo

from dagster_project.supervised import advice, in_launchpad, sentences
from trinitylake_core import TrinityLakeError

_ENGINES: Final = dg.Enum("Engine", [dg.EnumValue(each) for each in ("spark", "local", "auto")])
_ENGINE_TEXT: Final = "spark, local or auto; overrides lakehouses.yaml."
_HIDDEN: Final = ("spark_from_", "source_options")
"""How fields begin that stay at their defaults in Dagster, or come from lakehouses.yaml."""
_ATTRIBUTE: Final = re.compile(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", re.MULTILINE)


def fields_of(config: type, changed: Mapping[str, Any], only: Collection[str] | None = None) -> dict[str, dg.Field]:
    """Return the fields of a launchpad, or ``only`` some; ``changed`` has defaults that differ from the dataclass."""
    kinds = typing.get_type_hints(config)
    texts = _descriptions(config)
    found = {}
    for each in fields(config):
        name = each.name
        hidden = not each.init or name.startswith(_HIDDEN)
        if hidden or (only is not None and name not in only):
            continue
        if name == "engine":
            found[name] = dg.Field(
                dg.Noneable(_ENGINES), default_value=None, is_required=False, description=_ENGINE_TEXT
            )
            continue
        default = changed.get(name, _default_of(each))
        if default is MISSING:
            found[name] = dg.Field(_schema(kinds[name]), is_required=True, description=texts.get(name))
            continue
        shown = list(default) if isinstance(default, tuple) else default
        found[name] = dg.Field(
            _schema(kinds[name]), is_required=False, default_value=shown, description=texts.get(name)
        )
    return found


def _default_of(field: Field[Any]) -> Any:
    """Return the default of a field of a dataclass; ``MISSING`` without one."""
    if field.default_factory is MISSING:
        return field.default
    return field.default_factory()


def _descriptions(config: type) -> dict[str, str]:
    """Return the text for each field from the docstrings of a dataclass and of those that it extends."""
    found: dict[str, str] = {}
    for each in reversed(config.__mro__):
        section = (each.__doc__ or "").partition("    Attributes:\n")[2]
        for name, text in _ATTRIBUTE.findall(section):
            sentence = " ".join(text.split()).replace("``", "`")
            found[name] = sentence[0].upper() + sentence[1:]
    return found


class RefusedConfigError(dg.DagsterInvalidConfigError, DagsterUserCodeProcessError):
    """A field of a launchpad has a value that its dataclass refuses.

    The second class is how Dagster's code server, and then its webserver, hand on an error as it is: people read the
    sentence, and no stack of Dagster's own calls below it.
    """

    def __init__(self, text: str, given: object) -> None:
        shown = SerializableErrorInfo(message=text, stack=[], cls_name=None)
        super().__init__(text, [], given, user_code_process_error_infos=[shown])  # type: ignore[no-untyped-call]


def check_config(
    op: dg.OpDefinition, schema: Mapping[str, dg.Field], job: str, check: Callable[[dict[str, Any]], object]
) -> dg.OpDefinition:
    """Return a step whose options are checked where Dagster resolves the configuration: before it creates a run.

    The code server then makes the plan of the run, and what is refused there is the answer to ``launchRun``.
    """

    def refuse(given: dict[str, Any]) -> dict[str, Any]:
        try:
            check(given)
        except TrinityLakeError as error:
            raise RefusedConfigError(f"{job}: {sentences(in_launchpad(str(error)), advice(error))}", given) from None
        return given

    made = op.configured(refuse, name=op.name, config_schema=dict(schema))
    if not isinstance(made, dg.OpDefinition):
        raise TypeError(type(made))
    return made


def _schema(kind: Any) -> Any:
    """Return the type of a field for Dagster. A time is a text; a version may be a number or a text."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in {Union, UnionType}:
        if {int, str} <= set(arguments):
            return dg.Any  # Dagster has no type for that; the dataclass refuses everything else
        kinds = [each for each in arguments if each not in {NoneType, datetime}]
        schema = str if str in kinds else _schema(kinds[0])
        return dg.Noneable(schema) if NoneType in arguments else schema
    if origin is not None and issubclass(origin, Mapping):
        return dict if arguments[1] is Any else {str: _schema(arguments[1])}
    if origin is not None and issubclass(origin, Sequence):
        return [_schema(arguments[0])]
    return kind
