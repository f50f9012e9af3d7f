"""One connection, spoken to byte by byte, with an application that answers when the test says so."""

import asyncio
from collections import deque
from contextlib import asynccontextmanager

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from twiceproof.server.limits import ServerLimits
from twiceproof.server.monitoring import Metrics
from twiceproof.server.protocol import FIRST_REQUEST, guarded

LIMITS = ServerLimits()
LATE = LIMITS.deadline + 1.0
FIRST = b"GET /1 HTTP/1.1\r\nhost: x\r\n\r\n"
HALF_HEAD = b"GET /2 HTTP/1.1\r\nx-slow: "
HALF_BODY = b"POST /2 HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nhe"
NO_HTTP = b"\x16\x03\x01\x02\x00\x01\r\n\r\n"
NO_ADDRESS = b"CONNECT evil.example:443 HTTP/1.1\r\nhost: evil.example:443\r\n\r\n"
LONG_HEAD = b"GET /2 HTTP/1.1\r\nx-long: " + b"a" * 2 * LIMITS.head + b"\r\n\r\n"
BROKEN_BODY = b"POST /2 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"


class Line:
    """A connection, and the requests that reached the application: each waits for `answer`."""

    def __init__(self):
        self.gates = deque()
        self.seen = []
        self.state = ServerState()

    async def app(self, scope, receive, send):
        gate = asyncio.Event()
        self.gates.append(gate)
        self.seen.append(scope["path"])
        self.scope = scope
        if scope["path"] == "/refused":
            await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"no"})
            return
        message = await receive()
        body = message.get("body", b"")
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
        await gate.wait()
        text = b"answer %s %s" % (scope["path"].encode(), body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
        await send({"type": "http.response.body", "body": text})

    @property
    def protocol(self):
        (one,) = self.state.connections
        return one

    def check_deadline(self, later):
        self.protocol.check_deadline(asyncio.get_running_loop().time() + later)

    def answer(self):
        self.gates.popleft().set()

    async def send(self, data):
        """Until the protocol has been given it."""
        self.writer.write(data)
        await self.writer.drain()
        await settled()

    async def read(self, mark):
        return await asyncio.wait_for(self.reader.readuntil(mark), 5)

    async def rest(self):
        return await asyncio.wait_for(self.reader.read(), 5)


async def settled():
    """What is on its way over loopback has come, and what it set going has run as far as it can."""
    for _ in range(50):
        await asyncio.sleep(0)


@asynccontextmanager
async def line():
    made = Line()
    config = Config(
        made.app,
        interface="asgi3",
        proxy_headers=False,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
    )
    config.load()
    protocol = guarded(LIMITS, Metrics())
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, made.state, {}), "127.0.0.1", 0)
    made.reader, made.writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        await settled()
        yield made
    finally:
        made.writer.close()
        server.close()


def played(scene):
    async def play():
        async with line() as made:
            return await scene(made)

    return asyncio.run(play())


@pytest.mark.parametrize("half", [HALF_HEAD, HALF_BODY], ids=["head", "body"])
def test_the_answer_under_way_goes_out_before_a_slow_request_behind_it_is_cut_off(half):
    async def scene(made):
        await made.send(FIRST)
        await made.send(half)
        made.check_deadline(LATE)
        await settled()
        made.answer()
        first = await made.read(b"answer /1 ")
        await settled()
        made.check_deadline(LATE)
        return first, await made.rest()

    first, second = played(scene)
    assert first.startswith(b"HTTP/1.1 200 ")
    assert second.startswith(b"HTTP/1.1 408 ")
    assert second.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("bad", "status"),
    [(NO_HTTP, b"400"), (NO_ADDRESS, b"400"), (LONG_HEAD, b"431"), (BROKEN_BODY, b"400")],
    ids=["no HTTP", "no address", "head", "body"],
)
@pytest.mark.parametrize("together", [True, False], ids=["in one piece", "in two"])
def test_the_answer_under_way_goes_out_before_what_comes_behind_it_is_refused(bad, status, together):
    async def scene(made):
        for piece in [FIRST + bad] if together else [FIRST, bad]:
            await made.send(piece)
        made.check_deadline(LATE)
        await settled()
        made.answer()
        return await made.rest(), made.seen

    answered, seen = played(scene)
    first, _, second = answered.partition(b"answer /1 ")
    assert first.startswith(b"HTTP/1.1 200 ")
    assert second.startswith(b"HTTP/1.1 " + status)
    assert answered.count(b"HTTP/1.1 ") == 2
    assert seen == ["/1"]


def test_a_request_that_waited_for_the_answer_before_it_has_all_its_time():
    """While it waits it is not read: how late it is then is our doing."""

    async def scene(made):
        await made.send(FIRST + HALF_BODY)
        made.check_deadline(LATE)
        made.answer()
        await made.read(b"answer /1 ")
        await settled()
        made.check_deadline(LIMITS.deadline - 1.0)
        await made.send(b"re")
        made.answer()
        return await made.read(b"answer /2 here")

    assert played(scene).startswith(b"HTTP/1.1 200 ")


