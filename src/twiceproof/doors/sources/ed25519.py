"""Ed25519 signatures, by the `cryptography` package."""

from __future__ import annotations

from typing import Any

from ...errors import Misuse

__all__ = ["fits", "need_cryptography", "sign"]


def need_cryptography() -> Misuse:
    return Misuse('This signature needs the package "cryptography"; install it with: pip install "twiceproof[crypto]"')


def _module() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise need_cryptography() from None
    return ed25519


def fits(key: bytes, message: bytes, signature: bytes, *, private: bool = False) -> bool:
    """Did the holder of this key sign? A private key says which public one is meant."""
    ed25519 = _module()
    from cryptography.exceptions import InvalidSignature

    try:
        public = _private(key).public_key() if private else ed25519.Ed25519PublicKey.from_public_bytes(key)
        public.verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def sign(key: bytes, message: bytes) -> bytes:
    signature: bytes = _private(key).sign(message)
    return signature


def _private(key: bytes) -> Any:
    return _module().Ed25519PrivateKey.from_private_bytes(key[:32])  # some write the public key behind it
