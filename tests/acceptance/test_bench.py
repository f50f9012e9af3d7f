"""The bench runs and says what it should. Never a time: those are for an idle machine and a person."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KINDS = {"1 caller", "64 tasks", "64 threads"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A quick run on SQLite, in a process of its own, as `make bench` does it."""
    path = tmp_path_factory.mktemp("bench") / "figures.json"
    run_bench("--quick", "--only", "sqlite", "--json", str(path))
    return path


def run_bench(*arguments, timeout=120):
    command = [sys.executable, "-m", "bench", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def figures(written):
    return json.loads(written.read_bytes())


def test_it_says_on_what_machine_it_ran(figures):
    assert figures["plan"] == "quick"
    assert {"cpu", "file system", "python", "sqlite"} <= figures["machine"].keys()


def test_every_operation_is_measured_for_each_kind_of_caller(figures):
    measured = {(row["name"], row["callers"]) for row in figures["rows"]}
    for name in ("take", "take + complete", "@app.once", "replay"):
        kinds = {callers for known, callers in measured if known == name}
        assert kinds == KINDS, name


def test_every_row_is_a_ratio_to_something_measured_in_the_same_part(figures):
    for row in figures["rows"]:
        beside = {f"{other['name']}, {other['callers']}" for other in figures["rows"] if other["part"] == row["part"]}
        assert row["beside"] in beside
        assert 0 < row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]


def test_every_goal_has_a_verdict(figures):
    assert {line["part"] for line in figures["lines"]} == {"SQLite"}
    assert {line["verdict"] for line in figures["lines"]} <= {"aim met", "floor met", "met", "missed", "shown"}


def test_a_replay_calls_the_database_once(figures):
    """A count, not a time: it is the same on every machine."""
    [line] = [line for line in figures["lines"] if line["text"] == "calls to the database per replay"]
    assert line["value"]["median"] == 1


def test_the_chart_is_well_formed_and_shows_every_goal(written, figures):
    chart = ElementTree.fromstring(written.with_suffix(".svg").read_text(encoding="utf-8"))
    texts = {"".join(element.itertext()) for element in chart.iter("{http://www.w3.org/2000/svg}text")}
    assert {f"{line['part']}: {line['text']}" for line in figures["lines"]} <= texts


def test_an_unknown_section_is_refused_with_the_known_ones():
    command = [sys.executable, "-m", "bench", "--only", "oracle"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "oracle is no section; choose from sqlite, postgres" in done.stderr


@pytest.fixture(scope="module")
def flows(tmp_path_factory):
    """A quick run of the flows. DBOS is part of the bench extra, not of the tests'."""
    pytest.importorskip("dbos", reason="not installed; pip install --editable '.[bench]'")
    path = tmp_path_factory.mktemp("bench-flows") / "figures.json"
    run_bench("--quick", "--only", "flows", "--json", str(path), timeout=900)
    return json.loads(path.read_bytes())


@pytest.mark.server
def test_flows_are_measured_beside_dbos_for_each_kind_of_caller(flows):
    measured = {(row["name"], row["callers"]) for row in flows["rows"]}
    for name in ("@app.flow, 5 steps", "DBOS, 5 steps"):
        assert {callers for known, callers in measured if known == name} >= KINDS, name


@pytest.mark.server
def test_every_goal_of_the_flows_is_in_the_table_for_both_databases(flows):
    for part in ("SQLite", "PostgreSQL"):
        text = "\n".join(line["text"] for line in flows["lines"] if line["part"] == part)
        for goal in ("beside DBOS", "raw commits", "finished flow", "recover interrupted", "next due run", "memory"):
            assert goal in text, (part, goal)


@pytest.mark.server
def test_an_engine_that_is_not_measured_is_named_with_the_reason(flows):
    measured = {row["part"] for row in flows["rows"]}
    for engine in ("Restate", "Temporal"):
        left_out = [note for note in flows["notes"] if note.startswith(f"flows beside {engine} was left out: ")]
        assert left_out or any(f"beside {engine}" in part for part in measured), engine


@pytest.mark.server
def test_the_middleware_is_measured_beside_bare_endpoints_and_its_peers(tmp_path):
    for peer in ("idempotency_header_middleware", "fastapi_idempotency"):
        pytest.importorskip(peer, reason="not installed; pip install --editable '.[bench]'")
    path = tmp_path / "figures.json"
    run_bench("--quick", "--only", "middleware", "--json", str(path), timeout=300)
    figures = json.loads(path.read_bytes())
    said = "\n".join(f"{line['part']}: {line['text']}" for line in figures["lines"])
    for goal in (
        "FastAPI, SQLite: time of a replay",
        "Starlette, SQLite: time of a replay",
        "Valkey, first call: asgi",
    ):
        assert goal in said, goal
    assert figures["notes"] == []


def test_threads_have_figures_and_no_goals(figures):
    """They share one interpreter lock: the goals for many callers are for tasks."""
    verdicts = {line["verdict"] for line in figures["lines"] if line["text"].startswith("64 threads")}
    assert verdicts == {"shown"}
    assert "shown" not in {line["verdict"] for line in figures["lines"] if line["text"].startswith("64 tasks")}


def test_a_section_that_fails_leaves_a_note_and_the_others_their_figures(monkeypatch, tmp_path, capsys):
    import bench.__main__ as module
    from bench.findings import Findings, Line
    from bench.series import Ratio

    def broken():
        raise AssertionError("the file is not sound")

    def sound():
        return Findings(lines=[Line("SQLite", "a figure", Ratio(1.0, 1.0, 1.0))])

    monkeypatch.setattr(module, "_sections", lambda *_: {"sqlite": broken, "postgres": sound})
    path = tmp_path / "figures.json"
    with pytest.raises(SystemExit, match="sqlite failed, and has no figures: AssertionError: the file is not sound"):
        module.main(["--quick", "--json", str(path)], standalone_mode=False)
    figures = json.loads(path.read_bytes())
    assert [line["text"] for line in figures["lines"]] == ["a figure"]
    assert [note for note in figures["notes"] if note.startswith("sqlite failed")]


def test_the_long_file_of_the_lint_section_is_sound():
    from bench.plan import QUICK
    from bench.progress import Progress
    from bench.sections.flow_files import LINES, long_file, measure_lint

    assert long_file().count("\n") == LINES
    assert measure_lint(QUICK, Progress()).lines


def test_the_page_names_every_section():
    from bench.plan import SECTIONS

    page = (ROOT / "docs/reference/bench.md").read_text()
    (names,) = re.findall(r"# some of: (.*)", page)
    assert names.split(", ") == list(SECTIONS)


def test_some_sections_alone_never_overwrite_the_figures_of_all():
    from bench.__main__ import _file_name
    from bench.plan import SECTIONS

    assert _file_name(["flows"]) == "flows"
    assert _file_name(["scale", "sqlite"]) == "sqlite-scale"
    assert _file_name(list(SECTIONS)) == "latest"


@pytest.mark.server
def test_webhooks_are_measured_beside_a_handler_that_does_nothing(tmp_path):
    pytest.importorskip("uvicorn", reason="not installed; pip install --editable '.[server]'")
    path = tmp_path / "figures.json"
    run_bench("--quick", "--only", "webhooks", "--json", str(path), timeout=300)
    figures = json.loads(path.read_bytes())
    for part in ("SQLite", "PostgreSQL"):
        text = "\n".join(line["text"] for line in figures["lines"] if line["part"] == part)
        for goal in ("a duplicate webhook", "a new webhook"):
            assert goal in text, (part, goal)
    assert [line["text"] for line in figures["lines"] if "slow senders" in line["text"]]
