"""An S3 service: moto's server, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers.moto import moto_server


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_client(s3_endpoint: str) -> Any:
    boto3 = pytest.importorskip("boto3")
    return boto3.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
