"""Answers: what need not come again is acknowledged, what must is not, in the words that the sender understands."""

from __future__ import annotations

from typing import get_args

from msgspec import structs

from ...doors.reply import Reply
from ...doors.source import Handshake, Source, Word
from .case import NOW, SourceCase

__all__ = ["Answers"]

AGAIN: tuple[Word, ...] = ("busy", "failed", "unavailable")
WORDS: tuple[Word, ...] = get_args(Word)


class Answers(SourceCase):
    def test_what_need_not_come_again_is_acknowledged(self, source: Source) -> None:
        """200 to 204: to some senders any other 2xx is a failure, and 409 sends others away for good."""
        for word in WORDS:
            assert word in AGAIN or 200 <= source.answer(word).status <= 204, word

    def test_what_must_come_again_is_not(self, source: Source) -> None:
        for word in AGAIN:
            reply = source.answer(word, retry_in=7.2)
            assert 500 <= reply.status <= 504, word
            assert reply.header("retry-after") == "8"

    def test_an_answer_says_what_it_is(self, source: Source) -> None:
        for word in WORDS:
            reply = source.answer(word, run="run_1")
            assert bool(reply.body) is bool(reply.header("content-type"))
            assert _is_header_text(reply)

    def test_a_duplicate_is_told_from_a_new_event(self, source: Source) -> None:
        assert source.answer("new").body != source.answer("duplicate").body

    def test_a_source_says_how_long_its_sender_tries_and_waits(self, source: Source) -> None:
        assert 0 < source.deadline <= 120
        assert source.deadline < source.horizon <= 30 * 86_400

    def test_a_delivery_is_no_question(self, source: Source) -> None:
        assert source.greet(self.delivery(source)) is None

    def test_a_question_is_answered_without_a_claim_or_not_at_all(self, source: Source) -> None:
        asked = structs.replace(
            source.sample(self.secret, NOW), method="OPTIONS", headers={"webhook-request-origin": "sender.example"}
        )
        answer = source.greet(asked)
        assert answer is None or (isinstance(answer, Handshake) and answer.reply.status == 200)
        assert answer is None or _is_header_text(answer.reply)

    def test_a_source_has_a_name(self, source: Source) -> None:
        assert source.name
        assert source.name == source.name.lower()


def _is_header_text(reply: Reply) -> bool:
    return all(text.isascii() and text.isprintable() for header in reply.headers for text in header)
