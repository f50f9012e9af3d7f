"""Forged, replayed and rotated: what is not believed."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode
from typing import Any

import pytest

from ...inbound.source import WINDOW, Source
from .case import NOW, SourceCase, bit_flips, proofs, with_body, with_header, with_proof, without_header

__all__ = ["Forged", "Replayed", "RotatedSecretTests"]


ODD = [
    "",
    " ",
    "none",
    "null",
    "\0",
    "é",
    "\ud800",
    "a" * 100_000,
    "v1,",
    "v1=",
    "v0=",
    "sha256=",
    "t=1,v1=",
    "=",
    ",,,",
]
OLDER = ("x-hub-signature", "x-signature", "signature", "authorization")


class Forged(SourceCase):
    def test_what_the_sender_sends_is_believed(self, source: Source) -> None:
        assert self.refusal(source, self.delivery(source)) == ""

    def test_a_source_says_what_it_believes_by(self, source: Source) -> None:
        assert all(proofs(source, self.delivery(source)).values())
        assert proofs(source, self.delivery(source))

    def test_without_a_secret_nothing_is_believed(self, source: Source) -> None:
        for secrets in ([], [""], ["", ""]):
            assert self.refusal(source, self.delivery(source), secrets)

    def test_an_empty_secret_is_one_that_everybody_knows(self, source: Source) -> None:
        sent = source.seal(source.example(), "", NOW)
        assert self.refusal(source, sent, [""])
        assert self.refusal(source, sent, ["", self.secret])
        assert self.refusal(source, self.delivery(source), ["", self.secret]) == ""

    def test_another_secret_is_not_believed(self, source: Source) -> None:
        assert self.refusal(source, source.sample(self.other_secret, NOW))
        assert self.refusal(source, self.delivery(source), [self.other_secret])

    def test_a_delivery_without_its_proof_is_not_believed(self, source: Source) -> None:
        sent = self.delivery(source)
        for name in proofs(source, sent):
            assert self.refusal(source, with_proof(sent, name, ""))
            assert self.refusal(source, without_header(with_proof(sent, name, ""), name))

    def test_no_bit_can_be_changed(self, source: Source) -> None:
        sent = self.delivery(source)
        believed = [changed for changed in bit_flips(source, sent) if not self.is_harmless(source, changed, sent)]
        assert [(changed.headers, changed.query, changed.body) for changed in believed] == []

    def test_an_odd_proof_is_refused_and_breaks_nothing(self, source: Source) -> None:
        sent = self.delivery(source)
        for name in proofs(source, sent):
            for odd in ODD:
                assert self.refusal(source, with_proof(sent, name, odd)), odd[:20]

    def test_the_proof_of_one_event_does_not_do_for_another(self, source: Source) -> None:
        first, second = self.delivery(source, {"n": 1}), self.delivery(source, {"n": 2})
        assert bool(self.refusal(source, with_body(first, second.body))) is source.signed

    def test_white_space_is_part_of_a_body(self, source: Source) -> None:
        sent = self.delivery(source)
        for body in (sent.body + b"\n", sent.body + b" ", b" " + sent.body, b"\xef\xbb\xbf" + sent.body):
            assert bool(self.refusal(source, with_body(sent, body))) is source.signed

    def test_a_body_written_anew_is_not_believed(self, source: Source) -> None:
        """Even with the same meaning: a source that parses before it verifies could be misled."""
        sent = self.delivery(source, {"b": 1, "a": 2})
        for changed in _written_anew(sent.body):
            assert bool(self.refusal(source, with_body(sent, changed))) is source.signed

    def test_a_weaker_algorithm_is_no_way_in(self, source: Source) -> None:
        sent = self.delivery(source)
        for weak in self._weaker(sent.body):
            for name in proofs(source, sent):
                assert self.refusal(source, with_proof(sent, name, weak))
            bare = sent
            for name in proofs(source, sent):
                bare = with_proof(bare, name, "")
            for name in OLDER:
                assert self.refusal(source, with_header(bare, name, weak))

    def _weaker(self, body: bytes) -> list[str]:
        key = self.secret.encode()
        md5, sha1 = (hmac.new(key, body, name).digest() for name in ("md5", "sha1"))
        bare = hashlib.sha256(body).hexdigest()
        texts = [md5.hex(), sha1.hex(), b64encode(sha1).decode(), bare]
        return [prefix + text for text in texts for prefix in ("", "sha1=", "md5=", "sha256=", "v0=", "v1,", "t=1,v0=")]

    def test_a_body_is_verified_before_it_is_read(self, source: Source) -> None:
        """Signed nonsense is authentic and unreadable; unsigned nonsense is not even parsed."""
        for body in (b"\xff\0{", b"[" * 5_000, b"{}"):
            verdict = self.refusal(source, source.seal(body, self.secret, NOW))
            assert verdict == "" or not self.exact
            assert self.refusal(source, source.seal(body, self.other_secret, NOW))

    def test_what_is_secret_is_compared_in_constant_time(self, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
        compared: list[Any] = []
        plain = hmac.compare_digest

        def compare(a: Any, b: Any) -> bool:
            compared.append((a, b))
            return plain(a, b)

        monkeypatch.setattr(hmac, "compare_digest", compare)
        assert self.refusal(source, self.delivery(source)) == ""
        assert bool(compared) is self.compares

    def test_a_refusal_does_not_tell_the_secret(self, source: Source) -> None:
        sent = self.delivery(source)
        for changed in bit_flips(source, with_body(sent, sent.body[:20])):
            assert self.secret not in self.refusal(source, changed)

    def test_verifying_changes_nothing(self, source: Source) -> None:
        sent = self.delivery(source)
        for _ in range(3):
            assert self.refusal(source, sent) == ""
            assert self.refusal(source, sent, [self.other_secret])


def _written_anew(body: bytes) -> list[bytes]:
    try:
        value = json.loads(body)
    except ValueError:
        return [body.replace(b"=", b"%3D", 1)]  # a form whose first field has no value any more
    mirrored = _mirrored(value)
    return [json.dumps(value, indent=1).encode(), json.dumps(value).encode(), json.dumps(mirrored).encode()]


def _mirrored(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _mirrored(item) for name, item in reversed(value.items())}
    return value


A_YEAR = 365 * 86_400.0


class Replayed(SourceCase):
    def test_a_sender_that_signs_a_time_has_a_window(self, source: Source) -> None:
        early, late = (proofs(source, self.delivery(source, now=at)) for at in (NOW, NOW + 1_000))
        assert (source.window > 0) is (early != late)

    def test_an_old_delivery_is_not_believed(self, source: Source) -> None:
        sent = self.delivery(source)
        assert bool(self.refusal(source, sent, now=NOW + source.window + 1)) is (source.window > 0)
        assert bool(self.refusal(source, sent, now=NOW + A_YEAR)) is (source.window > 0)

    def test_a_delivery_that_is_not_too_old_is_believed(self, source: Source) -> None:
        assert self.refusal(source, self.delivery(source), now=NOW + max(source.window, WINDOW) - 1) == ""
        assert self.refusal(source, self.delivery(source), now=NOW + WINDOW - 1) == ""

    def test_a_delivery_from_the_future_is_not_believed(self, source: Source) -> None:
        sent = self.delivery(source)
        assert bool(self.refusal(source, sent, now=NOW - WINDOW - 1)) is (source.window > 0)
        assert bool(self.refusal(source, sent, now=NOW - A_YEAR)) is (source.window > 0)

    def test_clocks_may_differ_a_little(self, source: Source) -> None:
        assert self.refusal(source, self.delivery(source), now=NOW - WINDOW + 1) == ""


class RotatedSecretTests(SourceCase):
    def test_old_and_new_are_both_believed(self, source: Source) -> None:
        for secret in (self.secret, self.other_secret):
            sent = source.sample(secret, NOW)
            assert self.refusal(source, sent, [self.secret, self.other_secret]) == ""
            assert self.refusal(source, sent, [self.other_secret, self.secret]) == ""

    def test_a_withdrawn_secret_is_not_believed(self, source: Source) -> None:
        assert self.refusal(source, source.sample(self.secret, NOW), [self.other_secret])
        assert self.refusal(source, source.sample(self.other_secret, NOW), [self.secret])

    def test_a_secret_that_cannot_be_one_does_not_spoil_the_others(self, source: Source) -> None:
        for odd in ("whsec_", "é", "\ud800", "whpk_AAAA", "-----BEGIN", " "):
            assert self.refusal(source, self.delivery(source), [odd, self.secret]) == ""
            assert self.refusal(source, self.delivery(source), [odd])
