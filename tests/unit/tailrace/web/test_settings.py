from __future__ import annotations

import pytest

from tailrace.web import settings


@pytest.mark.parametrize(
    "kafka",
    ["sasl+ssl://u:hunter2@h:1?password_file=/p&ca_file=/c", "kafka://h:1", "h:1?ca_file=/c"],
)
def test_an_address_of_kafka_that_cannot_be_one_is_named_at_start(kafka: str) -> None:
    """Not at the first connection, minutes later and in a traceback; and a password in it is not
    repeated."""
    with pytest.raises(settings.Misconfigured, match="TAILRACE_KAFKA") as refused:
        settings.read({"TAILRACE_ISSUERS": "issuers.json", "TAILRACE_KAFKA": kafka})
    assert "hunter2" not in str(refused.value)
