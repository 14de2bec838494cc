"""Commands that run a job or test a storage: load, compact, upgrade, doctor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from pipelines import compaction
from pipelines import load as loading
from pipelines import register as registering
from pipelines import upgrade as upgrading
from pipelines.cli import report
from pipelines.cli.command import (
    DONE,
    FOUND_PROBLEMS,
    Call,
    Result,
    command,
    in_order,
    key_value,
    option,
    report_result,
)
from pipelines.cli.commands.changing import DEFINITION, definition_of
from pipelines.cli.commands.options import DRY_RUN, ENGINE, REASON, SPARK, VERBOSE
from pipelines.doctor import advice, table_retention
from pipelines.fleet import hurry
from pipelines.source import version_ref
from pipelines.source.loading import EXISTING, REFUSE
from trinitylake_core.durations import describe_duration
from trinitylake_core.errors import (
    Corrupt,
    InvalidInput,
    NotALakehouse,
    StorageDenied,
    StorageError,
    TrinityLakeError,
    UnsafeStorage,
)
from trinitylake_core.spec import HINT_FILE
from trinitylake_core.storage import ConformanceResult, check_conformance, open_storage

_LOAD_OPTIONS: Final = (
    option(
        "--existing",
        choices=EXISTING,
        default=REFUSE,
        help="what to do with an object that exists already: refuse the load (default), skip the object, or "
        "replace its definition",
    ),
    ENGINE,
    DRY_RUN,
    VERBOSE,
    REASON,
    option(
        "--source-storage-option",
        multiple=True,
        metavar="KEY=VALUE",
        help="an option for the storage of SOURCE (default: the options for ROOT)",
    ),
    option(
        "--catalog-property",
        multiple=True,
        metavar="KEY=VALUE",
        help="a property of the Iceberg catalog that SOURCE names: type=sql, uri=..., warehouse=...",
    ),
    *SPARK,
)


@command(
    "load",
    "trinitylake load file:///data/lake s3://exports/catalog/ --engine auto --reason 'the old metastore' --dry-run",
    options=_LOAD_OPTIONS,
    arguments={
        "SOURCE": "path or URI of a file, or of a directory of files: .jsonl, .ndjson or .json, optionally with .gz; "
        "or iceberg:NAME, a catalog that PyIceberg opens"
    },
    details="""\
Each line is a JSON object in the form that `apply` takes, and creates one object:

  {"create_namespace": {"namespace": "sales"}}
  {"create_table": {"namespace": "sales", "name": "orders", "schema": [{"name": "id", "type": "bigint"}]}}
  {"create_view": {"namespace": "sales", "name": "top", "sql": "SELECT * FROM orders"}}

The order does not matter. All lines become one version, or none. A load rewrites the whole tree, so for a few objects
`apply` is cheaper. Transactions that began before it and commit after it fail with a conflict.

