"""The first commands of somebody new: a lakehouse to try, and Dagster on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.catalog import load_catalog

from pipelines import cli, trial
from pipelines.cli import dagster_home
from pipelines.cli.commands import trying
from tests.pipelines.test_cli_json import DECLARED, mismatches
from trinitylake_core import Lakehouse
from trinitylake_core.rest import endpoint


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("try") / "first"
    trial.run(directory)
    return directory


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert code == cli.main([*words, "--json"]), words
    return json.loads(capsys.readouterr().out)


def test_a_trial_ends_with_rows_that_every_engine_can_load(tried: Path) -> None:
    """A mistake, and its undo, are in the history; the table is loaded over REST, from a copy of nothing."""
    lake = Lakehouse.open(tried / "lake")
    assert ["rollback", "commit"] == [each.operation for each in lake.history(limit=2)]
    assert ["orders", "customers"] == sorted(lake.tables("sales"), reverse=True)
    assert [] == list(lake.check(definitions=True))
    with endpoint(lake, trial.NAME) as at:
        table = load_catalog(trial.NAME, type="rest", **at.properties()).load_table(trial.TABLE)
        assert trial.ROWS == table.scan().to_arrow().num_rows


def test_a_trial_is_done_in_a_directory_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_environment: None
) -> None:
    """The command leaves what the next ones need: names, and the settings of Dagster; nothing is overwritten."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "notes.txt").write_text("mine")
    assert "is not empty" in run(capsys, "try", str(there), code=2)["error"]["message"]
    assert [there / "notes.txt"] == list(there.iterdir())
    monkeypatch.setattr(trial, "ROWS", 20)
    done = run(capsys, "try", str(tmp_path / "new"))
    assert [] == list(mismatches(DECLARED["try"], done, "try", set()))
    assert (20, 20) == (done["rows"], done["rows_over_rest"])
    monkeypatch.chdir(tmp_path / "new")
    assert done["version_after"] == run(capsys, "stats", "first")["version"]
    settings = yaml.safe_load((Path(done["dagster_home"]) / "dagster.yaml").read_text())
    assert settings["run_monitoring"]["free_slots_after_run_end_seconds"] > 0
    assert 1 == settings["concurrency"]["pools"]["default_limit"]
    assert (False, False) == (settings["nux"]["enabled"], settings["telemetry"]["enabled"])


def test_dagster_starts_without_advice_that_is_not_for_people_who_use_this(tmp_path: Path) -> None:
    """It warns when its command is called, before it looks at arguments; without any it ends at once."""
    words = dagster_home.start_command("127.0.0.1", 3000)
    call = "from dagster._cli.dev import dev_command; dev_command.callback()"
    said = []
    for options in ([], words[1 : words.index("-m")]):
        command = [words[0], *options, "-c", call]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        said.append("is superseded" in done.stderr)
    assert [True, False] == said


def test_dagster_is_started_with_settings_that_are_written_where_none_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_environment: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    assert "no lakehouses.yaml" in run(capsys, "ui", code=2)["error"]["message"]
    stanzas = [{"name": "a", "root": "file:///x/a"}, {"name": "b", "root": "file:///x/b", "rot": 1}]
    (tmp_path / "lakehouses.yaml").write_text(yaml.safe_dump({"lakehouses": stanzas}))
    assert 0 == cli.main(["ui", "--dry-run", "--json"])
    shown = capsys.readouterr()
    assert "lakehouse 'b': rot: unknown field" in shown.err
    planned = json.loads(shown.out)
    monkeypatch.setattr(trying, "list_mistakes", lambda _: [])
    assert [] == list(mismatches(DECLARED["ui"], planned, "ui", set()))
    assert not (tmp_path / ".dagster").exists()
    started: list[tuple[list[str], dict[str, str]]] = []

    def start(words: list[str], environment: dict[str, str]) -> int:
        started.append((words, environment))
        return 0

    monkeypatch.setattr(trying, "_run_until_ended", start)
    run(capsys, "ui")
    written = tmp_path / ".dagster" / "dagster.yaml"
    written.write_text("# mine\n")
    run(capsys, "ui", "--port", "3999")
    assert "# mine\n" == written.read_text()
    (_, first), (words, _) = started
    assert (str(tmp_path / ".dagster"), str(tmp_path / "lakehouses.yaml")) == (
        first["DAGSTER_HOME"],
        first["TRINITYLAKE_LAKEHOUSES"],
    )
    assert ["--host", "127.0.0.1", "--port", "3999"] == words[-4:]
    (location,) = yaml.safe_load(Path(words[words.index("--workspace") + 1]).read_text())["load_from"]
    assert "trinitylake" == location["python_module"]["location_name"]
    assert "is no port" in run(capsys, "ui", "--port", "0", code=2)["error"]["message"]


def test_dagster_that_is_not_installed_is_told_with_its_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_environment: None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lakehouses.yaml").write_text("lakehouses: []\n")
    monkeypatch.setattr(dagster_home, "find_spec", lambda name: None)
    assert "trinitylake-maintenance[dagster]" in run(capsys, "ui", code=2)["error"]["message"]
    assert not (tmp_path / ".dagster").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0)])
def test_a_signal_ends_what_was_started_and_then_the_command(number: int, code: int) -> None:
    """SIGTERM comes to this process alone, and is passed on; Ctrl-C comes to both."""
    child = "import time; print('up', flush=True); time.sleep(600)"
    program = (
        "import os, sys; from pipelines.cli.commands.trying import _run_until_ended; "
        f"sys.exit(_run_until_ended([sys.executable, '-c', {child!r}], dict(os.environ)))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, process_group=0
    )
    assert "up\n" == process.stdout.readline()  # type: ignore[union-attr]
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.communicate(timeout=60)
    assert code == process.returncode


def test_dagster_that_a_script_started_in_the_background_can_be_stopped() -> None:
    """There SIGINT is ignored, and Dagster handles SIGTERM as it handles SIGINT: it was deaf to both."""
    child = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT)); "
        "print('up', flush=True); time.sleep(600)"
    )
    program = (
        "import os, signal, sys; from pipelines.cli.commands.trying import _run_until_ended; "
        "signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"sys.exit(_run_until_ended([sys.executable, '-c', {child!r}], dict(os.environ)))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, process_group=0
    )
    try:
        assert "up\n" == process.stdout.readline()  # type: ignore[union-attr]
        process.terminate()
        process.communicate(timeout=20)
        assert process.returncode is not None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
