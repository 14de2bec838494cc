"""Lists that must be complete: sections and system rows of docs/format.md, the terms of docs/concepts.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("trinitylake_core", "pipelines", "dagster_project")


def test_the_code_cites_sections_that_the_format_has() -> None:
    """docs/format.md numbers its sections from 1 without gaps; ``(format, section N)`` names one of them."""
    text = (ROOT / "docs/format.md").read_text(encoding="utf-8")
    numbers = re.findall(r"^## (\d+)\. ", text, re.MULTILINE)
    assert [str(number) for number in range(1, len(numbers) + 1)] == numbers
    assert [] == re.findall(r"^## (?!\d+\. ).*", text, re.MULTILINE)
    code = "\n".join(path.read_text(encoding="utf-8") for each in PACKAGES for path in (ROOT / each).rglob("*.py"))
    cited = re.findall(r"format(?:\.md)?`*,\s+sections?\s+([\d, and]+)", code)
    assert len(cited) > 50
    assert set() == {number for each in cited for number in re.findall(r"\d+", each)} - set(numbers)


def test_the_format_explains_every_system_row() -> None:
    """Each system row of spec.py stands in a list of docs/format.md; a new row needs one line there."""
    spec = (ROOT / "trinitylake_core/spec.py").read_text(encoding="utf-8")
    rows = set(
        re.findall(r'^[A-Z_]+: Final = "([a-z]+(?:_[a-z]+)*)"$', spec.partition("# System-internal")[2], re.MULTILINE)
    )
    operations = set(re.findall(r'^OP_[A-Z_]+: Final = "([a-z]+)"$', spec, re.MULTILINE))
    assert {"lakehouse_def", "summary", "txn"} <= rows
    terms = re.findall(r"^\* (`.+?): ", (ROOT / "docs/format.md").read_text(encoding="utf-8"), re.MULTILINE)
    explained = {name for term in terms for name in re.findall(r"`([a-z_]+)`", term)}
    assert set() == rows - operations - explained


def test_the_glossary_explains_each_term_once() -> None:
    """A term with two lines would have two meanings."""
    page = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    text = page.partition("## Glossary")[2]
    terms = re.findall(r"^\| (?!Term|-)(.+?) \|", text, re.MULTILINE)
    assert sorted(set(terms)) == sorted(terms)
    assert len(terms) > 10
