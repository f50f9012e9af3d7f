"""TLS to MariaDB and to etcd, with a private authority: the server is known by it, or nothing is said to it."""

import pytest

from tests.servers import MariadbServer
from tests.servers.account import give
from tests.servers.process import Unavailable
from tests.servers.tls import make_certificate, tls_in_front
from twiceproof import App
from twiceproof.errors import StoreUnavailable
from twiceproof.stores.open import open_store

pytestmark = pytest.mark.server


class MariadbWithTls(MariadbServer):
    def command(self) -> list[str]:
        pem = self.directory / "server.pem"
        if not pem.exists():
            give(make_certificate(self.directory))
        return [*super().command(), f"--ssl-cert={pem}", f"--ssl-key={pem}"]


@pytest.fixture
def mariadb_with_tls():
    try:
        with MariadbWithTls() as server:
            yield server
    except Unavailable as error:
        pytest.skip(str(error))


def charged_once(url):
    with App(url) as app:
        charge = app.once(key="{n}", name="charge")(lambda n: n)
        assert charge(1) == charge(1) == 1
        return {found.name: found.found for found in app.store.examine()}["encryption"]


def test_mariadb_is_known_by_its_authority(mariadb_with_tls, tmp_path):
    url = f"{mariadb_with_tls.create_database()}?ssl_ca="
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        open_store(f"{url}{make_certificate(tmp_path)}")
    assert charged_once(f"{url}{mariadb_with_tls.directory / 'server.pem'}") == "TLS"


def test_etcd_is_known_by_its_authority(etcd_cluster, tmp_path):
    with tls_in_front(tmp_path, etcd_cluster.host, etcd_cluster.port) as (port, certificate):
        url = f"etcds://127.0.0.1:{port}/secure"
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            open_store(url)
        assert charged_once(f"{url}?ca={certificate}") == "TLS"
