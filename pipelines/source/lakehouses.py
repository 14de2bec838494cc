"""``lakehouses.yaml``: the one reader, for the command line, for surveys of a fleet and for Dagster.

Reading it touches no storage and starts nothing. The users of a stanza check what it contains: Dagster all of it
(``docs/dagster.md``), the others what they need. An error names the file, the line or the stanza, and the field.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trinitylake_core.errors import InvalidInput

_SECRET_BYTES: Final = 64 << 10
REFUSED: Final = "looks like a secret, which does not belong in this file; write {file: PATH} or {env: NAME}"
_SECRET_NAME: Final = re.compile(
    r"secret|password|passwd|token|credential|(^|[._-])(access_?)?key($|[._-])", re.IGNORECASE
)
VARIABLE: Final = "TRINITYLAKE_LAKEHOUSES"
FILE_NAME: Final = "lakehouses.yaml"
FIELDS: Final = (
    *("name", "root", "description", "owners", "storage_options", "spark", "schedules", "health", "compaction"),
    *("snapshots", "retention", "orphans", "tables", "assets", "backup", "export", "timeout"),
)
"""The fields of a stanza; what they may hold is checked by those who use them."""
_OTHER_FIELDS: Final = """\
warehouse: `root` says where a lakehouse is
uri: `root` says where a lakehouse is
path: `root` says where a lakehouse is
location: `root` says where a lakehouse is
storage: `storage_options: {endpoint_url: ...}`
retention_days: `retention: {older_than: 7d}`
retention.days: `retention: {older_than: 7d}`
keep_last: `retention: {keep_last: 100}`
orphan_removal: `orphans: {older_than: 3d}`
orphans.enabled: leave out `orphans`, and no orphan is removed
retention.enabled: leave out `retention`, and no version expires
cron: `schedules: {maintenance: "0 3 * * *"}`
compaction.schedule: `schedules: {maintenance: "0 3 * * *"}`
compaction.cron: `schedules: {maintenance: "0 3 * * *"}`
notifications.slack_webhook: `webhook` receives failures as JSON
notifications.slack: `webhook` receives failures as JSON
notifications.url: `webhook` receives failures as JSON
"""
"""What people write that no field is called, and what they mean."""
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
    if not named:
        return None
    return Path(named).expanduser().absolute()


def read(path: Path) -> str:
    """Return the text of the file. Raises ``ConfigError``, also for one that others wrote and nobody named."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            if path.absolute() != named_file():
                _refuse_of_others(path, os.fstat(file.fileno()))
            return file.read()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path} ({error.strerror}); see docs/dagster.md, or set {VARIABLE} to another file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: it is not UTF-8 text, at byte {error.start}") from None


def _refuse_of_others(path: Path, found: os.stat_result) -> None:
    """Refuse a file that another user wrote, or may change: it names variables and files, and where they are sent."""
    trusted = {0, os.getuid(), Path(__file__).stat().st_uid}  # whose this program is could change that as well
    if found.st_uid not in trusted:
        why = "belongs to another user"
    elif found.st_mode & stat.S_IWOTH:
        why = "can be changed by every user of this machine"
    else:
        return
    raise ConfigError(f"{path} was not read, because it {why}; set {VARIABLE} to it if you trust it")


def parse_fields(text: str, path: Path, *, mark_twice: bool = False) -> dict[str, Any]:
    """Return the fields of the file. Raises ``ConfigError``, which names the line.

    ``mark_twice``: the caller reports a field that is there twice, as the unknown field ``name (twice)``.
    """
    raw = _load_yaml(text, path, mark_twice=mark_twice)
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must be a mapping with the field 'lakehouses'")
    return raw


def _load_yaml(text: str, path: Path, *, mark_twice: bool = False) -> Any:
    from trinitylake_core import yaml_text

    try:
        return yaml_text.load(text, str(path), mark_twice=mark_twice)
    except InvalidInput as error:
        raise ConfigError(str(error)) from None


def without_stanzas(text: str) -> str:
    """Return the text of a file without its list of lakehouses, which may be long; all of it where that is unsure."""
    found = _STANZAS.search(text)
    if found is None or "&" in text:  # an anchor may be among the stanzas, and its alias elsewhere
        return text
    before = text[: found.start()]
    behind = _TOP_LEVEL.search(text, found.end())
    if behind is None:
        return f"{before}lakehouses: []\n"
    return f"{before}lakehouses: []\n{text[behind.start() :]}"


