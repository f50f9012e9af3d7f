"""The README's first example, to the letter, on each server that has to be there already."""

from pathlib import Path

import pytest

from tests.contracts.stores.row_places import PLACES
from tests.docs.blocks import blocks

pytestmark = pytest.mark.server

README = Path(__file__).parents[3] / "README.md"
STORE = "sqlite:///shop.db"


@pytest.mark.parametrize("scheme", ["mariadb", "mysql", *PLACES])
def test_the_first_example_of_the_readme_runs_on(scheme, request, capsys):
    program, printed = (next(b.text for b in blocks(README) if b.language == kind) for kind in ("python", "text"))
    assert program.count(STORE) == 1
    url = url_of(scheme, request)
    assert url.startswith(f"{scheme}://")
    written = {}
    exec(compile(program.replace(STORE, url), str(README), "exec"), written)
    written["app"].close()
    assert capsys.readouterr().out == printed


def url_of(scheme, request):
    if scheme in PLACES:
        make, server, _ = PLACES[scheme]
        return make(request, server).url
    return request.getfixturevalue("mariadb_url").replace("mariadb", scheme, 1)
