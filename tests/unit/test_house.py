"""The rules of CONTRIBUTING for files and names, held against the source tree; and how many files a call enters."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tools.journeys import LIMITS, MODULES, Journey, listing, measured
from tools.source_tree import SourceTree, loaded_modules

SHORT, LONG = 100, 450  # lines
LONGEST_NAME = 80  # characters of the name of a test
TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)

# Short modules with one importer, each with the reason for which it is a file of its own.
SHORT_MODULES = {
    "claims.blobs.s3": "a technology",
    "flows.engine.drift": "pure decisions are apart from what carries them out",
    "flows.ordering.turns": "what the engine asks of ordering, which is above the engine",
    "prove.fixture": "pytest loads the plugin in every session; the fixture's imports come later",
    "prove.worlds.files": "one file for each kind of world",
    "server.routes.acts": "one file for each noun of the API",
    "server.routes.callbacks": "one file for each noun of the API",
    "server.routes.duplicates": "one file for each noun of the API",
    "server.routes.external_ids": "one file for each noun of the API",
    "server.routes.search": "one file for each noun of the API",
    "server.routes.forks": "one file for each noun of the API",
    "server.routes.health": "one file for each noun of the API",
    "server.routes.schedules": "one file for each noun of the API",
    "server.routes.webhooks": "one file for each noun of the API",
    "server.ui.pages.acts": "one file for each noun of the dashboard",
    "server.routes.workers": "one file for each noun of the API",
    "server.ui.pages.access": "one file for each noun of the dashboard",
    "server.ui.pages.claims": "one file for each noun of the dashboard",
    "server.ui.pages.live": "one file for each noun of the dashboard",
    "server.ui.pages.duplicates": "one file for each noun of the dashboard",
    "server.ui.pages.search": "one file for each noun of the dashboard",
    "stores.azure_table.doctor": "the files of a technology have the same names",
    "stores.azure_table.engine": "the files of a technology have the same names",
    "stores.dynamodb.engine": "the files of a technology have the same names",
    "stores.etcd.engine": "the files of a technology have the same names",
    "stores.sqlite.bulk": "the files of a technology have the same names",
    "stores.sqlite.notify": "the files of a technology have the same names",
    "stores.azure_table.batch": "a protocol, apart from what errors mean",
}
LONG_MODULES: dict[str, str] = {}

# Modules that start a thread which is none of the kinds in `threads.py`, each with the reason.
OWN_THREADS = {
    "brokers.kafka_group": "polls from the start to the end of a membership",
    "flows.engine.step_timeout": "an attempt that may outlive its time-out, registered before it begins",
    "flows.parallel.gather": "branches: joined, and begun as far as threads can be had",
    "reconcile.readers": "reads ahead of its run, in the run's context",
    "server.serve": "a worker: begins after the server's sockets are open",
}


@pytest.fixture(scope="module")
def tree() -> SourceTree:
    return SourceTree()


def test_no_public_class_name_is_used_twice(tree: SourceTree) -> None:
    counts = Counter(name for name, _ in tree.public_classes())
    twice = {name for name, count in counts.items() if count > 1}
    assert [(name, module) for name, module in tree.public_classes() if name in twice] == []


def test_a_short_module_with_one_importer_is_part_of_its_importer(tree: SourceTree) -> None:
    """A module without an importer is loaded by its name: a command, a source of webhooks, a plugin."""
    found = {
        _short(name): lines
        for name, lines in tree.lines.items()
        if lines < SHORT and len(tree.importers(name)) == 1 and tree.paths[name].name != "__init__.py"
    }
    assert {name: lines for name, lines in found.items() if name not in SHORT_MODULES} == {}


def test_no_module_is_long(tree: SourceTree) -> None:
    found = {_short(name): lines for name, lines in tree.lines.items() if lines > LONG}
    assert {name: lines for name, lines in found.items() if name not in LONG_MODULES} == {}


def test_a_thread_is_one_of_the_kinds_of_threads_or_has_a_reason(tree: SourceTree) -> None:
    starting = {_short(name) for name, path in tree.paths.items() if "threading.Thread(" in path.read_text("utf-8")}
    shipped = {name for name in starting if name.partition(".")[0] not in ("demo", "prove", "threads")}
    assert shipped == set(OWN_THREADS)


def test_no_modules_import_one_another_while_they_are_loaded(tree: SourceTree) -> None:
    assert tree.load_cycles() == []


def test_importing_the_app_loads_few_modules() -> None:
    found = loaded_modules()
    assert len(found) <= MODULES.now, found


def test_a_journey_passes_through_few_files() -> None:
    found = measured()
    assert found.keys() == LIMITS.keys()
    assert {name: listing(found[name]) for name in LIMITS if len(found[name].files) > LIMITS[name].now} == {}


def test_the_name_of_a_test_is_a_short_fact() -> None:
    tests = Path(__file__).parents[1]
    found = [(path.name, name) for path in tests.rglob("*.py") for name in TEST.findall(path.read_text("utf-8"))]
    assert len(found) > 3_000 and [pair for pair in found if len(pair[1]) > LONGEST_NAME] == []


def test_the_rules_find_what_breaks_them(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    for name, text in {
        "__init__": "",
        "orders": "from .payments import Pay\nclass Order: ...\n",
        "payments": "def load():\n    from .stock import Count\nfrom .orders import Order\nclass Pay: ...\n",
        "stock": "from . import orders\nclass Order: ...\nclass _Order: ...\n",
    }.items():
        package.mkdir(exist_ok=True)
        (package / f"{name}.py").write_text(text)
    tree = SourceTree(package)
    assert tree.load_cycles() == [{"shop.orders", "shop.payments"}]
    assert tree.importers("shop.orders") == {"shop.payments", "shop.stock"}
    assert tree.importers("shop.stock") == {"shop.payments"}
    assert [module for name, module in tree.public_classes() if name == "Order"] == ["shop.orders", "shop.stock"]


def test_a_journey_is_listed_by_folder_in_the_order_of_entry() -> None:
    files = {"app/app.py": "call", "claims/once.py": "Once.of", "claims/guard.py": "run", "clock.py": "now"}
    assert [" ".join(line.split()) for line in listing(Journey(files, 7))] == [
        "app/ app: call",
        "claims/ once: Once.of → guard: run",
        "clock: now",
    ]


def _short(name: str) -> str:
    return name.removeprefix("twiceproof.")
