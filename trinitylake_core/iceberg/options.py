"""The properties of a catalog ↔ the storage options of its lakehouse (``docs/storage.md``).

A property ``storage.NAME`` is the storage option NAME. PyIceberg's own ``s3.*`` mean the same in its words; each side
is derived from the other where only one is given, so that the files of tables and of the lakehouse are read with the
same credentials. On an object store the FileIO is one of ours (``storage_io``), which gets all options of the storage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyiceberg import io
from pyiceberg.typedef import Properties

from trinitylake_core.errors import InvalidInput

PREFIX: Final = "storage."
LAKEHOUSE_ROOT: Final = "lakehouse-root"
"""The property by which our FileIO knows to which storage the options belong."""
_FILE_IO: Final = "trinitylake_core.iceberg.storage_io.StorageFileIO"
_SAME: Final = {
    io.S3_ENDPOINT: "endpoint_url",
    io.S3_ACCESS_KEY_ID: "key",
    io.S3_SECRET_ACCESS_KEY: "secret",
    io.S3_SESSION_TOKEN: "token",
    io.S3_REGION: "region",
    io.S3_PROFILE_NAME: "profile",
    io.S3_ANONYMOUS: "anon",
    io.S3_CONNECT_TIMEOUT: "connect_timeout",
    io.S3_REQUEST_TIMEOUT: "read_timeout",
}
_NUMBERS: Final = frozenset({"connect_timeout", "read_timeout"})


def storage_options(root: str, properties: Properties) -> dict[str, Any]:
    """Return the storage options in catalog properties; ``s3.*`` count only for a root on S3.

    Raises ``InvalidInput``: a property that must be a number, or begins as JSON does, is none.
    """
    options = own_options(properties)
    if root.lower().startswith("s3"):
        for theirs, ours in _SAME.items():
            if theirs in properties:
                options.setdefault(ours, _number(theirs, properties) if ours in _NUMBERS else properties[theirs])
        if io.S3_FORCE_VIRTUAL_ADDRESSING in properties:
            virtual = str(properties[io.S3_FORCE_VIRTUAL_ADDRESSING]).lower() == "true"
            options.setdefault("path_style", not virtual)
    return options


def own_options(properties: Properties) -> dict[str, Any]:
    """Return the storage options that properties name as such.

    Raises ``InvalidInput``: one begins as JSON does, and is none.
    """
    options = {name.removeprefix(PREFIX): value for name, value in properties.items() if name.startswith(PREFIX)}
    for name, value in options.items():
        if isinstance(value, str) and value.startswith("{"):
            try:
                options[name] = json.loads(value)
            except ValueError:  # its text holds the value, which may be a secret
                raise InvalidInput(f"the property {PREFIX + name!r} begins like JSON, and is none") from None
    return options


def file_io_properties(root: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of PyIceberg's FileIO for a storage; none for a disk, which PyIceberg knows.

    They are what our FileIO needs, and for S3 also the credentials and the endpoint in PyIceberg's words, for those who
    configure one of its own.
    """
    scheme = root.partition("://")[0].lower()
    if scheme == "file":
        return {}
    found = {f"{PREFIX}{name}": _text(value) for name, value in options.items() if value is not None}
    found |= {io.PY_IO_IMPL: _FILE_IO, LAKEHOUSE_ROOT: root}
    if not scheme.startswith("s3"):
        return found
    for theirs, ours in _SAME.items():
        value = options.get(ours)
        if value is not None:
            found[theirs] = _text(value)
    if "region_name" in options:
        found.setdefault(io.S3_REGION, _text(options["region_name"]))
    path_style = options.get("path_style", "endpoint_url" in options)
    found[io.S3_FORCE_VIRTUAL_ADDRESSING] = _text(str(path_style).lower() != "true")
    return found


def _number(name: str, properties: Properties) -> float:
    try:
        return float(properties[name])
    except (TypeError, ValueError):
        raise InvalidInput(f"the property {name!r} must be a number of seconds") from None


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
