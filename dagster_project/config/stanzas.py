"""The stanzas of a fleet: looked up by name when they are needed, each checked by itself.

A mistake in one stanza concerns that lakehouse alone. The file is read again when it has changed, so a lakehouse is
added without loading any definitions again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagster_project.config.file import config_path, parse_stanza
from dagster_project.config.settings import LakehouseSettings
from pipelines.lakehouses import ConfigError, quick_stanza, raw_stanzas, read


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
            self._raw = {each["name"]: each for each in reversed(named)}  # of two with one name the first counts
            self._raw = {each["name"]: self._raw[each["name"]] for each in named}
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
