"""Which URLs name a server, and what of them is refused."""

from __future__ import annotations

import pytest

from pipelines import servers
from tests.support import cases


def test_a_url_says_where_and_who_and_which_files() -> None:
    assert servers.parse("https://a%40b@h:8443/d?password_file=/p&ca_file=/c") == (
        "https://h:8443/",
        "d",
        "a@b",
        "/p",
        "/c",
    )
    assert servers.parse("http://h/d") == ("http://h/", "d", "", "", "")


@cases.each(
    "text",
    [
        "clickhouse://h/d",
        "http:///d",
        "http://h",
        "http://h/",
        "http://h/d/e",
        "http://h/%22",
        "http://u:secret@h/d",
        "http://h/d?password=secret",
    ],
)
def test_another_text_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|password_file") as error:
        servers.parse(text)
    assert "secret" not in str(error.value)


def test_the_scheme_of_a_search_server_has_that_of_its_requests_behind_it() -> None:
    schemes = ("opensearch+http", "opensearch+https")
    address = servers.parse("opensearch+https://h:9200/i", schemes=schemes)
    assert (address.url, address.name) == ("https://h:9200/", "i")
    with pytest.raises(ValueError, match="expected http or https"):
        servers.parse("opensearch+https://h:9200/i")
    with pytest.raises(ValueError, match="expected opensearch"):
        servers.parse("https://h:9200/i", schemes=schemes)
