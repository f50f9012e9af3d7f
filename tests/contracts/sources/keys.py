"""Keys and certificates for the tests, made anew for each run."""

from __future__ import annotations

import functools
from base64 import b64encode
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from twiceproof.prove.source_contract.case import NOW


def key_pair(number: int) -> str:
    return "whsk_" + b64encode(bytes([number]) * 32).decode()


@functools.cache
def certificate(days: int = 365, host: str = "messageverificationcerts.paypal.com") -> tuple[str, str]:
    """A certificate and its key, as PEM, valid around NOW."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    begin = datetime.fromtimestamp(NOW, UTC) - timedelta(days=2 * 365)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=2 * 365 + days))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.public_bytes(serialization.Encoding.PEM).decode(), pem.decode()
