"""rediss://: the same store through TLS, which a short forwarder of ours takes off before the server."""

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import threading
from concurrent.futures import Future

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from twiceproof.errors import StoreUnavailable
from twiceproof.records import Address, Insert, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.redis import RedisEngine

pytestmark = pytest.mark.server


@pytest.fixture
def certificate(tmp_path):
    """A file with a certificate for 127.0.0.1, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path / "server.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)
    return path


async def _pump(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
def tls_port(valkey_server, redis_url, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    ready = Future()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(valkey_server, context, ready)))
    thread.start()
    port, end = ready.result(10)
    yield port
    end()
    thread.join()


async def _serve(target, context, ready):
    async def forward(reader, writer):
        from_server, server = await asyncio.open_connection(target.host, target.port)
        await asyncio.gather(_pump(reader, server), _pump(from_server, writer))

    loop, over = asyncio.get_running_loop(), asyncio.Event()
    server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
    ready.set_result((server.sockets[0].getsockname()[1], lambda: loop.call_soon_threadsafe(over.set)))
    await over.wait()
    server.close()


def test_a_store_works_through_tls_whatever_the_size_of_a_record(tls_port, certificate):
    store = GroupedStore(RedisEngine(f"rediss://127.0.0.1:{tls_port}/0?ssl_ca_certs={certificate}"))
    for nth, size in enumerate((0, 1_000, 16_384, 200_000)):
        at = Address(f"shop/order:{nth}", "claim", "self")
        assert isinstance(store.write(Insert(at, "x" * size, draw=True)).block(), Written)
        assert len(store.read(at).block().record.body) == size
    store.close()


def test_a_certificate_that_nobody_vouches_for_is_refused(tls_port):
    with pytest.raises(StoreUnavailable, match="does not answer"):
        RedisEngine(f"rediss://127.0.0.1:{tls_port}/0")
