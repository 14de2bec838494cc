"""YAML that people write, bounded before any of it is built: its depth, and what its aliases expand to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

from trinitylake_core.errors import InvalidInput

DEPTH_MAX: Final = 200
"""Deeper than 64 columns in one another, as ``show --json`` prints them; libyaml's own recursion ends the process."""
TWICE: Final = " (twice)"
EXPANDED_MAX: Final = 1_000_000
"""The number of values that the aliases of a text may stand for."""
_FAST: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with it


def load(text: str, name: str, *, what: str = "not YAML", mark_twice: bool = False) -> Any:
    """Return the value of a YAML text.

    Args:
        text: the text.
        name: the name of the text in errors.
        what: begins the reason of an error of syntax.
        mark_twice: a key that a mapping has twice becomes ``key (twice)`` there, for a caller who refuses unknown keys:
            then it is a mistake of what holds the mapping, and not of the whole text.

    Raises:
        InvalidInput: it is no YAML, too deep or too large with its aliases expanded, or a mapping has a key twice. The
            message names the text and the line.
    """
    try:
        return _load(text, name, _Marking if mark_twice else _Fast)
    except yaml.MarkedYAMLError as error:
        place = name
        if error.problem_mark is not None:
            place = f"{name}, line {error.problem_mark.line + 1}"
        problem = error.problem
        if not isinstance(error, _KeyTwice):
            problem = f"{what}: {problem}"
        raise InvalidInput(f"{place}: {problem}") from None
    except InvalidInput:
        raise
    except (yaml.YAMLError, ValueError) as error:  # an impossible date is a ValueError
        raise InvalidInput(f"{name}: {what}: {' '.join(str(error).split())}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError):  # PyYAML's, for !!bool x and the like
        raise InvalidInput(f"{name}: {what}: a value is not what its tag says") from None


def line_of(text: str, *keys: Any) -> int:
    """Return the line of a YAML text on which a value stands, by its keys from the top; of a list by its index.

    REQUIRES: the text was loaded, and has that value, perhaps by ``<<``: then it is the line of the mapping.
    """
    node: Any
    try:
        node = yaml.compose(text, _FAST)
    except yaml.YAMLError:  # each of the two takes what the other refuses
        node = yaml.compose(text, yaml.SafeLoader)
    line = 0
    for key in keys:
        if isinstance(node, yaml.SequenceNode):
            node = node.value[key]
            line = node.start_mark.line
            continue
        found = [each for each in node.value if each[0].value == str(key)]
        if not found:
            break
        line = found[-1][0].start_mark.line
        node = found[-1][1]
    return int(line) + 1


def _load(text: str, name: str, loader: type[_Fast]) -> Any:
    try:
        _refuse_unbounded(text, name)
        return yaml.load(text, loader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError:
        # The loader in C may name the line after the last one, so the other one has to fail, too.
        return yaml.load(text, _Slow)  # noqa: S506 - a safe loader


class _KeyTwice(yaml.constructor.ConstructorError):
    """A key stands twice in one mapping, where YAML would take the last one."""


class _NoKeyTwice:
    """What both loaders add to those of PyYAML: a key that is written twice in one mapping is refused."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)  # type: ignore[call-arg]
        self._checked: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Check the keys that are written, before those of ``<<`` join them."""
        if id(node) not in self._checked:
            self._checked.add(id(node))
            self._find_key_twice(node)
        super().flatten_mapping(node)  # type: ignore[misc]

    def _find_key_twice(self, node: yaml.MappingNode) -> None:
        _refuse_key_twice(node)


class _Fast(_NoKeyTwice, _FAST):  # type: ignore[misc,valid-type]
    """The loader of C."""


class _Marking(_Fast):
    """A loader that names a key that is written twice, and goes on."""

    def _find_key_twice(self, node: yaml.MappingNode) -> None:
        met = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.value += TWICE if key.value in met else ""
                met.add(key.value)


class _Slow(_NoKeyTwice, yaml.SafeLoader):
    """The loader of Python."""


def _refuse_key_twice(node: yaml.MappingNode) -> None:
    met = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        name = (key.tag, key.value)
        if name in met:
            raise _KeyTwice(None, None, f"{key.value!r} appears twice", key.start_mark)
        met.add(name)


def _refuse_unbounded(text: str, name: str) -> None:
    """Raise ``InvalidInput`` for a text that is too deep, or whose aliases stand for too much."""
    sizes: dict[str | None, int] = {}
    """The number of values that each anchor stands for."""
    inside: list[tuple[str | None, int]] = []
    """Each collection that is open: its anchor, and how many values there were before it."""
    expanded = 0
    count = 0
    for event in _events(text):
        if isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor, 0)  # an unknown one the parser reports; one in its own anchor is endless
            count += size
            expanded += size
            if expanded > EXPANDED_MAX:
                line = _line(event)
                raise InvalidInput(f"{name}, line {line}: its aliases stand for more than {EXPANDED_MAX:,} values")
        elif isinstance(event, yaml.CollectionStartEvent):
            inside.append((event.anchor, count))
            if len(inside) > DEPTH_MAX:
                line = _line(event)
                raise InvalidInput(f"{name}, line {line}: nested too deeply, more than {DEPTH_MAX} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = inside.pop()
            count += 1
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _events(text: str) -> Iterator[Any]:
    return iter(yaml.parse(text, _FAST))
