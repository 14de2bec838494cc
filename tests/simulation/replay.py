"""One run again, request by request.

    python -m tests.simulation.replay 4711                          the random run of a seed
    python -m tests.simulation.replay write+expire "0 8>1 30!die"   a schedule of a scenario
    python -m tests.simulation.replay write+expire                  the scenario without preemption

Each line is a point: its number, the actor, the request. ``<-`` marks what the schedule decided there (the
notation is that of ``scheduler``). Then what every actor was told, and what is wrong. The exit code is 1 if
something is. ``--order given|reversed|mixed`` is that of batch deletes, ``--shrink`` looks for the shortest schedule,
``--without REPAIR`` takes a repair out first (``mutations``).
"""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import ExitStack

from tests.simulation.actors import AT_RANDOM
from tests.simulation.clock import own_time
from tests.simulation.explore import random_run, shrunk
from tests.simulation.mutations import MUTATIONS
from tests.simulation.scenarios import Ran, Scenario, run
from tests.simulation.schedule import RandomSchedule, Schedule


def told(scenario: Scenario, ran: Ran) -> str:
    """Return a run as lines to read."""
    lines = [f"{scenario.name}, {scenario.order}, clocks ahead {scenario.ahead_millis}, under {ran.schedule}"]
    names = scenario.names()
    for number, step in enumerate(ran.steps):
        decision = ran.schedule.decisions.get(number)
        mark = "" if decision is None else f"   <- {decision}"
        lines.append(f"{number:5} {names[step.actor]:18} {step.kind:7}{step.path}{mark}")
    ended = [(each, each.result if each.error is None else repr(each.error)) for each in ran.actors]
    lines += [f"{actor.name} {actor.state}: {how}" for actor, how in ended]
    lines += [f"WRONG: {each}" for each in ran.violations]
    return "\n".join(lines)


def main() -> int:
    """Replay what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.replay")
    parser.add_argument("what", help="a seed, or the kinds of the actors joined by +")
    parser.add_argument("schedule", nargs="?", default="0")
    parser.add_argument("--order", default="reversed")
    parser.add_argument("--discourteous", action="store_true")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--without", choices=sorted(MUTATIONS))
    options = parser.parse_args()
    logging.disable()
    with ExitStack() as stack:
        stack.enter_context(own_time())
        if options.without:
            stack.enter_context(MUTATIONS[options.without].taken_out())
        schedule: Schedule | RandomSchedule
        if options.what.isdecimal():
            scenario, schedule = random_run(int(options.what), AT_RANDOM)
        else:
            scenario = Scenario(tuple(options.what.split("+")), order=options.order, courtesy=not options.discourteous)
            schedule = Schedule.parse(options.schedule)
        ran = run(scenario, schedule)
        if ran.violations and options.shrink:
            ran = shrunk(scenario, ran)
    print(told(scenario, ran))
    return 1 if ran.violations else 0


if __name__ == "__main__":
    sys.exit(main())
