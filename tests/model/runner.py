"""Draws operations by a seed, does them again from a list, makes a list shorter, and runs until a time is over.

python -m tests.model --minutes 5 --seed 1          worlds of all sizes, one after the other
python -m tests.model --again tests/model/found/x.json
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.model import operations
from tests.model.older import Older
from tests.model.operations.base import OPERATIONS, Finding, Step, draw_step, perform
from tests.model.tree import Broken
from tests.model.world import Size, Spent, World
from tests.support.chance import own_names

FOUND: Final = Path(__file__).parent / "found"
assert operations

SIZES: Final = (
    Size(order=4, room=1500, tables=True),
    Size(order=3, room=0),
    Size(order=128, room=0, objects=300),
    Size(order=5, room=None, storage="disk"),
    Size(order=8, room=4000, tables=True),
    Size(order=129, room=1500, objects=300, names=100),
    Size(order=6, room=4000, names=100),
    Size(order=512, room=None, objects=300),
    Size(order=7, room=20_000),
)
"""Those of `make test`: each order, tiny nodes and large ones."""
ORDERS: Final = (3, 4, 5, 6, 7, 8, 128, 129, 512)
MANY: Final = (30,) * 20 + (300,) * 10 + (3000,) * 9 + (100_000,)
"""How many objects a world of a large order has."""


@dataclass
class Found:
    """What the judge found: the world, the operations up to it, and the sentence."""

    size: Size
    steps: list[Step]
    sentence: str

    def save(self, path: Path) -> None:
        """Keep it as a file."""
        about = {"finding": self.sentence, "size": self.size.__dict__, "steps": self.steps}
        path.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Found:
        """Return what a file keeps."""
        about = json.loads(path.read_text(encoding="utf-8"))
        return cls(Size(**about["size"]), [(name, args) for name, args in about["steps"]], about["finding"])


def draw_size(chance: random.Random, spark: float = 0.0) -> Size:
    """Return the size of a world; ``spark`` is the share of those whose jobs run on Spark."""
    order = chance.choice(ORDERS)
    objects = chance.choice((30,) * 7 + (3000,)) if order < 100 else chance.choice(MANY)
    room = chance.choice((0, 1500, 4000, 20_000, None))
    return Size(
        order=order,
        room=room,
        objects=objects,
        names=chance.choice((8, 8, 100)),
        storage=chance.choice(("memory", "memory", "memory", "disk")),
        durable=chance.random() < 0.02,
        tables=objects == 30 and chance.random() < 0.4,
        engine="spark" if objects == 30 and chance.random() < spark else "local",
    )


def first_steps(size: Size) -> list[Step]:
    """Return what fills a world."""
    steps: list[Step] = [
        ("transact", {"edits": [["create", "namespace", f"n{n}", None] for n in range(3)], "end": "commit"})
    ]
    for number in range(3):
        edit = ["many", "create", "table" if number else "view", f"n{number}", number / 9, size.objects // 3]
        steps.append(("transact", {"edits": [edit], "end": "commit"}))
    if size.tables:
        for number, what in enumerate(("create", "append", "append")):
            args = {"what": what, "name": "t0", "by": "library", "start": 40 * number, "count": 5, "version": 2}
            steps.append(("table", args))
    return steps


def play(world: World, chance: random.Random, steps: list[Step], count: int) -> None:
    """Fill a world, do so many random operations, and judge it whole; ``steps`` collects them."""
    for step in first_steps(world.size):
        steps.append(step)
        perform(world, step)
    for _ in range(count):
        step = draw_step(world, chance)
        if step is not None:
            step = json.loads(json.dumps(step))
            steps.append((step[0], step[1]))
            perform(world, (step[0], step[1]))
    world.finish()


def sentence_of(error: BaseException) -> str:
    """Return what was found, in one line."""
    return f"{error}"[:1500]


def again(size: Size, steps: Sequence[Step]) -> str | None:
    """Do a list of operations in a new world; return what is found, if something is."""
    with own_names("again"):
        world = World(size)
        try:
            for step in steps:
                perform(world, json.loads(json.dumps(step)))
            world.finish()
        except (Finding, Broken, AssertionError) as error:
            return sentence_of(error)
        finally:
            world.close()
    return None


def kind_of(sentence: str) -> str:
    """Return what two sentences of one fault have in common: the words without numbers and names."""
    words = [each for each in sentence.split()[:14] if each.isalpha()]
    return " ".join(words[:5])


def shorten(found: Found, seconds: float = 60.0) -> Found:
    """Delete operations by halves, quarters, ... as long as the same kind of finding remains; then parts of them."""
    until = time.monotonic() + seconds
    kind, best = kind_of(found.sentence), found

    def try_these(steps: list[Step]) -> bool:
        nonlocal best
        sentence = again(found.size, steps)
        if sentence is None or kind_of(sentence) != kind:
            return False
        best = Found(found.size, steps, sentence)
        return True

    for name in sorted({name for name, _ in found.steps}):
        try_these([step for step in best.steps if step[0] != name])
    size = max(1, len(best.steps) // 2)
    while size and time.monotonic() < until:
        start = 0
        while start < len(best.steps) and time.monotonic() < until:
            if not try_these(best.steps[:start] + best.steps[start + size :]):
                start += size
        size //= 2
    for simpler in _simplifications(lambda: best.steps):
        if time.monotonic() > until:
            break
        try_these(simpler)
    return best


def _simplifications(steps: Callable[[], list[Step]]) -> Iterator[list[Step]]:
    """Yield lists in which one operation has fewer arguments or edits."""
    for number in range(len(steps())):
        for name in ("between", "stale", "group", "isolation", "when"):
            if number < len(steps()) and name in steps()[number][1]:
                what, args = steps()[number]
                yield [*steps()[:number], (what, {k: v for k, v in args.items() if k != name}), *steps()[number + 1 :]]
        at = 0
        for position, edit in enumerate([*steps()[number][1].get("edits", [])] if number < len(steps()) else []):
            if edit[0] in {"many", "put_many"}:
                for part in (16, 4, 2):
                    what, args = steps()[number]
                    smaller = (
                        [*edit[:-1], edit[-1] // part] if edit[0] == "many" else [*edit[:4], edit[4] // part, edit[5]]
                    )
                    edits = [*args["edits"][:position], smaller, *args["edits"][position + 1 :]]
                    yield [*steps()[:number], (what, {**args, "edits": edits}), *steps()[number + 1 :]]
        while number < len(steps()) and at < len(steps()[number][1].get("edits", [])):
            what, args = steps()[number]
            before = len(args["edits"])
            if before == 1:
                break
            edits = args["edits"][:at] + args["edits"][at + 1 :]
            yield [*steps()[:number], (what, {**args, "edits": edits}), *steps()[number + 1 :]]
            if len(steps()[number][1]["edits"]) == before:
                at += 1


@dataclass
class Budget:
    """How long or how many worlds, from which seed, and how many operations a world gets."""

    seconds: float
    seed: int
    operations: int = 300
    shorten: float = 60.0
    worlds: int | None = None
    sizes: Sequence[Size] = ()
    """The sizes of worlds, in turn; by default they are drawn."""
    first: bool = False
    """Whether the first finding ends it."""
    older: Older | None = None
    """Runs all commands; then no finding is made shorter."""
    spark: float = 0.0
    """The share of small worlds whose jobs run on Spark."""


def play_new(
    seed: str, size: Size, spent: Spent, steps: list[Step], count: int, older: Older | None = None
) -> tuple[list[str], str | None]:
    """Play a new world; return the outcomes, and what was found, if something was."""
    with own_names(seed):
        world = World(size, spent, older)
        try:
            play(world, random.Random(seed), steps, count)
        except (Finding, Broken, AssertionError) as error:
            return world.outcomes, sentence_of(error)
        finally:
            world.close()
        return world.outcomes, None


def run(budget: Budget, say: Callable[[str], Any] = print, keep: Path | None = None) -> tuple[Spent, list[Found]]:
    """Play one world after the other until the time is over; return what was spent, and what was found."""
    began, spent, found = time.monotonic(), Spent(), list[Found]()
    told, number = began, 0
    while time.monotonic() - began < budget.seconds and number != budget.worlds and not (found and budget.first):
        seed = f"{budget.seed}/{number}"
        number += 1
        size = (
            budget.sizes[(number - 1) % len(budget.sizes)]
            if budget.sizes
            else draw_size(random.Random(seed), budget.spark)
        )
        spent.worlds[str(size)] += 1
        steps = list[Step]()
        slower = 1 + (size.objects > 1000) + 8 * (size.objects > 10_000) + 9 * (size.engine == "spark")
        count = budget.operations // slower
        _, sentence = play_new(seed, size, spent, steps, count, budget.older)
        if sentence is not None:
            say(f"FOUND after {time.monotonic() - began:.0f} s, seed {seed}, {size}, step {len(steps)}: {sentence}")
            each = Found(size, steps, sentence)
            each = shorten(each, budget.shorten) if budget.shorten and budget.older is None else each
            found.append(each)
            say(f"shorter: {len(each.steps)} operations: {each.sentence}\n  {json.dumps(each.steps)[:3000]}")
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                each.save(keep / f"seed-{seed.replace('/', '-')}.json")
        if time.monotonic() - told > 60:
            told = time.monotonic()
            say(describe(spent, told - began))
    return spent, found


def describe(spent: Spent, seconds: float) -> str:
    """Return one line about what was done so far."""
    return (
        f"{seconds:5.0f} s: {spent.operations} operations, {spent.versions} versions judged, "
        f"{sum(spent.worlds.values())} worlds; product {spent.product_seconds:.0f} s, judge {spent.judge_seconds:.0f} s"
    )


def summary(spent: Spent) -> str:
    """Return the operations, outcomes and pairs that were reached."""
    lines = [f"{name:12} {outcome:24} {count}" for (name, outcome), count in sorted(spent.outcomes.items())]
    names = [*OPERATIONS]
    missing = [(a, b) for a in names for b in names if not spent.pairs[a, b]]
    lines.append(f"pairs reached: {len(names) ** 2 - len(missing)} of {len(names) ** 2}; not {missing[:10]}")
    return "\n".join(lines)
