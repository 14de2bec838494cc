"""Keys of requests, and where they are looked for, rule by rule; ``test_rest_repeats`` has whole endpoints."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.core.test_costs import cost
from tests.support.lakes import FAST
from trinitylake_core import Lakehouse, clock, spec
from trinitylake_core.errors import CommitConflict, InvalidInput, OutcomeUnknown
from trinitylake_core.transactions import requests
from trinitylake_core.transactions.group import CommitGroup, Entry
from trinitylake_core.transactions.requests import (
    Repeated,
    RequestKey,
    Requests,
    as_iso_duration,
    asked_by,
    current_request,
)
from trinitylake_core.versions import RootRows
from trinitylake_core.versions import root as root_module
from trinitylake_core.versions.root import Member

MINUTE = 60_000


def key_of(millis: int) -> RequestKey:
    """Return a key with a client's time, whatever the clock says."""
    text = f"{millis:012x}7{secrets.token_hex(10)}"
    return RequestKey(f"{text[:8]}-{text[8:12]}-{text[12:16]}-8{text[17:20]}-{text[20:32]}", "asked")


# -- a key by itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "lifetime", "is_taken"),
    [
        (30 * MINUTE + MINUTE, 30 * MINUTE, True),
        (30 * MINUTE + MINUTE + 1, 30 * MINUTE, False),
        (2 * 1000, 1000, True),  # of a short lifetime no more than it is long
        (2 * 1000 + 1, 1000, False),
        (-MINUTE, 30 * MINUTE, True),
        (-MINUTE - 1, 30 * MINUTE, False),
    ],
)
def test_a_key_is_neither_too_old_nor_from_the_future(
    age: int, lifetime: int, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of(clock.now_millis())
    monkeypatch.setattr(clock, "now_millis", lambda: key.millis + age)
    if is_taken:
        assert key == RequestKey.of(key.id.upper(), "asked", lifetime)
        return
    with pytest.raises(OutcomeUnknown, match=r"older than (30m|1s):|60 s ahead of the server's clock"):
        RequestKey.of(key.id, "asked", lifetime)


@pytest.mark.parametrize("text", ["", "x", "a" * 36, "550e8400-e29b-41d4-a716-446655440000"])
def test_a_key_is_a_uuid_of_version_7(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be a UUIDv7"):
        RequestKey.of(text, "asked")


def test_a_version_is_not_older_than_its_key(tmp_path: Path) -> None:
    root = Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST).root_node
    key = key_of(clock.now_millis())
    key.refuse_earlier(key.millis - MINUTE, root)
    with pytest.raises(CommitConflict, match="clock of this machine went back") as refused:
        key.refuse_earlier(key.millis - MINUTE - 1, root)
    assert root.version == refused.value.version


@pytest.mark.parametrize(("millis", "text"), [(30 * MINUTE, "PT30M"), (61_999, "PT61S"), (59_000, "PT59S")])
def test_a_lifetime_is_told_as_a_duration(millis: int, text: str) -> None:
    assert text == as_iso_duration(millis)


def test_a_block_is_that_of_one_request() -> None:
    key = key_of(1)
    with asked_by(key):
        assert key is current_request()
    assert current_request() is None


# -- where keys are looked for -----------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    made = Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST)
    return made.refresh()


def commit(lake: Lakehouse, group: CommitGroup, *keys: RequestKey | None) -> None:
    """Commit a version of a namespace for each key; ``None`` is one without a key."""
    entries = []
    for key in keys:
        txn = lake.refresh().transaction(group=group, request=key)
        txn.create_namespace(secrets.token_hex(8))
        txn.change.write_definitions()
        entries.append(Entry(txn.change, "me"))
    group.commit_together(entries)
    for entry in entries:
        entry.outcome()


@pytest.fixture
def keys(lake: Lakehouse) -> list[RequestKey]:
    """The keys of versions 1 to 5, a second apart."""
    now, group = clock.now_millis(), lake.group()
    made = [key_of(now + 1000 * number) for number in range(5)]
    for key in made:
        commit(lake, group, key)
    return made


def ask(lake: Lakehouse, known: Requests, key: RequestKey, version: int | None = None) -> tuple[int | None, int]:
    """Look for a key up to a version; return the version that has it, and the number of files that were read."""
    base = (lake.refresh() if version is None else lake.at(version=version)).root_node
    found = []

    def look() -> None:
        try:
            known.refuse_repeated(key, base)
        except Repeated as repeated:
            found.append((repeated.version, repeated.digest))

    gets = dict(cost(lake, look)).get("get", 0)
    if not found:
        return None, gets
    assert [key.digest] == [digest for _, digest in found]
    return found[0][0], gets


def cold(lake: Lakehouse) -> Requests:
    """Return what knows of no version yet."""
    return Requests(lake.backend)


def test_what_was_read_is_not_read_again(lake: Lakehouse, keys: list[RequestKey]) -> None:
    known = cold(lake)
    assert (4, 2) == ask(lake, known, keys[3])
    assert (4, 0) == ask(lake, known, keys[3])
    assert (2, 2) == ask(lake, known, keys[1])
    assert (5, 0) == ask(lake, known, keys[4])
    assert (1, 1) == ask(lake, known, keys[0])
    assert (1, 0) == ask(lake, known, keys[0], 3)  # an older base takes nothing back
    assert (4, 0) == ask(lake, known, keys[3])
    assert (None, 0) == ask(lake, known, key_of(keys[0].millis - 1))


def test_a_version_is_noted_after_the_one_before_alone(lake: Lakehouse, keys: list[RequestKey]) -> None:
    known = cold(lake)
    deltas = {number: lake.at(version=number).root_node.delta() for number in (1, 2, 3, 5)}
    known.note(deltas[1])
    assert 1 == ask(lake, known, keys[0], 1)[0]
    for number in (3, 2, 5):
        known.note(deltas[number])
    assert (2, 1) == ask(lake, known, keys[1], 4)  # version 3 alone is read: 2 was noted, and 3 before it was not
    assert (5, 0) == ask(lake, known, keys[4])


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"rubbish")])
def test_a_version_that_cannot_be_read_may_have_any_key(
    lake: Lakehouse, keys: list[RequestKey], harm: Callable[[Path], object]
) -> None:
    harm(Path(lake.root.removeprefix("file://")) / lake.at(version=3).root_node.path)
    assert 5 == ask(lake, cold(lake), keys[4])[0]
    for key in (keys[3], keys[0]):
        with pytest.raises(OutcomeUnknown, match="version 3 has expired or cannot be read"):
            ask(lake, cold(lake), key)


