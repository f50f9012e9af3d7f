"""Signing in to the cloud stores as their clients do: boto3's chain, azure-identity's chain; no secret is shown."""

import base64
import json
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_hex

import pytest

from tests.contracts.stores.row_places import PLACES
from tests.servers.azurite import Azurite
from tests.servers.process import Unavailable
from tests.servers.tls import ConnectProxy, make_certificate
from twiceproof import App
from twiceproof.errors import Misuse, StoreError
from twiceproof.records import Address, Conflict, Insert, Written
from twiceproof.stores.open import open_store

pytestmark = pytest.mark.server

ACCOUNT = "devstoreaccount1"
HOST = f"{ACCOUNT}.table.core.windows.net"
SECRET = "s3cret-of-a-role"


# -- Amazon ----------------------------------------------------------------------------------------


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


@pytest.fixture
def dynamodb(request, ministack):
    make, server, _ = PLACES["dynamodb"]
    url = make(request, server).url
    request.getfixturevalue("no_credentials")
    return url


def test_a_profile_of_the_shared_file_signs_requests_to_dynamodb(dynamodb, no_credentials, monkeypatch):
    (no_credentials / "credentials").write_text(
        f"[shop]\naws_access_key_id = AKIASHOP\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "shop")
    with App(dynamodb) as app:
        signed = []
        events = app.store.engine.table.client.meta.events
        events.register("before-send.dynamodb", lambda request, **_: signed.append(request.headers["Authorization"]))
        assert app.once(key="{n}", name="charge")(lambda n: n)(1) == 1
        assert SECRET not in repr(app.settings)
    assert signed and all(b"Credential=AKIASHOP/" in one for one in signed)


def test_where_boto3_finds_no_credentials_the_error_says_what_to_set(dynamodb):
    with pytest.raises(Misuse, match="AWS_REGION and credentials"):
        App(dynamodb)


# -- Microsoft -------------------------------------------------------------------------------------


def token() -> str:
    """As Microsoft's identity platform writes them. Azurite looks at all but the signature."""
    now = int(time.time())
    claims = {
        "iss": "https://sts.windows.net/contoso/",
        "aud": "https://storage.azure.com",
        "iat": now,
        "nbf": now - 60,
        "exp": now + 3_600,
    }
    parts = [{"alg": "RS256", "typ": "JWT"}, claims]
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*texts, "c2lnbmF0dXJl"])


class Identity(BaseHTTPRequestHandler):
    """The managed identity of an App Service or a Function: gives a token to whoever knows the header."""

    def do_GET(self) -> None:
        known = self.headers.get("X-IDENTITY-HEADER") == SECRET
        self.server.asked.append(self.path)
        until = str(int(time.time()) + 3_600)
        body = json.dumps({"access_token": token(), "expires_on": until, "token_type": "Bearer"}).encode()
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(body if known else b"{}")

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def identity(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Identity)
    server.asked = []
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}/token")
    monkeypatch.setenv("IDENTITY_HEADER", SECRET)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def account(monkeypatch, tmp_path):
    """A storage account at its own name, by TLS, which takes tokens and no keys."""
    pytest.importorskip("azure.identity")
    certificate = make_certificate(tmp_path, HOST)
    options = ("--cert", str(certificate), "--key", str(certificate), "--oauth", "basic")
    try:
        server = Azurite(*options).start()
    except Unavailable as error:
        pytest.skip(str(error))
    with closing(server), closing(ConnectProxy(server.host, server.port)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        yield proxy


def test_a_managed_identity_signs_in_to_azure_table_storage(identity, account):
    """One record at a time: with tokens, Azurite answers every batch with a 500."""
    url, at = f"azure-table://{ACCOUNT}/ledger{token_hex(6)}", Address("shop/order:1", "claim", "self")
    store, other = open_store(url), open_store(url)
    assert isinstance(store.write(Insert(at, "mine", draw=True)).block(), Written)
    refused = other.write(Insert(at, "theirs", draw=True)).block()
    assert isinstance(refused, Conflict) and refused.found.body == "mine"
    for each in (store, other):
        each.close()
    assert set(account.asked_for) == {f"{HOST}:443"}
    assert any("resource=https" in path for path in identity.asked)


def test_where_azure_identity_finds_nothing_that_works_the_error_says_what_to_do(identity, account, monkeypatch):
    monkeypatch.setenv("IDENTITY_HEADER", "a-wrong-header")
    with pytest.raises(StoreError, match="managed identity") as refused:
        open_store(f"azure-table://{ACCOUNT}/ledger{token_hex(6)}")
    assert "a-wrong-header" not in str(refused.value)
