"""What people write for a root: a URI, a path, or the name of a lakehouse in ``lakehouses.yaml``.

The file is the one that ``TRINITYLAKE_LAKEHOUSES`` names, or the nearest one from the current directory upwards, as git
finds its repository. Of a stanza only ``name``, ``root`` and ``storage_options`` are read here (``docs/dagster.md``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pipelines import lakehouses
from pipelines.lakehouses import FILE_NAME
from trinitylake_core.errors import InvalidInput

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


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
    path = found_file()
    known = {} if path is None else _stanzas(path)
    if text in known:
        stanza, where = known[text], f"{path}: lakehouse {text!r}"
        given = lakehouses.options(stanza, "storage_options", where)
        return stanza["root"], lakehouses.looked_up(given, f"{where}: storage_options")
    if text in (each.name for each in Path.cwd().iterdir() if each.is_dir()):
        return uri_of(text), {}
    where = f"no {FILE_NAME} here or above" if path is None else f"{path} lists {', '.join(known) or 'none'}"
    hint = f"for a new one write {'./' + text!r}"
    raise InvalidInput(f"there is no lakehouse named {text!r} ({where}), nor a directory; {hint}")


def names() -> list[str]:
    """Return the names that ``root_of`` knows here; none where the file cannot be read."""
    path = found_file()
    try:
        return [] if path is None else list(_stanzas(path))
    except InvalidInput:
        return []


def found_file() -> Path | None:
    """Return the ``lakehouses.yaml`` whose names are known here, ``None`` where there is none."""
    here = Path.cwd()
    nearest = (each / FILE_NAME for each in (here, *here.parents) if (each / FILE_NAME).is_file())
    return lakehouses.named_file() or next(nearest, None)


def _stanzas(path: Path) -> dict[str, Mapping[str, Any]]:
    raw = lakehouses.raw_stanzas(lakehouses.read(path), path)
    stanzas = [each for each in raw if isinstance(each, Mapping) and isinstance(each.get("root"), str)]
    return {str(each.get("name")): each for each in stanzas}
