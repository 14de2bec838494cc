"""What the model visits, and what each rule is for.

W a writer (on the newest version, w on an old one), C a compaction, E an expiration that keeps the newest version
(e the newest two), K a cleaning of age zero, B a rollback, N a snapshot, T a restore, S a save, P a commit of the
saved transaction, A its abort, R a cold reader, F a refresh of a handle of an old version, V a writer that begins with
the newest version, D a writer of a table, L a cleaning of tables of age zero, X an export to this place that claims it,
and puts the claim back. ``?`` lets an answer to a creation be lost, or the creation be late; ``~`` lets the clocks of
front ends differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from tests.simulation import processes as p
from tests.simulation.model import Root, Rules, Saved, Scope, Visit, World

_OLD: Final = "g"
"""A file that only version 0 needs; ``f`` is one of versions 0 and 1."""


def _world(*, saved: bool = False) -> World:
    history = tuple(
        Root(number, "before", frozenset({"a", "b", *("g", "f")[number:], f"h{number}"})) for number in range(3)
    )
    files = frozenset((name, 0) for root in history for name in root.files)
    if not saved:
        return World(frozenset(history), history, files)
    return World(frozenset(history), history, files | {("x", 0)}, Saved(0, "x"), facts=frozenset({("saved", 0)}))


_HISTORY: Final = _world().history
_PROCESSES: Final[Mapping[str, Callable[[str], Callable[[Rules], Any]]]] = {
    "W": lambda maker: partial(p.writer, maker, _HISTORY[2]),
    "w": lambda maker: partial(p.writer, maker, _HISTORY[0]),
    "C": lambda maker: partial(p.compaction, maker, 1),
    "E": lambda maker: partial(p.expiration, maker, 1),
    "e": lambda maker: partial(p.expiration, maker, 2),
    "K": lambda maker: partial(p.cleaning, maker, False),
    "L": lambda maker: partial(p.cleaning, maker, True),
    "D": lambda maker: partial(p.appender, maker),
    "B": lambda maker: partial(p.takeover, maker, _HISTORY[1], False),
    "N": lambda maker: partial(p.takeover, maker, _HISTORY[1], True),
    "T": lambda maker: partial(p.restore, maker, _HISTORY[1], "f"),
    "S": lambda maker: partial(p.saving, maker),
    "P": lambda maker: partial(p.publishing, maker, _HISTORY[0]),
    "A": lambda maker: partial(p.aborting, maker, _HISTORY[0]),
    "R": lambda maker: partial(p.reader, None),
    "F": lambda maker: partial(p.reader, 0),
    "V": lambda maker: partial(p.fresh_writer, maker),
    "X": lambda maker: partial(p.exporting, 9),
}


def scope(letters: str, ticks: int = 1, deaths: int = 1, *, saved: bool = False) -> Scope:
    """Return the scope of some processes, given by their letters."""
    chosen = [each for each in letters.split() if each in _PROCESSES]
    world = _world(saved=saved)._replace(losses=letters.count("?"), ahead=letters.count("~"))
    if world.ahead:
        world = world._replace(stored=frozenset({(world.newest.version, world.newest.maker, world.now + world.ahead)}))
    return Scope(world, [_PROCESSES[each](f"{each}{number}") for number, each in enumerate(chosen)], ticks, deaths)


class Rule(NamedTuple):
    """What a rule is for: the scope in which something breaks without it, and how."""

    scope: str
    without: str


RULES: Final[Mapping[str, Rule]] = {
    "the boundary is looked at after creating": Rule(
        "w E", "a writer stalls, its name is freed, it creates the root and acknowledges it"
    ),
    "the boundary is compared and set": Rule(
        "w E e", "the later expiration lowers the boundary, and a stalled writer passes its look"
    ),
    "deletions come last": Rule("w E", "roots are gone before the boundary says so, and a writer passes its look"),
    "a search ends with a look at the boundary": Rule(
        "F w E", "a writer died after creating a freed name, and a reader that stood before it adopts its root"
    ),
    "fenced files are written again": Rule(
        "W K", "a writer loses the race to a fence, and the file it wrote before was cleaned"
    ),
    "an expired base starts over": Rule(
        "K T E", "what is taken over belongs to a version that expired, and was cleaned before the commit"
    ),
    "cleaning commits a fence": Rule("W K", "a file is listed, committed, and deleted, for no root was marked since"),
    "the fence comes before the listing": Rule(
        "S K", "a save is listed too early to be marked, looks before the fence exists, and is cleaned"
    ),
    "every retained version is marked": Rule("W K", "files that only older versions need are deleted"),
    "doubt aborts a cleaning": Rule(
        "K T E", "a version expires while others are marked; what a commit took over from it is not marked"
    ),
    "saved transactions are marked": Rule("P S K", "the definitions of a saved transaction are deleted"),
    "a save looks at the fence": Rule("S K", "its definitions are cleaned before the file exists that marks them"),
    "saves are compared and set": Rule("P S", "a save replaces what somebody has taken meanwhile"),
    "a taken or aborted save is not replaced": Rule("P S", "a save is acknowledged while an older one is committed"),
    "a commit takes the saved transaction": Rule("P S", "a save is acknowledged, and an older one is committed"),
    "a save keeps the one before": Rule(
        "P S K", "its file is set, its definition was cleaned, it dies: the one that was acknowledged is lost too"
    ),
    "pending saves are marked": Rule(
        "P S K", "it looks, a cleaning fences and lists, it confirms: its definition is cleaned after that"
    ),
    "a late commit meets the abort": Rule("P A", "the abort of a taken transaction is acknowledged, then committed"),
    "aborting is compared and set": Rule("P A", "what somebody has just taken is aborted, acknowledged, and committed"),
    "writers delete nothing": Rule(
        "V W E ?", "an answer is lost, others build on the root, it expires, its name is free: its files are deleted"
    ),
    "no outcome is guessed": Rule("V W E ?", "the same, and the writer is told that nothing was committed"),
    "a claim decides nothing": Rule("W X", "an export claims the place and puts that back: the version counts"),
    "a commit knows itself": Rule(
        "V W ?", "its answer is lost, and another version came on top: it rebases over itself"
    ),
    "an abort whose base has expired is refused": Rule("P A E", "the commit of the transaction expired unseen"),
    "files are held to the fence of tables": Rule(
        "D L", "a data file is listed, cleaned, and committed after that on top of the fence"
    ),
    "they are held to a fence that came in between": Rule("D L", "the same, by a writer that lost its race to it"),
    "what is missing is refused": Rule("D L", "the same, when the file is gone already"),
    "only files before the fence go": Rule("D L", "a file as young as the fence is listed, committed, and deleted"),
    "the fence of tables is carried on": Rule("W D L", "a version after the fence does not repeat it"),
    "fences allow for clocks that differ": Rule(
        "V K ~", "a file is older than the version it was written after, and a fence falls in between"
    ),
}


def _scopes(*names: str, saved: bool = False, ticks: int = 1, deaths: int = 1) -> dict[str, Scope]:
    return {name: scope(name, ticks, deaths, saved=saved) for name in names}


SMALL: Final[Mapping[str, Scope]] = {
    **_scopes("w E", "W K", "C K", "S K", "B E", "N E", "E e", "F w E", "D L"),
    **_scopes("S S", "P S", "P A", "P P", "P A S", "P S K", saved=True),
    **_scopes("w E e", "K T E", "V W ?", "W X", "W X E", "V K ~", "W D L", deaths=0),
    **_scopes("V W E ?", ticks=0, deaths=0),
    **_scopes("P A E", saved=True, ticks=0, deaths=0),
}
"""Visited in seconds."""
LARGE: Final[Mapping[str, Scope]] = {
    **_scopes("V V W E ?", "W V K ~", "W X E ?", deaths=0),
    **_scopes(
        "W W K",
        "R w E",
        "C E K",
        "B E K",
        "N E K",
        "T E K",
        "w E K",
        "S K K",
        "C W E",
        "D E L",
        "D B L",
        "D L L",
        "D K L",
    ),
    **_scopes("P A K", "P P A", "P S S", "P P K", saved=True),
}
"""Visited in minutes."""


def main() -> int:
    """Visit the scopes that the command line names, or all."""
    scopes = {**SMALL, **LARGE}
    wrong = 0
    for name in sys.argv[1:] or scopes:
        visit = Visit(scopes[name], frozenset(RULES)).run()
        print(f"{name}: {visit.states} states, {visit.violation or 'nothing wrong'}")
        wrong += visit.violation is not None
        for label in visit.schedule:
            print(f"    {label}")
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main())
