"""What people write for a root: a URI, a path, or the name of a lakehouse in ``lakehouses.yaml``.

The file is the one that ``TRINITYLAKE_LAKEHOUSES`` names, or the nearest one from the current directory upwards, as git
finds its repository. Of a stanza only ``name``, ``root`` and ``storage_options`` are read here (``docs/dagster.md``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trinitylake_core.errors import InvalidInput

VARIABLE: Final = "TRINITYLAKE_LAKEHOUSES"
FILE_NAME: Final = "lakehouses.yaml"
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_HERE: Final = "{here}"


def uri_of(text: str) -> str:
    """Return a path as a URI; a URI stays as it is. Raises ``InvalidInput`` for what can be no path."""
    if _URI.match(text):
        return text
    try:
        return Path(text).expanduser().resolve().as_uri()
    except (OSError, RuntimeError, UnicodeEncodeError) as error:  # too long, an unknown ~user, bytes that are no text
        raise InvalidInput(f"{text[:100]!r} cannot be a path: {getattr(error, 'strerror', None) or error}") from None


def root_of(text: str) -> tuple[str, dict[str, Any]]:
    """Return the URI and the storage options that a root means.

    Raises:
        InvalidInput: it is a plain word, and neither a name in ``lakehouses.yaml`` nor a directory here.
    """
    if _URI.match(text) or "/" in text or text.startswith((".", "~")):
        return uri_of(text), {}
    path = _file()
    known = {} if path is None else _stanzas(path)
    if text in known:
        stanza = known[text]
        root = str(stanza.get("root", "")).replace(_HERE, path.parent.as_posix() if path else "")
        return root, {name: _value(name, each) for name, each in (stanza.get("storage_options") or {}).items()}
    if text in (each.name for each in Path.cwd().iterdir() if each.is_dir()):
        return uri_of(text), {}
    where = f"no {FILE_NAME} here or above" if path is None else f"{path} lists {', '.join(known) or 'none'}"
    hint = f"for a new one write {'./' + text!r}"
    raise InvalidInput(f"there is no lakehouse named {text!r} ({where}), nor a directory; {hint}")


def names() -> list[str]:
    """Return the names that ``root_of`` knows here; none where the file cannot be read."""
    path = _file()
    try:
        return [] if path is None else list(_stanzas(path))
    except InvalidInput:
        return []


def _file() -> Path | None:
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser().absolute()
    here = Path.cwd()
    return next((each / FILE_NAME for each in (here, *here.parents) if (each / FILE_NAME).is_file()), None)


def _stanzas(path: Path) -> dict[str, Mapping[str, Any]]:
    import yaml

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise InvalidInput(f"{path} is not YAML") from None
    found = raw.get("lakehouses") if isinstance(raw, Mapping) else None
    stanzas = [each for each in found or [] if isinstance(each, Mapping) and isinstance(each.get("root"), str)]
    return {str(each.get("name")): each for each in stanzas}


def _value(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "env" not in value:
        return {inner: _value(inner, each) for inner, each in value.items()}
    if not os.environ.get(str(value["env"])):
        raise InvalidInput(f"storage option {name}: the environment variable {value['env']} is not set")
    return os.environ[str(value["env"])]
