"""L15: a response that continues the text of another one (pure; log rule §23)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tailrace.protocol import records
from tailrace.verify import history, reference_fold
from tailrace.verify.report import Report
from tailrace.verify.response_checks import counterexample

HALF_A_CHARACTER = "\ufffd"


def check_continuation(
    out: Report, response: history.Response, responses: Mapping[str, history.Response]
) -> None:
    """L15: a continuation continues text only, and exactly the text of the former response, which
    was cut short. `responses`: all responses; the former one may be among them."""
    request = response.requests[0].request if response.requests else None
    if request is None or not request.continue_final:
        return
    out.count("L15")
    problem = next(_request_problems(request), None)
    source = responses.get(request.previous or "")
    if problem is None and request.fork is None and source is not None and source.whole:
        problem = next(_source_problems(request, source), None)
    if problem is not None:
        out.fail("L15", counterexample(response, problem))
    out.figures["responses that continue a text"] += 1


def _request_problems(request: records.Request) -> Iterator[str]:
    last = request.messages[-1] if request.messages else {}
    if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
        yield "it continues what is no answer"
    if last.get("tool_calls"):
        yield "it continues an answer that calls tools"
    if request.format is not None or request.raw or request.tool_choice.mode == "required":
        yield "it continues a text with what is no text alone"


def _source_problems(request: records.Request, source: history.Response) -> Iterator[str]:
    account = reference_fold.account(source.entries, source.owner)
    if source.owner is not None and source.owner != request.owner:
        yield "it continues another principal's response"
    if account.status not in ("incomplete", "cancelled"):
        yield f"it continues a response that is {account.status or 'open'}"
    kinds = [part.beginning.kind if part.beginning is not None else "m" for part in account.parts]
    if kinds and (kinds[-1] != "m" or not {"c", "x"}.isdisjoint(kinds)):
        yield "it continues a response that does not end with text, or calls tools"
    elif kinds and not request.messages[-1]["content"].endswith(_text(account)):
        yield "it continues another text than the response before it has"


def _text(account: reference_fold.Account) -> str:
    """The text of the last item, without a character that was cut in two."""
    return account.parts[-1].text.rstrip(HALF_A_CHARACTER)
