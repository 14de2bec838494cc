"""Under every schedule, nothing acknowledged is lost and nothing refused leaves a trace.

A failure prints the scenario and its schedule; ``python -m tests.simulation.replay`` shows the run once more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import pytest

from tests.simulation.actors import AT_RANDOM, FOREIGN
from tests.simulation.explore import Bounds, explore, random_run, shrunk
from tests.simulation.mutations import MUTATIONS
from tests.simulation.replay import told
from tests.simulation.scenarios import Scenario, run
from tests.simulation.schedule import DURATIONS, Schedule
from trinitylake_core.errors import CommitConflict

Told = Callable[[str, object], None]
_TOLD: Final = 3
"""Findings of random runs that are made short and told request by request; making one short takes up to a minute."""
_PARTS: Final = 8
"""In how many tests all schedules of a pair with two faults are run."""
_GARBAGE: Final = tuple(f"recover-{how}" for how in ("empty", "garbage", "table", "child", "older"))
PAIRS: Final = [
    "+".join(pair)
    for pair in itertools.combinations_with_replacement((kind for kind in AT_RANDOM if kind not in _GARBAGE), 2)
]
_SIMILAR: Final = {
    FOREIGN, *_GARBAGE,
    "write-both", "write-twice", "write-large", "iceberg", "clean-aged", "snapshot-partial", "snapshot-drop",
    "export-old", "export-again", "export-history-again", "restore-copy", "write-copy", "recover", "recover-older",
    "write-retry", "group", "later", "create", "purge", "rename", "save-publish", "publish-later", "at", "diff",
    "append", "append-alter", "append-deletes", "append-statistics", "register", "name-metadata", "tables-clean",
    "export-tables", "export-rest", "write-copy-other",
    "create-copy", "recreate-copy", "refresh-copy", "expire-copy", "clean-copy",
    "freeze-thaw", "save-fresh",
    "group-same", "group-create", "request-alone", "request-at-two",
    "group-broken", "group-abort", "request-again", "unset", "unset-table", "set-ref", "unset-one", "idle",
}  # fmt: skip
"""Kinds whose pairs `make test` leaves to `make test-all`."""
DISSIMILAR: Final = [pair for pair in PAIRS if _SIMILAR.isdisjoint(pair.split("+"))]
_HERE: Final = DISSIMILAR[::9]
"""What `make test` tries of them: each kind meets every ninth one of the others."""
_SAMPLE: Final = 4
"""Of schedules with two decisions `make test` runs every fourth; `make test-all` runs them all."""
_FEW: Final = ("die", "month")
COPIES: Final = (
    "export-again+export-old", "export-history+export-history-again", "export-history-again+expire",
    "restore-copy+export-again", "write-copy+export-again",
)  # fmt: skip
"""Pairs of which one exports, beside what `test_pairs_with_one_preemption` tries."""
DAMAGED: Final = (
    "recover+recover-older", *(f"recover+{kind}" for kind in ("write", "write-stale", "publish", "save", "load")),
    *(f"{kind}+{other}" for kind in ("recover", "recover-older") for other in (
        "expire", "clean", "compact", "rollback", "restore", "snapshot", "export-history", "open", "refresh",
    )),
)  # fmt: skip
"""Pairs around a root that was cut short, the newest or the one before it."""
GARBAGE: Final = tuple(
    f"{kind}+{other}" for kind in _GARBAGE for other in (
        "write", "expire", "clean", "compact", "rollback", "restore", "export-history", "open",
    )
)  # fmt: skip
"""Pairs around a newest root that is something else: nothing, noise, another table or node."""
_GARBAGE_HERE: Final = [*GARBAGE[:8], *(pair for pair in GARBAGE[8:] if pair.endswith(("+write", "+expire", "+clean")))]
"""The pairs of one kind of garbage, and of each other kind those that delete, commit or move the boundary."""
FOREIGN_PAIRS: Final = (
    *(f"{FOREIGN}+{other}" for other in (
        "expire", "expire-some", "clean", "rollback", "recover-older", "restore", "export", "export-history", "open",
        "refresh",
    )),
)  # fmt: skip
"""Pairs around a newest root of another lakehouse."""
DISTURBED: Final = (
    "write-stale+expire", "publish+abort", "publish+save-again", "compact+write",
)  # fmt: skip
"""Pairs in which a process also dies or stalls in `make test`."""
LATE: Final = (
    "write-other+clean", "save+clean", "publish+abort", "save-publish+clean", "expire+write-stale",
    "export-rest+write-copy", "write-copy+clean-copy", "write-copy+expire-copy", "create-copy+export-rest",
)  # fmt: skip
"""Pairs in which requests of one process are carried out late."""
COURTEOUS: Final = (
    "write-stale+expire", "write-other+clean", "compact+clean", "publish+abort", "publish+save-again", "restore+clean",
    "write-copy+export-rest", "write-copy+expire-copy", "write-copy-other+write-copy", "expire+expire-some",
)  # fmt: skip
"""Pairs of which a writer looks at the boundary before it creates a root, which hides the look afterwards."""
GROUPS: Final = (
    "group+write", "group+group", "group+clean", "group+compact", "group+expire", "group+freeze-thaw", "group+purge",
    "group+write-stale", "group+rollback", "request+request", "request+group", "request+rollback", "request+write",
    "rename+set-ref",
)  # fmt: skip
"""Pairs of which one commits in a group."""
TRIPLES: Final = ("write-stale+expire+refresh-stale", "restore+expire+clean", "publish+abort+clean")
MORE_TRIPLES: Final = (
    "write-other+expire+clean", "save+write+clean", "rollback+expire+tables-clean",
    "append+expire+tables-clean", "export-tables+expire+tables-clean",
    "rollback+expire+clean", "snapshot+expire+clean", "open+expire+clean", "iceberg+expire+clean",
    "compact+expire+clean", "load+expire+clean", "export+expire+clean", "snapshot-partial+expire+clean",
    "save-again+abort+clean", "compact+compact+expire", "rollback+write-both+compact", "write-twice+expire+expire-some",
    "write+write-both+rollback", "export-old+expire+clean", "export-history+expire+clean",
)  # fmt: skip


FIRSTS: Final = sorted({pair.partition("+")[0] for pair in PAIRS})


def _pairs_of(first: str) -> list[str]:
    return [pair for pair in PAIRS if pair.startswith(f"{first}+")]


def _some_and_others(names: Sequence[str]) -> pytest.MarkDecorator:
    """Let `make test` try every second name, and `make test-all` the others, too."""
    others = pytest.param(names[1::2], id="others", marks=pytest.mark.slow)
    return pytest.mark.parametrize("names", [pytest.param(names[::2], id="some"), others])


def _explored(
    names: Iterable[str], bounds: Bounds, record: Told, order: str = "reversed", *, courtesy: bool = True
) -> None:
    schedules = outcomes = 0
    wrong = {}
    for name in names:
        scenario = Scenario(tuple(name.split("+")), order=order, courtesy=courtesy)
        found = explore(scenario, bounds)
        if found.violation is not None:
            wrong[name] = told(scenario, found.violation)
        schedules += found.schedules
        outcomes += len(found.outcomes)
    if wrong:
        findings = "\n\n".join(wrong.values())
        pytest.fail(f"{len(wrong)} scenarios go wrong: {', '.join(wrong)}\n\n{findings}", pytrace=False)
    record("schedules", schedules)
    record("outcomes", outcomes)
    print(f"{schedules} schedules, {outcomes} outcomes, {bounds}")


@pytest.mark.parametrize("first", sorted({pair.partition("+")[0] for pair in _HERE}))
def test_pairs_with_one_preemption(first: str, record_property: Told) -> None:
    """Pairs of operations, each preempted once by the other at every request."""
    _explored([pair for pair in _HERE if pair.startswith(f"{first}+")], Bounds(1), record_property)


@pytest.mark.slow
def test_the_other_pairs_with_one_preemption(record_property: Told) -> None:
    """The others."""
    _explored([pair for pair in DISSIMILAR if pair not in _HERE], Bounds(1), record_property)


@_some_and_others(COPIES)
def test_copies_with_one_preemption(names: Sequence[str], record_property: Told) -> None:
    """Two exports to one place; exports beside an expiration; restoring from a copy that is being made."""
    _explored(names, Bounds(1), record_property)


@_some_and_others(GROUPS)
def test_groups_with_one_preemption(names: Sequence[str], record_property: Told) -> None:
    """Each member of a group is committed or refused, whatever the others do."""
    _explored(names, Bounds(1), record_property)


@pytest.mark.parametrize("parts", [_SAMPLE, pytest.param(1, marks=pytest.mark.slow)])
def test_groups_with_a_fault(parts: int, record_property: Told) -> None:
    """The process of a group dies, or an answer is lost."""
    _explored(("group+write", "request+request"), Bounds(1, 1, ("lose", "die"), parts=parts), record_property)


@_some_and_others(DAMAGED)
def test_damaged_roots_with_one_preemption(names: Sequence[str], record_property: Told) -> None:
    """Nothing acknowledged is lost around a root that cannot be read, and every job succeeds or names the file."""
    _explored(names, Bounds(1), record_property)


@_some_and_others([*_GARBAGE_HERE, *FOREIGN_PAIRS])
def test_other_things_in_place_of_a_root_with_one_preemption(names: Sequence[str], record_property: Told) -> None:
    """The same with garbage, and with the root of another lakehouse: it can be read, but not trusted."""
    _explored(names, Bounds(1), record_property)


def test_no_writer_fails_because_of_a_compaction(record_property: Told) -> None:
    """Whoever meets compactions alone never meets a conflict: one more rule of the oracle, broken by none of these."""
    pairs = ("compact+write", "compact+group", "append+compact", "compact+publish", "compact+compact+write")
    conflicts_with_itself = "compact+group-same"
    _explored((*pairs, conflicts_with_itself), Bounds(1), record_property)


@pytest.mark.slow
def test_all_other_things_in_place_of_a_root_with_one_preemption(record_property: Told) -> None:
    """Every kind of garbage beside every operation."""
    _explored(GARBAGE, Bounds(1), record_property)


@pytest.mark.parametrize("name", DISTURBED)
def test_pairs_with_a_preemption_and_a_fault(name: str, record_property: Told) -> None:
    """One of them also dies, or stalls for a month; every fault of every pair is `make test-all`'s."""
    _explored([name], Bounds(1, 1, _FEW, parts=_SAMPLE), record_property)


