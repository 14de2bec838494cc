"""``lakehouses.yaml``: what it may say, and how it is told what is wrong with it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from dagster_project import config
from dagster_project.config import ConfigError, load, parse
from dagster_project.config.file import Stanzas
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import of_file
from trinitylake_core import InvalidInput

FILE = Path("/etc/lakes/lakehouses.yaml")
MINIMAL = "lakehouses:\n  - {name: sales, root: 's3://bucket/sales'}\n"


def errors(text: str) -> list[str]:
    """Return what is said about a file, without its name."""
    with pytest.raises(ConfigError) as caught:
        parse(text, FILE)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(str(FILE)) for line in lines)
    return [line.removeprefix(str(FILE)).lstrip(": ,") for line in lines]


def test_a_name_and_a_root_are_enough() -> None:
    (sales,) = parse(MINIMAL, FILE).lakehouses
    assert ("sales", "s3://bucket/sales/") == (sales.name, sales.root)
    assert 10_000 == sales.compaction.messages
    assert sales.schedules.maintenance is None


def test_everything_can_be_said() -> None:
    text = """
lakehouses:
  - name: Sales-EU
    root: file://{here}/lake
    description: Orders of Europe
    owners: ["team:data", "ops@example.com"]
    storage_options: {key: {env: K}, client_kwargs: {region_name: eu}}
    spark: {mode: connect, remote: {env: REMOTE}, conf: {spark.executor.memory: 4g, x: true}}
    schedules: {maintenance: "0 3 * * *", timezone: Europe/Berlin}
    compaction: {messages: 7, min_interval: 90s, poll: 30s, max_age: 3h, engine: auto, timeout: 2h, enabled: false}
    snapshots: {daily: {keep: 14}, hourly: {keep: 2}, weekly: {keep: 8, grace: 3d}}
    backup: {target: "file://{here}/copy", max_age: 1d, definitions: false, storage_options: {key: {env: B}}}
    retention: {keep_last: 10, older_than: 2w}
    orphans: {older_than: 3d}
