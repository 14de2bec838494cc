"""What an operation is, and how its arguments are drawn.

Arguments are plain data, so that a list of operations can be kept in a file, made shorter, and done again. So every
operation can be done in every state: the model says whether it has to be refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from pipelines import cli
from tests.model import tree
from tests.model.world import Finding, World
from trinitylake_core import CommitConflict, InvalidInput
from trinitylake_core.errors import LakehouseFrozen, NotFound, PlanOutdated, Refused, TransactionExpired

Args = dict[str, Any]
Step = tuple[str, Args]
REASON: Final = "the judge"
ICE: Final = "ice"
"""The namespace of Iceberg tables, which operations of their own change."""
FAR: Final = "far"
"""The namespace of the tables of another catalog; the same."""
OUTDATED: Final = (CommitConflict, PlanOutdated, TransactionExpired, NotFound)
"""What may refuse something because of what others did in between."""

OPERATIONS: Final[dict[str, Operation]] = {}


class Operation:
    """One kind of operation.

    Attributes:
        weight: how often it is drawn.
        uses: the public operations that it uses, for the test that looks for unused ones.
    """

    weight: ClassVar[float] = 1.0
    uses: ClassVar[tuple[str, ...]] = ()
    nested: ClassVar[bool] = True
    """Whether it may happen between another one's plan and its commit."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        OPERATIONS[cls.name()] = cls()

    @classmethod
    def name(cls) -> str:
        """Return the name in lists of operations."""
        return "".join("_" + each.lower() if each.isupper() else each for each in cls.__name__).lstrip("_")

    def draw(self, draw: Draw) -> Args | None:
        """Return arguments, or nothing if this makes no sense now."""
        return {}

    def do(self, world: World, args: Args) -> str:
        """Do it to the product and to the model; return the outcome. Raises ``Finding``."""
        raise NotImplementedError


def perform(world: World, step: Step, *, nested: bool = False) -> str:
    """Do one operation, judge what it made, and note what happened."""
    name, args = step
    try:
        outcome = OPERATIONS[name].do(world, args)
        world.judge_new()
    except (Finding, tree.Broken):
        raise
    except Exception as error:
        raise Finding(f"{type(error).__name__}: {error}") from error
    spent = world.spent
    spent.operations += 1
    spent.outcomes[name, outcome] += 1
    world.outcomes.append(f"{name}: {outcome}")
    if world.last is not None:
        spent.pairs[world.last, name] += 1
    world.last = name
    return outcome


class Between:
    """A hook of a job or a commit: does some operations the first time it is called, or after some calls."""

    def __init__(self, world: World, steps: list[Step] | None, calls: int = 0) -> None:
        self.world = world
        self.steps = [(name, args) for name, args in steps or []]
        self.calls = calls
        self.found: Finding | None = None
        self.happened = False

    def __bool__(self) -> bool:
        return bool(self.steps) or self.happened

    def check(self) -> None:
        """Be the ``cancel`` of a job, or the ``before_commit`` of a commit."""
        self.calls -= 1
        if self.calls >= 0:
            return
        steps, self.steps = self.steps, []
        if not steps:
            return
        self.happened = True
        outer = self.world.last
        for step in steps:
            perform(self.world, step, nested=True)
        self.world.last = outer

    def review(self, plan: object) -> bool:
        """Be the ``review`` of a job."""
        self.check()
        return True


def hooks(world: World, args: Args) -> tuple[Between, dict[str, Any]]:
    """Return what happens between plan and commit, and the arguments that have a job call it."""
    between = Between(world, args.get("between"), args.get("calls", 0))
    given: dict[str, Any] = {"spark": world.spark}
    if between:
        given |= {"review": between.review} if args.get("when") == "review" else {"cancel": between}
    return between, given


@contextlib.contextmanager
def timed(world: World) -> Any:
    """Count the time of the product, without that of the judge inside."""
    began, judged = time.perf_counter(), world.spent.judge_seconds
    try:
        yield
    finally:
        world.spent.product_seconds += time.perf_counter() - began - (world.spent.judge_seconds - judged)


def run_command(world: World, words: list[str]) -> tuple[int, str, str]:
    """Run it in this process, or by an older release where one writes, too."""
    if world.older is not None and world.older.does(words):
        return world.older.run(words)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(words)
    return code, out.getvalue(), err.getvalue()


