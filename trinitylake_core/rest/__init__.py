"""The Iceberg REST catalog over lakehouses (``docs/rest.md``), so that every engine that speaks it is a client.

    from trinitylake_core.rest import endpoint
    with endpoint(lake) as at:
        spark.conf.set("spark.sql.catalog.lake.uri", at.uri)

HTTP is Starlette's and uvicorn's, requests and responses are PyIceberg's own models, and what a change means is decided
by the PyIceberg catalog below (``trinitylake_core.iceberg``). The endpoint keeps no state.
"""

from trinitylake_core.rest.app import application
from trinitylake_core.rest.limits import Limits
from trinitylake_core.rest.logs import log_to_stderr
from trinitylake_core.rest.principals import Principals
from trinitylake_core.rest.serving import Served, endpoint, serve
from trinitylake_core.rest.warehouses import Warehouses

__all__ = ["Limits", "Principals", "Served", "Warehouses", "application", "endpoint", "log_to_stderr", "serve"]