"""
    (sales,) = parse(text, FILE).lakehouses
    assert ("file:///etc/lakes/lake/", "sales_eu", "lakehouse_sales_eu") == (sales.root, sales.slug, sales.pool)
    assert ["lakehouse", "Sales-EU"] == sales.key_prefix
    assert timedelta(seconds=90) == sales.compaction.min_interval
    assert {"daily": 14, "hourly": 2, "weekly": 8} == {name: each.keep for name, each in sales.snapshots.items()}
    graces = {name: each.grace_of(name) / timedelta(hours=1) for name, each in sales.snapshots.items()}
    assert {"daily": 24, "hourly": 1, "weekly": 72} == graces
    assert sales.backup is not None
    assert ("file:///etc/lakes/copy/", timedelta(days=1)) == (sales.backup.target, sales.backup.max_age)
    assert timedelta(hours=3) == sales.compaction.max_age
    assert timedelta(weeks=2) == sales.retention.older_than


@pytest.mark.parametrize(
    ("stanza", "said"),
    [
        ("root: 'file:///x'", "lakehouse number 1: name: required, but missing"),
        ("name: a", "lakehouse 'a': root: required, but missing"),
        ("{name: 'a b', root: 'file:///x'}", "lakehouse 'a b': name: 'a b' must be 1 to 63 letters"),
        ("{name: a, root: lake}", "lakehouse 'a': root: root URI 'lake' has no scheme"),
        ("{name: a, root: 'file:///x', rot: 1}", "lakehouse 'a': rot: unknown field; did you mean 'root'?"),
        (
            "{name: a, root: 'file:///x', retention_days: 7}",
            "retention_days: unknown field; `retention: {older_than: 7d}`",
        ),
        (
            "{name: a, root: 'file:///x', orphan_removal: {}}",
            "orphan_removal: unknown field; `orphans: {older_than: 3d}`",
        ),
        (
            "{name: a, root: 'file:///x', orphans: {enabled: false}}",
            "orphans.enabled: unknown field; leave out `orphans`",
        ),
        ("{name: a, root: 'file:///x', owners: [bob]}", "lakehouse 'a': owners.0: 'bob' is not a valid owner"),
        (
            "{name: a, root: 'file:///x', schedules: {maintenance: often}}",
            "schedules.maintenance: 'often' is not a valid cron",
        ),
        (
            "{name: a, root: 'file:///x', schedules: {maintenance: '0 0 31 2 *'}}",
            "schedules.maintenance: '0 0 31 2 *' is not a valid cron schedule, or never fires",
        ),
        ("{name: a, root: 'file:///x', timeout: 0s}", "timeout: must be longer than 0s"),
        ("{name: a, root: 'file:///x', compaction: {timeout: 0s}}", "compaction.timeout: must be longer than 0s"),
        ("{name: a, root: 'file:///x', schedules: {timezone: Mars}}", "schedules.timezone: 'Mars' is not a valid time"),
        (
            "{name: a, root: 'file:///x', compaction: {min_interval: 5}}",
            "compaction.min_interval: 5 is not a valid",
        ),
        ("{name: a, root: 'file:///x', compaction: {messages: 0}}", "compaction.messages: input should be greater"),
        (
            "{name: a, root: 'file:///x', compaction: {costs: {hour: 1}}}",
            "compaction.costs: unknown field",
        ),
        (
            "{name: a, root: 'file:///x', compaction: {schedule: x}}",
            "compaction.schedule: unknown field; `schedules: {m",
        ),
        ("{name: a, root: 'file:///x', compaction: {root_bytes: 0}}", "compaction.root_bytes: input should be greater"),
        ("{name: a, root: 'file:///x', orphans: {older_than: 1h}}", "orphans.older_than: must be at least 1d"),
        ("{name: a, root: 'file:///x', spark: {mode: connect}}", "spark: mode 'connect' needs remote"),
        ("{name: a, root: 'file:///x', snapshots: {often: {keep: 1}}}", "snapshots.often"),
        ("{name: a, root: 'file:///x', storage_options: {secret: {env: 1}}}", "storage_options: secret: write {env: "),
        ("{name: a, root: 'file:///x', compaction: {max_age: long}}", "compaction.max_age: 'long' is not a valid"),
        ("{name: a, root: 'file:///x', snapshots: {daily: {keep: 1, grace: 1}}}", "snapshots.daily.grace: 1 is no"),
        ("{name: a, root: 'file:///x', backup: {max_age: 1d}}", "lakehouse 'a': backup.target: required, but missing"),
        ("{name: a, root: 'file:///x', backup: {target: copy}}", "backup.target: root URI 'copy' has no scheme"),
        ("{name: a, root: 'file:///x', backup: {target: 'file:///x/y'}}", "must not contain each other"),
        ("{name: a, root: 'file:///x', backup: {target: 's3://b/c', age: 1d}}", "backup.age: unknown field"),
        ("{name: a, root: 'file:///x', backup: {target: 's3://b/c', storage_options: {secret: x}}}", "a secret"),
    ],
)
def test_a_mistake_is_told_with_stanza_and_field(stanza: str, said: str) -> None:
    (line,) = errors(f"lakehouses: [{stanza if stanza.startswith('{') else '{' + stanza + '}'}]")
    assert said in line


def test_every_mistake_is_told_at_once() -> None:
    assert 2 == len(errors("lakehouses: [{name: a}, {name: b, root: nope}]"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lakehouses:\n  - {", "line 2: not YAML"),
        ("- a", "must be a mapping with the field 'lakehouses'"),
        ("lakehouses: []", "lakehouses: must list at least one lakehouse"),
        ("other: 1", "lakehouses: required, but missing"),
        (
            "lakehouses: []\nnotifications: {slack_webhook: x}",
            "slack_webhook: unknown field; `webhook` receives failures",
        ),
        (
            "lakehouses: [{name: a, warehouse: 'file:///x'}]",
            "warehouse: unknown field; `root` says where a lakehouse is",
        ),
    ],
)
def test_a_file_that_is_no_list_of_lakehouses(text: str, said: str) -> None:
    assert any(said in line for line in errors(text))


def test_names_that_become_the_same_in_dagster_collide() -> None:
    lines = errors("lakehouses: [{name: a-b, root: 's3://x/1'}, {name: A_b, root: 's3://x/2'}]")
    assert ["lakehouse 'A_b': name: collides with 'a-b'; both become 'a_b' in the names of jobs and pools"] == lines


def test_two_names_for_one_root_are_refused() -> None:
    (line,) = errors("lakehouses: [{name: a, root: 's3://x/1'}, {name: b, root: 's3a://x/1/'}]")
    assert "root: already the root of 'a'" in line


def test_a_backup_overwrites_neither_a_lakehouse_nor_another_backup() -> None:
    a, b = "name: a, root: 's3://x/1', backup: {target: 's3://x/2'}", "name: b, root: 's3://x/2'"
    assert ["lakehouse 'a': backup.target: already the root or the backup of 'b'"] == errors(
        f"lakehouses: [{{{a}}}, {{{b}}}]"
    )
    b = "name: b, root: 's3://x/3', backup: {target: 's3a://x/2/'}"
    assert ["lakehouse 'b': backup.target: already the root or the backup of 'a'"] == errors(
        f"lakehouses: [{{{a}}}, {{{b}}}]"
    )


def test_a_place_to_copy_to_is_opened_with_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
lakehouses:
  - {name: a, root: 's3://x/1', storage_options: {endpoint_url: source}, backup: {target: 's3://b/2', EXTRA}}
"""
    own = "storage_options: {endpoint_url: backup}}, export: {storage_options: {endpoint_url: other}"
    (one,) = parse(text.replace("EXTRA", own), FILE).lakehouses
    (two,) = parse(text.replace(", EXTRA", ""), FILE).lakehouses
    assert {"endpoint_url": "backup"} == one.resolved_target_options("s3a://b/2")
    assert {"endpoint_url": "other"} == one.resolved_target_options("s3://elsewhere")
    assert {"endpoint_url": "source"} == two.resolved_target_options("s3://b/2")


