"""What is asked of a model for one row, and what comes of it."""

from __future__ import annotations

import json
import logging
import re
from typing import Any, Final

import jsonschema
import jsonschema.exceptions
import jsonschema.protocols
import msgspec

from pipelines import definition, stores
from pipelines.gateway import Ended, Gateway, Rejected
from pipelines.rows import Answer, Refused, Row, Rows
from pipelines.templates import Template, Unusable

_logger = logging.getLogger(__name__)

# A request that waited too long for the engine was not run, and is made again. So often at most.
MOST_EXPIRED: Final = 20
_NUMBER: Final = re.compile(r"\d+")


class Asking:
    """Asks for rows of one pipeline."""

    def __init__(self, pipeline: definition.Pipeline, rows: Rows, gateway: Gateway) -> None:
        """Raises definition.Invalid: the schema is none, or the judge's template has an error."""
        self._pipeline = pipeline
        self._rows = rows
        self._gateway = gateway
        self._judge: tuple[Template | None, Template] | None = None
        if pipeline.rank is not None:
            judge = pipeline.rank.judge
            self._judge = (
                Template(judge.system, "rank.judge.system") if judge.system else None,
                Template(judge.user, "rank.judge.user"),
            )
        self._validator: jsonschema.protocols.Validator | None = None
        if pipeline.answer is not None:
            try:
                jsonschema.Draft202012Validator.check_schema(pipeline.answer)
            except jsonschema.exceptions.SchemaError as error:
                raise definition.Invalid(f"answer: {error.message}") from error
            self._validator = jsonschema.Draft202012Validator(pipeline.answer)

    async def outcome(self, row: Row) -> Answer | Refused:
        """What the model makes of a row. Waits for as long as it takes."""
        try:
            messages = self._rows.question(row)
        except Unusable as error:
            return Refused("prompt", str(error))
        if self._pipeline.rank is None or self._judge is None:
            return await self._answer(row, messages, "", self._pipeline.seed)
        return await self._best(row, messages, self._pipeline.rank, self._judge)

    async def _answer(
        self, row: Row, messages: list[dict[str, str]], part: str, seed: int | None
    ) -> Answer | Refused:
        body = self._body(messages, self._pipeline.model, seed)
        if self._pipeline.answer is not None:
            name = self._pipeline.name.replace("-", "_")
            schema = {"schema": self._pipeline.answer, "strict": True}
            body["text"] = {"format": {"type": "json_schema", "name": name, **schema}}
        if self._pipeline.retrieve is not None:
            body["tools"] = [_search(self._pipeline.retrieve)]
        found = await self._asked(row, body, part)
        if isinstance(found, Refused):
            return found
        ended, requests = found
        if self._pipeline.retrieve is not None and not ended.searched:
            used = ended.input_tokens, ended.output_tokens
            why = "the gateway has searched no vector store: has the deployment any?"
            return Refused("not_searched", why, ended.response, requests, *used)
        return self._judged(ended, requests)

    def _body(
        self, messages: list[dict[str, str]], model: str | None, seed: int | None
    ) -> dict[str, Any]:
        given = self._pipeline
        body: dict[str, Any] = {
            "input": messages,
            "temperature": given.temperature,
            "service_tier": "flex" if given.priority == "batch" else "auto",
            "metadata": {**given.metadata, "pipeline": given.name},
        }
        if model is not None:
            body["model"] = model
        if given.max_output_tokens is not None:
            body["max_output_tokens"] = given.max_output_tokens
        if seed is not None:
            body["seed"] = seed
        return body

    async def _asked(
        self, row: Row, body: dict[str, Any], part: str
    ) -> tuple[Ended, int] | Refused:
        """The response, and how many requests it took. One that failed, or waited too long, is
        asked for under another key; after a restart the same keys lead to the same responses."""
        failed = expired = 0
        while True:
            attempt = failed + expired + 1
            key = f"{self._pipeline.name}/{self._pipeline.revision}/{row.place}{part}/{attempt}"
            try:
                ended = await self._gateway.ask(body, key)
            except Rejected as error:
                return Refused(error.code, str(error), requests=attempt - 1)
            if ended.status in ("completed", "incomplete"):
                return ended, attempt
            _logger.warning(
                "%s: attempt %d of %s, %s: %s %s",
                self._pipeline.name,
                attempt,
                row.place + part,
                ended.response,
                ended.status,
                ended.code,
            )
            expired += ended.code == "expired"
            failed += ended.code != "expired"
            if failed >= self._pipeline.attempts or expired >= MOST_EXPIRED:
                code = ended.code or ended.status
                return Refused(code, f"{attempt} requests failed", ended.response, attempt)

    def _judged(self, ended: Ended, requests: int) -> Answer | Refused:
        used = ended.input_tokens, ended.output_tokens
        value: Any = ended.text
        if self._validator is not None:
            try:
                value = json.loads(ended.text)
                self._validator.validate(value)
            except (ValueError, RecursionError) as error:
                why = "incomplete" if ended.status == "incomplete" else "no_json"
                return Refused(
                    why, f"{ended.code} {error}".strip(), ended.response, requests, *used
                )
            except jsonschema.exceptions.ValidationError as error:
                detail = f"{error.json_path}: {error.message}"
                return Refused("schema", detail[:1_000], ended.response, requests, *used)
        incomplete = ended.status == "incomplete"
        return Answer(
            value,
            ended.response,
            ended.model,
            *used,
            requests,
            incomplete,
            citations=ended.citations,
        )

    async def _best(
        self,
        row: Row,
        messages: list[dict[str, str]],
        rank: definition.Rank,
        judge: tuple[Template | None, Template],
    ) -> Answer | Refused:
        """The candidate that the judge names. One after the other: the next ones find the prompt in
        the engine's cache."""
        answers: list[Answer] = []
        refused: Refused | None = None
        for number in range(rank.candidates):
            seed = (self._pipeline.seed or 0) + number
            found = await self._answer(row, messages, f"/c{number + 1}", seed)
            if isinstance(found, Answer):
                answers.append(found)
            else:
                refused = found
        if not answers:
            assert refused is not None
            return refused
        chosen, requests, tokens = 0, 0, (0, 0)
        if len(answers) > 1:
            judged = await self._choice(row, answers, rank, judge)
            if isinstance(judged, Refused):
                return judged
            choice, requests = judged
            chosen = _chosen(choice.text, len(answers))
            tokens = choice.input_tokens, choice.output_tokens
        best = answers[chosen]
        return Answer(
            best.value,
            best.response,
            best.model,
            tokens[0] + sum(each.input_tokens for each in answers),
            tokens[1] + sum(each.output_tokens for each in answers),
            requests + sum(each.requests for each in answers),
            best.incomplete,
            len(answers),
            best.citations,
        )

    async def _choice(
        self,
        row: Row,
        answers: list[Answer],
        rank: definition.Rank,
        judge: tuple[Template | None, Template],
    ) -> tuple[Ended, int] | Refused:
        values = {**row.values, "candidates": [each.value for each in answers]}
        system, user = judge
        try:
            messages = [{"role": "user", "content": user.text(values)}]
            if system is not None:
                messages.insert(0, {"role": "system", "content": system.text(values)})
        except Unusable as error:
            return Refused("prompt", f"judge: {error}", requests=len(answers))
        model = rank.model or self._pipeline.model
        body = self._body(messages, model, self._pipeline.seed)
        return await self._asked(row, {**body, "temperature": 0.0}, "/judge")


def _search(retrieve: stores.Retrieve) -> dict[str, Any]:
    """The tool by which the gateway puts passages before the model."""
    tool: dict[str, Any] = {
        "type": "file_search",
        "vector_store_ids": retrieve.stores,
        "max_num_results": retrieve.results,
    }
    if retrieve.filters is not None:
        tool["filters"] = msgspec.to_builtins(retrieve.filters)
    if retrieve.score is not None:
        tool["ranking_options"] = {"score_threshold": retrieve.score}
    return tool


def _chosen(text: str, among: int) -> int:
    """Index of the candidate that the judge names by its first number; the first one where it names
    none of them, so that the same texts lead to the same choice."""
    found = _NUMBER.search(text)
    number = int(found[0][:9]) if found else 1
    return number - 1 if 1 <= number <= among else 0
