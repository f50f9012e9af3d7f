"""The file of `twiceproof connector n8n` in the real n8n: two instances with their own databases, and kills.

`make test-n8n` runs it. The workflow is the file as it is written, with what its page tells a maker to change.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.acceptance.http_shop import HttpShop
from tests.acceptance.test_node_red import Carrier, served
from tests.servers import Unavailable
from tests.servers.n8n import N8n
from twiceproof.server import connectors

pytestmark = [pytest.mark.server, pytest.mark.slow]

CREDENTIAL = {"id": "tpcred0000000001", "name": "Twiceproof"}


class SlowCarrier(Carrier):
    """The work. Of an order that is called `slow…` it is done at once, and its answer waits for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def ship(self, order: str, key: str, authorization: str | None) -> int:
        status = super().ship(order, key, authorization)
        if order.startswith("slow"):
            self.begun.set()
            self.go.wait(120)
        return status


def workflow(url: str, work: str) -> dict[str, Any]:
    """The file, made one's own: a webhook for Start, the order's id for the key, a request for the work."""
    made = connectors.n8n(url)
    nodes = {node["name"]: node for node in made["nodes"]}
    nodes["Start"] |= {
        "type": "n8n-nodes-base.webhook",
        "typeVersion": 2,
        "webhookId": "0a1b2c3d-0000-4000-8000-000000000001",
        "parameters": {"httpMethod": "POST", "path": "order", "responseMode": "lastNode", "options": {}},
    }
    fields = {one["name"]: one for one in nodes[connectors.INPUT]["parameters"]["assignments"]["assignments"]}
    fields["key"]["value"] = "=shop:order:{{ $json.body.id }}"
    fields["payload"]["value"] = "={{ $json.body }}"
    for name in (connectors.CLAIM, "Mark as done", "Mark as failed"):
        nodes[name]["credentials"] = {"httpHeaderAuth": CREDENTIAL}
    order = f"{connectors.INPUT_JSON}.payload.id"
    nodes[connectors.WORK] |= {
        "type": "n8n-nodes-base.httpRequest",
        "typeVersion": 4.2,
        "parameters": {
            "method": "POST",
            "url": work,
            "sendBody": True,
            "specifyBody": "json",
            "jsonBody": f"={{{{ JSON.stringify({{ id: {order} }}) }}}}",
            "options": {},
        },
    }
    return made


@pytest.fixture
def carrier() -> SlowCarrier:
    return SlowCarrier()


@pytest.fixture
def shop(tmp_path: Any) -> Iterator[HttpShop]:
    made = HttpShop(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def instances(shop: HttpShop, carrier: SlowCarrier) -> Iterator[list[N8n]]:
    token = shop.token("n8n", "ingest")
    data = {"name": "Authorization", "value": f"Bearer {token}"}
    credentials = [{**CREDENTIAL, "type": "httpHeaderAuth", "data": data}]
    with served(carrier) as address, ExitStack() as stack:
        made = [N8n(workflow(shop.url, address), credentials) for _ in range(2)]
        for one in made:
            stack.callback(one.close)
            try:
                one.start()
            except Unavailable as error:
                pytest.skip(str(error))
        stack.callback(carrier.go.set)
        yield made


def post(instance: N8n, order: str, **more: object) -> int:
    body = json.dumps({"id": order, **more}).encode()
    request = Request(f"{instance.url}/webhook/order", body, {"Content-Type": "application/json"})
    for _ in range(200):  # the address answers 404 until the workflow is active
        try:
            with urlopen(request, timeout=120) as answer:
                return int(answer.status)
        except HTTPError as error:
            with error:
                if error.code != 404:
                    return error.code
            time.sleep(0.1)
    raise AssertionError(instance.log()[-2000:])


def test_two_instances_do_each_order_once_whoever_is_killed(instances, shop, carrier):
    first, second = instances
    print(f"n8n {first.version}")
    # The same order twice through each: one effect.
    assert [post(one, "o1") for one in (first, second, first, second)] == [200] * 4
    assert carrier.shipped == {"o1": 1}
    # Twenty orders to both at once.
    with ThreadPoolExecutor(8) as senders:
        sent = [senders.submit(post, one, f"p{number}") for number in range(20) for one in instances]
        assert {one.result() for one in sent} == {200}
    assert all(carrier.shipped[f"p{number}"] == 1 for number in range(20))
    # The ledger's server is killed and comes back: the workflow's own retries carry it.
    with ThreadPoolExecutor(1) as senders:
        shop.kill()
        sent = senders.submit(post, first, "o2")
        shop.start()
        assert sent.result() == 200 and carrier.shipped["o2"] == 1
    # An instance is killed in the middle of the work: the effect is there, and nobody repeats it.
    with ThreadPoolExecutor(1) as senders:
        sent = senders.submit(post, first, "slow1")
        assert carrier.begun.wait(60)
        first.kill()
        assert isinstance(sent.exception(), OSError | AssertionError)
    assert post(second, "slow1") == 200  # held: not claimed, and left alone
    carrier.go.set()
    first.start()
    shop.kill()
    shop.start(SHOP_SHIFT="600")  # its lease of five minutes is over
    for one in instances:
        assert post(one, "slow1") == 500  # Stop: needs a person
    assert carrier.shipped["slow1"] == 1 and carrier.shipped.total() == 23
