"""The documents that list what there is: the glossary has every system row."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_glossary_explains_every_system_row() -> None:
    """Each system row of spec.py is a term of docs/glossary.md; a new row needs one line there."""
    spec = (ROOT / "trinitylake_core/spec.py").read_text(encoding="utf-8")
    rows = set(
        re.findall(r'^[A-Z_]+: Final = "([a-z]+(?:_[a-z]+)*)"$', spec.partition("# System-internal")[2], re.MULTILINE)
    )
    operations = set(re.findall(r'^OP_[A-Z_]+: Final = "([a-z]+)"$', spec, re.MULTILINE))
    assert {"lakehouse_def", "summary", "txn"} <= rows
    terms = re.findall(r"^\| (.+?) \|", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    explained = {name for term in terms for name in re.findall(r"`([a-z_]+)`", term)}
    assert set() == rows - operations - explained


def test_the_glossary_explains_each_term_once() -> None:
    """A term with two lines would have two meanings."""
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").partition("## System rows")[0]
    terms = re.findall(r"^\| (?!Term|-)(.+?) \|", text, re.MULTILINE)
    assert sorted(set(terms)) == sorted(terms)
    assert len(terms) > 50
