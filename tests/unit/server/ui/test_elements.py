"""The HTML that is made in Python: each value is escaped, and looks as a template would write it."""

import re
from importlib.resources import files

import pytest
from markupsafe import Markup, escape

from twiceproof.safe_text import INVISIBLE
from twiceproof.server.ui.elements import content, inserted, row_element, shape, state_element, time_element
from twiceproof.server.ui.formatting import visible
from twiceproof.server.ui.listing import Cell, Column, ListingRow, code, key, link, number, state, text, when

HOSTILE = "\"'><script>\u202ex&y</script>"
MADE_OF_IT = "&#34;&#39;&gt;&lt;script&gt;\\u202ex&amp;y&lt;/script&gt;"


def test_every_character_is_inserted_as_it_would_be_escaped():
    """Plain texts are not escaped, as nothing would change. Here each character is, and the two compared."""
    some = [*range(0x3000), *(ord(one) for one in map(chr, range(0x110000)) if INVISIBLE.match(one))]
    for one in map(chr, some):
        for found in (one, f"a{one}", f"{one}a"):
            assert inserted(found) == escape(visible(found)), ascii(found)


def test_what_is_no_text_is_inserted_as_its_text():
    class Name(str):
        __slots__ = ()

    assert inserted(Name("<b>")) == "&lt;b&gt;"
    assert [inserted(value) for value in (None, 17, ["<"])] == ["None", "17", "[&#39;&lt;&#39;]"]
    assert inserted(Markup("<b>")) == "<b>"


def test_a_shape_escapes_each_value_once():
    bold = shape('<b title="%s">%s</b>')
    assert bold(HOSTILE, HOSTILE) == f'<b title="{MADE_OF_IT}">{MADE_OF_IT}</b>'
    assert shape("<p>%s</p>")(bold("a", "b")) == '<p><b title="a">b</b></p>'


def test_an_unknown_state_is_shown_by_its_name_escaped():
    assert HOSTILE not in state_element(HOSTILE) and state_element(HOSTILE).count("&lt;script&gt;") == 2


CELLS = [
    text(HOSTILE),
    code(HOSTILE),
    code(HOSTILE * 4),
    state(HOSTILE),
    link(HOSTILE, HOSTILE),
    key(HOSTILE, HOSTILE),
    Cell("faint", HOSTILE),
    Cell("number", HOSTILE),
]


@pytest.mark.parametrize("one", CELLS, ids=lambda one: one.kind)
@pytest.mark.parametrize("name", [0, 1], ids=["heading", "cell"])
def test_a_cell_escapes_what_it_shows(one, name):
    columns = (Column(HOSTILE), Column("Other"))
    found = row_element(ListingRow((one, text("other")), name), columns, HOSTILE)
    assert type(found) is Markup and found.count("<script>") == 0 and found.count(HOSTILE[:2]) == 0
    assert found.startswith("<tr><td" if name else "<tr><th") and found.endswith("</th></tr>" if name else "</td></tr>")
    assert set(re.findall(r"</?(\w+)", found)) <= {"tr", "th", "td", "a", "code", "span"}


def test_a_cell_looks_as_its_kind_does():
    columns = tuple(Column(word, is_number=word == "Count") for word in ("Key", "Why", "Count", "State", "At", "Size"))
    cells = (key("a", "/keys/a"), text(""), text(7), state("done"), when(None), number(1_001))
    found = row_element(ListingRow(cells), columns, "/root")
    assert re.findall(r"<t[hd] ([^>]*)>", found) == [
        'scope="row" data-label="Key"',
        'data-label="Why" class="none"',
        'data-label="Count" class="num"',
        'data-label="State" data-plain',
        'data-label="At"',
        'data-label="Size" class="num"',
    ]
    assert '<a class="open key" href="/root/keys/a">a</a>' in found and ">1,000+</td>" in found


def test_what_is_in_a_cell_can_stand_elsewhere():
    assert content(text("<b>"), "") == "<b>"  # a text, which a template escapes
    assert content(code("abc"), "") == Markup('<code class="whole">abc</code>')


def test_a_time_is_told_in_utc_and_for_the_script():
    assert time_element(1_792_000_000.5) == ('<time datetime="2026-10-14T17:46:40.500Z">2026-10-14 17:46:40 UTC</time>')
    assert ">2026-10-14 17:46:40.500 UTC<" in time_element(1_792_000_000.5, exact=True)
    assert time_element(None) == time_element(1e300) == Markup('<span class="faint">–</span>')


def test_only_one_module_makes_markup():
    folder = files("twiceproof.server.ui")
    modules = [*folder.iterdir(), *folder.joinpath("pages").iterdir()]
    makers = [one.name for one in modules if one.name.endswith(".py") and "arkup" in one.read_text("utf-8")]
    assert makers == ["elements.py"]