def test_the_row_of_a_version_is_that_of_its_newest_key_and_does_not_fall(lake: Lakehouse) -> None:
    now, group = clock.now_millis(), lake.group()
    rows = []
    for moments in ((1, 3, 2), (2,), (), (5,)):
        commit(lake, group, *(key_of(now + each) for each in moments), None)
        rows.append(lake.refresh().root_node.requests_until_millis - now)
    assert [3, 3, 3, 5] == rows


def test_only_members_with_a_key_are_remembered(lake: Lakehouse) -> None:
    group, key = lake.group(), key_of(clock.now_millis())
    commit(lake, group, key, None)
    known = cold(lake)
    assert 1 == ask(lake, known, key)[0]
    assert {key.id} == set(known._found)
    with pytest.raises(Repeated, match="version 1 is what this request became"):
        known.refuse_repeated(key, lake.root_node)


# -- what is remembered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [3, 6, 1000])
def test_every_key_is_found_in_its_version_however_little_is_remembered(
    lake: Lakehouse, most: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions with many keys, one or none, noted or not, asked for up to any version that has them."""
    monkeypatch.setattr(requests, "_MOST", most)
    chance, group, known = random.Random(seed), lake.group(), cold(lake)
    now, made = clock.now_millis(), dict[RequestKey, int]()
    for number in range(10):
        keys = [key_of(now + 1000 * number + each) for each in range(chance.choice((0, 1, 3)))]
        commit(lake, group, *(keys or [None]))
        version = lake.refresh().version
        made |= dict.fromkeys(keys, version)
        if chance.random() < 0.5:
            known.note(lake.root_node.delta())
        for key in chance.sample([*made], min(2, len(made))):
            base = chance.randint(made[key], version)
            assert made[key] == ask(lake, known, key, base)[0]
            if most == 1000:
                assert (made[key], 0) == ask(lake, known, key, base), "what was read is not read again"
        assert None is ask(lake, known, key_of(now + 1000 * number + 500))[0]
    for _ in range(6):
        commit(lake, group, None)
        known.note(lake.refresh().root_node.delta())
    assert len(known._until) == most if most == 3 else len(known._until) <= most
    assert len(known._found) <= most
    assert most < 1000 or known._found.keys() == {key.id for key in made}


def _remembered(known: Requests) -> Sequence[int]:
    return sorted(known._until)


def test_a_version_without_a_key_is_not_taken_apart(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its summary may have many members."""
    group, known, parsed = lake.group(), cold(lake), []
    parse = root_module.members_in

    def noted(*about: Any) -> Any:
        parsed.append(about)
        return parse(*about)

    monkeypatch.setattr(root_module, "members_in", noted)
    for key in (None, key_of(clock.now_millis())):
        commit(lake, group, key, None)
        parsed.clear()
        known.note(lake.refresh().root_node.delta())
        assert None is ask(lake, known, key_of(clock.now_millis() + MINUTE))[0]
        assert (key is not None) == bool(parsed)


def test_a_member_without_an_id_is_nobody(lake: Lakehouse) -> None:
    """Other programs write summaries, too."""
    known = cold(lake)
    assert (None, 0) == ask(lake, known, key_of(clock.now_millis()))
    rows = {spec.SUMMARY: '{"members": [{"request": "asked"}]}'}
    member = Member(**dict.fromkeys(Member._fields, None) | {"request": "asked"})
    root = SimpleNamespace(version=1, system=rows, members=(member,), requests_until_millis=1, created_at_millis=1)
    known.note(cast("RootRows", root))
    assert [0, 1] == _remembered(known)
    assert {} == known._found
