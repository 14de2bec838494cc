"""The exception tree: what the module draws is what it defines."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from trinitylake_core import errors

LINE = re.compile(r"^((?:│   |    )*)[├└]── (\w+)  +(.+)$")


def _drawn(drawing: str) -> Iterator[tuple[str, str]]:
    """Yield each class of a drawing with the class that it hangs from."""
    path = ["TrinityLakeError"]
    for line in drawing.splitlines():
        match = LINE.match(line)
        if match is not None:
            del path[len(match[1]) // 4 + 1 :]
            yield match[2], path[-1]
            path.append(match[2])


def _ours(kind: type) -> bool:
    return issubclass(kind, errors.TrinityLakeError) and kind.__module__ == errors.__name__


def test_the_drawing_shows_every_class_below_its_base() -> None:
    """The tree at the top of the module has one line for each class, hung from its base class."""
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if _ours(kind)]
    defined = {kind.__name__: base.__name__ for kind in classes for base in kind.__bases__ if _ours(base)}
    drawn = list(_drawn(errors.__doc__ or ""))
    assert len(drawn) == len(dict(drawn)), "a class is drawn twice"
    assert defined == dict(drawn)


def test_the_comparison_notices_a_class_on_the_wrong_branch() -> None:
    """A branch that is not indented hangs from the root of the tree."""
    right = "└── StorageError   it failed\n    └── StorageDenied   no permission\n"
    wrong = right.replace("    └──", "└──")
    assert "StorageError" == dict(_drawn(right))["StorageDenied"]
    assert "TrinityLakeError" == dict(_drawn(wrong))["StorageDenied"]
