"""Names that somebody tries who has not read the reference: each works, or its error names what is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

import trinitylake_core
from pipelines.cli import other_words
from pipelines.cli.contents import ALIASES, ENTRIES
from pipelines.cli.program import load
from tests.pipelines.conftest import Run
from tests.support.lakes import filled, new_lake
from tests.support.surgery import files_of
from trinitylake_core import InvalidInput, Lakehouse

pytestmark = pytest.mark.usefixtures("no_environment")


@pytest.mark.parametrize(
    "line",
    [
        "log ROOT --limit 1",
        "version",
        "version --json",
        "info ROOT",
        "describe ROOT",
        "describe table ROOT ns0",
        "check ROOT",
        "tag ROOT before-load",
        "log ROOT -n 5",
        "log ROOT ns0",
        "rollback ROOT --to HEAD~1 -m why -n",
        "rollback ROOT --version=HEAD~1 --message why",
        "ls ROOT --at HEAD~1",
        "expire ROOT --keep 5",
    ],
)
def test_a_guess_at_the_command_line_works(run: Run, tmp_path: Path, line: str) -> None:
    """Those that are corrected: refusals.txt."""
    lake = filled(new_lake(tmp_path / "lake"), tables=8)
    ran = run(*line.replace("ROOT", lake.root).split())
    assert (0, "") == (ran.code, ran.err)


def test_neither_the_value_of_an_option_nor_a_word_behind_two_dashes_is_an_option(run: Run, tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    assert 0 == run("alter", lake.root, "--set", "-n=1", "--reason", "--message").code
    newest = next(lake.refresh().history())
    assert ("1", "--message") == (lake.refresh().definition.properties["-n"], newest.summary["reason"])
    assert "cannot read -n" in run("apply", lake.root, "--", "-n").err


def test_what_is_proposed_exists() -> None:
    for name in other_words.COMMANDS:
        assert name in ENTRIES
    options = {name for entry in ENTRIES for each in load(entry).params for name in each.opts}
    assert [] == [name for name in other_words.OPTIONS if name not in options]


def test_no_word_is_both_a_command_and_another_word_for_one() -> None:
    words = {word for words in other_words.COMMANDS.values() for word in words}
    assert set() == words & {*ENTRIES, *ALIASES}
    assert {*ALIASES.values()} <= {*ENTRIES}


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("lake.list_tables()", "Lakehouse has no attribute 'list_tables'; tables() lists them"),
        ("lake.load_table('n1.t1')", "table(name) returns its definition"),
        ("lake.latest_version()", "refresh().version is the newest one"),
        ("lake.undo()", "rollback(version='HEAD~1', reason='...')"),
        ("lake.vacuum()", "clean.run(lake, clean.Config())"),
        ("lake.tabels()", "Lakehouse has no attribute 'tabels'; did you mean 'tables'?"),
        ("lake.expire_snapshots(days=7)", "expire.Config(keep_last=100, older_than_seconds=7 * 86_400))"),
        ("lake.scan()", "rows are read by PyIceberg"),
        ("lake.exists('n1.t1')", "table(name) raises ObjectNotFound where there is none"),
        ("lake.properties", "table_info(name).properties, namespace_info(name).properties"),
        ("lake.transaction().add_table('n1', 't')", "Transaction has no attribute 'add_table'; create_table("),
        ("lake.transaction().comit()", "Transaction has no attribute 'comit'; did you mean 'commit'?"),
        ("package.open(lake.root)", "Lakehouse.open(root) opens a lakehouse"),
        ("package.connect(lake.root)", "Lakehouse.open(root) opens a lakehouse"),
        ("package.Lakehose", "did you mean 'Lakehouse'?"),
    ],
)
def test_an_attribute_that_is_not_there_names_the_one_that_is(expression: str, answer: str, tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    with pytest.raises(AttributeError) as raised:
        eval(expression, {"lake": lake, "package": trinitylake_core})
    assert answer in str(raised.value)


def test_a_lakehouse_made_of_a_root_says_what_opens_one(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    with pytest.raises(TypeError, match=r"^Lakehouse\.open\(root\) opens a lakehouse, Lakehouse\.create\(root\) makes"):
        eval("Lakehouse(root)", {"Lakehouse": Lakehouse, "root": lake.root})


def test_a_rollback_takes_its_version_as_at_does(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path), tables=8)
    before = lake.version - 1
    assert before == lake.at("HEAD~1").version
    assert before == lake.rollback("HEAD~1", reason="a guess", dry_run=True).target_version
    assert before == lake.rollback(before, reason="a guess", dry_run=True).target_version


def test_a_pattern_alone_need_not_be_in_a_list(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path), tables=8)
    pattern = f"{lake.namespaces()[0]}.*"
    as_list = lake.restore([pattern], version=0, exact=True, reason="a guess", dry_run=True)
    assert as_list == lake.restore(pattern, version=0, exact=True, reason="a guess", dry_run=True)


def test_a_table_by_one_name_and_a_version_by_time(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path), tables=8)
    namespace = lake.namespaces()[0]
    table = lake.tables(namespace)[0]
    assert lake.table_info(namespace, table) == lake.table_info(f"{namespace}.{table}")
    assert lake.version == lake.at(time="-0s").version
    with pytest.raises(InvalidInput, match="once"):
        lake.at(time="-0s", timestamp="-0s")


def test_root_may_be_left_out_where_there_is_one_lakehouse(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(new_lake(tmp_path), tables=8)
    stanza = f"  - {{name: one, root: '{lake.root}'}}\n"
    (tmp_path / "lakehouses.yaml").write_text(f"lakehouses:\n{stanza}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run("ls", lake.root).out == run("ls").out
    (tmp_path / "lakehouses.yaml").write_text(f"lakehouses:\n{stanza}{stanza.replace('one', 'two')}", encoding="utf-8")
    assert "ROOT is missing; pass it, or set TRINITYLAKE_ROOT" in run("ls").err


def test_the_length_of_a_lakehouse_is_refused_with_what_counts(tmp_path: Path) -> None:
    """Nothing is false because it is empty."""
    lake = new_lake(tmp_path / "lake")
    for each in (lake, lake.transaction()):
        assert each
        with pytest.raises(TypeError, match=r"len\(tables\(\)\) counts the tables, objects\(\) yields all objects"):
            len(each)  # type: ignore[arg-type]


# -- jobs are no methods of a lakehouse: the call that is named works ----------------------------------


@pytest.mark.parametrize("job", ["compact", "expire", "clean", "verify", "export"])
def test_the_call_that_a_missing_method_names_does_its_work(job: str, tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path / "lake"), tables=8)
    with pytest.raises(AttributeError, match=f"Lakehouse has no attribute '{job}'; from pipelines import") as raised:
        getattr(lake, job)
    call = str(raised.value).partition("; ")[2]
    exec(call, {"lake": lake, "target": (tmp_path / "copy").as_uri()})  # the advice is a program
    assert [] == list(lake.refresh().check())
    assert files_of(lake)


@pytest.mark.parametrize("job", ["load", "upgrade"])
def test_a_job_that_needs_a_place_is_named_with_it(job: str, tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match=f"from pipelines import {job}; {job}.run"):
        getattr(new_lake(tmp_path), job)
