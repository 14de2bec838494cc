"""Finds the objects that people mean by the names that they type."""

from __future__ import annotations

from collections.abc import Iterator

from trinitylake_core import Lakehouse, ObjectEntry
from trinitylake_core.errors import InvalidInput, InvalidName, ObjectNotFound
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, ObjectName
from trinitylake_core.recovery.patterns import Pattern
from trinitylake_core.tree.search import lookup


def readings(text: str, kind: str | None = None, namespace: str | None = None) -> Iterator[ObjectName]:
    r"""Yield every object that ``sales.orders`` may mean: names may contain dots, so any dot may be the separator.

    In a text with a backslash, such as ``a\.b.c``, it is the one without.

    Args:
        text: the name of an object; with ``namespace`` that of a table or view in it.
        kind: only ``namespace``, ``table`` or ``view``.
        namespace: the namespace, if it is known.
    """
    if kind in {None, NAMESPACE} and namespace is None:
        yield ObjectName(NAMESPACE, text)
    if namespace is None and "\\" in text:
        yield from (each for each in Pattern(text).readings() if kind in {None, each.kind})
    splits = [(namespace, text)] if namespace is not None else _splits(text)
    for each in (TABLE, VIEW):
        if kind in {None, each}:
            for left, right in splits:
                yield ObjectName(each, left, right)


def _splits(text: str) -> list[tuple[str, str]]:
    dots = [index for index, character in enumerate(text) if character == "."]
    return [(text[:dot], text[dot + 1 :]) for dot in dots if text[:dot] and text[dot + 1 :]]


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


def find_object(lake: Lakehouse, text: str, *, kind: str | None = None, namespace: str | None = None) -> ObjectEntry:
    """Return the object that ``text`` names.

    Raises:
        ObjectNotFound: there is none.
        InvalidInput: there are several; the message lists them.
    """
    found = [
        ObjectEntry(name.kind, name.namespace, name.name, key, path)
        for key, name in keys_of(lake, readings(text, kind, namespace)).items()
        if (path := lookup(lake.nodes, lake.root_node.node, key)) is not None
    ]
    if not found:
        shown = text if namespace is None else f"{namespace}.{text}"
        raise ObjectNotFound(f"there is no {kind or 'object'} {shown!r} in version {lake.version}")
    if len(found) > 1:
        meant = ", ".join(f"{each.kind} {each.name or ''!r} in {each.namespace!r}" for each in found)
        raise InvalidInput(f"{text!r} is ambiguous: {meant}; choose one with --kind or --namespace")
    return found[0]


def destination(lake: Lakehouse, text: str, namespace: str | None, current: str) -> tuple[str, str]:
    """Return the namespace and the name that a new name means: names may contain dots, namespaces must exist.

    Raises:
        ObjectNotFound: there is no such namespace.
        InvalidInput: several readings have one; the message lists them.
    """
    if namespace is not None or "." not in text:
        return namespace or current, text
    splits = [each for each in _splits(text) if _is_namespace(lake, each[0])]
    if not splits:
        raise ObjectNotFound(
            f"no namespace in {text!r} exists in version {lake.version}; --to-namespace names one apart from the name"
        )
    if len(splits) > 1:
        meant = ", ".join(f"{name!r} in {left!r}" for left, name in splits)
        raise InvalidInput(f"{text!r} is ambiguous: {meant}; choose one with --to-namespace")
    return splits[0]


def _is_namespace(lake: Lakehouse, name: str) -> bool:
    try:
        return next(lake.objects(name, NAMESPACE), None) is not None
    except InvalidName:
        return False