def test_requests_sent_together_are_answered_one_after_the_other():
    async def scene(made):
        await made.send(FIRST + FIRST.replace(b"/1 ", b"/2 ") + HALF_HEAD)
        for _ in range(2):
            made.check_deadline(LATE)
            made.answer()
            await settled()
        made.check_deadline(LATE)
        return await made.rest()

    told = played(scene)
    assert [piece[:3] for piece in told.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"408"]
    assert told.index(b"answer /1") < told.index(b"answer /2")


def test_a_handler_whose_request_was_refused_has_no_second_word(caplog):
    async def scene(made):
        await made.send(BROKEN_BODY)
        made.answer()
        await settled()
        return await made.rest()

    told = played(scene)
    assert told.startswith(b"HTTP/1.1 400 ")
    assert told.count(b"HTTP/1.1 ") == 1
    assert not caplog.records


ENDS_TWICE = [
    b"POST /1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"POST /1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked, gzip\r\n\r\n0\r\n\r\n",
    b"GET /1 HTTP/1.1\r\n" + b"x: 1\r\n" * (LIMITS.headers + 1) + b"\r\n" + NO_HTTP,
]


@pytest.mark.parametrize("bad", ENDS_TWICE, ids=["unknown", "twice", "rubbish behind"])
@pytest.mark.parametrize("behind", [False, True])
def test_what_we_and_the_parser_both_refuse_is_refused_once(bad, behind):
    """By a second word the connection broke, with what had happened inside in the log: anonymous could fill it."""

    async def scene(made):
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        await made.send(FIRST + bad if behind else bad)
        if behind:
            made.answer()
        return await made.rest(), failures

    response, failures = played(scene)
    assert (response.count(b"HTTP/1.1 "), response.count(b"HTTP/1.1 4")) == (1 + behind, 1)
    assert failures == []


@pytest.mark.parametrize(
    "head",
    [
        b"POST /refused HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n",
        b"POST /refused HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\nconnection: close\r\n",
        b"POST /refused HTTP/1.0\r\ncontent-length: 3000000\r\n",
    ],
    ids=["keep-alive", "Connection: close", "HTTP/1.0"],
)
def test_who_still_sends_a_body_that_was_refused_gets_no_reset(head):
    """Clients that meet a reset while they send report it, and never read the response."""

    async def scene(made):
        await made.send(head + b"\r\n" + b"x" * 1000)
        for _ in range(10):
            await made.send(b"x" * 200_000)
        return await made.rest()

    told = played(scene)
    assert told.startswith(b"HTTP/1.1 413 ")
    assert told.endswith(b"\r\n\r\nno")


def test_a_refusal_of_a_whole_request_with_connection_close_closes_at_once():
    async def scene(made):
        await made.send(b"POST /1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhe")
        made.answer()
        return await made.rest(), await settled(), made.state.connections

    told, _, left = played(scene)
    assert told.endswith(b"answer /1 he")
    assert not left


def test_what_stands_behind_a_body_is_no_header():
    """A proxy writes its word about the caller into the head, and passes on what the caller wrote behind the body."""

    async def scene(made):
        head = b"POST /1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        await made.send(head + b"2\r\nhi\r\n0\r\nx-forwarded-for: 127.0.0.1\r\n\r\n")
        return [name for name, _ in made.scope["headers"]]

    assert played(scene) == [b"host", b"transfer-encoding"]


# -- a server that leaves --------------------------------------------------------------------------


def test_an_idle_connection_ends_when_the_server_leaves():
    async def scene(made):
        await made.send(FIRST)
        made.answer()
        await made.read(b"answer /1 ")
        await settled()
        made.protocol.shutdown()
        return await made.rest()

    assert played(scene) == b""


def test_a_request_that_has_begun_to_come_is_answered_though_the_server_leaves():
    async def scene(made):
        await made.send(FIRST[:20])
        made.protocol.shutdown()
        await made.send(FIRST[20:])
        made.answer()
        answer = await made.read(b"answer /1 ")
        await settled()
        made.check_deadline(0.0)
        return answer, await made.rest()

    answer, rest = played(scene)
    assert answer.startswith(b"HTTP/1.1 200 ") and rest == b""


def test_who_has_just_connected_has_a_moment_to_ask_though_the_server_leaves():
    async def scene(made):
        made.protocol.shutdown()
        await made.send(FIRST)
        made.answer()
        return await made.read(b"answer /1 ")

    assert played(scene).startswith(b"HTTP/1.1 200 ")


def test_who_has_connected_and_says_nothing_does_not_keep_the_server():
    async def scene(made):
        made.protocol.shutdown()
        made.check_deadline(FIRST_REQUEST + 0.1)
        return await made.rest()

    assert played(scene) == b""


def test_a_request_under_way_is_answered_when_the_server_leaves_then_disconnected():
    async def scene(made):
        await made.send(FIRST)
        made.protocol.shutdown()
        made.answer()
        return await made.rest()

    answer = played(scene)
    assert answer.startswith(b"HTTP/1.1 200 ") and b"connection: close" in answer and answer.endswith(b"answer /1 ")
