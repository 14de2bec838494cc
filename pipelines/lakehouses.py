"""``lakehouses.yaml``: the one reader, for the command line, for surveys of a fleet and for Dagster.

Reading it touches no storage and starts nothing. The users of a stanza check what it contains: Dagster all of it
(``docs/dagster.md``), the others what they need. An error names the file, the line or the stanza, and the field.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trinitylake_core.errors import InvalidInput

REFUSED: Final = "looks like a secret, which does not belong in this file; write {env: NAME}"
_SECRET_NAME: Final = re.compile(
    r"secret|password|passwd|token|credential|(^|[._-])(access_?)?key($|[._-])", re.IGNORECASE
)
VARIABLE: Final = "TRINITYLAKE_LAKEHOUSES"
FILE_NAME: Final = "lakehouses.yaml"
FIELDS: Final = (
    *("name", "root", "description", "owners", "storage_options", "spark", "schedules", "health", "compaction"),
    *("snapshots", "retention", "orphans", "tables", "backup", "export", "timeout"),
)
"""The fields of a stanza; what they may hold is checked by those who use them."""
_HERE: Final = "{here}"
_COPIES: Final = ("backup", "export")
_STANZAS: Final = re.compile(r"^lakehouses:\s*$", re.MULTILINE)
_TOP_LEVEL: Final = re.compile(r"^[^\s#-]", re.MULTILINE)


class ConfigError(InvalidInput):
    """``lakehouses.yaml`` is missing or invalid."""


# -- the file ----------------------------------------------------------------------------------------------


def named_file() -> Path | None:
    """Return the file that the environment names, if it names one."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser().absolute() if named else None


