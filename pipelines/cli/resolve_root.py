"""What people write for a root, and for the options of its storage.

A root is a URI, a path, or the name of a lakehouse in ``lakehouses.yaml``.

The file is the one that ``TRINITYLAKE_LAKEHOUSES`` names, or the nearest one from the current directory upwards, as git
finds its repository. Of a stanza only ``name``, ``root`` and ``storage_options`` are read here (``docs/dagster.md``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pipelines.source import lakehouses
from pipelines.source.lakehouses import FILE_NAME
from trinitylake_core.errors import InvalidInput

VARIABLE: Final = "TRINITYLAKE_STORAGE_OPTIONS"
_FROM_ENVIRONMENT: Final = "env:"
_FROM_FILE: Final = "file:"


def storage_options(given: Sequence[str]) -> dict[str, Any]:
    """Return the storage options on a command line, texts ``KEY=VALUE``.

    The value ``env:NAME`` is that of an environment variable, ``file:PATH`` the text of a file, and one that begins
    with ``{`` is JSON.

    Raises:
        InvalidInput: a text is malformed; the message shows no value.
    """
    found: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidInput("--storage-option takes KEY=VALUE")
        found[key] = _read_value(key, value)
    return found


def applicable(options: Mapping[str, Any], uri: str) -> dict[str, Any]:
    """Return the options of the environment that are for a URI: without those that only other kinds of storage know."""
    from trinitylake_core.storage.opening import storage_kind
    from trinitylake_core.storage.option_names import is_only_for_others

    kind = storage_kind(uri)
    return {name: value for name, value in options.items() if not is_only_for_others(name, kind)}


def environment_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the storage options in ``TRINITYLAKE_STORAGE_OPTIONS``, a JSON object. Raises ``InvalidInput``.

    A value may be ``{"file": PATH}`` or ``{"env": NAME}``.
    """
    text = environment.get(VARIABLE)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidInput(f"the environment variable {VARIABLE} must hold a JSON object")
    for name, value in found.items():
        if isinstance(value, dict) and lakehouses.is_source(value):
            found[name] = lakehouses.read_source(value, f"{VARIABLE}: {name}")
    return found


def _read_value(key: str, value: str) -> Any:
    if value.startswith(_FROM_ENVIRONMENT):
        name = value.removeprefix(_FROM_ENVIRONMENT)
        if name not in os.environ:
            raise InvalidInput(f"storage option {key}: there is no environment variable {name!r}")
        return os.environ[name]
    if value.startswith(_FROM_FILE) and not value.startswith(f"{_FROM_FILE}//"):  # that is a URI
        return lakehouses.read_secret_file(value.removeprefix(_FROM_FILE), f"storage option {key}")
    if value.startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            raise InvalidInput(f"storage option {key} is not valid JSON") from None
    return value


_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def root_of(text: str, *, may_be_new: bool = False) -> tuple[str, dict[str, Any]]:
    """Return the URI and the storage options that a root means, or another place, which ``may_be_new`` here.

    Raises:
        InvalidInput: it is a plain word, and neither a name in ``lakehouses.yaml`` nor a directory here; or that file
            cannot be read, so that nobody knows whether it is a name.
    """
    if _URI.match(text) or "/" in text or text.startswith((".", "~")):
        return _to_uri(text), {}
    path = find_file()
    known = {} if path is None else _read_stanzas(path)
    if text in known:
        return _read_root(known[text], f"{path}: lakehouse {text!r}")
    if may_be_new or (Path.cwd() / text).is_dir():
        return _to_uri(text), {}
    if path is None:
        where = f"no {FILE_NAME} here or above"
    else:
        where = f"{path} lists {', '.join(known) or 'none'}"
    hint = f"ROOT comes before other words; for a new one write {'./' + text!r}"
    raise InvalidInput(f"there is no lakehouse named {text!r} ({where}), nor a directory; {hint}")


def _read_root(stanza: Mapping[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    from trinitylake_core.storage.root_uris import normalise_root  # completion needs names alone

    lakehouses.refuse_unknown_fields(stanza, where)
    root = lakehouses.required_text(stanza, "root", where)
    normalise_root(root)  # a path would mean another lakehouse in each directory
    given = lakehouses.options(stanza, "storage_options", where)
    return root, lakehouses.look_up(given, f"{where}: storage_options")


def names() -> list[str]:
    """Return the names that ``root_of`` knows here; none where the file cannot be read."""
    path = find_file()
    if path is None:
        return []
    try:
        return list(_read_stanzas(path))
    except InvalidInput:
        return []


def find_file() -> Path | None:
    """Return the ``lakehouses.yaml`` whose names are known here, ``None`` where there is none."""
    named = lakehouses.named_file()
    if named is not None:
        return named
    here = Path.cwd()
    for directory in (here, *here.parents):
        path = directory / FILE_NAME
        if path.is_file():
            return path
    return None


def _to_uri(text: str) -> str:
    from trinitylake_core.storage.root_uris import root_uri  # completion needs names alone

    return root_uri(text)


def _read_stanzas(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the stanzas by name. Raises ``ConfigError`` for one without a name, which may be misspelt."""
    found: dict[str, Mapping[str, Any]] = {}
    stanzas = lakehouses.raw_stanzas(lakehouses.read(path), path)
    for number, raw in enumerate(stanzas, 1):
        where = f"{path}: {lakehouses.label(raw, number)}"
        if not isinstance(raw, Mapping) or "name" not in raw:
            lakehouses.refuse_unknown_fields(raw, where)
        name = lakehouses.required_text(raw, "name", where)
        found[name] = raw
    return found
