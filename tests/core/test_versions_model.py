"""Versions against one plain dictionary each: whatever history is made of, every version keeps saying what it said."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.support.lakes import compacted, content, new_lake, reopened
from trinitylake_core import Lakehouse, NamespaceNotEmpty, ObjectNotFound, SnapshotNotFound
from trinitylake_core.versions import from_millis

Model = dict[tuple[str, str | None], str]
"""What one version means: a mark no two definitions share, by namespace and name."""
NAMESPACES = ("a", "b", "c")
PATTERNS = ("a", "a.*", "*.t1", "b.t2", "*", "c.t?", "b*")
KINDS = ("commit", "commit", "commit", "cascade", "compact", "snapshot", "drop", "rollback", "restore", "restore")
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 999), st.integers(0, 999)), min_size=3, max_size=14)


@dataclass
class _World:
    """A lakehouse and what each of its versions and snapshots must say."""

    lake: Lakehouse
    versions: list[Model] = field(default_factory=lambda: [{}])
    snapshots: dict[str, int] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    marks: int = 0
    seen: dict[str, str] = field(default_factory=dict)
    """The mark of every definition file that was read: they never change."""

    @property
    def now(self) -> Model:
        return self.versions[-1]

    def mark(self) -> str:
        self.marks += 1
        return str(self.marks)

    # -- steps ---------------------------------------------------------------------------------

    def commit(self, a: int, b: int) -> None:
        model = dict(self.now)
        with self.lake.transaction() as txn:
            for number in range(1 + a % 6):
                namespace, name, mark = NAMESPACES[(a + number) % 3], f"t{(b + number * 7) % 12}", self.mark()
                if (namespace, None) not in model:
                    txn.create_namespace(namespace, properties={"mark": mark})
                    model[namespace, None] = mark
                elif (namespace, name) not in model:
                    txn.create_table(namespace, name, properties={"mark": mark})
                    model[namespace, name] = mark
                elif (a + b + number) % 3:
                    txn.alter_table(namespace, name, properties={"mark": mark})
                    model[namespace, name] = mark
                else:
                    txn.drop_table(namespace, name)
                    del model[namespace, name]
        self.versions.append(model)

    def cascade(self, a: int, b: int) -> None:
        there = sorted({namespace for namespace, _ in self.now})
        if there:
            gone = there[a % len(there)]
            with self.lake.transaction() as txn:
                txn.drop_namespace(gone, cascade=True)
            self.versions.append({key: mark for key, mark in self.now.items() if key[0] != gone})
            if b % 2:  # what this is for
                before = len(self.versions) - 2
                self.bring_back({"version": before}, before, f"{gone}.t*", exact=bool(b % 4 == 1))

    def compact(self, a: int, b: int) -> None:
        if self.lake.refresh().stats().messages:
            compacted(self.lake)
            self.versions.append(self.now)

    def snapshot(self, a: int, b: int) -> None:
        name, version = f"s{len(self.snapshots) + len(self.dropped)}", a % len(self.versions)
        self.lake.create_snapshot(name, version=version, kind="partial" if b % 2 else "minimal")
        self.snapshots[name] = version
        self.versions.append(self.now)

    def drop(self, a: int, b: int) -> None:
        if self.snapshots:
            name = sorted(self.snapshots)[a % len(self.snapshots)]
            self.lake.drop_snapshot(name)
            del self.snapshots[name]
            self.dropped.add(name)
            self.versions.append(self.now)

    def target(self, a: int, b: int) -> tuple[dict[str, object], int]:
        """Return one of the three ways to name an older version, and its number."""
        version = a % max(1, len(self.versions) - 1)
        if b % 3 == 0 and self.snapshots:
            name = sorted(self.snapshots)[a % len(self.snapshots)]
            return {"snapshot": name}, self.snapshots[name]
        if b % 3 == 1:
            return {"timestamp": self.lake.at(version=version).info().created_at.isoformat()}, version
        return {"version": version}, version

    def rollback(self, a: int, b: int) -> None:
        if len(self.versions) > 1:
            how, version = self.target(a, b)
            self.lake.rollback(**how, reason="model")  # type: ignore[arg-type]
            self.versions.append(self.versions[version])

    def restore(self, a: int, b: int) -> None:
        self.bring_back(*self.target(a, b), PATTERNS[b % len(PATTERNS)], exact=bool(a % 2))

    def bring_back(self, how: dict[str, object], version: int, pattern: str, *, exact: bool) -> None:
        call: Callable[[], object] = lambda: self.lake.refresh().restore(  # noqa: E731
            pattern,
            **how,  # type: ignore[arg-type]
            reason="model",
            exact=exact,
        )
        expected = restored(self.now, self.versions[version], pattern, exact=exact)
        if isinstance(expected, type):
            try:
                call()
            except expected:
                return
            raise AssertionError(f"{expected.__name__} expected")
        call()
        if expected != self.now:
            self.versions.append(expected)

    # -- proofs --------------------------------------------------------------------------------

    def read(self, lake: Lakehouse) -> Model:
        found: Model = {}
        for entry in lake.objects():
            if entry.path not in self.seen:
                self.seen[entry.path] = lake.definition_of(entry).properties["mark"]
            found[entry.namespace, entry.name] = self.seen[entry.path]
        return found

    def prove(self) -> None:
        lake = reopened(self.lake)
        assert len(self.versions) - 1 == lake.version
        handles = [lake.at(version=version) for version in range(lake.version + 1)]
        infos = [handle.info() for handle in handles]
        for version, (handle, info) in enumerate(zip(handles, infos, strict=True)):
            assert self.versions[version] == self.read(handle)
            assert version == lake.at(timestamp=info.created_at).version
            if version:
                before = from_millis(info.created_at_millis - 1)
                assert version - 1 == lake.at(timestamp=before).version
        assert infos[::-1] == list(lake.history())
        assert sorted(self.snapshots) == sorted(info.name for info in lake.snapshots())
        for name, version in self.snapshots.items():
            snapshot = lake.at(snapshot=name)
            assert (version, self.versions[version]) == (snapshot.version, self.read(snapshot))
        for name in self.dropped:
            try:
                lake.at(snapshot=name)
            except SnapshotNotFound:
                continue
            raise AssertionError(f"snapshot {name} is still there")
        assert [] == list(lake.check(definitions=True))
        self.prove_differences(lake, handles)

    def prove_differences(self, lake: Lakehouse, handles: list[Lakehouse]) -> None:
        for a, one in enumerate(handles):
            before = content(one)
            for b, two in enumerate(handles):
                found = list(lake.diff(one, two))
                assert difference(self.versions[a], self.versions[b]) == {
                    (each.namespace, each.name): each.change for each in found
                }
                keys = [each.key for each in found]
                assert sorted(set(keys)) == keys
                assert [(before.get(key), content(two).get(key)) for key in keys] == [
                    (each.old_path, each.new_path) for each in found
                ]


def difference(a: Model, b: Model) -> dict[tuple[str, str | None], str]:
    """Return what the difference of two models is."""
    changed = {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}
    return {key: "added" if key not in a else "removed" if key not in b else "changed" for key in changed}


def restored(now: Model, then: Model, pattern: str, *, exact: bool) -> Model | type[Exception]:
    """Return what a restore leaves, or the error that it gets."""

    def matches(key: tuple[str, str | None]) -> bool:
        return fnmatchcase(key[0] if key[1] is None else f"{key[0]}.{key[1]}", pattern)

    if not any(map(matches, [*now, *then])):
        return ObjectNotFound
    found = now | {key: mark for key, mark in then.items() if matches(key)}
    if exact:
        found = {key: mark for key, mark in found.items() if key in then or not matches(key)}
    for namespace, name in list(found):
        if name is not None and (namespace, None) not in found:
            if (namespace, name) not in then or not matches((namespace, name)):
                return NamespaceNotEmpty
            found[namespace, None] = then[namespace, None]
    return found


@given(STEPS, st.sampled_from([3, 4, 8]))
def test_every_version_reads_as_the_model_says(steps: list[tuple[str, int, int]], order: int) -> None:
    """By number, timestamp and snapshot; and every pair differs as the models do."""
    with tempfile.TemporaryDirectory() as directory:
        world = _World(new_lake(Path(directory), order=order))
        for kind, a, b in steps:
            getattr(world, kind)(a, b)
            world.lake.refresh()
        world.prove()