def read(path: Path) -> str:
    """Return the text of the file. Raises ``ConfigError``."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read {path} ({error.strerror}); see docs/dagster.md, or set {VARIABLE} to another file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: it is not UTF-8 text, at byte {error.start}") from None


def parsed(text: str, path: Path) -> dict[str, Any]:
    """Return the fields of the file. Raises ``ConfigError``, which names the line."""
    raw = _loaded(text, path)
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must be a mapping with the field 'lakehouses'")
    return raw


def _loaded(text: str, path: Path) -> Any:
    from pipelines.source import yaml_text

    try:
        return yaml_text.load(text, str(path))
    except InvalidInput as error:
        raise ConfigError(str(error)) from None


def without_stanzas(text: str) -> str:
    """Return the text of a file without its list of lakehouses, which may be long; all of it where that is unsure."""
    found = _STANZAS.search(text)
    if found is None or "&" in text:  # an anchor may be among the stanzas, and its alias elsewhere
        return text
    rest = _TOP_LEVEL.search(text, found.end())
    return text[: found.start()] + "lakehouses: []\n" + ("" if rest is None else text[rest.start() :])


# -- stanzas, unchecked ------------------------------------------------------------------------------------


def raw_stanzas(text: str, path: Path, raw: Mapping[str, Any] | None = None) -> list[Any]:
    """Return the stanzas of a file, with ``{here}`` filled in. Raises ``ConfigError``, also for two of one name.

    ``raw``: the fields of the file, if they are parsed already.
    """
    stanzas = (parsed(text, path) if raw is None else raw).get("lakehouses")
    if not isinstance(stanzas, list):
        raise ConfigError(f"{path}: lakehouses: required, but missing: a list of lakehouses")
    names: dict[str, int] = {}
    for number, stanza in enumerate(stanzas):
        name = stanza.get("name") if isinstance(stanza, Mapping) else None
        if isinstance(name, str) and names.setdefault(name, number) != number:
            first, second = (_line(text, each) for each in (names[name], number))
            raise ConfigError(f"{path}, line {second}: there is a lakehouse {name!r} already, at line {first}")
    fill_in_here(stanzas, path)
    return stanzas


def _line(text: str, number: int) -> int:
    """Return the line at which a stanza begins."""
    import yaml

    root: Any = yaml.compose(text, yaml.SafeLoader)
    stanzas = next(value for key, value in root.value if key.value == "lakehouses")
    return int(stanzas.value[number].start_mark.line) + 1


def refuse_unknown_fields(raw: Any, where: str) -> None:
    """Raise ``ConfigError`` for a field of a stanza that does not exist: it may be another one, misspelt."""
    wrong = [str(each) for each in raw if each not in FIELDS] if isinstance(raw, Mapping) else []
    if wrong:
        close = difflib.get_close_matches(wrong[0], FIELDS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"{where}: {wrong[0]}: unknown field{hint}")


def quick_stanza(text: str, path: Path, name: str) -> Any:
    """Return the stanza of a lakehouse if it can be found without parsing the others, else ``None``."""
    if "&" in text:
        return None
    for match in re.finditer(
        rf"^( *)- (?:\{{ *)?name: *[\"']?{re.escape(name)}[\"']?(?=[ ,}}#\n])", text, re.MULTILINE
    ):
        following = re.compile(rf"^(?:{match[1]}- |\S)", re.MULTILINE).search(text, match.end())
        try:
            stanzas = _loaded(text[match.start() : None if following is None else following.start()], path)
        except ConfigError:
            return None
        if isinstance(stanzas, list) and len(stanzas) == 1 and stanzas[0].get("name") == name:
            fill_in_here(stanzas, path)
            return stanzas[0]
    return None


def fill_in_here(stanzas: Sequence[Any], path: Path) -> None:
    """Replace ``{here}`` in root URIs by the directory of the file."""
    here = path.absolute().parent.as_posix()
    for stanza in stanzas:
        places = [(stanza, "root")]
        places += [(stanza.get(name), "target") for name in _COPIES] if isinstance(stanza, dict) else []
        for where, name in places:
            if isinstance(where, dict) and isinstance(where.get(name), str):
                where[name] = where[name].replace(_HERE, here)


def label(raw: Any, number: int) -> str:
    """Return the name of a stanza in an error: its name, or else its number from 1."""
    name = raw.get("name") if isinstance(raw, Mapping) else None
    return f"lakehouse {name!r}" if isinstance(name, str) and name else f"lakehouse number {number}"


# -- values ------------------------------------------------------------------------------------------------


def required_text(raw: Any, field: str, where: str) -> str:
    """Return a field of a stanza, or of a part of one, that must be text. Raises ``ConfigError``, with ``where``."""
    value = raw.get(field.rpartition(".")[2]) if isinstance(raw, Mapping) else None
    if value is None:
        raise ConfigError(f"{where}: {field}: required, but missing")
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {field}: must be text")
    return value


def options(raw: Any, field: str, where: str) -> Mapping[str, Any]:
    """Return a field that must be a mapping of options, if it is given. Raises ``ConfigError``."""
    value = raw.get(field.rpartition(".")[2]) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {field}: must be a mapping of names to values")
    return value


def look_up(value: Any, where: str = "", name: str = "") -> Any:
    """Return options with each ``{env: NAME}`` looked up.

    Raises ``InvalidInput``, which begins with ``where``: a variable is not set, or a secret stands in the file.
    """
    if not isinstance(value, Mapping):
        if looks_secret(name, value):
            raise InvalidInput(f"{where}: {REFUSED}")
        return value
    if "env" in value:
        return variable(str(value["env"]), where)
    return {each: look_up(inner, f"{where}.{each}" if where else str(each), str(each)) for each, inner in value.items()}


def looks_secret(name: str, value: Any) -> bool:
    """Whether an option is a secret by its name, and its value stands in the file."""
    return isinstance(value, str) and _SECRET_NAME.search(name) is not None


def variable(name: str, where: str = "") -> str:
    """Return the value of an environment variable. Raises ``InvalidInput`` if it is not set."""
    value = os.environ.get(name)
    if not value:
        raise InvalidInput(f"{where and where + ': '}the environment variable {name} is not set")
    return value