@pytest.mark.parametrize("name", [*TRIPLES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_TRIPLES)])
def test_triples_with_one_preemption(name: str, record_property: Told) -> None:
    """Three operations, one of them preempted at every request."""
    _explored([name], Bounds(1), record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_all_pairs_with_a_preemption_and_a_fault(name: str, record_property: Told) -> None:
    """Every pair, with every kind of fault; a test each, because some take ten minutes."""
    _explored([name], Bounds(1, 1, (*Bounds().kinds, "minute")), record_property)


@pytest.mark.parametrize("name", LATE)
def test_pairs_with_a_late_request(name: str, record_property: Told) -> None:
    """One of them gives a request up, which is carried out before each later request for that file, or at the end."""
    _explored([name], Bounds(0, 1, ("late",)), record_property)


@pytest.mark.parametrize(
    "name", ["publish+abort", *(pytest.param(each, marks=pytest.mark.slow) for each in LATE if each != "publish+abort")]
)
def test_pairs_with_a_late_request_and_a_preemption(name: str, record_property: Told) -> None:
    """The same while the other one is at work."""
    _explored([name], Bounds(1, 1, ("late",)), record_property)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("name", LATE)
def test_pairs_with_two_faults(name: str, part: int, record_property: Told) -> None:
    """Two faults of any kind, and one preemption; in parts, because some pairs take an hour."""
    _explored([name], Bounds(1, 2, part=part, parts=_PARTS), record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", COURTEOUS)
def test_pairs_with_three_preemptions_without_courtesy(name: str, record_property: Told) -> None:
    """Safety rests on the look after the creation alone."""
    _explored([name], Bounds(3), record_property, courtesy=False)


@pytest.mark.slow
@pytest.mark.parametrize("first", FIRSTS)
def test_all_pairs_with_two_preemptions(first: str, record_property: Told) -> None:
    """Every pair, deletions and requests that go out together in the other order."""
    _explored(_pairs_of(first), Bounds(2), record_property, "given")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TRIPLES, *MORE_TRIPLES])
