"""TLS in front of a server that has none: a certificate of our own, and a proxy that takes the encryption off."""

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificate(folder: Path, *hosts: str) -> Path:
    """A self-signed one for 127.0.0.1 and these names, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    here: x509.GeneralName = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    address = x509.SubjectAlternativeName([here, *(x509.DNSName(host) for host in hosts)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "server.pem"
    path.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
    return path


class ConnectProxy:
    """What HTTPS_PROXY names: whatever host is asked for, it leads to one port of this machine."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.asked_for: list[str] = []
        threading.Thread(target=_serve, args=(self._listening, self._pass_on), daemon=True).start()

    def _pass_on(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError), caller, socket.create_connection(self._target) as inside:
            head = b""
            while b"\r\n\r\n" not in head:
                head += caller.recv(4_096) or b"\r\n\r\n"
            self.asked_for.append(head.split(b" ")[1].decode())
            caller.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            _both_ways(caller, inside)

    def close(self) -> None:
        self._listening.close()


class TlsProxy:
    """Listens with TLS, and passes on what it hears to a plain port."""

    def __init__(self, certificate: Path, host: str, port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._target = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=_serve, args=(self._listening, self._pass_on), daemon=True).start()

    def _pass_on(self, caller: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            self._context.wrap_socket(caller, server_side=True) as outside,
            socket.create_connection(self._target) as inside,
        ):
            _both_ways(outside, inside)

    def close(self) -> None:
        self._listening.close()


def _serve(listening: socket.socket, pass_on: Callable[[socket.socket], None]) -> None:
    with contextlib.suppress(OSError):
        while True:
            caller, _ = listening.accept()
            threading.Thread(target=pass_on, args=(caller,), daemon=True).start()


def _both_ways(outside: socket.socket, inside: socket.socket) -> None:
    back = threading.Thread(target=_pump, args=(inside, outside), daemon=True)
    back.start()
    _pump(outside, inside)
    back.join(10)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65_536):
            sink.sendall(part)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def tls_in_front(folder: Path, host: str, port: int) -> Iterator[tuple[int, Path]]:
    """The port to call, and the certificate to trust."""
    certificate = make_certificate(folder)
    proxy = TlsProxy(certificate, host, port)
    try:
        yield proxy.port, certificate
    finally:
        proxy.close()
