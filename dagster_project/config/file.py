"""``lakehouses.yaml``: which lakehouses there are (``docs/dagster.md``).

Reading it touches no storage and starts nothing. An error names the file, the stanza and the field.

With ``layout: assets`` the whole file is read when definitions are loaded, and one mistake is an error. With
``layout: partitions`` (:class:`Stanzas`) a mistake concerns one lakehouse alone, and the file is read again when it
has changed, so a lakehouse is added without loading any definitions again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

import dagster_project
from dagster_project.config.settings import LakehouseSettings, Notifications
from dagster_project.config.values import Model
from pipelines.lakehouses import (
    FILE_NAME,
    VARIABLE,
    ConfigError,
    fill_in_here,
    label,
    named_file,
    parsed,
    quick_stanza,
    raw_stanzas,
    read,
    without_stanzas,
)

ENV_FILE: Final = VARIABLE

_REMOVED: Final = {
    "compaction.costs": "removed, compactions are not weighed in dollars any more; delete it, and say with "
    "compaction.messages, compaction.root_bytes and compaction.older_than when to compact"
}
"""Fields of older releases, and what to write instead."""

Layout = Literal["assets", "partitions"]
"""Whether each lakehouse has assets and jobs of its own, or is a partition of those that all share."""


class Head(Model):
    """The file without its stanzas: what has to be known before any of them."""

    notifications: Notifications = Notifications()
    layout: Layout = "assets"


class ProjectSettings(Head):
    """The whole file."""

    lakehouses: tuple[LakehouseSettings, ...]


def config_path() -> Path:
    """Return the file named by the environment, or else the one in this directory, or else that of the checkout."""
    if (named := named_file()) is not None:
        return named
    here = Path.cwd() / FILE_NAME
    return here if here.is_file() else Path(dagster_project.__file__).absolute().parent.parent / FILE_NAME


def load(path: Path | None = None) -> ProjectSettings:
    """Return the settings of the file. Raises ``ConfigError`` with one line for each mistake."""
    path = config_path() if path is None else path
    return parse(read(path), path)


def load_head(path: Path | None = None) -> Head:
    """Return the settings of the file without its stanzas, which are not read. Raises ``ConfigError``."""
    path = config_path() if path is None else path
    raw = parsed(without_stanzas(read(path)), path)
    try:
        return Head.model_validate({name: value for name, value in raw.items() if name != "lakehouses"})
    except ValidationError as error:
        raise ConfigError("\n".join(_mistakes(error, [], path))) from None


def parse_stanza(raw: Any, path: Path) -> LakehouseSettings:
    """Return the settings of one stanza. Raises ``ConfigError`` with one line for each mistake."""
    try:
        return LakehouseSettings.model_validate(raw)
    except ValidationError as error:
        name = raw.get("name") if isinstance(raw, Mapping) else None
        lines = [line.replace(f"{path}: ", f"{path}: lakehouse {name!r}: ", 1) for line in _mistakes(error, [], path)]
        raise ConfigError("\n".join(lines)) from None


def parse(text: str, path: Path) -> ProjectSettings:
    """Return the settings in the text of the file at ``path``. Raises ``ConfigError``."""
    raw = parsed(text, path)
    stanzas = raw.get("lakehouses")
    stanzas = stanzas if isinstance(stanzas, list) else []
    fill_in_here(stanzas, path)
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


def _mistakes(error: ValidationError, stanzas: Sequence[Any], path: Path) -> Iterator[str]:
    for each in error.errors(include_url=False, include_input=False, include_context=False):
        where, fields = f"{path}: ", [str(part) for part in each["loc"]]
        if len(fields) > 1 and fields[0] == "lakehouses":
            number = int(fields[1])
            where += f"{label(stanzas[number] if number < len(stanzas) else None, number + 1)}: "
            fields = fields[2:]
        field = ".".join(fields)
        yield where + (f"{field}: " if field else "") + _in_words(field, each["type"], each["msg"])


def _in_words(field: str, kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return _REMOVED.get(field, "unknown field")
    if kind == "missing":
        return "required, but missing"
    message = message.removeprefix("Value error, ")
    return message[0].lower() + message[1:] if message.startswith(("Input ", "Tuple ", "List ")) else message


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


# -- a fleet: stanzas that are looked up by name when they are needed, each checked by itself ------------


@dataclass(frozen=True, slots=True)
class Known:
    """The stanzas of one state of the file: settings by name, and what is wrong with the others."""

    good: Mapping[str, LakehouseSettings] = field(default_factory=dict)
    bad: Mapping[str, str] = field(default_factory=dict)


class Stanzas:
    """The stanzas of ``lakehouses.yaml`` as it is now."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state: tuple[Path, int, int] | None = None
        self._raw: dict[str, Any] = {}
        self._known: Known | None = None

    def find(self, name: str) -> LakehouseSettings:
        """Return the settings of a lakehouse; the other stanzas are not checked. Raises ``ConfigError``."""
        with self._lock:
            path = config_path() if self._path is None else self._path
            if self._known is None:  # a run needs one of them, and parsing thousands takes seconds
                quick = quick_stanza(read(path), path, name)
                if quick is not None:
                    return parse_stanza(quick, path)
            path = self._refreshed()
            if name not in self._raw:
                raise ConfigError(f"{path}: there is no lakehouse {name!r} any more")
            return parse_stanza(self._raw[name], path)

    def all(self) -> Known:
        """Return all of them, checked. Raises ``ConfigError`` if the file as a whole cannot be read."""
        with self._lock:
            path = self._refreshed()
            if self._known is None:
                self._known = _checked(self._raw, path)
            return self._known

    def _refreshed(self) -> Path:
        path = config_path() if self._path is None else self._path
        try:
            status = path.stat()
            state = (path, status.st_mtime_ns, status.st_size)
        except OSError:
            state = None
        if state is None or state != self._state:
            stanzas = raw_stanzas(read(path), path)
            named = [each for each in stanzas if isinstance(each, Mapping) and isinstance(each.get("name"), str)]
            self._raw = {each["name"]: each for each in named}
            self._state, self._known = state, None
        return path


def _checked(raw: Mapping[str, Any], path: Path) -> Known:
    good: dict[str, LakehouseSettings] = {}
    bad: dict[str, str] = {}
    slugs: dict[str, str] = {}
    roots: dict[str, str] = {}
    for name, stanza in raw.items():
        try:
            settings = parse_stanza(stanza, path)
        except ConfigError as error:
            bad[name] = str(error)
            continue
        targets = [settings.root] + ([] if settings.backup is None else [settings.backup.target])
        taken = next((roots[each] for each in targets if each in roots), slugs.get(settings.slug))
        if taken is not None:
            bad[name] = f"{path}: lakehouse {name!r}: its name, its root or its backup is already that of {taken!r}"
            continue
        slugs[settings.slug] = name
        roots |= dict.fromkeys(targets, name)
        good[name] = settings
    return Known(good, bad)
