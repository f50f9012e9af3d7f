"""Templates: what they may not contain, and what they refer to."""

import re
from hashlib import sha256
from importlib.resources import files

import pytest

from tests.docs.blocks import ROOT
from twiceproof.server.ui import template

FOLDER = files("twiceproof.server.ui")
TEMPLATES = sorted(file.name for file in FOLDER.joinpath("templates").iterdir())
SCRIPTS = sorted(file.name for file in FOLDER.joinpath("static").iterdir() if file.name.endswith(".js"))


def text_of(name, folder="templates"):
    return FOLDER.joinpath(folder, name).read_text("utf-8")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_escapes_everything(name):
    text = text_of(name)
    assert not re.search(r"\|\s*safe\b|Markup|autoescape", text)
    assert not re.search(r"\s[\w-]+=(\{\{|\{%)", text), "an attribute without quotes"
    assert not re.search(r"""\s(style|on\w+)=""", text), "a style or a handler in an attribute"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_refers_to_nothing_elsewhere(name):
    assert not re.search(r"https?://|//[a-z]", re.sub(r"\{#.*?#\}", "", text_of(name)))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_makes_no_html(name):
    text = text_of(name, "static")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|createElement", text
    )
    assert not re.search(r"https?://", text)


def test_every_form_that_is_posted_has_a_token():
    for name in TEMPLATES:
        text = text_of(name)
        posted = re.findall(r'<form[^>]*method="post".*?</form>', text, re.DOTALL)
        assert all("m.token()" in form for form in posted), name


def test_static_names_carry_the_hash_of_their_content():
    for name in ("look.css", "page.js", "live.js", "mark.svg"):
        served = template.static_name(name)
        body = FOLDER.joinpath("static", name).read_bytes()
        assert served.split("-")[1].split(".")[0] == sha256(body).hexdigest()[:12]


def test_static_files_are_small():
    assert sum(len(file.read_bytes()) for file in FOLDER.joinpath("static").iterdir()) <= 40_000


def test_what_a_template_inserts_is_escaped_and_written_out():
    found = template.rendered(
        "problem.html",
        view=VIEW,
        navigation=(),
        problem={"title": "<b>", "detail": "a\u202eb<script>", "next": "\"'", "type": "t", "status": 400},
        login="",
        form_token=str,
        asked={},
    ).decode()
    assert "<script>" not in found.replace('<script type="module"', "") and "a\\u202eb&lt;script&gt;" in found


class View:
    root, path, here, title, tenant, name, is_open, may, now, said = "", "/", "", "x", "default", "", True, (), 0.0, ""
    query = ""


VIEW = View()


def test_templates_and_static_files_are_part_of_the_package():
    """The wheel holds every file of the package's folder; what git leaves out is not in it."""
    for folder, names in (("templates", TEMPLATES), ("static", ["look.css", "page.js", "live.js", "mark.svg"])):
        assert names and all(FOLDER.joinpath(folder, name).is_file() for name in names)
    ignored = (ROOT / ".gitignore").read_text("utf-8").split()
    assert not {"static", "static/", "templates", "templates/", "*.css", "*.js", "*.html"} & set(ignored)
    assert 'packages = ["src/twiceproof"]' in (ROOT / "pyproject.toml").read_text("utf-8")