def test_a_secret_in_the_file_is_refused_and_not_repeated() -> None:
    (line,) = errors("lakehouses: [{name: a, root: 's3://x/1', storage_options: {secret: hunter2}}]")
    assert "storage_options: secret: looks like a secret" in line
    assert "hunter2" not in line


def test_secrets_are_looked_up_when_needed_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "lakehouses: [{name: a, root: 's3://x/1', storage_options: {key: {env: TL_K}, anon: false}}]"
    (sales,) = parse(text, FILE).lakehouses
    with pytest.raises(InvalidInput, match="the environment variable TL_K is not set"):
        sales.resolved_storage_options()
    monkeypatch.setenv("TL_K", "hunter2")
    assert {"key": "hunter2", "anon": False} == sales.resolved_storage_options()
    assert "hunter2" not in repr(sales) + str(sales.model_dump())


def test_the_environment_names_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    monkeypatch.setenv(config.ENV_FILE, str(path))
    with pytest.raises(ConfigError, match=r"cannot read .*mine\.yaml .*docs/dagster\.md"):
        load()
    path.write_text(MINIMAL, encoding="utf-8-sig")  # some editors begin a file with a mark
    assert ["sales"] == [each.name for each in load().lakehouses]


def test_without_it_the_file_of_this_directory_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(config.ENV_FILE, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lakehouses.yaml").write_text(MINIMAL)
    assert tmp_path / "lakehouses.yaml" == config.config_path()


FULL = """
name: broken
root: file:///x/broken
description: text
owners: ["team:data"]
storage_options: {endpoint_url: http://127.0.0.1:1}
spark: {mode: local}
schedules: {maintenance: "0 3 * * *"}
health: {levels: true}
compaction: {messages: 10}
snapshots: {daily: {keep: 2}}
retention: {keep_last: 10}
orphans: {older_than: 3d}
tables: {older_than: 3d}
backup: {target: file:///x/backup}
export: {target: file:///x/export}
timeout: 6h
"""
"""Every field of a stanza."""


def test_every_field_is_in_the_example() -> None:
    assert set(LakehouseSettings.model_fields) - {"assets"} == set(yaml.safe_load(FULL))
    assert 1 == len(parse(yaml.safe_dump({"lakehouses": [yaml.safe_load(FULL)]}), FILE).lakehouses)


def test_a_second_list_of_lakehouses_is_a_mistake_of_the_file(tmp_path: Path) -> None:
    """Those in it are not taken for removed."""
    path = tmp_path / "lakehouses.yaml"
    lists = [f"lakehouses:\n- {{name: {name}, root: 'file:///x/{name}'}}\n" for name in "ab"]
    path.write_text("layout: partitions\n".join(lists))
    with pytest.raises(ConfigError, match="the file has two such lists"):
        Stanzas(path).all()


@pytest.mark.parametrize("layout", ["assets", "partitions"])
@pytest.mark.parametrize("change", ["misspelt", "another type", "twice"])
@pytest.mark.parametrize("field", yaml.safe_load(FULL))
def test_a_mistake_concerns_its_lakehouse(tmp_path: Path, field: str, change: str, layout: str) -> None:
    """The others load. The broken one is named with the field, and keeps what leads back, where it can be opened."""
    stanza = yaml.safe_load(FULL)
    if change == "twice":
        text = yaml.safe_dump(stanza) + yaml.safe_dump({field: stanza[field]})
        broken = [text]
    else:
        value = stanza.pop(field)
        broken = [yaml.safe_dump(stanza | ({f"{field}x": value} if change == "misspelt" else {field: {"a": [1]}}))]
    path = tmp_path / "lakehouses.yaml"
    good = yaml.safe_dump({"name": "good", "root": "file:///x/good"})
    stanzas = [each.replace("\n", "\n    ").strip() for each in (good, *broken)]
    path.write_text(f"layout: {layout}\nlakehouses:\n" + "".join(f"  - {each}\n" for each in stanzas))
    known = Stanzas(path).all()
    assert ["good"] == list(known.good)
    (said,) = known.bad.values()
    assert field in said
    if field not in {"name", "root", "compaction", "storage_options"}:
        return  # definitions take a second
    jobs = {each.name for each in of_file(path).get_repository_def().get_all_jobs()}
    if layout == "assets":
        assert "good_maintenance" in jobs
        is_open = field == "compaction" or (field, change) == ("storage_options", "misspelt")
        assert is_open is ("broken_rollback" in jobs)
        assert "broken_maintenance" not in jobs
    else:
        assert "lakehouses_maintenance" in jobs
