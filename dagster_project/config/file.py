"""``lakehouses.yaml``: which lakehouses there are (``docs/dagster.md``).

Reading it touches no storage and starts nothing. An error names the file, the stanza and the field.

Each stanza is checked by itself, and against the others. A mistake concerns its lakehouse alone (:class:`Known`). With
``layout: partitions`` (:class:`Stanzas`) the file is read again when it has changed, so a lakehouse is added without
loading any definitions again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import ValidationError

import dagster_project
from dagster_project.config.settings import NAME, LakehouseSettings, Notifications
from dagster_project.config.values import Model
from pipelines.source.lakehouses import (
    FILE_NAME,
    VARIABLE,
    ConfigError,
    describe_unknown,
    label,
    name_of,
    named_file,
    parse_fields,
    quick_stanza,
    raw_stanzas,
    read,
    without_stanzas,
)
from trinitylake_core.yaml_text import TWICE

ENV_FILE: Final = VARIABLE
_WHERE: Final = ("name", "root", "storage_options")
"""The fields by which a lakehouse is opened."""

M = TypeVar("M", bound=Model)
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


def load_head(path: Path | None) -> Head:
    """Return the settings of the file without its stanzas, which are not read. Raises ``ConfigError``."""
    path = config_path() if path is None else path
    return _validate_model(Head, _head(parse_fields(without_stanzas(read(path)), path)), f"{path}: ")


def load_known(path: Path | None) -> Known:
    """Return the stanzas of the file, each by itself.

    Raises ``ConfigError``: the file as a whole cannot be read, or not a single lakehouse of it can be opened.
    """
    path = config_path() if path is None else path
    known = _check_together(raw_stanzas(read(path), path, may_repeat=True), path)
    if not known.good and not known.openable:
        raise ConfigError("\n".join(known.bad.values()) or f"{path}: lakehouses: must list at least one lakehouse")
    return known


def parse_stanza(raw: Any, path: Path, number: int = 1) -> LakehouseSettings:
    """Return the settings of one stanza. Raises ``ConfigError`` with one line for each mistake."""
    return _validate_model(LakehouseSettings, raw, f"{path}: {label(raw, number)}: ")


def parse(text: str, path: Path) -> ProjectSettings:
    """Return the settings in the text of the file at ``path``. Raises ``ConfigError``."""
    raw = parse_fields(text, path, mark_twice=True)
    stanzas, mistakes, head = raw_stanzas(text, path, raw, may_repeat=True), [], Head()
    try:
        head = _validate_model(Head, _head(raw), f"{path}: ")
    except ConfigError as error:
        mistakes.append(str(error))
    known = _check_together(stanzas, path)
    mistakes += known.bad.values()
    if not stanzas:
        mistakes.append(f"{path}: lakehouses: must list at least one lakehouse")
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return ProjectSettings(**dict(head), lakehouses=tuple(known.good.values()))


def _head(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name != "lakehouses"}


def _validate_model(model: type[M], raw: Any, where: str) -> M:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        mistakes: list[str] = []
        for each in error.errors(include_url=False, include_input=False, include_context=False):
            field, message = ".".join(str(part) for part in each["loc"]), each["msg"].removeprefix("Value error, ")
            if each["type"] == "extra_forbidden":
                message = describe_unknown(field, model.model_fields)
            elif each["type"] == "missing":
                message = "required, but missing"
            elif message.startswith(("Input ", "Tuple ", "List ")):
                message = message[0].lower() + message[1:]
            mistakes.append(f"{where}{field}: {message}" if field else where + message)
        raise ConfigError("\n".join(mistakes)) from None


@dataclass(frozen=True, slots=True)
class Known:
    """The stanzas of one state of the file.

    Attributes:
        good: settings by name.
        bad: what is wrong with the others, by name, or by ``lakehouse number 3`` where a stanza has no name.
        openable: of those the ones that can still be opened: settings with nothing but where they are.
        nameless: those of ``bad`` that have no name, or one that Dagster takes for no partition.
    """

    good: Mapping[str, LakehouseSettings] = field(default_factory=dict)
    bad: Mapping[str, str] = field(default_factory=dict)
    openable: Mapping[str, LakehouseSettings] = field(default_factory=dict)
    nameless: frozenset[str] = frozenset()

    def all(self) -> Known:
        """Return these, as :meth:`Stanzas.all` returns those of the file as it is now."""
        return self


class Stanzas:
    """The stanzas of ``lakehouses.yaml`` as it is now."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state: tuple[Path, int, int] | None = None
        self._raw: list[Any] = []
        self._known: Known | None = None

    def find(self, name: str) -> LakehouseSettings:
        """Return the settings of a lakehouse; the other stanzas are not checked. Raises ``ConfigError``."""
        with self._lock:
            path = config_path() if self._path is None else self._path
            if self._known is None:  # a run needs one of them, and parsing thousands takes seconds
                quick = quick_stanza(read(path), path, name)
                if quick is not None:
                    return parse_stanza(quick, path)
            path = self._refresh()
            found = [each for each in self._raw if name_of(each) == name]
            if not found:
                raise ConfigError(f"{path}: there is no lakehouse {name!r} any more")
            if len(found) > 1:
                raise ConfigError(_describe_repeated(name, path))
            return parse_stanza(found[0], path)

    def all(self) -> Known:
        """Return all of them, checked. Raises ``ConfigError`` if the file as a whole cannot be read."""
        with self._lock:
            path = self._refresh()
            if self._known is None:
                known = _check_together(self._raw, path)
                self._known = _set_assets_of_tables_aside(known, path)
            return self._known

    def _refresh(self) -> Path:
        path = config_path() if self._path is None else self._path
        try:
            status = path.stat()
            state = (path, status.st_mtime_ns, status.st_size)
        except OSError:
            state = None
        if state is None or state != self._state:
            self._raw = raw_stanzas(read(path), path, may_repeat=True)
            self._state, self._known = state, None
        return path


