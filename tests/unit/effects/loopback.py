"""Servers on loopback that answer as they are told, and a resolver of our own. Simulators: no real DNS is asked."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PLAIN = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


class Trap:
    """Takes connections and keeps what came in. `answer(connection)` says the rest."""

    def __init__(self, answer: Callable[[socket.socket], None], context: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        self._answer = answer
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                raw, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(raw,), daemon=True).start()

    def _talk(self, raw: socket.socket) -> None:
        raw.settimeout(10)
        with contextlib.suppress(OSError, ValueError):
            sock = self._context.wrap_socket(raw, server_side=True) if self._context else raw
            with sock:
                self.requests.append(_read(sock))
                self._answer(sock)

    def close(self) -> None:
        self._listener.close()


def _read(sock: socket.socket) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found:
        piece = sock.recv(65_536)
        if not piece:
            return found
        found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length and (piece := sock.recv(65_536)):
        body += piece
    return head + b"\r\n\r\n" + body


@contextlib.contextmanager
def trap(answer: bytes | Callable[[socket.socket], None] = PLAIN, context: Any = None) -> Iterator[Trap]:
    made = Trap((lambda sock: sock.sendall(answer)) if isinstance(answer, bytes) else answer, context)
    try:
        yield made
    finally:
        made.close()


class RebindingResolver:
    """A simulator of a DNS server that changes its mind: each question gets the next answer, the last one for ever."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return [self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]]


def certificate(folder: Path, host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context for a host, and a client's that trusts it and nobody else."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / f"{host}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))