def command(world: World, *words: str, may_fail: bool = False) -> tuple[int, Any]:
    """Run a command line; return its exit code and its document.

    ``may_fail``: exit code 4 is the caller's to judge; elsewhere it is a finding.
    """
    options = ["--storage-option", f"durable={str(world.size.durable).lower()}"]
    with timed(world):
        code, text, messages = run_command(world, [*words, "--json", *options])
    try:
        document = json.loads(text)
    except ValueError:
        raise Finding(f"{words[:2]}: code {code}, and no JSON: {text[:300]!r} {messages[-500:]!r}") from None
    if code not in {0, 1, 2, 3} and not (may_fail and code == 4):
        raise Finding(f"{' '.join(words)}: exit code {code}: {json.dumps(document)[:600]}")
    return code, document


class Draw:
    """Draws arguments from what is there: weights reach the structure of the tree."""

    def __init__(
        self, world: World, chance: random.Random, *, nested: bool = False, focus: list[list[str | None]] | None = None
    ) -> None:
        self.world = world
        self.chance = chance
        self.nested = nested
        self.focus = focus or []
        """What the operation is about in the middle of which this one happens."""
        self.used: list[list[str | None]] = []
        self._keys: list[str] | None = None

    def share(self, probability: float) -> bool:
        """Return true with a probability."""
        return self.chance.random() < probability

    def pick(self, weights: dict[str, float]) -> str:
        """Return one of some names."""
        return self.chance.choices([*weights], [*weights.values()])[0]

    def present(self) -> list[str]:
        """Return the keys of the newest version, in no order."""
        if self._keys is None:
            self._keys = [*self.world.model.now.content]
        return self._keys

    def node(self) -> tree.Node:
        """Return a node of the newest version."""
        node = self.world.tree
        while node.below and self.share(0.8):
            node = self.chance.choice(node.below)
        return node

    def existing(self) -> str | None:
        """Return a key that exists."""
        return self.chance.choice(self.present()) if self.present() else None

    def pivot(self) -> str | None:
        """Return a key of an inner node."""
        node = self.node()
        while node.below and not node.below[0].below:
            break
        else:
            node = self.world.tree
        return self.chance.choice(node.keys) if node.keys else None

    def edge(self) -> str | None:
        """Return the first or the last key of a node, or of its messages."""
        node = self.node()
        ends = [*node.keys[:1], *node.keys[-1:], *(node.newest if self.share(0.3) else ())]
        return self.chance.choice(ends) if ends else None

    def dropped(self) -> str | None:
        """Return a key that was dropped a moment ago."""
        return self.chance.choice(self.world.dropped) if self.world.dropped else None

    def neighbour(self) -> str | None:
        """Return a key whose name is one character from that of another one."""
        key = self.existing()
        if key is None or key.startswith("B"):
            return key
        kind, namespace, name = self.world.name_of(key)
        assert name is not None
        last = chr(ord(name[-1]) + self.chance.choice((-1, 1)))
        changed = self.chance.choice((name + "0", name[:-1] or "0", name[:-1] + last))
        return self.world.key(kind, namespace, self.fitting(changed))

    def fitting(self, name: str) -> str:
        """Return a name that is short enough and has no forbidden character."""
        name = "".join(each if each > "!" and each != "\x7f" else "0" for each in name)
        while len(name.encode()) > self.world.size.names:
            name = name[:-1]
        return name or "0"

    def fresh(self) -> str:
        """Return a key that may or may not exist."""
        kind = self.pick({"table": 6, "view": 3, "namespace": 1})
        if kind == "namespace":
            return self.world.key(kind, f"n{self.chance.randrange(8)}")
        name = f"t{self.chance.randrange(3 * self.world.size.objects)}"
        if self.share(0.05):
            name = self.chance.choice(("é" * 4, "\U0001f642" * 2, "\uffff\uffff", "~", "0"))
        return self.world.key(kind, self.namespace(), name)

    def home(self) -> str:
        """Return the key of a namespace."""
        return self.world.key("namespace", self.namespace())

    def awaited(self) -> str | None:
        """Return a key of a transaction that is open or saved."""
        waiting = [*self.world.open_transactions.values(), *self.world.saved.values()]
        touched = sorted(self.chance.choice(waiting).touched) if waiting else []
        return self.related(self.chance.choice(touched)) if touched else None

    def related(self, key: str) -> str:
        """Return a key itself, or its namespace, or something in it: what a namespace's drop depends on."""
        kind, namespace, _ = self.world.name_of(key)
        if self.share(0.3 if kind == "namespace" else 0.6):
            return key
        if kind != "namespace":
            return self.world.key("namespace", namespace)
        return self.world.key("table", namespace, f"t{self.chance.randrange(9)}")

    def object(self) -> list[str | None]:
        """Return kind, namespace and name of something to change."""
        near = [each for each in self.focus if each[1] not in {ICE, FAR}]
        if near and self.share(0.4):
            kind, namespace, name = self.chance.choice(near)
            return [*self.world.name_of(self.related(self.world.key(f"{kind}", f"{namespace}", name)))]
        how = self.pick(
            {
                "existing": 25,
                "pivot": 20,
                "edge": 15,
                "dropped": 10,
                "neighbour": 10,
                "fresh": 20,
                "awaited": 20,
                "home": 3,
            }
        )
        key = getattr(self, how)() or self.fresh()
        if self.world.name_of(key)[1] in {ICE, FAR}:
            key = self.fresh()
        self.used.append([*self.world.name_of(key)])
        return self.used[-1]

    def in_doubt(self) -> int | None:
        """Return which open transaction has been sent, and is no version."""
        for at, pending in enumerate(self.world.open_transactions.values()):
            if pending.in_doubt:
                return at
        return None

    def namespace(self) -> str:
        """Return the name of a namespace, mostly of one that exists."""
        names = [key for key in self.world.tree.newest if key.startswith("B")]
        found = [self.world.name_of(key)[1] for key in names if self.world.model.now.content.get(key)]
        for number in range(8):
            if self.world.key("namespace", f"n{number}") in self.world.model.now.content:
                found.append(f"n{number}")
        if not found or self.share(0.03):
            return f"n{self.chance.randrange(8)}"
        return self.chance.choice(found)

    def back(self) -> int:
        """Return how many versions back."""
        model = self.world.model
        return self.chance.randrange(min(self.chance.choice((2, 5, 1000)), model.newest - model.boundary + 1))

    def between(
        self, *without: str, often: float = 0.2, prefer: str | None = None, calls: Sequence[int] = (0,)
    ) -> Args:
        """Return the arguments for what happens between plan and commit; mostly nothing.

        Half of it is the operation that is preferred: one that changes what the job is about. It happens after one of
        so many calls, where the job asks more than once whether it is to go on.
        """
        if self.nested or not self.share(often):
            return {}
        steps = []
        for _ in range(self.chance.choice((1, 1, 2))):
            if prefer is not None and self.share(0.5):
                without = tuple(each for each in OPERATIONS if each != prefer)
            step = draw_step(self.world, self.chance, nested=True, without=without, focus=self.used)
            if step is not None:
                steps.append(step)
        when = self.chance.choice(("review", "commit", *("commit" for _ in calls[1:])))
        found: Args = {"between": steps, "when": when} if steps else {}
        if found and when == "commit" and len(calls) > 1:
            found["calls"] = self.chance.choice(calls)
        return found


