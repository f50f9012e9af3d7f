"""Restate: its server on a disk, a service of its Python SDK under hypercorn, and calls over its HTTP ingress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import restate
import urllib3

from ..callers import Callers
from ..confined import program, raise_loopback, serve
from .flows import blocking, fresh_ids

FABRIC, INGRESS, ADMIN, SERVICE = 5122, 8080, 9070, 9080  # alone in its network: no port is taken
ROOT = Path(__file__).parents[2]
PATIENCE = 30.0

count = restate.Service("Count")


@count.handler()
async def run(context: restate.Context, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await context.run_typed("add", _add, restate.RunOptions(), number=number)
    return number


def _add(number: int) -> int:
    return number + 1


app = restate.app([count])


def main() -> None:
    raise_loopback()
    with tempfile.TemporaryDirectory(prefix="twiceproof-bench-restate-") as directory:
        _start_server(directory)
        _start_service()
        http = urllib3.PoolManager(maxsize=64, retries=False)
        _register(http)
        serve(lambda callers, steps: _callers(http, callers, steps))


def _start_server(directory: str) -> None:
    settings = {
        "RESTATE_BASE_DIR": directory,
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_PORT": str(FABRIC),
        "RESTATE_INGRESS__BIND_PORT": str(INGRESS),
        "RESTATE_ADMIN__BIND_PORT": str(ADMIN),
        "RESTATE_LOG_FILTER": "error",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }
    command = [str(program("restate-server")), "--no-logo"]
    subprocess.Popen(command, env={**os.environ, **settings}, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def _start_service() -> None:
    command = [sys.executable, "-m", "hypercorn", f"{__spec__.name}:app", "--bind", f"127.0.0.1:{SERVICE}"]
    subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def _register(http: urllib3.PoolManager) -> None:
    """Both have just been started: asked until they answer."""
    body = json.dumps({"uri": f"http://127.0.0.1:{SERVICE}"})
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            answer = http.request("POST", f"http://127.0.0.1:{ADMIN}/deployments", body=body, headers=_JSON)
            if answer.status < 300:
                return
            trouble = answer.data.decode()
        except urllib3.exceptions.HTTPError as error:
            trouble = str(error)
        if time.monotonic() > deadline:
            raise RuntimeError(f"the service could not be registered: {trouble}")
        time.sleep(0.2)


_JSON = {"content-type": "application/json"}


def _callers(http: urllib3.PoolManager, callers: str, steps: int) -> Callers:
    ids, url = fresh_ids(), f"http://127.0.0.1:{INGRESS}/Count/run"

    def act(_: int) -> None:
        answer = http.request("POST", url, body=str(steps), headers={**_JSON, "idempotency-key": ids()})
        assert answer.status == 200 and answer.data == str(steps).encode(), answer.data

    return blocking(callers, act)


if __name__ == "__main__":
    main()
