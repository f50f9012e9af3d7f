"""Acts over HTTP: who did what by hand, by the name of the token that they came with."""

import pytest

from tests.unit.server.routes.client import Client
from twiceproof import App, NotDone


@pytest.fixture
def failed(app: App) -> str:
    """A run that has failed for good."""

    @app.flow(key="order:{n}")
    def pay(n: int) -> None:
        raise NotDone("closed", final=True)

    run = pay.start(17).id
    app.worker().run(until_idle=True)
    return run


def told(client: Client, query: str = "") -> list[tuple[str, str, str]]:
    return [(act["verb"], act["by"], act["key"]) for act in client("GET", f"/v1/acts{query}", status=200)["acts"]]


def test_a_retry_keeps_the_name_that_came_with_it(app, client, failed):
    client("POST", f"/v1/runs/{failed}/retry", {"by": "ann"}, 200)
    assert told(client) == [("retry", "ann", "order:17")]


def test_the_tokens_name_is_who_acted_whatever_the_body_says(app, failed):
    client = Client(app, by="n8n")
    client("POST", f"/v1/runs/{failed}/retry", {"by": "ann"}, 200)
    client("POST", f"/v1/runs/{failed}/cancel", {"by": "ann"}, 200)
    assert told(client) == [("cancel", "n8n", "order:17"), ("retry", "n8n", "order:17")]


def test_acts_are_filtered_and_paged(client, app, failed):
    client("POST", f"/v1/runs/{failed}/retry", {"by": "ann"}, 200)
    client("POST", f"/v1/runs/{failed}/cancel", {"by": "bob"}, 200)
    assert told(client, "?by=ann") == [("retry", "ann", "order:17")]
    assert told(client, "?operation=mail") == []
    first = client("GET", "/v1/acts?limit=1", status=200)
    assert told(client, f"?limit=1&after={first['after']}") == [("retry", "ann", "order:17")]


def test_another_tenants_acts_are_not_shown(app, client, failed):
    client("POST", f"/v1/runs/{failed}/retry", {"by": "ann"}, 200)
    assert told(Client(app, tenant="acme")) == []


@pytest.mark.parametrize("after", ["zz", "cnVuLio6MQ"])
def test_what_is_no_position_in_the_list_is_not_found(client, after):
    assert client("GET", f"/v1/acts?after={after}", status=404)["type"].endswith("no-such-page")