iceberg:NAME registers the namespaces and tables of another Iceberg catalog (SQL, REST, Glue, Hive) where they are,
as one ordinary transaction. Run it again to follow what changed there. A table whose metadata cannot be read, or name
code to be run, is left out and named, and the exit code is 1.""",
)
def load(call: Call) -> Result:
    """Load objects."""
    options = call.options
    if options.source.startswith(registering.SCHEME):
        return _register(call, options.source.removeprefix(registering.SCHEME))
    if options.catalog_property:
        raise InvalidInput("--catalog-property is for a SOURCE such as iceberg:NAME")
    source_options = call.options_of(options.source, options.source_storage_option)
    config = call.config(loading.Config)
    done = call.carry_out(loading.run, call.open(), options.source, config, source_options=source_options)
    return report_result(call, done)


def _register(call: Call, catalog: str) -> Result:
    properties = dict(key_value("--catalog-property", each) for each in call.options.catalog_property)
    config = call.config(registering.Config, catalog=catalog, properties=properties)
    done = registering.run(call.open(), config, review=call.review(), progress=call.progress)
    if done.registered.tables_refused:
        code = FOUND_PROBLEMS
    else:
        code = DONE
    return Result(done, report.fields(done), code)


@command(
    "compact",
    "trinitylake compact file:///data/lake --engine auto --dry-run",
    options=(
        option(
            "--full", is_flag=True, help="push every message all the way, whatever that rewrites; counts the objects"
        ),
        ENGINE,
        DRY_RUN,
        VERBOSE,
        REASON,
        *SPARK,
    ),
    details="Pushes messages down as far as that is worth rewriting nodes. Changes no object, and writers may commit\n"
    "meanwhile. With nothing to do, it commits nothing and does not start Spark.",
)
def compact(call: Call) -> Result:
    """Compact the newest version."""
    return report_result(call, call.carry_out(compaction.run, call.open(), call.config(compaction.Config)))


@command(
    "upgrade",
    "trinitylake upgrade file:///data/java-lake file:///data/lake --history",
    options=(
        option("--history", is_flag=True, help="upgrade all retained versions, not only the newest"),
        ENGINE,
        DRY_RUN,
        VERBOSE,
        option(
            "--target-storage-option",
            multiple=True,
            metavar="KEY=VALUE",
            help="an option for the storage of DST (default: the options for SRC)",
        ),
        *DEFINITION,
        *SPARK,
    ),
    arguments={"SRC": "root URI of the lakehouse; it is only read", "DST": "root URI of the new lakehouse"},
    details="Fields of the new lakehouse definition that are not given are taken from the old one. The "
    "published Java SDK cannot open the new lakehouse, and nothing converts it back; SRC stays as it was.",
)
def upgrade(call: Call) -> Result:
    """Upgrade a lakehouse."""
    options = call.options
    config = call.config(upgrading.Config, definition=definition_of(call))
    there = call.options_of(options.dst, options.target_storage_option, options.src)
    done = call.carry_out(upgrading.run, call.open(options.src), options.dst, config, storage_options=there)
    return report_result(call, done)


@command(
    "doctor",
    "trinitylake doctor s3://bucket/lake",
    details="Works in a scratch directory below ROOT, which need not hold a lakehouse, and removes it. Of a lakehouse\n"
    "it names the Iceberg tables that may expire their snapshots before the lakehouse expires its versions. Where\n"
    "the storage gives no answer, that is the only check.",
)
def doctor(call: Call) -> Result:
    """Probe a storage."""
    options = call.options_for(call.root)
    found = _look_for_answer(call.root, options)
    if not found:
        version_ref.warn_of_future(call.open)
        found = list(check_conformance(call.root, options))
    is_fit = all(each.ok for each in found)
    tables = None
    warnings: Iterable[str] = []
    if is_fit:
        with suppress(NotALakehouse, Corrupt):  # `verify` examines what is damaged
            tables = table_retention(call.open(), places=True)
    if tables is not None:
        warnings = advice(tables, f"versions for {describe_duration(tables.kept_seconds)}")
    rows = [[each.name, "ok" if each.ok else "FAILED", each.detail] for each in found]
    data = {"root": call.root, "ok": is_fit, "checks": found, "tables": tables}
    lines = in_order(report.table(["check", "result", "observed"], rows), warnings)
    return Result(data, lines, DONE if is_fit else FOUND_PROBLEMS)


def _look_for_answer(root: str, options: Mapping[str, Any]) -> list[ConformanceResult]:
    """Return a failed check if a storage gives no answer, within seconds: each other check would wait for minutes."""
    storage = open_storage(root, hurry(root, options))
    try:
        storage.read(HINT_FILE)
    except (StorageDenied, UnsafeStorage):
        return []  # an answer; the checks say what it means
    except StorageError as error:
        return [ConformanceResult("answer", ok=False, detail=str(error))]
    except TrinityLakeError:
        return []  # likewise: there need be no lakehouse
    return []
