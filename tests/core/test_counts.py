"""Each root says exactly how many namespaces, tables and views its version holds, and pays no request for it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import lakes
from pipelines import cli, compaction, expire, verify
from pipelines.job import dry_run
from pipelines.trees import policy
from tests.support.lakes import CancelBy, compacted, content, filled, new_lake, reopened
from tests.support.surgery import Surgery
from trinitylake_core import Lakehouse, Transaction, spec
from trinitylake_core.clock import now_millis
from trinitylake_core.commits.changes import commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.commits.rolled_back import RolledBack
from trinitylake_core.locations import root_path
from trinitylake_core.versions import CountBounds, ObjectCounts

ROWS = (spec.NAMESPACES, spec.TABLES, spec.VIEWS)


def held(lake: Lakehouse) -> ObjectCounts:
    kinds = Counter(each.kind for each in lake.objects())
    return ObjectCounts(kinds["namespace"], kinds["table"], kinds["view"])


def prove(lake: Lakehouse, versions: range | None = None) -> None:
    for version in versions or range(lake.version + 1):
        at = lake.at(version=version)
        assert held(at) == at.root_node.counts, version


def strip(lake: Lakehouse, *versions: int) -> None:
    for version in versions:
        Surgery(lake.root, lake.definition.order).strip(root_path(version), *ROWS)


def _change(rng: random.Random, txn: Transaction, names: dict[str, set[str]]) -> None:
    namespace, name = f"n{rng.randrange(4)}", f"o{rng.randrange(6)}"
    inside = names.get(namespace)
    if inside is None:
        txn.create_namespace(namespace)
        names[namespace] = set()
    elif rng.random() < 0.1:
        txn.drop_namespace(namespace, cascade=True)
        del names[namespace]
    elif name not in inside:
        (txn.create_table if name < "o3" else txn.create_view)(namespace, name, **({} if name < "o3" else {"sql": "x"}))
        inside.add(name)
    elif rng.random() < 0.5:
        (txn.drop_table if name < "o3" else txn.drop_view)(namespace, name)
        inside.discard(name)
    elif name < "o3":
        txn.alter_table(namespace, name, properties={"a": str(rng.random())})


def test_what_many_raw_puts_find_is_looked_up_in_one_pass(tmp_path: Path) -> None:
    """By a transaction that is saved. Of keys that are there, are not, or have messages that wait: each node once."""
    lake = filled(new_lake(tmp_path), tables=90, namespaces=9, changes=40)
    there = content(lake.refresh())
    keys = [
        *random.Random(3).sample(sorted(there), 60),
        *(lake.codec.table(f"ns{n % 9}", f"t{n:03}x") for n in range(60)),
    ]
    cold = reopened(lake)
    assert cold.root_node.node.subtree_messages
    txn = cold.transaction()
    for number, key in enumerate(keys):
        txn.put(key, None if number % 3 else f"0101/0101/0101/01010101-table-{number}.binpb")
    before = cold.storage.counts.snapshot()
    bounds = txn.change.count_gained()
    assert 0 == (cold.storage.counts - before).get
    txn.change.look_up_existing()
    moved = cold.storage.counts - before
    gained = txn.change.count_gained().exact
    assert gained is not None
    assert gained.total == sum((not n % 3) - (key in there) for n, key in enumerate(keys))
    assert bounds.least.total < gained.total < bounds.most.total
    assert len(keys) > 2 * moved.get
    assert cold.nodes.counts.nodes_read == len(set(_nodes(lake, keys)))
    assert moved.get == (cold.storage.counts - before).get
    txn.commit()
    prove(lake.refresh(), range(lake.version, lake.version + 1))


def _nodes(lake: Lakehouse, keys: list[str]) -> Iterator[str]:
    """Yield the nodes that lookups of single keys read."""
    for key in keys:
        node = lake.root_node.node
        while node.message(key) is None and node.position(key) is None and not node.is_leaf:
            path = node.children[node.child_index(key)]
            yield path
            node = lake.nodes.read(path)


def test_a_version_that_does_not_say_is_counted_by_a_compaction(tmp_path: Path) -> None:
    """Of an older writer: unknown is carried on, nothing is wrong, and objects are what they were taken for before."""
    lake = filled(new_lake(tmp_path), tables=30)
    strip(lake, lake.version)
    cold = reopened(lake)
    assert (None, None) == (cold.root_node.counts, cold.stats().tables)
    with cold.transaction() as txn:
        txn.create_namespace("new")
    assert cold.refresh().root_node.counts is None
    assert verify.run(cold, verify.Config("all", engine="local")).ok
    before = cold.storage.counts.snapshot()
    compaction.run(cold, compaction.Config("local"))
    first = (cold.storage.counts - before).get
    prove(cold, range(cold.version, cold.version + 1))
    assert verify.run(cold, verify.Config("all", engine="local")).ok
    with cold.transaction() as txn:
        txn.create_namespace("newer")
    prove(cold.refresh(), range(cold.version - 1, cold.version + 1))
    assert first < 60


def test_a_root_that_is_the_whole_tree_is_counted_at_once(tmp_path: Path) -> None:
    lake = new_lake(tmp_path, order=32, target=100_000)
    with lake.transaction() as txn:
        txn.create_namespace("a")
    compacted(lake.refresh())
    strip(lake.refresh(), lake.version)
    cold = reopened(lake)
    with cold.transaction() as txn:
        txn.create_namespace("b")
    assert ObjectCounts(2) == cold.refresh().root_node.counts


def wrong(lake: Lakehouse, row: str) -> None:
    surgery = Surgery(lake.root, lake.definition.order)
    path = root_path(lake.version)
    surgery.system_row(path, row, str(int(lake.root_node.system[row]) + 1))


@pytest.mark.parametrize("row", ROWS)
def test_a_wrong_count_breaks_i9(tmp_path: Path, row: str) -> None:
    """In the newest version, and in any of all, found by the walk and by the comparison of versions."""
    lake = filled(new_lake(tmp_path), tables=30)
    wrong(lake, row)
    checks: list[Callable[[Lakehouse], list[tuple[str, str]]]] = [
        lambda cold: [(each.invariant, each.message) for each in cold.check()],
        lambda cold: [
            (each.invariant, each.message)
            for which in ("newest", "all", cold.version)
            for each in verify.run(cold, verify.Config(which, engine="local")).findings  # type: ignore[arg-type]
        ],
    ]
    for check in checks:
        found = check(reopened(lake))
        assert found
        assert {"I9"} == {invariant for invariant, _ in found}
        assert all(row in message for _, message in found)


@pytest.mark.parametrize("text", ["many", "9" * 5000])
def test_garbage_in_a_count_is_unknown(tmp_path: Path, text: str) -> None:
    """Also a number of more digits than Python converts."""
    lake = filled(new_lake(tmp_path), tables=4)
    Surgery(lake.root, lake.definition.order).system_row(root_path(lake.version), spec.TABLES, text)
    damaged = reopened(lake)
    assert damaged.root_node.counts is None
    assert damaged.info().tables is None
    assert ["I9"] == [each.invariant for each in damaged.check()]


# -- without lookups -----------------------------------------------------------------------------------


def path_of(number: int) -> str:
    return f"0101/0101/0101/01010101-table-{number}.binpb"


def prove_bounds(lake: Lakehouse) -> CountBounds:
    """Prove that what a version holds lies between its bounds, and is what is looked up; return them."""
    bounds = lake.root_node.count_bounds
    assert bounds is not None
    for least, found, most in zip(bounds.least, held(lake), bounds.most, strict=True):
        assert least <= found <= most
    assert held(lake) == lake.count_objects()
    assert (bounds.exact is None) == (lake.root_node.counts is None)
    return bounds


@pytest.mark.parametrize("order", [3, 4])
def test_raw_changes_are_counted_between_bounds_until_a_compaction_settles_them(tmp_path: Path, order: int) -> None:
    """Columns, single keys, and objects, over one another; with flushes, rollbacks and compactions in between."""
    rng = random.Random(order)
    lake = filled(new_lake(tmp_path, order=order), tables=60, namespaces=6)
    compacted(lake.refresh())
    for step in range(40):
        keys = rng.sample([lake.codec.table(f"ns{n % 6}", f"t{n:03}") for n in range(80)], 12)
        raw = {key: path_of(step) if rng.random() < 0.6 else None for key in keys}
        with lake.transaction() as txn:
            if step % 2:
                txn.put_many(pa.table({"key": [*raw], "path": pa.array(raw.values(), pa.string())}))
            else:
                there = content(lake)
                for number, (key, path) in enumerate(raw.items()):
                    known = None if number % 2 else key in there
                    txn.put(key, path, replaces=known)
        prove_bounds(lake.refresh())
        if step % 13 == 12:
            _roll_back(lake, lake.version - 3)
            prove_bounds(lake.refresh())
        if step % 10 == 9:
            compacted(lake.refresh())
            assert prove_bounds(lake.refresh()).exact is not None
    lake.create_snapshot("s")
    prove_bounds(lake.refresh())
    assert [] == list(lake.check())
    assert verify.run(lake, verify.Config("all", engine="local")).ok


def _roll_back(lake: Lakehouse, version: int) -> None:
    """Roll back to a version whose definitions nobody wrote."""
    root = lake.at(version=version).root_node
    commit(lake.backend, lake.root_node, RolledBack(lake.backend, root, commit_summary(reason="r")))


def test_a_compaction_that_is_rebased_settles_what_it_pushed_down(tmp_path: Path) -> None:
    """What other writers committed in between gains as much over the settled counts as over those of before."""
    lake = filled(new_lake(tmp_path), tables=30)
    compacted(lake.refresh())
    raw(lake, 3)
    once: list[int] = []

    def beside() -> None:
        if not once:
            once.append(raw(reopened(lake), 2))
            with reopened(lake).transaction() as txn:
                txn.create_namespace("beside")

    assert 2 == compaction.run(lake, compaction.Config("local"), cancel=CancelBy(beside)).rebased_over
    assert 2 == prove_bounds(lake.refresh()).uncertain
    compacted(lake)
    assert held(lake.refresh()) == lake.root_node.counts
    assert verify.run(lake, verify.Config("all", engine="local")).ok


def raw(lake: Lakehouse, keys: int) -> int:
    """Commit raw keys of which no root decides whether they are there."""
    found = [
        key for key in content(lake.refresh()) if key.startswith("C") and lake.root_node.node.find(key)[0] is False
    ]
    with lake.transaction() as txn:
        for number, key in enumerate(found[:keys]):
            txn.put(key, path_of(number))
    return len(found[:keys])


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert 0 == cli.main([*arguments])
    return capsys.readouterr().out


def test_stats_and_history_say_at_most_where_messages_are_not_known_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = filled(new_lake(tmp_path), tables=30)
    compacted(lake.refresh())
    exact = lake.refresh().stats()
    raw(lake, 3)
    stats = lake.refresh().stats()
    assert (0, 3) == (exact.uncertain, stats.uncertain)
    assert (exact.tables or 0) + 3 == stats.tables
    assert stats.objects == next(lake.history(1)).objects
    shown = f"at most {stats.objects}"
    assert all(shown in run_cli(capsys, command, lake.root) for command in ("stats", "history"))
    looked_up = json.loads(run_cli(capsys, "stats", lake.root, "--exact", "--json"))
    assert (exact.tables, 0) == (looked_up["tables"], looked_up["uncertain"])


def test_an_older_writer_does_not_carry_bounds_on(tmp_path: Path) -> None:
    """It ignores the row, so that its versions do not say, and the next compaction counts."""
    lake = filled(new_lake(tmp_path), tables=30)
    compacted(lake.refresh())
    raw(lake, 3)
    Surgery(lake.root, lake.definition.order).strip(root_path(lake.refresh().version), spec.COUNT_BOUNDS)
    cold = reopened(lake)
    assert (None, None) == (cold.root_node.count_bounds, cold.stats().uncertain)
    assert verify.run(cold, verify.Config("all", engine="local")).ok
    compacted(cold)
    assert held(cold.refresh()) == cold.root_node.counts


@pytest.mark.parametrize("text", ["5,6,40,41,0,0", "6,5,0,0,0,0", "1,2,3", "many", "1,2,3,4,5,x"])
def test_wrong_bounds_break_i9(tmp_path: Path, text: str) -> None:
    lake = filled(new_lake(tmp_path), tables=30)
    compacted(lake.refresh())
    raw(lake, 3)
    Surgery(lake.root, lake.definition.order).system_row(root_path(lake.refresh().version), spec.COUNT_BOUNDS, text)
    damaged = reopened(lake)
    assert {"I9"} == {each.invariant for each in damaged.check()}
    assert {"I9"} == {each.invariant for each in verify.run(damaged, verify.Config("all", engine="local")).findings}


@pytest.mark.parametrize("expired", [False, True])
def test_counts_that_were_settled_wrongly_break_i9(tmp_path: Path, expired: bool) -> None:
    """Compared with the last version that knew its own, or with all that there is if that has expired."""
    lake = filled(new_lake(tmp_path), tables=30)
    compacted(lake.refresh())
    raw(lake, 3)
    if expired:
        later = now_millis() + 2 * lake.definition.txn_ttl_millis
        expire.run(lake.refresh(), expire.Config(engine="local", keep_last=1, now_millis=later))
    compacted(lake.refresh())
    wrong(lake.refresh(), spec.TABLES)
    findings = verify.run(reopened(lake), verify.Config("all", engine="local")).findings
    assert {"I9"} == {each.invariant for each in findings}


def test_a_commit_of_many_raw_changes_reads_no_node(tmp_path: Path) -> None:
    """1,000 changes of 200,000 objects: its requests are those of the smallest commit."""
    objects = 200_000
    lake = lakes.build(tmp_path.as_uri(), objects)
    keys = [lake.codec.table(*lakes.table_name(number, objects)) for number in range(0, objects, 200)]
    paths = [path_of(n) if n % 10 else None for n in range(len(keys))]
    cold = reopened(lake)
    before = cold.storage.counts.snapshot()
    with cold.transaction() as txn:
        txn.put_many(pa.table({"key": keys, "path": pa.array(paths, pa.string())}))
    moved = cold.storage.counts - before
    assert 0 == cold.nodes.counts.nodes_read
    assert (1, 1, 1, 1) == (moved.get, moved.create, moved.put, moved.head)


def test_a_full_compaction_settles_counts_where_no_message_waits(tmp_path: Path) -> None:
    """After a bulk commit over keys that are there, all of it in leaves; a dry run says so, the next one rests."""
    lake = Lakehouse.create((tmp_path / "lake").as_uri(), storage_options={"durable": False})
    keys = pa.array([lake.codec.table("ns", f"t{number:05}") for number in range(20_000)])
    for some in (keys, keys[:15_000]):
        with lake.transaction() as txn:
            txn.put_many(pa.table({"key": some, "path": pa.array(["0000/0000/0000/00000000-table.binpb"] * len(some))}))
        lake.refresh()
    settled = lake.root_node.settled_at_millis
    later = settled + 60_000
    assert (0, True) == (lake.stats().messages, (lake.stats().uncertain or 0) > 10_000)
    assert settled == lake.at(version=1).root_node.created_at_millis
    assert policy.settle_due(lake, 60, later)
    planned = compaction.run(lake, compaction.Config("local", full=True), review=dry_run)
    assert (20_000, None, 2) == (planned.counted, planned.version_after, reopened(lake).version)
    assert "20,000 objects would be counted" in next(planned.summary())
    done = compaction.run(lake, compaction.Config("local", full=True))
    assert (20_000, 3) == (done.counted, done.version_after)
    assert (ObjectCounts(0, 20_000, 0), 0) == (reopened(lake).root_node.counts, lake.stats().uncertain)
    assert lake.root_node.created_at_millis == lake.root_node.settled_at_millis
    assert not policy.settle_due(lake, 0, later)
    assert compaction.run(lake, compaction.Config("local", full=True)).version_after is None


def test_a_full_compaction_corrects_what_an_older_writer_counted_wrong(tmp_path: Path) -> None:
    """And `verify`, which names the job, finds the versions before wrong, and those after it right."""
    lake = filled(new_lake(tmp_path), tables=30)
    compacted(lake)
    first_wrong = lake.refresh().version
    wrong(lake, spec.TABLES)
    lake = reopened(lake)
    with lake.transaction() as txn:
        txn.create_table("ns0", "more")
    (finding,) = lake.refresh().check()
    assert ("I9", True) == (finding.invariant, "compact --full" in finding.hint)
    assert compaction.run(lake, compaction.Config("local")).counted is None
    assert [] != list(lake.check())
    assert 34 == compaction.run(lake, compaction.Config("local", full=True)).counted
    prove(lake.refresh(), range(lake.version, lake.version + 1))
    with lake.transaction() as txn:
        txn.create_table("ns0", "most")
    found = verify.run(lake.refresh(), verify.Config("all", engine="local"))
    assert {first_wrong} == {each.versions[0] for each in found.findings}
    assert verify.run(lake, verify.Config(engine="local")).ok