def test_triples_with_a_preemption_and_a_death(name: str, record_property: Told) -> None:
    """Three operations, one preempted, and one dies or stalls."""
    _explored([name], Bounds(1, 1, _FEW), record_property)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["write-stale+expire", "expire+expire-some", "write-other+clean", "publish+save-again"]
)
def test_pairs_with_two_preemptions_and_a_fault(name: str, record_property: Told) -> None:
    """The ones that the review broke."""
    _explored([name], Bounds(2, 1, _FEW), record_property)


def _seeds(seeds: Iterable[int]) -> None:
    """Run random schedules. One finding does not hide those after it: all are named, and the first few are told."""
    outcomes: set[tuple[object, ...]] = set()
    wrong: dict[int, str] = {}
    for seed in seeds:
        scenario, schedule = random_run(seed, AT_RANDOM)
        ran = run(scenario, schedule, outcomes)
        if not ran.violations:
            continue
        shortest = shrunk(scenario, ran) if len(wrong) < _TOLD else ran
        wrong[seed] = told(scenario, shortest) if len(wrong) < _TOLD else ran.violations[0]
    if wrong:
        findings = "\n\n".join(f"seed {seed}: {text}" for seed, text in wrong.items())
        pytest.fail(f"{len(wrong)} seeds go wrong: {', '.join(map(str, wrong))}\n\n{findings}", pytrace=False)
    print(f"{len(outcomes)} outcomes")


