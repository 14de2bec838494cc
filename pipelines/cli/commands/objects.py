"""Finds the objects that people mean by the names that they type."""

from __future__ import annotations

from collections.abc import Iterator

from trinitylake_core import Lakehouse, ObjectEntry
from trinitylake_core.errors import InvalidInput, InvalidName, ObjectNotFound
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, ObjectName
from trinitylake_core.recovery.patterns import Pattern
from trinitylake_core.tree.search import lookup


def list_readings(text: str, kind: str | None = None, namespace: str | None = None) -> Iterator[ObjectName]:
    r"""Yield every object that ``sales.orders`` may mean: names may contain dots, so any dot may be the separator.

    In a text with a backslash, such as ``a\.b.c``, it is the one without.

    Args:
        text: the name of an object; with ``namespace`` that of a table or view in it.
        kind: only ``namespace``, ``table`` or ``view``.
        namespace: the namespace, if it is known.
    """
    if namespace is None:
        if kind in {None, NAMESPACE}:
            yield ObjectName(NAMESPACE, text)
        if "\\" in text:
            for each in Pattern(text).readings():
                if kind in {None, each.kind}:
                    yield each
        splits = _split_at_dots(text)
    else:
        splits = [(namespace, text)]
    for each_kind in (TABLE, VIEW):
        if kind in {None, each_kind}:
            for left, right in splits:
                yield ObjectName(each_kind, left, right)


def _split_at_dots(text: str) -> list[tuple[str, str]]:
    """Return every way to take a text apart at a dot."""
    found = []
    for index, character in enumerate(text):
        left = text[:index]
        right = text[index + 1 :]
        if character == "." and left and right:
            found.append((left, right))
    return found


def keys_of(lake: Lakehouse, names: Iterator[ObjectName]) -> dict[str, ObjectName]:
    """Return the keys of those names that are valid in this lakehouse.

    Raises:
        InvalidName: none of them is; the error is that of the first.
    """
    keys: dict[str, ObjectName] = {}
    refused: InvalidName | None = None
    for name in names:
        try:
            keys[lake.codec.encode(name)] = name
        except InvalidName as error:
            refused = refused or error
    if not keys and refused is not None:
        raise refused
    return keys


def find_object(lake: Lakehouse, text: str, *, kind: str | None, namespace: str | None) -> ObjectEntry:
    """Return the object that ``text`` names.

    Raises:
        ObjectNotFound: there is none.
        InvalidInput: there are several; the message lists them.
    """
    readings = keys_of(lake, list_readings(text, kind, namespace))
    found: list[ObjectEntry] = []
    for key, name in readings.items():
        path = lookup(lake.nodes, lake.root_node.node, key)
        if path is None:
            continue
        found.append(ObjectEntry(name.kind, name.namespace, name.name, key, path))
    if not found:
        shown = text if namespace is None else f"{namespace}.{text}"
        raise ObjectNotFound(
            f"there is no {kind or 'object'} {shown!r} in version {lake.version}; "
            "`ls` lists what is there, `show --version V` reads another version"
        )
    if len(found) > 1:
        meant = ", ".join(f"{each.kind} {each.name or ''!r} in {each.namespace!r}" for each in found)
        raise InvalidInput(f"{text!r} is ambiguous: {meant}; choose one with --kind or --namespace")
    return found[0]


def find_destination(lake: Lakehouse, text: str, namespace: str | None, current: str) -> tuple[str, str]:
    """Return the namespace and the name that a new name means: names may contain dots, namespaces must exist.

    Raises:
        ObjectNotFound: there is no such namespace.
        InvalidInput: several readings have one; the message lists them.
    """
    if namespace is not None:
        return namespace, text
    if "." not in text:
        return current, text
    splits = [(left, right) for left, right in _split_at_dots(text) if _is_namespace(lake, left)]
    if not splits:
        raise ObjectNotFound(
            f"no namespace in {text!r} exists in version {lake.version}; --to-namespace names one apart from the name"
        )
    if len(splits) > 1:
        meant = ", ".join(f"{right!r} in {left!r}" for left, right in splits)
        raise InvalidInput(f"{text!r} is ambiguous: {meant}; choose one with --to-namespace")
    return splits[0]


def _is_namespace(lake: Lakehouse, name: str) -> bool:
    try:
        return next(lake.objects(name, NAMESPACE), None) is not None
    except InvalidName:
        return False
