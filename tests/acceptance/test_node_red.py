"""The flow of docs/how-to/no-code/node-red.md in a real Node-RED, against a live server: each order has one effect."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.acceptance.http_shop import HttpShop
from tests.servers import Unavailable
from tests.servers.node_red import NodeRed

pytestmark = pytest.mark.server

FLOW = (Path(__file__).parents[2] / "docs/how-to/no-code/node-red.json").read_text("utf-8")
ORDERS, POSTS, CALLERS = 20, 8, 16
BEFORE_THE_KILL = 40


class Carrier:
    """The work, counted outside of the product. `refused` are orders that it does not take."""

    def __init__(self) -> None:
        self.shipped: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.authorized = 0
        self.refused: set[str] = set()
        self._mutex = threading.Lock()

    def ship(self, order: str, key: str, authorization: str | None) -> int:
        with self._mutex:
            self.shipped[order] += 1
            self.keys.add(key)
            self.authorized += authorization is not None
        return 500 if order in self.refused else 200


@contextmanager
def served(carrier: Carrier) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            order = json.loads(self.rfile.read(int(self.headers["content-length"])))["id"]
            status = carrier.ship(order, self.headers["idempotency-key"], self.headers["authorization"])
            answer = json.dumps({"parcel": f"P-{order}"}).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/ship"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[HttpShop]:
    made = HttpShop(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def carrier() -> Carrier:
    return Carrier()


@pytest.fixture
def node_red(shop: HttpShop, carrier: Carrier) -> Iterator[NodeRed]:
    given = {"TWICEPROOF_URL": shop.url, "TWICEPROOF_TOKEN": shop.token("node-red", "ingest")}
    with served(carrier) as address:
        server = NodeRed(FLOW, {**given, "WORK_URL": address})
        try:
            yield server.start()
        except Unavailable as error:
            pytest.skip(str(error))
        finally:
            server.close()


def post(server: NodeRed, order: str, **more: object) -> tuple[int, dict[str, object]]:
    body = json.dumps({"id": order, **more}).encode()
    request = Request(f"http://127.0.0.1:{server.port}/order", body, {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_20_orders_of_16_senders_over_a_killed_server_have_one_effect_each(shop, node_red, carrier):
    orders = [f"o{number}" for _ in range(POSTS) for number in range(ORDERS)]
    answered, half = Counter(), threading.Event()

    def send(order: str) -> int:
        status, _ = post(node_red, order)
        answered[status] += 1
        if answered.total() >= BEFORE_THE_KILL:
            half.set()
        return status

    with ThreadPoolExecutor(CALLERS) as senders:
        sent = [senders.submit(send, order) for order in orders]
        assert half.wait(60)
        shop.kill()
        left = sum(not one.done() for one in sent)
        shop.start()
        statuses = Counter(one.result() for one in sent)
    assert left > CALLERS and statuses == {200: len(orders)}
    assert carrier.shipped == dict.fromkeys({*orders}, 1)
    assert carrier.keys == {f"shop:order:{order}" for order in orders} and carrier.authorized == 0
    assert post(node_red, "o7") == (200, {"state": "done", "result": {"parcel": "P-o7"}})


def test_a_claim_whose_answer_was_lost_with_the_server_is_still_its_own(shop, node_red, carrier):
    shop.kill()
    shop.start(SHOP_DIES="1")  # dies when the claim is durable, before its answer leaves
    with ThreadPoolExecutor(1) as senders:
        sent = senders.submit(post, node_red, "o1")
        assert shop.ended() == -signal.SIGKILL
        shop.start()
        assert sent.result() == (200, {"state": "done"})
    assert carrier.shipped == {"o1": 1}


def test_work_that_does_not_say_that_it_was_done_waits_for_a_person(shop, node_red, carrier):
    carrier.refused.add("o1")
    status, told = post(node_red, "o1")
    assert (status, told["state"]) == (409, "review")
    assert post(node_red, "o1")[0] == 409 and carrier.shipped == {"o1": 1}


def test_another_order_under_the_same_number_is_refused(shop, node_red, carrier):
    assert post(node_red, "o1", total=1)[0] == 200
    status, told = post(node_red, "o1", total=2)
    assert status == 409 and told["next"] and carrier.shipped == {"o1": 1}
