"""The Spark session: started, found, shared and stopped, and what tasks need shipped to them."""

from pipelines.session.spark import (
    LazySession,
    SessionConfig,
    abandon_session,
    active_session,
    check_pyspark,
    end_session,
    get_session,
    has_ended,
    is_connect,
    lazy_session,
    missing_iceberg,
    on_one_machine,
    on_other_machines,
    session_parallelism,
    ship_packages,
    stop_session,
    wait_for_executor,
)