# -- stanzas, unchecked ------------------------------------------------------------------------------------


def raw_stanzas(text: str, path: Path, raw: Mapping[str, Any] | None = None, *, may_repeat: bool = False) -> list[Any]:
    """Return the stanzas of a file, with ``{here}`` filled in. Raises ``ConfigError``, also for two of one name.

    ``raw``: the fields of the file, if they are parsed already.
    ``may_repeat``: the caller reports two of one name, and fields that are there twice.
    """
    if raw is None:
        raw = parse_fields(text, path, mark_twice=may_repeat)
    if "lakehouses (twice)" in raw:  # those of the second list would be taken for removed
        raise ConfigError(f"{path}: lakehouses: the file has two such lists; make one of them")
    stanzas = raw.get("lakehouses")
    if not isinstance(stanzas, list):
        raise ConfigError(f"{path}: lakehouses: required, but missing: a list of lakehouses")
    numbers: dict[str, int] = {}
    for number, stanza in enumerate(stanzas):
        name = name_of(stanza)
        if name is None:
            continue  # who uses the stanza reports it
        first = numbers.setdefault(name, number)
        if first != number and not may_repeat:
            from trinitylake_core.yaml_text import line_of

            at = line_of(text, "lakehouses", number)
            before = line_of(text, "lakehouses", first)
            raise ConfigError(f"{path}, line {at}: there is a lakehouse {name!r} already, at line {before}")
    fill_in_here(stanzas, path)
    return stanzas


def describe_unknown(field: str, known: Iterable[str]) -> str:
    """Return what is told of a field that does not exist: it may be another one, by another name or misspelt."""
    words = dict(line.split(": ", 1) for line in _OTHER_FIELDS.splitlines())
    if field in words:
        return f"unknown field; {words[field]}"
    close = difflib.get_close_matches(field, known, n=1)
    if close and "." not in field:
        return f"unknown field; did you mean {close[0]!r}?"
    return "unknown field"


def refuse_unknown_fields(raw: Any, where: str) -> None:
    """Raise ``ConfigError`` for a field of a stanza that does not exist: it may be another one, misspelt."""
    if not isinstance(raw, Mapping):
        return  # who uses the stanza reports it
    for field in map(str, raw):
        if field not in FIELDS:
            raise ConfigError(f"{where}: {field}: {describe_unknown(field, FIELDS)}")


def quick_stanza(text: str, path: Path, name: str) -> Any:
    """Return the stanza of a lakehouse if it can be found without parsing the others, else ``None``."""
    if "&" in text:  # an anchor may be elsewhere
        return None
    quoted = re.escape(name)
    begins = re.compile(rf"^( *)- (?:\{{ *)?name: *[\"']?{quoted}[\"']?(?=[ ,}}#\n])", re.MULTILINE)
    matches = list(begins.finditer(text))
    if len(matches) > 1:  # two of one name, or a name inside of another stanza
        return None
    for match in matches:
        # It ends where the next item of the list begins, or the next field of the file.
        indent = match[1]
        ends = re.compile(rf"^(?:{indent}- |\S)", re.MULTILINE).search(text, match.end())
        if ends is None:
            end = len(text)
        else:
            end = ends.start()
        try:
            stanzas = _load_yaml(text[match.start() : end], path)
        except ConfigError:
            return None
        is_one = isinstance(stanzas, list) and len(stanzas) == 1
        if is_one and stanzas[0].get("name") == name:
            fill_in_here(stanzas, path)
            return stanzas[0]
    return None


def fill_in_here(stanzas: Sequence[Any], path: Path) -> None:
    """Replace ``{here}`` in root URIs by the directory of the file."""
    here = path.absolute().parent.as_posix()
    for stanza in stanzas:
        if not isinstance(stanza, dict):
            continue
        _fill_in(stanza, "root", here)
        for name in _COPIES:
            _fill_in(stanza.get(name), "target", here)


def _fill_in(fields: Any, name: str, here: str) -> None:
    if isinstance(fields, dict) and isinstance(fields.get(name), str):
        fields[name] = fields[name].replace(_HERE, here)


