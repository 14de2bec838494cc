"""Runs of leaves as columns, against dictionaries; the bytes of leaf files, against those that nodes make."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trinitylake_core.tree import leafrun
from trinitylake_core.tree.leafrun import Columns, LeafPlan, cut, is_exact, laid_out, pieces_of, plan_merge
from trinitylake_core.tree.noderows import Texts, text_array

FIXED = st.integers(0, 120).map("C{:04}".format)
MIXED = FIXED | st.sampled_from(["C1", "Cß", "C日本", "C\U0001f600", "D", "C00011"])
VALUES = st.sampled_from(["u", "v", "wß"])


def columns(entries: Mapping[str, str | None]) -> Columns:
    keys = sorted(entries)
    return Columns.of(keys, [entries[key] for key in keys])


def carried_out(old: Columns, changes: Columns, plan: LeafPlan) -> Columns:
    return laid_out(Columns.join([old, changes]), plan, np.zeros(0, dtype=np.int64)).columns


def rows(of: Columns) -> list[tuple[str, str]]:
    return list(zip(of.keys.to_pylist(), of.values.to_pylist(), strict=True))


def changed(entries: dict[str, str], changes: dict[str, str | None]) -> list[tuple[str, str]]:
    meaning: dict[str, str | None] = {**entries, **changes}
    return sorted((key, value) for key, value in meaning.items() if value is not None)


@pytest.mark.parametrize("keys", [FIXED, MIXED], ids=["one width", "mixed"])
def test_merging_columns_means_what_a_dictionary_means(keys: st.SearchStrategy[str]) -> None:
    @given(st.dictionaries(keys, VALUES), st.dictionaries(keys, st.none() | VALUES, min_size=1))
    def check(entries: dict[str, str], changes: dict[str, str | None]) -> None:
        old, messages = columns(entries), columns(changes)
        plan = plan_merge(old, messages)
        new = carried_out(old, messages, plan)
        assert changed(entries, changes) == rows(new)
        assert is_exact(old, messages, new, plan, None, None)

    check()


@given(st.dictionaries(FIXED, VALUES, min_size=9), st.dictionaries(FIXED, st.none() | VALUES, min_size=1), st.data())
def test_the_proof_sees_whatever_is_lost_doubled_swapped_or_changed(
    entries: dict[str, str], changes: dict[str, str | None], data: st.DataObject
) -> None:
    old, messages = columns(entries), columns(changes)
    plan = plan_merge(old, messages)
    right = rows(carried_out(old, messages, plan))
    wrong = list(right)
    if not wrong:
        return
    at = data.draw(st.integers(0, len(wrong) - 1))
    match data.draw(st.sampled_from(["drop", "double", "swap", "value", "key", "undo"])):
        case "drop":
            del wrong[at]
        case "double":
            wrong.insert(at, wrong[at])
        case "swap":
            other = data.draw(st.integers(0, len(wrong) - 1))
            wrong[at], wrong[other] = wrong[other], wrong[at]
        case "value":
            wrong[at] = wrong[at][0], "another"
        case "key":
            wrong[at] = wrong[at][0] + "x", wrong[at][1]
        case _:
            wrong = sorted(entries.items())
    broken = Columns.of([k for k, _ in wrong], [v for _, v in wrong])
    assert (wrong == right) == is_exact(old, messages, broken, plan, None, None)


@given(
    st.dictionaries(FIXED, VALUES, min_size=4, max_size=12),
    st.dictionaries(FIXED, st.none() | VALUES, min_size=1, max_size=8),
    st.data(),
)
def test_the_proof_does_not_believe_the_plan(
    entries: dict[str, str], changes: dict[str, str | None], data: st.DataObject
) -> None:
    """Whatever is wrong in a plan, rows and all: only what means the right thing passes."""
    old, messages = columns(entries), columns(changes)
    plan = plan_merge(old, messages)
    for name in data.draw(st.sets(st.sampled_from(["values", "found", "touched", "set"]), min_size=1)):
        one = getattr(plan, name)
        if len(one):
            at = data.draw(st.integers(0, len(one) - 1))
            one[at] = not one[at] if one.dtype == bool else one[at - 1]
    for at in data.draw(st.lists(st.integers(0, len(plan) - 1), max_size=2)) if len(plan) else ():
        plan = LeafPlan(
            np.delete(plan.keys, at), np.delete(plan.values, at), plan.found, plan.touched, np.delete(plan.set, at)
        )
        break
    new = carried_out(old, messages, plan)
    assert not is_exact(old, messages, new, plan, None, None) or rows(new) == changed(entries, changes)


def test_the_proof_sees_keys_outside_of_their_range() -> None:
    run, none = columns({"b": "1", "c": "2"}), columns({})
    plan = plan_merge(run, none)
    assert is_exact(run, none, run, plan, "a", "d")
    assert not is_exact(run, none, run, plan, "b", "d")
    assert not is_exact(run, none, run, plan, "a", "c")


@given(st.integers(0, 400), st.integers(1, 12), st.integers(3, 40))
def test_a_run_is_cut_into_leaves_that_are_full_enough_and_fit(count: int, leaves: int, order: int) -> None:
    fewest, most = max(1, -(-order // 2) - 1), order - 1
    pieces = pieces_of(count, leaves, fewest, most)
    if pieces is None:
        assert count < 3 * most
        return
    counts = cut(count, pieces)
    assert all(fewest <= each <= most for each in counts)
    assert counts.sum() + pieces - 1 == count


@given(st.sets(MIXED), st.sets(MIXED, min_size=1))
def test_few_keys_are_found_among_many_as_many_among_few(keys: set[str], sought: set[str]) -> None:
    here, wanted = (Texts(text_array(sorted(each))) for each in (keys, sought))
    at, there = leafrun._positions_among_few(here, wanted)
    expected_at, expected_there = leafrun._positions_of_texts(here, wanted)
    assert (at.tolist(), there.tolist()) == (expected_at.tolist(), expected_there.tolist())
