"""Lists on servers: of runs and claims, each is read without the other."""

import pytest

from tests.unit.claims.test_listing import claim, run
from twiceproof import App
from twiceproof.claims.views import list_claims
from twiceproof.flows.history.queries import Filter, list_runs
from twiceproof.operations import block


@pytest.mark.server
@pytest.mark.parametrize("server", ["postgres_dsn", "redis_url", "mariadb_url"])
@pytest.mark.parametrize("state", ["review", "done"])
def test_a_list_of_runs_or_of_claims_reads_what_it_shows(request, monkeypatch, server, state):
    with App(request.getfixturevalue(server), best_effort=True) as app:
        app.pay = app.flow(key="order:{n}", name="pay")(lambda n: None)
        claim(app, 200, state)
        run(app, 100, state)
        rows, scan = [], app.store.engine.scan

        def counted(*words):
            page = scan(*words)
            rows.append(len(page.records))
            return page

        monkeypatch.setattr(app.store.engine, "scan", counted)
        runs = block(list_runs(app.store, Filter("default"), (state,), limit=5)).runs
        claims = block(list_claims(app.store, (state,), "default/", limit=5)).claims
        assert ({one.flow for one in runs}, len(runs)) == ({"pay"}, 5)
        assert ({one.operation for one in claims}, len(claims)) == ({"ship"}, 5)
        assert sum(rows) == 10