def name_of(raw: Any) -> str | None:
    """Return the name of a stanza; ``None`` if it has none, or one that is no text."""
    name = raw.get("name") if isinstance(raw, Mapping) else None
    return name if isinstance(name, str) and name else None


def label(raw: Any, number: int) -> str:
    """Return the name of a stanza in an error: its name, or else its number from 1."""
    name = name_of(raw)
    if name is not None:
        return f"lakehouse {name!r}"
    return f"lakehouse number {number}"


# -- values ------------------------------------------------------------------------------------------------


def required_text(raw: Any, field: str, where: str) -> str:
    """Return a field of a stanza, or of a part of one, that must be text. Raises ``ConfigError``, with ``where``."""
    _, _, name = field.rpartition(".")
    value = None
    if isinstance(raw, Mapping):
        value = raw.get(name)
    if value is None:
        raise ConfigError(f"{where}: {field}: required, but missing")
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {field}: must be text")
    return value


def options(raw: Any, field: str, where: str) -> Mapping[str, Any]:
    """Return a field that must be a mapping of options, if it is given. Raises ``ConfigError``."""
    _, _, name = field.rpartition(".")
    value = raw.get(name) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {field}: must be a mapping of names to values")
    return value


def look_up(value: Any, where: str = "", name: str = "") -> Any:
    """Return options with each ``{env: NAME}`` and ``{file: PATH}`` looked up.

    Raises ``InvalidInput``, which begins with ``where``: a variable is not set, a file cannot be read, or a secret
    stands in the options.
    """
    if not isinstance(value, Mapping):
        if looks_secret(name, value):
            raise InvalidInput(f"{where}: {REFUSED}")
        return value
    if is_source(value):
        return read_source(value, where)
    found = {}
    for each, inner in value.items():
        if where:
            inner_where = f"{where}.{each}"
        else:
            inner_where = str(each)
        found[each] = look_up(inner, inner_where, str(each))
    return found


def looks_secret(name: str, value: Any) -> bool:
    """Whether an option is a secret by its name, and its value stands in the file."""
    return isinstance(value, str) and _SECRET_NAME.search(name) is not None


def is_source(value: Mapping[str, Any]) -> bool:
    """Whether a value says where it stands: ``{env: NAME}`` or ``{file: PATH}``."""
    return "env" in value or "file" in value


def read_source(value: Mapping[str, Any], where: str) -> str:
    """Return the value that stands where another one says. Raises ``InvalidInput``."""
    if "env" in value:
        return read_variable(str(value["env"]), where)
    return read_secret_file(str(value["file"]), where)


def read_secret_file(path: str, where: str) -> str:
    """Return the text of a file without the ends of lines behind it; it is read each time, and kept nowhere.

    A name without a directory is one of the credentials that systemd gives to a unit (``LoadCredential=``).

    Raises ``InvalidInput``: there is no such file, it cannot be read, is empty, no text, or larger than a secret is.
    """
    place = ""
    if where:
        place = f"{where}: "
    own = os.environ.get("CREDENTIALS_DIRECTORY")
    found = Path(own or "", path)
    if not found.is_absolute():
        raise InvalidInput(f"{place}{path!r} is no absolute path, and this process has no CREDENTIALS_DIRECTORY")
    text = ""
    try:
        is_odd = found.exists() and not found.is_file()
        if not is_odd:  # nobody may ever write into a pipe
            with found.open("rb") as file:
                text = file.read(_SECRET_BYTES + 1).decode("utf-8-sig").rstrip("\r\n")
    except OSError as error:
        raise InvalidInput(f"{place}the file {path!r} cannot be read: {error.strerror}") from None
    except ValueError:
        raise InvalidInput(f"{place}the file {path!r} is no text") from None
    if is_odd:
        raise InvalidInput(f"{place}the file {path!r} is a directory, a pipe or a device")
    if not text or len(text) > _SECRET_BYTES:
        raise InvalidInput(f"{place}the file {path!r} is empty, or longer than {_SECRET_BYTES} characters")
    if "\0" in text:
        raise InvalidInput(f"{place}the file {path!r} is no text")
    return text


def read_variable(name: str, where: str) -> str:
    """Return the value of an environment variable. Raises ``InvalidInput`` if it is not set."""
    value = os.environ.get(name)
    if value:
        return value
    place = ""
    if where:
        place = f"{where}: "
    raise InvalidInput(f"{place}the environment variable {name} is not set")
