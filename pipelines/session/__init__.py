"""The Spark session: started, found, shared and stopped, and what tasks need shipped to them."""

from pipelines.session.parallelism import on_one_machine, session_parallelism
from pipelines.session.spark import (
    SessionConfig,
    active_session,
    get_session,
    lazy_session,
    ship_packages,
    stop_session,
)

__all__ = [
    "SessionConfig",
    "active_session",
    "get_session",
    "lazy_session",
    "on_one_machine",
    "session_parallelism",
    "ship_packages",
    "stop_session",
]