def draw_step(
    world: World,
    chance: random.Random,
    *,
    nested: bool = False,
    without: tuple[str, ...] = (),
    focus: list[list[str | None]] | None = None,
) -> Step | None:
    """Return a random operation with its arguments: one time in three one that did not yet follow the last one."""
    every = [each for each in OPERATIONS if each not in without and (not nested or OPERATIONS[each].nested)]
    new = [each for each in every if not nested and not world.spent.pairs[str(world.last), each]]
    for _ in range(20):
        draw = Draw(world, chance, nested=nested, focus=focus)
        names = new if new and draw.share(1 / 3) else every
        name = chance.choices(names, [OPERATIONS[each].weight for each in names])[0]
        if world.model.now.frozen and not nested and draw.share(0.2):
            name = "freeze"  # most of what follows would only be refused
        args = OPERATIONS[name].draw(draw)
        if args is not None:
            return name, args
    return None


def version_of(world: World, args: Args) -> int:
    """Return the version that ``back`` names, at the latest the boundary."""
    return max(world.model.boundary, world.model.newest - int(args["back"]))


def refuse_unless(condition: object, why: str) -> None:
    """Raise a finding unless something holds."""
    if not condition:
        raise Finding(why)


def handle_of(world: World, args: Args) -> Any:
    """Return the handle that an operation uses: one that has just looked, or one that may be behind."""
    if args.get("stale"):
        return world.stale
    return world.lake.refresh()


__all__ = [
    "OPERATIONS", "OUTDATED", "REASON", "Args", "Between", "Callable", "Draw", "Finding", "InvalidInput",
    "LakehouseFrozen", "Operation", "Refused", "Step", "World", "command", "draw_step", "handle_of", "hooks", "perform",
    "refuse_unless", "timed", "version_of",
]  # fmt: skip
