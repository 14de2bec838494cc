"""The density check counts what it says that it counts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "density.py"


@pytest.fixture(name="density", scope="module")
def _density() -> ModuleType:
    spec = importlib.util.spec_from_file_location("density", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["density"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_docstrings_comments_and_empty_lines_are_no_code(density: ModuleType) -> None:
    docstrings = '"""About.\n\nMore.\n"""\n\ndef read():\n    """Read."""\n'
    source = docstrings + '    # why\n\n    return "text"  # a comment behind code\n'
    assert 2 == density.measure_file(source, "a.py").lines


def test_a_function_is_dense_only_if_it_is_long(density: ModuleType) -> None:
    dense_line = "    x = [a + b for a, b in zip(c, d) if a < b and not (a == b or c[a] != d[b])]\n"
    short = density.measure_file("def read():\n" + dense_line * 6, "a.py")
    long = density.measure_file("def read():\n" + dense_line * 7, "a.py")
    assert [] == short.dense
    assert ["a.py:1 read"] == [place for _, place in long.dense]


@pytest.mark.parametrize("name", ["seen", "_counted", "written", "left_out", "need", "read", "report_seen", "content"])
def test_a_participle_alone_is_no_name(density: ModuleType, name: str) -> None:
    assert (name in {"seen", "_counted", "written"}) == density.is_bare_participle(name)


def test_what_is_too_large_is_said(density: ModuleType) -> None:
    small, large = density.Size("words", 3, 3), density.Size("lines", 4, 3)
    assert ["4 lines are more than 3: what can go for what has come?"] == [*density.exceeded_sizes([small, large])]
