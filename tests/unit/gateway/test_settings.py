"""The environment, read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import settings
from gateway.limits import Limits

ENV = {"TAILRACE_ISSUERS": "issuers.json"}


def test_defaults() -> None:
    config = settings.read(ENV)
    assert (config.port, config.name, config.kafka) == (8000, "gateway-1", "127.0.0.1:9092")
    assert config.default_model == "smollm2-135m-instruct"
    assert config.deployments[0].default_output_tokens == 1024
    assert (config.page, config.dev_credential, config.push_urls) == (None, None, ())
    assert config.connection_limit_s == 3600


def test_everything_given() -> None:
    config = settings.read(
        {
            **ENV,
            "TAILRACE_POOLS": '{"a":{"models":["x","y"],"max_model_len":1000},"b":{"models":["z"],"max_output_tokens":7}}',
            "TAILRACE_PUSH_URL": "http://h:1/, https://k",
            "TAILRACE_PAGE": "dist",
            "TAILRACE_LIMITS": '{"responses": 3}',
            "TAILRACE_ACCEPT_MS": "250",
        }
    )
    assert [
        (p.name, p.models, p.max_model_len, p.default_output_tokens) for p in config.deployments
    ] == [
        ("a", ("x", "y"), 1000, 250),
        ("b", ("z",), 8192, 7),
    ]
    assert config.push_urls == ("http://h:1", "https://k")
    assert config.page == Path("dist")
    assert (config.limits.responses, config.limits.sockets) == (3, Limits().sockets)
    assert config.accept_s == 0.25


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TAILRACE_ISSUERS", ""),
        ("TAILRACE_PORT", "x"),
        ("TAILRACE_POOLS", "[]"),
        ("TAILRACE_POOLS", '{"a":{"models":[]}}'),
        ("TAILRACE_POOLS", '{"a":{"models":["m"],"max_model_len":4}}'),
        ("TAILRACE_POOLS", '{"a":{"models":["m"],"max_output_tokens":9000}}'),
        ("TAILRACE_POOLS", '{"a":{"models":["m"],"temperature":2.1}}'),
        ("TAILRACE_POOLS", '{"a":{"models":["m"]},"b":{"models":["m"]}}'),
        ("TAILRACE_POOLS", '{"a":{"models":["m"],"temperature":3}}'),
        ("TAILRACE_POOLS", '{"a":{"models":["m"],"top_p":0}}'),
        ("TAILRACE_PUSH_URL", "ftp://x"),
        ("TAILRACE_PUSH_URL", "http://x;script-src *"),
        ("TAILRACE_PUSH_URL", "http://x 'unsafe-inline'"),
        ("TAILRACE_PUSH_URL", "http://x\nset-cookie: a"),
        ("TAILRACE_LIMITS", "{"),
        ("TAILRACE_LIMITS", '{"respnses": 3}'),
        ("TAILRACE_LIMITS", '{"responses": -1}'),
        ("TAILRACE_LIMITS", '{"requests_burst": 0}'),
        ("TAILRACE_WS_MAX_BYTES", "10"),
        ("TAILRACE_CONNECTION_LIMIT_S", "0"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(settings.Misconfigured, match=name):
        settings.read({**ENV, name: value})
