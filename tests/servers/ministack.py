"""ministack, an emulator of Amazon's services, from its wheel: SQS here, DynamoDB in `dynamodb.py`."""

from __future__ import annotations

import importlib.util
import sys
import urllib.error
import urllib.request
from typing import ClassVar

from tests.servers.account import Account
from tests.servers.process import ServerProcess, Unavailable


class Ministack(ServerProcess):
    """One service. What it has is in memory: a kill loses it, a stop in good order keeps it for the next start."""

    kind: ClassVar[str] = "ministack"
    service: ClassVar[str]

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def prepare(self) -> None:
        if importlib.util.find_spec("ministack") is None:
            raise Unavailable(f"{self.service} cannot be had: there is no ministack wheel")

    def account(self) -> Account:
        return {}

    def command(self) -> list[str]:
        settings = {
            "BIND_HOST": self.host,
            "GATEWAY_PORT": self.port,
            "SERVICES": self.service,
            "IOT_MTLS_ENABLED": "0",
            "PERSIST_STATE": "1",
            "STATE_DIR": self.directory / "state",
            "TMPDIR": self.directory,
            "HOME": self.directory,
        }
        return ["env", *(f"{name}={value}" for name, value in settings.items()), sys.executable, "-m", "ministack"]

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/_ministack/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


class SqsServer(Ministack):
    """It behaves as SQS does: receipts, visibility, groups, deduplication."""

    service: ClassVar[str] = "sqs"

    @property
    def url(self) -> str:
        return f"sqs+http://test:test@{self.host}:{self.port}"