def _check_together(stanzas: Sequence[Any], path: Path) -> Known:
    """Return the settings of stanzas, each validated by itself, and what collides with another one."""
    good: dict[str, LakehouseSettings] = {}
    bad: dict[str, str] = {}
    slugs: dict[str, str] = {}
    roots: dict[str, str] = {}
    openable: dict[str, LakehouseSettings] = {}
    nameless: set[str] = set()
    times = Counter(name_of(raw) for raw in stanzas)
    for number, raw in enumerate(stanzas, 1):
        where = label(raw, number)
        name = name_of(raw)
        if name is not None and times[name] > 1:
            bad[name] = _describe_repeated(name, path)
            continue
        try:
            each = parse_stanza(raw, path, number)
        except ConfigError as error:
            bad[name or where] = str(error)
            reduced = _reduce_stanza(raw, path)
            if name is None or not NAME.fullmatch(name):
                nameless.add(name or where)
            elif reduced is not None and reduced.slug not in slugs:
                slugs[reduced.slug] = name
                openable[name] = reduced
            continue
        if each.slug in slugs:
            other = slugs[each.slug]
            text = f"name: collides with {other!r}; both become {each.slug!r} in the names of jobs and pools"
            bad[each.name] = f"{path}: {where}: {text}"
        elif each.root in roots:
            bad[each.name] = f"{path}: {where}: root: already the root of {roots[each.root]!r}"
        else:
            good[each.name] = each
            slugs[each.slug] = each.name
            roots[each.root] = each.name
    _set_shared_targets_aside(good, bad, roots, path)
    return Known(good, bad, openable, frozenset(nameless))


def _describe_repeated(name: str, path: Path) -> str:
    return f"{path}: lakehouse {name!r}: name: two stanzas have it, so nobody knows which one counts"


def _reduce_stanza(raw: Any, path: Path) -> LakehouseSettings | None:
    """Return the settings by which a lakehouse can be opened, whatever else is wrong in its stanza."""
    if not isinstance(raw, Mapping) or any(f"{name}{TWICE}" in raw for name in _WHERE):
        return None
    try:
        return parse_stanza({name: raw[name] for name in _WHERE if name in raw}, path)
    except ConfigError:
        return None


def _set_assets_of_tables_aside(known: Known, path: Path) -> Known:
    """Return the stanzas of a fleet; those that want assets for tables, which a fleet has not, are bad."""
    good = dict(known.good)
    bad = dict(known.bad)
    for name, each in known.good.items():
        if each.assets:
            bad[name] = f"{path}: lakehouse {name!r}: assets: with `layout: partitions` no table is an asset"
            del good[name]
    return replace(known, good=good, bad=bad)


def _set_shared_targets_aside(
    good: dict[str, LakehouseSettings], bad: dict[str, str], roots: dict[str, str], path: Path
) -> None:
    """Move the stanzas whose backup would overwrite another lakehouse, or another backup, from good to bad."""
    for name, each in list(good.items()):
        if each.backup is None:
            continue
        target = each.backup.target
        owner = roots.setdefault(target, name)
        if owner != name:
            bad[name] = f"{path}: lakehouse {name!r}: backup.target: already the root or the backup of {owner!r}"
            del good[name]
