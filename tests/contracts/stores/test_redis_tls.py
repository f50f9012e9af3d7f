"""`rediss://`: the same store, encrypted. A server that cannot prove who it is is not talked to."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.servers.tls import tls_in_front
from twiceproof import App, StoreUnavailable

pytestmark = pytest.mark.server


@pytest.fixture
def front(redis_url, tmp_path):
    plain = urlsplit(redis_url)
    with tls_in_front(tmp_path, plain.hostname, plain.port) as (port, certificate):
        yield f"rediss://127.0.0.1:{port}{plain.path}", certificate


def test_claims_are_taken_and_answered_over_tls(front):
    url, certificate = front
    done = []
    with App(f"{url}?ssl_ca_certs={certificate}") as app:

        @app.once(key="order:{order}", repeat="safe")
        def pay(order: int) -> str:
            done.append(order)
            return "x" * 100_000  # more than one record of TLS

        assert pay(1) == pay(1) == "x" * 100_000
        assert "ok" in {finding.level for finding in app.store.engine.examine() if finding.name == "encryption"}
    assert done == [1]


def test_a_server_whose_certificate_nobody_knows_is_not_talked_to(front):
    url, _ = front
    with pytest.raises(StoreUnavailable, match="certificate"):
        App(url)
