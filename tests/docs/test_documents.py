"""The documents cannot drift: their Python runs and prints what they say, and their links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys

import pytest

import twiceproof
from tests.docs.blocks import ROOT, Block, blocks, documents, links
from twiceproof import errors

# The quickstart has a test of its own, in which its commands are run between its pieces of Python.
QUICKSTART = ROOT / "docs/quickstart.md"
WITH_PYTHON = [
    doc for doc in documents() if any(block.language == "python" for block in blocks(doc)) and doc != QUICKSTART
]


NEEDS = {
    "from-celery.md": "celery",
    "from-django.md": "django",
    "from-faststream.md": "faststream",
    "idempotency-key.md": "fastapi",
}
ALONE = ("from-django.md", "idempotency-key.md")  # Django is set up once in a process, and tests do so, too


# Given by their place.
NAMELESS = ("self", "function", "calls", "items", "args", "kwargs", "options", "when", "duration")


def name_of(document):
    return str(document.relative_to(ROOT))


def run(document, found: list[Block]) -> list[tuple[str, str, int]]:
    """Run a document's Python from top to bottom; pair what each stretch printed with what it says."""
    namespace: dict[str, object] = {"__name__": "document"}
    printed, pairs = io.StringIO(), []
    for block in found:
        if block.language == "python":
            code = compile("\n" * (block.line - 1) + block.text, str(document), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
        elif block.language == "text":
            pairs.append((printed.getvalue(), block.text, block.line))
            printed = io.StringIO()
    return pairs


def run_alone(document) -> list[tuple[str, str, int]]:
    """The same in a process of its own."""
    text = (
        f"import json, pathlib, sys; sys.path.insert(0, {str(ROOT)!r}); from {__name__} import blocks, run; "
        f"document = pathlib.Path({str(document)!r}); print(json.dumps(run(document, blocks(document))))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("document", WITH_PYTHON, ids=name_of)
def test_the_python_of_a_document_runs_and_prints_what_it_says(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if document.name == "CONTRIBUTING.md":
        pytest.importorskip("twiceproof.prove.store_contract")
    if document.name in NEEDS:
        pytest.importorskip(NEEDS[document.name])
    pairs = run_alone(document) if document.name in ALONE else run(document, blocks(document))
    for printed, said, line in pairs:
        assert printed == said, f"{name_of(document)}:{line}"


def test_the_readme_shows_a_short_example():
    first = next(block for block in blocks(ROOT / "README.md") if block.language == "python")
    lines = [line for line in first.text.splitlines() if line.strip()]
    assert len(lines) <= 15
    assert "@app.once" in first.text


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_every_link_of_a_document_leads_to_a_file(document):
    for link in links(document):
        assert (document.parent / link).exists(), link


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_documented_and_drawn(name):
    assert f"`{name}`" in (ROOT / "docs/reference/errors.md").read_text() or name == "TwiceproofError"
    if not name.endswith("Warning"):
        assert name in (errors.__doc__ or "")


def test_every_public_error_can_be_imported_from_the_package():
    hidden = {"BadWrite", "SchemaMismatch"}  # only who writes to a store directly meets these
    assert set(errors.__all__) - hidden <= set(twiceproof.__all__)


def test_every_argument_of_once_is_documented():
    import inspect

    page = "".join((ROOT / f"docs/reference/{name}.md").read_text() for name in ("once", "settings"))
    arguments = [
        *inspect.signature(twiceproof.App).parameters,
        *inspect.signature(twiceproof.App.once).parameters,
        *inspect.signature(twiceproof.App.claim).parameters,
    ]
    missing = [
        name
        for name in arguments
        if name not in ("self", "clock") and f"`{name}`" not in page and f"({name}" not in page
    ]
    assert missing == []


@pytest.mark.parametrize("method", ["flow", "step", "every", "poll", "each", "gather", "approve", "wait_for", "remote"])
def test_every_argument_of_what_a_flow_is_made_of_is_documented(method):
    import inspect

    pages = "".join(doc.read_text() for doc in documents() if "docs" in doc.parts)
    arguments = inspect.signature(getattr(twiceproof.App, method)).parameters
    missing = [
        name for name in arguments if name not in NAMELESS and f"`{name}" not in pages and f"{name}=" not in pages
    ]
    assert missing == []


def test_decisions_are_numbered_without_holes_and_listed():
    folder = ROOT / "docs/decisions"
    pages = sorted(page.name for page in folder.glob("0*.md"))
    assert [int(name[:4]) for name in pages] == list(range(1, len(pages) + 1))
    listed = [
        line.split("](")[1].split(")")[0] for line in (folder / "README.md").read_text().splitlines() if "](0" in line
    ]
    assert listed == pages
    for page in pages:
        assert (folder / page).read_text().startswith(f"# {page[:4]}: "), page
