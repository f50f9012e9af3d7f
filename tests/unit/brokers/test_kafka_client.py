"""What a URL becomes, and what a topic's settings lose. The mock cluster has neither logins nor topic settings."""

from __future__ import annotations

import pytest

from twiceproof.brokers.kafka_client import client_settings, examine_topic

DAY = str(86_400_000)


def test_a_login_is_sent_by_tls_where_the_url_says_so():
    settings = client_settings("kafkas://me:a%40b@h1,h2:9093/SCRAM-SHA-512")
    assert settings["bootstrap.servers"] == "h1:9093,h2:9093"
    assert (settings["security.protocol"], settings["sasl.mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (settings["sasl.username"], settings["sasl.password"]) == ("me", "a@b")


@pytest.mark.parametrize(("scheme", "protocol"), [("kafka", "PLAINTEXT"), ("kafkas", "SSL")])
def test_without_a_login_there_is_none(scheme, protocol):
    settings = client_settings(f"{scheme}://host")
    assert settings["bootstrap.servers"] == "host:9092"
    assert settings["security.protocol"] == protocol
    assert "sasl.mechanism" not in settings


@pytest.mark.parametrize(
    ("replicas", "settings", "warning"),
    [
        (1, {"retention.ms": DAY}, "one replica"),
        (3, {"retention.ms": DAY, "min.insync.replicas": "1"}, "min.insync.replicas"),
        (3, {"retention.ms": "60000", "min.insync.replicas": "2"}, "within 60 seconds"),
        (3, {"retention.ms": DAY, "min.insync.replicas": "2", "cleanup.policy": "compact"}, "cleanup.policy"),
        (3, None, "does not tell"),
    ],
)
def test_what_a_topic_loses_is_a_warning(replicas, settings, warning):
    warnings = [found.text for found in examine_topic("orders", replicas, settings) if found.level == "warning"]
    assert len(warnings) == 1
    assert warning in warnings[0]


@pytest.mark.parametrize(("retention", "keeps"), [(DAY, 86_400.0), ("-1", None)])
def test_a_topic_that_loses_nothing_says_how_long_it_keeps(retention, keeps):
    (found,) = examine_topic("orders", 3, {"retention.ms": retention, "min.insync.replicas": "2"})
    assert (found.level, found.keeps) == ("ok", keeps)
