"""``lakehouses.yaml``: which lakehouses there are (``docs/dagster.md``).

Reading it touches no storage and starts nothing. An error names the file, the stanza and the field.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import ValidationError

import dagster_project
from dagster_project.config.settings import LakehouseSettings, Model, Notifications
from trinitylake_core import InvalidInput

ENV_FILE: Final = "TRINITYLAKE_LAKEHOUSES"
FILE_NAME: Final = "lakehouses.yaml"
_HERE: Final = "{here}"
_COPIES: Final = ("backup", "export")
_STANZAS: Final = re.compile(r"^lakehouses:\s*$", re.MULTILINE)
_TOP_LEVEL: Final = re.compile(r"^[^\s#-]", re.MULTILINE)
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with it

Layout = Literal["assets", "partitions"]
"""Whether each lakehouse has assets and jobs of its own, or is a partition of those that all share."""


class ConfigError(InvalidInput):
    """``lakehouses.yaml`` is missing or invalid."""


class ProjectSettings(Model):
    """The whole file."""

    lakehouses: tuple[LakehouseSettings, ...]
    notifications: Notifications = Notifications()
    layout: Layout = "assets"


class Head(Model):
    """The file without its stanzas: what has to be known before any of them."""

    notifications: Notifications = Notifications()
    layout: Layout = "assets"


def config_path() -> Path:
    """Return the file named by the environment, or else the one in this directory, or else that of the checkout."""
    named = os.environ.get(ENV_FILE)
    if named:
        return Path(named).expanduser().absolute()
    here = Path.cwd() / FILE_NAME
    return here if here.is_file() else Path(dagster_project.__file__).absolute().parent.parent / FILE_NAME


def load(path: Path | None = None) -> ProjectSettings:
    """Return what the file says. Raises ``ConfigError`` with one line for each mistake."""
    path = config_path() if path is None else path
    return parse(_text(path), path)


def load_head(path: Path | None = None) -> Head:
    """Return what the file says apart from its stanzas, which are not looked at. Raises ``ConfigError``."""
    path = config_path() if path is None else path
    raw = _mapping(_without_stanzas(_text(path)), path)
    try:
        return Head.model_validate({name: value for name, value in raw.items() if name != "lakehouses"})
    except ValidationError as error:
        raise ConfigError("\n".join(_mistakes(error, [], path))) from None


def _without_stanzas(text: str) -> str:
    """Return the text of a file without its list of lakehouses, which may be long; all of it where that is unsure."""
    found = _STANZAS.search(text)
    if found is None or "&" in text:  # an anchor may be among the stanzas, and its alias elsewhere
        return text
    rest = _TOP_LEVEL.search(text, found.end())
    return text[: found.start()] + "lakehouses: []\n" + ("" if rest is None else text[rest.start() :])


def quick_stanza(path: Path, name: str) -> Any:
    """Return the unchecked stanza of a lakehouse if it can be found without parsing the others, else ``None``."""
    text = _text(path)
    if "&" in text:
        return None
    for match in re.finditer(
        rf"^( *)- (?:\{{ *)?name: *[\"']?{re.escape(name)}[\"']?(?=[ ,}}#\n])", text, re.MULTILINE
    ):
        following = re.compile(rf"^(?:{match[1]}- |\S)", re.MULTILINE).search(text, match.end())
        try:
            stanzas = yaml.load(text[match.start() : None if following is None else following.start()], _LOADER)  # noqa: S506
        except yaml.YAMLError:
            return None
        if isinstance(stanzas, list) and len(stanzas) == 1 and stanzas[0].get("name") == name:
            _fill_in_here(stanzas, path)
            return stanzas[0]
    return None


def raw_stanzas(path: Path) -> list[Any]:
    """Return the stanzas of the file, unchecked, with ``{here}`` filled in. Raises ``ConfigError``."""
    stanzas = _mapping(_text(path), path).get("lakehouses")
    if not isinstance(stanzas, list):
        raise ConfigError(f"{path}: lakehouses: required, a list of lakehouses")
    _fill_in_here(stanzas, path)
    return stanzas


def parse_stanza(raw: Any, path: Path) -> LakehouseSettings:
    """Return the settings of one stanza. Raises ``ConfigError`` with one line for each mistake."""
    try:
        return LakehouseSettings.model_validate(raw)
    except ValidationError as error:
        label = raw.get("name") if isinstance(raw, Mapping) else None
        lines = [line.replace(f"{path}: ", f"{path}: lakehouse {label!r}: ", 1) for line in _mistakes(error, [], path)]
        raise ConfigError("\n".join(lines)) from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read {path} ({error.strerror}); see docs/dagster.md, or set {ENV_FILE} to another file"
        ) from None


def parse(text: str, path: Path) -> ProjectSettings:
    """Return what the text of the file at ``path`` says. Raises ``ConfigError``."""
    raw = _mapping(text, path)
    stanzas = raw.get("lakehouses")
    stanzas = stanzas if isinstance(stanzas, list) else []
    _fill_in_here(stanzas, path)
    try:
        settings = ProjectSettings.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("\n".join(_mistakes(error, stanzas, path))) from None
    if not settings.lakehouses:
        raise ConfigError(f"{path}: lakehouses: must list at least one lakehouse")
    collisions = list(_collisions(settings.lakehouses, path))
    if collisions:
        raise ConfigError("\n".join(collisions))
    return settings


def _mapping(text: str, path: Path) -> dict[str, Any]:
    try:
        raw = _loaded(text)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ConfigError(f"{path}{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must be a mapping with the field 'lakehouses'")
    return raw


def _loaded(text: str) -> Any:
    try:
        return yaml.load(text, _LOADER)  # noqa: S506 - one of the two safe loaders
    except yaml.MarkedYAMLError:
        return yaml.safe_load(text)  # the fast one may name the line after the last one


def _fill_in_here(stanzas: Sequence[Any], path: Path) -> None:
    """Replace ``{here}`` in root URIs by the directory of the file."""
    here = path.absolute().parent.as_posix()
    for stanza in stanzas:
        places = [(stanza, "root")]
        places += [(stanza.get(name), "target") for name in _COPIES] if isinstance(stanza, dict) else []
        for where, field in places:
            if isinstance(where, dict) and isinstance(where.get(field), str):
                where[field] = where[field].replace(_HERE, here)


def _mistakes(error: ValidationError, stanzas: Sequence[Any], path: Path) -> Iterator[str]:
    for each in error.errors(include_url=False, include_input=False, include_context=False):
        where, fields = f"{path}: ", [str(part) for part in each["loc"]]
        if len(fields) > 1 and fields[0] == "lakehouses":
            where += f"lakehouse {_label(stanzas, int(fields[1]))}: "
            fields = fields[2:]
        field = ".".join(fields)
        yield where + (f"{field}: " if field else "") + _said(each["type"], each["msg"])


def _said(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "unknown field"
    if kind == "missing":
        return "required, but missing"
    message = message.removeprefix("Value error, ")
    return message[0].lower() + message[1:] if message.startswith(("Input ", "Tuple ", "List ")) else message


def _label(stanzas: Sequence[Any], index: int) -> str:
    stanza = stanzas[index] if index < len(stanzas) else None
    name = stanza.get("name") if isinstance(stanza, Mapping) else None
    return f"{name!r}" if isinstance(name, str) and name else f"number {index + 1}"


def _collisions(lakehouses: Sequence[LakehouseSettings], path: Path) -> Iterator[str]:
    names: dict[str, str] = {}
    roots: dict[str, str] = {}
    for each in lakehouses:
        if each.slug in names:
            yield (
                f"{path}: lakehouse {each.name!r}: name: collides with {names[each.slug]!r}; both become "
                f"{each.slug!r} in the names of jobs and pools"
            )
        elif each.root in roots:
            yield f"{path}: lakehouse {each.name!r}: root: already the root of {roots[each.root]!r}"
        names.setdefault(each.slug, each.name)
        roots.setdefault(each.root, each.name)
    for each in lakehouses:
        target = None if each.backup is None else each.backup.target
        if target is not None and target in roots:
            yield f"{path}: lakehouse {each.name!r}: backup.target: already the root or the backup of {roots[target]!r}"
        elif target is not None:
            roots[target] = each.name