def test_random_schedules() -> None:
    """Two to four actors whose clocks differ by days, preempted, stalled, disturbed and killed at random."""
    _seeds(range(50))


@pytest.mark.slow
@pytest.mark.parametrize("thousand", range(20))
def test_many_random_schedules(thousand: int) -> None:
    """The same, twenty thousand times."""
    _seeds(range(thousand * 1000, thousand * 1000 + 1000))


def test_a_key_from_the_future_is_refused_beside_a_compaction() -> None:
    """The clock of the endpoint is two days behind: its conflict is none that the compaction made."""
    ran = run(Scenario(("compact", "request-again"), (0, -2 * DURATIONS["day"])), Schedule(1))
    assert isinstance(ran.actors[1].error, CommitConflict)
    assert not ran.violations


def test_a_copy_with_a_damaged_root_is_committed_to() -> None:
    """A history takes along a root that cannot be read, and the oracle knows it at the copy, too."""
    ran = run(Scenario(("recover-garbage", "export-history-again", "refresh-copy")), Schedule())
    assert [actor.error for actor in ran.actors] == [None, None, None]
    assert not ran.violations


def test_no_second_fault_strikes_who_is_cut_off() -> None:
    """None of its further requests reaches anything: each outage is one schedule, however many faults are allowed."""
    scenario = Scenario(("write",))
    points = len(run(scenario, Schedule()).steps)
    found = explore(scenario, Bounds(preemptions=0, faults=2, kinds=("outage",)))
    assert found.schedules == 1 + points


def test_parts_are_the_whole() -> None:
    """Each schedule with two decisions is in exactly one part; those with fewer, which lead there, are in each."""
    scenario = Scenario(("abort", "write"))
    faults = ("die",)
    whole = explore(scenario, Bounds(1, 2, faults))
    parts = [explore(scenario, Bounds(1, 2, faults, part, 3)) for part in range(3)]
    no_part = 3
    shared = explore(scenario, Bounds(1, 2, faults, no_part, 3)).schedules
    assert sum(each.schedules - shared for each in parts) == whole.schedules - shared
    assert set().union(*(each.outcomes for each in parts)) == whole.outcomes


def test_a_finding_does_not_hide_the_next(record_property: Told) -> None:
    """Two pairs find the rule that is taken out, and both are named."""
    pairs = ("recreate-copy+refresh-copy", "recreate-copy+refresh-copy+idle")
    with MUTATIONS["a handle knows its lakehouse"].taken_out(), pytest.raises(pytest.fail.Exception) as failed:
        _explored(pairs, Bounds(0), record_property)
    assert f"2 scenarios go wrong: {', '.join(pairs)}" in str(failed.value)


def test_a_seed_tells_everything() -> None:
    """The same seed leads to the same requests and the same bytes, and so does the schedule that it was."""
    scenario, schedule = random_run(4711, AT_RANDOM)
    first = run(scenario, schedule)
    again = run(*random_run(4711, AT_RANDOM))
    written = run(scenario, Schedule.parse(str(first.schedule)))
    assert first.schedule.decisions
    for ran in (again, written):
        assert [(step.actor, step.kind, step.path) for step in first.steps] == [
            (step.actor, step.kind, step.path) for step in ran.steps
        ]
        assert first.outcome == ran.outcome
