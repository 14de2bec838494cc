"""The command that serves lakehouses to Iceberg engines: serve."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pipelines.cli.command import Call, Result, command, option
from pipelines.cli.output import say
from pipelines.cli.resolve_root import root_of
from trinitylake_core.errors import InvalidInput
from trinitylake_core.extras import install_command

if TYPE_CHECKING:
    from trinitylake_core import Lakehouse
    from trinitylake_core.rest.lending import Lender

_END_SECONDS: Final = 5
"""So long threads that wait for a storage may keep the process, after all requests are answered."""


@command(
    "serve",
    "trinitylake serve s3://lakes/prod --name prod --tokens tokens.yaml --audit-log /var/log/trinitylake/audit.jsonl",
    options=(
        option("--name", metavar="NAME", help="the warehouse that clients name (default: the last part of the root)"),
        option(
            "--also",
            multiple=True,
            metavar="NAME=ROOT",
            help="serve a further lakehouse, by URI, path or its name in lakehouses.yaml; may be repeated, and "
            "excludes --tables and --allow-location",
        ),
        option(
            "--tables",
            metavar="URI",
            help="where new tables lie, and where clients may place and register tables (default: below the root)",
        ),
        option(
            "--allow-location",
            multiple=True,
            metavar="URI",
            help="a further prefix in which clients may place and register tables; may be repeated",
        ),
        option(
            "--host",
            default="127.0.0.1",
            metavar="ADDRESS",
            help="where to listen (default 127.0.0.1); an address that others reach needs --tokens and --certfile",
        ),
        option("--port", type=int, default=8181, metavar="PORT", help="the port (default 8181)"),
        option(
            "--tokens",
            metavar="FILE",
            help="who may do what: the hashes of bearer tokens and their rights, read again when the file changes; "
            "without it, everybody may do everything, and only this machine can connect",
        ),
        option("--certfile", metavar="FILE", help="the certificate, for TLS; read again when it or its key changes"),
        option("--keyfile", metavar="FILE", help="the key of the certificate"),
        option(
            "--insecure-plain-http",
            is_flag=True,
            help="listen on an address that others reach without TLS: whoever is on the way reads the tokens",
        ),
        option(
            "--lend-role",
            metavar="ARN",
            help="lend clients that ask (vended-credentials) keys of this role for the directory of a table, by STS",
        ),
        option(
            "--lend-profile", metavar="NAME", help="the AWS profile that asks STS (default: what AWS's clients find)"
        ),
        option("--lend-endpoint", metavar="URL", help="where STS is, for stores that have their own (default: AWS)"),
        option(
            "--lend-seconds",
            type=int,
            default=3600,
            metavar="N",
            help="how long lent keys are good, also after a right ends or the table is dropped (default 3600)",
        ),
        option(
            "--audit-log",
            metavar="FILE",
            help="write one line of JSON for each change and each refusal to this file (default: to standard error)",
        ),
        option("--audit-reads", is_flag=True, help="write such a line for each read, too"),
    ),
    details="""\
Spark, Trino, DuckDB, PyIceberg and others read and write the tables with a catalog of the type "rest". Commits that
arrive at the same time become one version. A client that names the warehouse NAME@VERSION, NAME@SNAPSHOT or NAME@TIME
reads the whole catalog as it was. /healthz answers while the process lives, /metrics has figures for Prometheus. The
endpoint keeps no state: stop or kill it at any moment.""",
)
def serve(call: Call) -> Result:
    """Serve lakehouses until SIGTERM or SIGINT."""
    try:
        from trinitylake_core import rest
    except ImportError as error:
        raise InvalidInput(f"serving needs the extra 'rest' ({error.name}): {install_command('rest')}") from error
    options = call.options
    openers = {options.name or call.root.rstrip("/").rpartition("/")[2] or "lake": call.open}
    for each in options.also:
        name, equals, root = each.partition("=")
        if not (name and equals and root) or name in openers:
            raise InvalidInput(f"--also needs NAME=ROOT, each name once: {each!r}")
        openers[name] = partial(_open_by_name, root, call)
    principals = rest.Principals.of_file(options.tokens) if options.tokens else None
    warehouses = rest.Warehouses(openers, _places(options.tables, options.allow_location), _lender(options))
    for name in warehouses.names:
        warehouses.get(name)
    rest.log_to_stderr(options.audit_log)
    serving = f"serving {', '.join(warehouses.names)} at {options.host}:{options.port}; Ctrl-C stops it"
    rest.serve(
        warehouses,
        host=options.host,
        port=options.port,
        principals=principals,
        certfile=options.certfile,
        keyfile=options.keyfile,
        insecure_plain_http=options.insecure_plain_http,
        audits_reads=options.audit_reads,
        on_listening=partial(say, serving),
    )
    end = threading.Timer(_END_SECONDS, os._exit, (0,))
    end.daemon = True  # where none of these threads is left, the process ends before
    end.start()
    return Result({"served": warehouses.names}, ["stopped"])


def _lender(options: Any) -> Lender | None:
    """Return who lends keys. Raises ``InvalidInput``."""
    if options.lend_role is None:
        return None
    try:
        from trinitylake_core.rest.lending import Lender
    except ImportError as error:
        raise InvalidInput(f"--lend-role needs the extra 's3' ({error.name}): {install_command('s3')}") from error
    return Lender(
        options.lend_role, profile=options.lend_profile, endpoint=options.lend_endpoint, seconds=options.lend_seconds
    )


def _places(tables: str | None, allowed: Sequence[str]) -> dict[str, str]:
    """Return the properties of a catalog that say where tables may lie. Raises ``InvalidInput``."""
    from trinitylake_core.iceberg import ALLOWED_LOCATIONS

    if any("," in each for each in allowed):
        raise InvalidInput("a prefix for --allow-location cannot have a comma")
    found = {ALLOWED_LOCATIONS: ",".join(allowed)} if allowed else {}
    return found | ({"warehouse": tables} if tables else {})


def _open_by_name(root: str, call: Call) -> Lakehouse:
    from trinitylake_core import Lakehouse

    uri, own = root_of(root)
    return Lakehouse.open(uri, storage_options=call.options_for(uri, uri) | own)
