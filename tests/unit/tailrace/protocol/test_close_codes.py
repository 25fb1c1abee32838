import subprocess
import sys
from pathlib import Path

from tailrace.protocol import close_codes
from tailrace.protocol.close_codes import CloseCode, Reconnect
from tests.support import cases

ROOT = Path(__file__).parents[4]


def test_every_code_is_a_cause_or_what_an_sdk_is_told() -> None:
    told = {row.on_responses for row in close_codes.TABLE.values()}
    assert set(close_codes.TABLE) | told == set(CloseCode)
    assert all(0 < len(row.reason.encode()) <= 123 for row in close_codes.TABLE.values())


@cases.each("code", [code for code in CloseCode if code >= 4000])
def test_the_range_of_a_private_code_agrees_with_its_row(code: CloseCode) -> None:
    assert (close_codes.TABLE[code].reconnect is not Reconnect.NEVER) == (code <= 4499)


@cases.each("code", list(close_codes.TABLE))
def test_an_sdk_is_told_to_come_back_with_1012_or_1013_and_to_stay_away_with_anything_else(
    code: CloseCode,
) -> None:
    told = close_codes.for_sdk(code)
    comes_back = told in {1001, 1005, 1006, 1011, 1012, 1013, 1015}
    assert comes_back == (close_codes.TABLE[code].reconnect is not Reconnect.NEVER)
    assert not 4000 <= told <= 4999


# The WebSocket library sends these by itself.
OF_THE_LIBRARY = {CloseCode.INVALID_TEXT, CloseCode.TOO_BIG}


@cases.each("code", sorted(set(close_codes.TABLE) - OF_THE_LIBRARY))
def test_every_code_is_sent_somewhere(code: CloseCode) -> None:
    sources = [
        path.read_text()
        for package in ("gateway", "push", "tailrace/connections", "tailrace/web")
        for path in (ROOT / package).rglob("*.py")
    ]
    assert any(f"CloseCode.{code.name}" in text for text in sources)


def test_the_page_and_the_protocol_document_have_the_same_table() -> None:
    script = [sys.executable, "scripts/close_codes.py", "--check"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
