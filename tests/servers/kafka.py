"""librdkafka's mock cluster, part of the client: no Kafka, but its protocol, groups and faults.

It runs in a process of its own: a failed assertion in it ends that process, not the one of the tests. It keeps messages
in memory, checks no sequence numbers and knows no transactions.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import confluent_kafka

__all__ = ["JOIN_GROUP", "OFFSET_COMMIT", "PRODUCE", "KafkaMock", "MockCluster"]

PRODUCER = 0  # RD_KAFKA_PRODUCER
PRODUCE, OFFSET_COMMIT, JOIN_GROUP = 0, 8, 11  # their numbers in the protocol


class KafkaMock:
    """One broker on a free port of loopback."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.host, port = self._answer().split(":")
        self.port = int(port)

    @property
    def url(self) -> str:
        return f"kafka://{self.host}:{self.port}"

    def create_topic(self, topic: str, partitions: int = 1, replicas: int = 1) -> None:
        self._ask("create_topic", topic, partitions, replicas)

    def advertise(self, host: str, port: int) -> None:
        """Let clients come by way of a proxy."""
        self._ask("advertise", host, port)

    def spoil_topic(self, topic: str, error: int = 0) -> None:
        """Who asks for the topic gets this error; 0 is none."""
        self._ask("spoil_topic", topic, error)

    def answer_with(self, api: int, *errors: int) -> None:
        """The next requests of this kind are answered with these errors, one each."""
        self._ask("answer_with", api, *errors)

    def delay_answers(self, seconds: float) -> None:
        self._ask("delay_answers", int(seconds * 1000))

    def go_down(self) -> None:
        self._ask("go_down")

    def come_up(self) -> None:
        self._ask("come_up")

    def close(self) -> None:
        self._process.communicate()  # it ends with its orders

    def _ask(self, order: str, *arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([order, *arguments]) + "\n")
        self._process.stdin.flush()
        assert (code := self._answer()) == "0", f"The mock cluster answered {code!r}."

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


# -- in its process ------------------------------------------------------------------------------------------------


class MockCluster:
    """The cluster itself. Each order returns what librdkafka answers: 0 if it was carried out."""

    def __init__(self) -> None:
        self._library = _library()
        error = ctypes.create_string_buffer(512)
        self._handle = self._library.rd_kafka_new(PRODUCER, None, error, len(error))
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, 1)
        self._library.rd_kafka_mock_set_controller_id(self._cluster, 1)
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        self.address = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def create_topic(self, topic: str, partitions: int, replicas: int) -> Any:
        return self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, replicas)

    def advertise(self, host: str, port: int) -> Any:
        return self._library.rd_kafka_mock_broker_set_host_port(self._cluster, 1, host.encode(), port)

    def answer_with(self, api: int, *errors: int) -> Any:
        array = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, api, len(errors), array)
        return 0

    def spoil_topic(self, topic: str, error: int) -> Any:
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), error)
        return 0

    def delay_answers(self, milliseconds: int) -> Any:
        return self._library.rd_kafka_mock_broker_set_rtt(self._cluster, 1, milliseconds)

    def go_down(self) -> Any:
        return self._library.rd_kafka_mock_broker_set_down(self._cluster, 1)

    def come_up(self) -> Any:
        return self._library.rd_kafka_mock_broker_set_up(self._cluster, 1)


def main() -> None:
    """Carry out orders, a line each, until there are no more. Clients go with the process."""
    cluster = MockCluster()
    print(cluster.address, flush=True)
    for line in sys.stdin:
        order, *arguments = json.loads(line)
        print(getattr(cluster, order)(*arguments), flush=True)


def _library() -> Any:
    (path,) = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka*.so*")
    library = ctypes.CDLL(str(path))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_new", pointer, (number, pointer, text, ctypes.c_size_t)),
        ("rd_kafka_mock_cluster_new", pointer, (pointer, number)),
        ("rd_kafka_mock_set_controller_id", number, (pointer, ctypes.c_int32)),
        ("rd_kafka_mock_cluster_bootstraps", text, (pointer,)),
        ("rd_kafka_mock_group_initial_rebalance_delay_ms", None, (pointer, ctypes.c_int32)),
        ("rd_kafka_mock_topic_create", number, (pointer, text, number, number)),
        ("rd_kafka_mock_topic_set_error", None, (pointer, text, number)),
        ("rd_kafka_mock_broker_set_host_port", number, (pointer, ctypes.c_int32, text, number)),
        ("rd_kafka_mock_push_request_errors_array", None, (pointer, ctypes.c_int16, ctypes.c_size_t, pointer)),
        ("rd_kafka_mock_broker_set_rtt", number, (pointer, ctypes.c_int32, number)),
        ("rd_kafka_mock_broker_set_down", number, (pointer, ctypes.c_int32)),
        ("rd_kafka_mock_broker_set_up", number, (pointer, ctypes.c_int32)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


if __name__ == "__main__":
    main()
