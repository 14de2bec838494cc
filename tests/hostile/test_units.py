"""Each unit of a deployment has a user of its own and the secrets that the page gives it, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_UNITS = ("serve", "code", "daemon", "webserver")


def secrets_on_the_page(unit: str) -> set[str]:
    """Return the secrets of a unit by the table *who can do what*."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| `trinitylake-{unit}`.*$", page, re.MULTILINE)
    return set(re.findall(r"`([^`]+)`", row.split("|")[-2]))


def _values(unit: str, name: str) -> list[str]:
    text = (ROOT / "deploy" / f"trinitylake-{unit}.service").read_text(encoding="utf-8")
    return re.findall(rf"^{name}=-?(\S+)$", text, re.MULTILINE)


@pytest.mark.parametrize("unit", _UNITS)
def test_a_unit_has_the_secrets_that_the_page_gives_it(unit: str) -> None:
    loaded = {each.partition(":")[0] for each in _values(unit, "LoadCredential")}
    files = {Path(each).name for each in _values(unit, "EnvironmentFile")}
    assert secrets_on_the_page(unit) == loaded | files


def test_each_unit_has_a_user_of_its_own() -> None:
    users = [user for unit in _UNITS for user in _values(unit, "User")]
    assert len(_UNITS) == len(set(users)) == len(users)
    assert "root" not in users
