"""moto's server, over real HTTP on loopback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def moto_server(*, signed: bool = False) -> Iterator[str]:
    """`signed`: it checks signatures, of which it knows none."""
    pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        if signed:
            patch.setattr("moto.core.responses.ActionAuthenticatorMixin.request_count", 0)
            patch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
        yield f"http://{host}:{port}"
    server.stop()
