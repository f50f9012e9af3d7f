"""Bodies: what is read, and what is refused with a next move."""

from __future__ import annotations

import msgspec
import pytest

from twiceproof.inbound.reply import Unreadable, read_body, read_json
from twiceproof.server.services.claim_messages import TakeBody


def refused(body, media="application/json"):
    with pytest.raises(Unreadable) as caught:
        read_body(TakeBody, body, media)
    answer = msgspec.json.decode(caught.value.reply.body)
    assert answer["next"]
    return caught.value.reply.status, answer["detail"]


def test_an_empty_body_is_an_empty_object():
    assert read_body(TakeBody, b"", "") == TakeBody()


@pytest.mark.parametrize(
    "media", ["application/json", "application/json; charset=utf-8", "application/cloudevents+json"]
)
def test_json_is_read(media):
    assert read_body(TakeBody, b'{"lease": "1m"}', media).lease == "1m"


@pytest.mark.parametrize("media", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_form_can_send_is_not_read(media):
    assert refused(b'{"lease": "1m"}', media)[0] == 415


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"\xff", b"{'a': 1}", b'{"lease": true}', b'{"repeat": "maybe"}', b"[" * 9_999]
)
def test_what_does_not_fit_is_refused(body):
    assert refused(body)[0] == 400


def test_a_typing_error_does_not_go_unseen():
    assert "leese" in refused(b'{"leese": "1m"}')[1]


TWICE = [
    b'{"lease": "1m", "lease": "2m"}',
    b'{"lease": "1m", "\\u006cease": "1m"}',
    b'{"payload": {"total": 1, "total": 900}}',
    b'{"payload": [[{"a": 1e400, "b": {"a": 1, "a": 1}}]]}',
]


@pytest.mark.parametrize("body", TWICE)
def test_a_name_that_is_there_twice_is_refused(body):
    """One reader takes the first, another the last: who checked the one would act on the other."""
    status, detail = refused(body)
    assert status == 400 and "twice" in detail
    with pytest.raises(Unreadable) as caught:
        read_json(body, "application/json")
    assert b"twice" in caught.value.reply.body


@pytest.mark.parametrize(
    "body", [b'{"payload": {"a": {"a": "a"}, "b": ["a", "a"]}}', b'{"payload": 1.10, "lease": "\\u0031m"}']
)
def test_the_same_name_in_two_objects_is_no_name_twice(body):
    read_body(TakeBody, body, "application/json")
    assert bytes(read_json(body, "application/json")) == body


def test_any_json_is_kept_as_it_was_written():
    assert bytes(read_json(b'{"a": 1.10}', "application/json")) == b'{"a": 1.10}'
    assert bytes(read_json(b"", "")) == b"null"
