"""The processes of the model: what each requests of the storage, one request after another.

The commit is the same for all of them, as in the product. ``name in rules`` is what a rule adds; each is one line of
``scopes.RULES``, which says what breaks without it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from tests.simulation.model import Fact, Process, Request, Root, Rules, Saved, World

# Requests.


def _named(name: str, request: Callable[[World], list[tuple[World, Any]]]) -> Request:
    request.__name__ = name
    return request


def put(name: str) -> Request:
    """Write a file; the answer is when."""
    return _named(f"put {name}", lambda w: [(w._replace(files=w.files | {(name, w.now)}), w.now)])


def create(root: Root) -> Request:
    """Create a root; the answer is whether its version was free, ``None`` if it is lost.

    Then the request was carried out, or is late: it is carried out at any later moment.
    """

    def request(w: World) -> list[tuple[World, Any]]:
        made = w.created(root)
        done: list[tuple[World, Any]] = [(w, False)]
        if made is not None:
            times = range(w.now, w.now + w.ahead + 1) if w.ahead else ()
            whens = [w.stored | {(root.version, root.maker, when)} for when in times] or [w.stored]
            done = [(made._replace(stored=each), True) for each in whens]
        if not w.losses:
            return done
        lost = [(world._replace(losses=w.losses - 1), None) for world, _ in done]
        return [*done, *lost, (w._replace(losses=w.losses - 1, late=w.late | {root}), None)]

    return _named(f"create {root.version}", request)


def stored(root: Root) -> Request:
    """Look when a root was stored; long ago, if it was there before."""

    def request(w: World) -> list[tuple[World, Any]]:
        return [(w, next((when for v, maker, when in w.stored if (v, maker) == (root.version, root.maker)), 0))]

    return _named(f"head {root.version}", request)


def newest_listed() -> Request:
    """List the roots; the answer is the highest version."""
    return _named("list roots", lambda w: [(w, max(root.version for root in w.roots))])


def get(version: int) -> Request:
    """Read a root; the answer is ``None`` if there is none."""
    return _named(f"get {version}", lambda w: [(w, w.root(version))])


def newest() -> Request:
    """Find the newest version, as an honest search does."""
    return _named("newest", lambda w: [(w, w.newest if w.newest in w.roots else None)])


def boundary() -> Request:
    """Read the boundary file."""
    return _named("boundary", lambda w: [(w, w.boundary)])


def set_boundary(to: int, seen: int | None) -> Request:
    """Replace the boundary file if it is what was ``seen``, or (``None``) in any case."""

    def request(w: World) -> list[tuple[World, Any]]:
        if seen is not None and w.boundary != seen:
            return [(w, False)]
        return [(w._replace(boundary=to), True)]

    return _named(f"boundary to {to}", request)


def delete_one(names: frozenset[str]) -> Request:
    """Delete one name of a batch, any of those that are left; the answer is which, ``None`` if none is."""

    def request(w: World) -> list[tuple[World, Any]]:
        left = sorted(names & w.names())
        gone = [(w._replace(files=frozenset(each for each in w.files if each[0] != name)), name) for name in left]
        return [*gone] or [(w, None)]

    return _named("delete", request)


def delete_root(below: int) -> Request:
    """Delete one root of a batch below a version, any of those that are left."""

    def request(w: World) -> list[tuple[World, Any]]:
        left = sorted(root for root in w.roots if root.version < below)
        return [(w._replace(roots=w.roots - {root}), root.version) for root in left] or [(w, None)]

    return _named("delete root", request)


def listed() -> Request:
    """List all files, and read the saved transaction among them."""
    return _named("list", lambda w: [(w, (w.files, w.saved))])


def read_saved() -> Request:
    """Read the file of the saved transaction; the answer is the file, the file again if it is whole, and its age."""

    def request(w: World) -> list[tuple[World, Any]]:
        seen = w.saved if w.saved and w.saved.definition in w.names() else None
        return [(w, (w.saved, seen, seen and dict(w.files)[seen.definition]))]

    return _named("read saved", request)


def set_saved(to: Saved, seen: Saved | None, *, compare: bool) -> Request:
    """Replace the file of the saved transaction if it is what was ``seen``."""

    def request(w: World) -> list[tuple[World, Any]]:
        if compare and w.saved != seen:
            return [(w, False)]
        return [(w._replace(saved=to), True)]

    return _named(f"saved to {to.revision} {to.state}", request)


# The commit.


class Refused(Exception):
    """The process ends with an error: nothing was committed."""


class Unknown(Exception):
    """The process ends with an error: nothing proves whether it committed."""


class StartOver(Exception):
    """What was made is of no use: the process begins again."""


class Job(NamedTuple):
    """What a commit is about: who makes it, which files it wrote and when the first of them, what it takes over."""

    maker: str
    wrote: tuple[str, ...] = ()
    since: int = 1 << 30
    takes_over: int | None = None
    small: bool = True
    """Whether what it wrote is in memory, to be written again."""


Build = Callable[[Root, tuple[str, ...]], Root]
"""Makes a root from the one below and the files that were written for it."""
Commit = Generator[Request | Fact, Any, Root]
Proof = Iterator[Request]


def commit(
    rules: Rules,
    job: Job,
    base: Root,
    build: Build,
    *,
    meet: Callable[[Root], None] = lambda root: None,
    prove: Callable[[Root, bool], Proof] = lambda root, first: iter(()),
) -> Commit:
    """Create the next root, rebasing over roots that come first; return it once it is known to count.

    ``prove`` is asked of each base, and told whether it is the first.
    """
    wrote, since = job.wrote, job.since
    unknown, first = False, base
    while True:
        yield from prove(base, base == first)
        root = build(base, wrote)
        created = yield create(root)
        if created is None:
            unknown = True
            found = yield get(root.version)
            created = None if found is None else found == root
            if created is None:
                continue
        if created:
            break
        began = base
        while (newer := (yield get(base.version + 1))) is not None:
            if newer.maker == job.maker and "a commit knows itself" in rules:
                yield Fact(("committed", newer))
                own: Root = newer
                return own
            meet(newer)
            base = newer
        if base == began:
            raise Unknown if unknown else Refused
        if "an expired base starts over" in rules and job.takes_over is not None and base.oldest > job.takes_over:
            raise StartOver
        if "fenced files are written again" in rules and wrote and base.void > since:
            if not job.small:
                raise StartOver
            wrote = tuple(f"{name}'" for name in wrote)
            since = yield put(wrote[0])
    if "the boundary is looked at after creating" in rules and (limit := (yield boundary())) > root.version:
        yield from _below(rules, root, wrote, limit)
    yield Fact(("committed", root))
    return root


def _below(rules: Rules, root: Root, wrote: tuple[str, ...], limit: int) -> Generator[Request | Fact, Any, None]:
    """Find out what became of a root that was created, and that the boundary lies beyond."""
    highest = yield newest_listed()
    rule = "a claim decides nothing" if limit > highest else "no outcome is guessed"
    if rule not in rules:
        raise Refused
    following = yield get(root.version + 1)
    if following is not None and following.below != root.maker:
        raise Refused
    if "writers delete nothing" not in rules:
        while (yield delete_one(frozenset(wrote))) is not None:
            pass
    raise Unknown


def ends(process: Callable[..., Process]) -> Callable[..., Process]:
    """Let a process end where its commit is refused, or would start over."""

    def ended(*args: Any, **how: Any) -> Process:
        try:
            yield from process(*args, **how)
        except Refused:
            yield Fact(("refused", args[0]))
        except (StartOver, Unknown):
            return

    return ended


# Processes.


@ends
def writer(maker: str, base: Root, rules: Rules) -> Process:
    """Commit one definition on a base that may be old."""
    name = f"{maker}1"
    since = yield put(name)

    def build(below: Root, wrote: tuple[str, ...]) -> Root:
        root = _on(below, maker, below.files | {*wrote})
        return root if "the fence of tables is carried on" in rules else root._replace(tables=0)

    yield from commit(rules, Job(maker, (name,), since), base, build)


@ends
def fresh_writer(maker: str, rules: Rules) -> Process:
    """Commit one definition on the newest version; what was written since that was stored may be void by a fence."""
    base = yield newest()
    if base is None:
        return
    since = yield stored(base)
    if "fences allow for clocks that differ" in rules:
        since -= 1
    name = f"{maker}1"
    yield put(name)
    yield from commit(
        rules, Job(maker, (name,), since), base, lambda below, wrote: _on(below, maker, below.files | {*wrote})
    )


@ends
def appender(maker: str, rules: Rules) -> Process:
    """Write a data file of a table, and commit it on what is the newest version then."""
    name = f"d{maker}"
    yield put(name)
    base = yield newest()
    if base is None:
        return

    def prove(root: Root, first: bool) -> Generator[Request, Any, None]:
        if not root.tables or not (first or "they are held to a fence that came in between" in rules):
            return
        written = yield _named(f"head {name}", lambda w: [(w, dict(w.files).get(name))])
        if written is None and "what is missing is refused" in rules:
            raise Refused
        if written is not None and written < root.tables and "files are held to the fence of tables" in rules:
            raise Refused

    build = lambda below, _: _on(below, maker, below.files | {name})  # noqa: E731
    yield from commit(rules, Job(maker), base, build, prove=prove)


def exporting(claim: int, rules: Rules) -> Process:
    """Claim the place for a copy that begins with a later version, and put the claim back as others commit there."""
    del rules
    seen = yield boundary()
    if (yield set_boundary(claim, seen)):
        yield newest_listed()
        yield set_boundary(seen, claim)


@ends
def compaction(maker: str, keeps: int, rules: Rules) -> Process:
    """Replace the files of the newest version but the first ``keeps``, which it does not open."""
    base = yield newest()
    if base is None:
        return
    name = f"{maker}1"
    since = yield put(name)
    kept = frozenset(sorted(base.files)[:keeps])

    def build(below: Root, wrote: tuple[str, ...]) -> Root:
        return _on(below, maker, kept | (below.files - base.files) | {*wrote})

    yield from commit(rules, Job(maker, (name,), since, base.version, small=False), base, build)


@ends
def expiration(maker: str, keep: int, rules: Rules) -> Process:
    """Keep the newest versions: a root with the new boundary, the boundary file, then deletions."""
    base = yield newest()
    if base is None:
        return
    to = max(base.oldest, base.version - keep + 1)
    build = lambda below, _: _on(below, maker, below.files)._replace(oldest=max(below.oldest, to))  # noqa: E731
    root = yield from commit(rules, Job(maker), base, build)
    if "deletions come last" not in rules:
        while (yield delete_root(root.oldest)) is not None:
            pass
    compare = "the boundary is compared and set" in rules
    while (seen := (yield boundary())) < root.oldest and not (
        yield set_boundary(root.oldest, seen if compare else None)
    ):
        pass
    while (yield delete_root(root.oldest)) is not None:
        pass


@ends
def cleaning(maker: str, of_tables: bool, rules: Rules) -> Process:
    """Cut-off, fence, list, mark, delete; with a safety age of zero. Of the lakehouse's own files, or of tables'."""
    base = yield newest()
    if base is None:
        return
    cut_off = yield _named("cut-off", lambda w: [(w, w.now)])
    files, saved = (yield listed()) if "the fence comes before the listing" not in rules else (frozenset(), None)
    fence = base
    if "cleaning commits a fence" in rules:

        def build(below: Root, _: tuple[str, ...]) -> Root:
            root = _on(below, maker, below.files)
            if of_tables:
                return root._replace(tables=max(below.tables, cut_off))
            return root._replace(void=max(below.void, cut_off))

        fence = yield from commit(rules, Job(maker), base, build)
    if "the fence comes before the listing" in rules:
        files, saved = yield listed()
    live = fence.files | fence.pins
    if saved is not None and "saved transactions are marked" in rules:
        live |= {saved.definition}
        if "pending saves are marked" in rules:
            live |= {saved.pending}
    first = fence.oldest if "every retained version is marked" in rules else fence.version
    for version in range(fence.version - 1, first - 1, -1):
        root = yield get(version)
        if root is None:
            if "doubt aborts a cleaning" in rules:
                return
            continue
        live |= root.files
    until = cut_off if "only files before the fence go" in rules or not of_tables else cut_off + 1
    void = frozenset(name for name, at in files if at < until and name.startswith("d") == of_tables) - live
    while (yield delete_one(void)) is not None:
        pass


@ends
def takeover(maker: str, target: Root, pins: bool, rules: Rules) -> Process:
    """Roll back to a version, or (``pins``) name it by a snapshot; read before, taken over by the commit."""
    found = yield get(target.version)
    base = yield newest()
    if found is None or base is None or base.oldest > target.version:
        return

    def build(below: Root, _: tuple[str, ...]) -> Root:
        if pins:
            return _on(below, maker, below.files)._replace(pins=below.pins | target.files)
        return _on(below, maker, target.files)

    yield from commit(rules, Job(maker, takes_over=target.version), base, build)


@ends
def restore(maker: str, target: Root, name: str, rules: Rules) -> Process:
    """Take one definition of an older version into the newest one."""
    found = yield get(target.version)
    base = yield newest()
    if found is None or base is None or base.oldest > target.version:
        return
    job = Job(maker, takes_over=target.version)
    yield from commit(rules, job, base, lambda below, _: _on(below, maker, below.files | {name}))


# Readers.


def reader(start: int | None, rules: Rules) -> Process:
    """Find the newest version from a hint or a known version on (``start``), or from the boundary on."""
    began = yield _named("begins", lambda w: [(w, w.newest.version)])
    at = start if start is not None else (yield boundary())
    for _ in range(3):
        found = None
        while (root := (yield get(at + 1 if found else at))) is not None:
            found, at = root, root.version
        if found is None:
            after = yield get(at + 1)
            if after is not None:
                at += 1
                continue
        limit = yield boundary()
        if found is not None and (limit <= found.version or "a search ends with a look at the boundary" not in rules):
            yield Fact(("found", found, began))
            return
        at = limit


# The saved transaction.


@ends
def saving(maker: str, rules: Rules) -> Process:
    """Resume the saved transaction, or begin it, and save it: definition, file, look at the newest root, confirm."""
    file, _, _ = yield read_saved()
    if file is not None and file.state != "open" and "a taken or aborted save is not replaced" in rules:
        return
    revision = 0 if file is None else file.revision + 1
    keeps = file is not None and "a save keeps the one before" in rules
    compare = "saves are compared and set" in rules
    for attempt in ("", "'", "''"):
        name = f"{maker}1{attempt}"
        since = yield put(name)
        confirmed = Saved(revision, name)
        to = file._replace(pending=name) if keeps else confirmed
        if not (yield set_saved(to, file, compare=compare)):
            return
        file = to
        root = yield newest()
        if root is None:
            return
        if root.void <= since or "a save looks at the fence" not in rules:
            if not keeps or (yield set_saved(confirmed, file, compare=compare)):
                yield Fact(("saved", revision))
            return


@ends
def publishing(maker: str, base: Root, rules: Rules) -> Process:
    """Take the saved transaction and commit it from the version it began at."""
    file, seen, since = yield read_saved()
    if seen is None or file.state == "aborted":
        return
    if "a commit takes the saved transaction" in rules and not (
        yield set_saved(file._replace(state=maker, pending=""), file, compare=True)
    ):
        return

    def meet(root: Root) -> None:
        if root.txn.startswith("x") or (root.txn == "-x" and "a late commit meets the abort" in rules):
            raise Refused

    def build(below: Root, wrote: tuple[str, ...]) -> Root:
        return _on(below, maker, below.files | {*wrote})._replace(txn=f"x{seen.revision}")

    yield from commit(rules, Job(maker, (seen.definition,), since), base, build, meet=meet)


@ends
def aborting(maker: str, base: Root, rules: Rules) -> Process:
    """Mark the saved transaction as aborted; one that another process has taken is aborted in the chain."""
    file, seen, _ = yield read_saved()
    if seen is None or file.state == "aborted":
        return
    aborted = file._replace(state="aborted", pending="")
    if file.state != "open":

        def meet(root: Root) -> None:
            if root.txn.startswith("x"):
                raise Refused

        build = lambda below, _: _on(below, maker, below.files)._replace(txn="-x")  # noqa: E731
        try:
            yield from commit(rules, Job(maker), base, build, meet=meet)
        except Unknown:
            if "an abort whose base has expired is refused" in rules:
                raise
    if not (yield set_saved(aborted, file, compare="aborting is compared and set" in rules)):
        return
    yield Fact(("aborted",))


def _on(below: Root, maker: str, files: frozenset[str]) -> Root:
    return below._replace(version=below.version + 1, maker=maker, files=files, txn="", below=below.maker)
