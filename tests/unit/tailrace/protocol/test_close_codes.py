import pytest

from tailrace.protocol import close_codes
from tailrace.protocol.close_codes import CloseCode, Reconnect


def test_every_code_has_a_row_and_the_reason_fits_a_close_frame() -> None:
    assert set(close_codes.TABLE) == set(CloseCode)
    assert all(0 < len(row.reason.encode()) <= 123 for row in close_codes.TABLE.values())


@pytest.mark.parametrize("code", [code for code in CloseCode if code >= 4000])
def test_the_range_of_a_private_code_agrees_with_its_row(code: CloseCode) -> None:
    assert (close_codes.TABLE[code].reconnect is not Reconnect.NEVER) == (code <= 4499)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (1000, Reconnect.NEVER),
        (1002, Reconnect.NEVER),
        (1006, Reconnect.RESUME),
        (1009, Reconnect.NEVER),
        (1012, Reconnect.RESUME),
        (4001, Reconnect.RESUME),
        (4003, Reconnect.NEW_CREDENTIAL),
        (4499, Reconnect.RESUME),
        (4500, Reconnect.NEVER),
        (4999, Reconnect.NEVER),
        (3000, Reconnect.NEVER),
    ],
)
def test_a_client_knows_whether_to_come_back_also_for_unknown_codes(
    code: int, expected: Reconnect
) -> None:
    assert close_codes.reconnect(code) is expected


@pytest.mark.parametrize("code", list(CloseCode))
def test_an_sdk_is_told_to_come_back_with_1012_or_1013_and_to_stay_away_with_anything_else(
    code: CloseCode,
) -> None:
    told = close_codes.for_sdk(code)
    comes_back = told in {1001, 1005, 1006, 1011, 1012, 1013, 1015}
    assert comes_back == (close_codes.TABLE[code].reconnect is not Reconnect.NEVER)
    assert not 4000 <= told <= 4499
