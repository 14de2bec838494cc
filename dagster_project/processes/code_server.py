"""The code server of a deployment, which ends when it is of no use.

``python -m dagster_project.processes.code_server SOCKET`` starts it.

Dagster's code server is a proxy, and the process behind it does the work. When that one dies, the proxy goes on
and answers every question with an error: a service manager sees a unit that is up, and starts nothing. Here the proxy
asks itself every few seconds whether the process behind it answers, and ends when it does not. Runs end with it;
what they had not committed is not committed.

``--probe`` asks a code server that runs elsewhere, and exits with 0 or 1: a health check for load balancers and
service managers.
"""

from __future__ import annotations

import argparse
import logging
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import grpc

from dagster_project.processes import dead_runs, warm

_PING: Final = "/api.DagsterApi/Ping"
_MESSAGE: Final = b"\n\x04ping"
"""The protobuf message ``{echo: "ping"}``; the answer is the same."""
_EVERY_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 10.0
_REFUSALS: Final = 3
"""So many in a row are too many. A refusal comes at once: the process is gone."""
_SILENT_SECONDS: Final = 120.0
"""A busy code server answers late, so this is long."""
_log: Final = logging.getLogger(__name__)


def answers(socket: str, seconds: float = _ANSWER_SECONDS) -> bool | None:
    """Return whether the process behind a code server answers; ``None`` if nothing came in time."""
    with grpc.insecure_channel(f"unix:{os.path.abspath(socket)}") as channel:  # noqa: PTH100 - a symbolic link stays
        try:
            answer = channel.unary_unary(_PING)(_MESSAGE, timeout=seconds, wait_for_ready=False)
        except grpc.RpcError as error:
            return None if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else False
    return bool(answer == _MESSAGE)


def watch(
    ask: Callable[[], bool | None],
    give_up: Callable[[], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Ask again and again, from the first answer on; give up after some refusals in a row, or a long silence."""
    while not ask():
        sleep(_EVERY_SECONDS)
    refusals, silent_since = 0, None
    while True:
        answer, now = ask(), clock()
        if answer:
            refusals, silent_since = 0, None
        elif answer is None:
            silent_since = now if silent_since is None else silent_since
        else:
            refusals += 1
        if refusals >= _REFUSALS or (silent_since is not None and now - silent_since >= _SILENT_SECONDS):
            return give_up()
        sleep(_EVERY_SECONDS)


def _end() -> None:
    """End this process at once, however stuck its threads are. The service manager ends those that are left."""
    _log.error("the process behind this code server does not answer any more: ending, so that all of it starts again")
    os._exit(1)


def main() -> None:
    """Serve, or probe."""
    parser = argparse.ArgumentParser(prog="python -m dagster_project.processes.code_server", description=__doc__)
    parser.add_argument("socket", help="where the code server listens")
    parser.add_argument("--probe", action="store_true", help="only ask the one that listens there: exit code 0 or 1")
    parser.add_argument("--module", default="dagster_project.definitions", help="the module with the definitions")
    parser.add_argument("--location", default="trinitylake", help="the name of the code location")
    chosen = parser.parse_args()
    if chosen.probe:
        sys.exit(0 if answers(chosen.socket) else 1)
    logging.basicConfig(level=logging.WARNING)
    arguments = (lambda: answers(chosen.socket), _end)
    threading.Thread(target=watch, args=arguments, name="watch", daemon=True).start()
    threading.Thread(target=dead_runs.watch, args=(chosen.location,), name="dead runs", daemon=True).start()
    warm.ask(os.environ)
    sys.argv = ["dagster", "code-server", "start", "--socket", chosen.socket, "--module-name", chosen.module]
    sys.argv += ["--attribute", "defs", "--location-name", chosen.location]
    runpy.run_module("dagster", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
