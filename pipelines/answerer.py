"""The requests to a model for one row, and their outcome."""

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
from pipelines.gateway import Gateway, ModelResponse, Rejected
from pipelines.rows import Answer, Refusal, Row, Rows
from pipelines.templates import Template, Unusable

_logger = logging.getLogger(__name__)

# A request that waited too long for the engine was not run, and is repeated this many times at
# most.
MOST_EXPIRED: Final = 20
_NUMBER: Final = re.compile(r"\d+")


class Answerer:
    """Answers rows of one pipeline."""

    def __init__(self, pipeline: definition.Pipeline, rows: Rows, gateway: Gateway) -> None:
        """Raises definition.Invalid: the schema is invalid, or the judge's template has an
        error."""
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

    async def outcome(self, row: Row) -> Answer | Refusal:
        """The model's answer to a row. Waits without a time limit."""
        try:
            messages = self._rows.question(row)
        except Unusable as error:
            return Refusal("prompt", str(error))
        if self._pipeline.rank is None or self._judge is None:
            return await self._answer(row, messages, "", self._pipeline.seed)
        return await self._best(row, messages, self._pipeline.rank, self._judge)

    async def _answer(
        self, row: Row, messages: list[dict[str, str]], part: str, seed: int | None
    ) -> Answer | Refusal:
        body = self._body(messages, self._pipeline.model, seed)
        if self._pipeline.answer is not None:
            name = self._pipeline.name.replace("-", "_")
            schema = {"schema": self._pipeline.answer, "strict": True}
            body["text"] = {"format": {"type": "json_schema", "name": name, **schema}}
        if self._pipeline.retrieve is not None:
            body["tools"] = [_search(self._pipeline.retrieve)]
        reply = await self._request(row, body, part)
        if isinstance(reply, Refusal):
            return reply
        response, requests = reply
        if self._pipeline.retrieve is not None and not response.searched:
            used = response.input_tokens, response.output_tokens
            why = "the gateway has searched no vector store: has the deployment any?"
            return Refusal("not_searched", why, response.response, requests, *used)
        return self._checked_answer(response, requests)

    def _body(
        self, messages: list[dict[str, str]], model: str | None, seed: int | None
    ) -> dict[str, Any]:
        pipeline = self._pipeline
        body: dict[str, Any] = {
            "input": messages,
            "temperature": pipeline.temperature,
            "service_tier": "flex" if pipeline.priority == "batch" else "auto",
            "metadata": {**pipeline.metadata, "pipeline": pipeline.name},
        }
        if model is not None:
            body["model"] = model
        if pipeline.max_output_tokens is not None:
            body["max_output_tokens"] = pipeline.max_output_tokens
        if seed is not None:
            body["seed"] = seed
        return body

    async def _request(
        self, row: Row, body: dict[str, Any], part: str
    ) -> tuple[ModelResponse, int] | Refusal:
        """The response, and the number of requests. A request that failed or waited too long is
        repeated under another key; after a restart the same keys lead to the same responses."""
        failures = expirations = 0
        while True:
            attempt = failures + expirations + 1
            key = f"{self._pipeline.name}/{self._pipeline.revision}/{row.place}{part}/{attempt}"
            try:
                response = await self._gateway.ask(body, key)
            except Rejected as error:
                return Refusal(error.code, str(error), requests=attempt - 1)
            if response.status in ("completed", "incomplete"):
                return response, attempt
            _logger.warning(
                "%s: attempt %d of %s, %s: %s %s",
                self._pipeline.name,
                attempt,
                row.place + part,
                response.response,
                response.status,
                response.code,
            )
            expirations += response.code == "expired"
            failures += response.code != "expired"
            if failures >= self._pipeline.attempts or expirations >= MOST_EXPIRED:
                code = response.code or response.status
                return Refusal(code, f"{attempt} requests failed", response.response, attempt)

    def _checked_answer(self, response: ModelResponse, requests: int) -> Answer | Refusal:
        used = response.input_tokens, response.output_tokens
        value: Any = response.text
        if self._validator is not None:
            try:
                value = json.loads(response.text)
                self._validator.validate(value)
            except (ValueError, RecursionError) as error:
                why = "incomplete" if response.status == "incomplete" else "no_json"
                return Refusal(
                    why, f"{response.code} {error}".strip(), response.response, requests, *used
                )
            except jsonschema.exceptions.ValidationError as error:
                detail = f"{error.json_path}: {error.message}"
                return Refusal("schema", detail[:1_000], response.response, requests, *used)
        incomplete = response.status == "incomplete"
        return Answer(
            value,
            response.response,
            response.model,
            *used,
            requests,
            incomplete,
            citations=response.citations,
        )

    async def _best(
        self,
        row: Row,
        messages: list[dict[str, str]],
        rank: definition.Rank,
        judge: tuple[Template | None, Template],
    ) -> Answer | Refusal:
        """The candidate that the judge names. The candidates are generated one after the other, so
        that the later ones use the prompt in the engine's cache."""
        answers: list[Answer] = []
        refusal: Refusal | None = None
        for number in range(rank.candidates):
            seed = (self._pipeline.seed or 0) + number
            answer = await self._answer(row, messages, f"/c{number + 1}", seed)
            if isinstance(answer, Answer):
                answers.append(answer)
            else:
                refusal = answer
        if not answers:
            assert refusal is not None
            return refusal
        index, requests, tokens = 0, 0, (0, 0)
        if len(answers) > 1:
            verdict = await self._choice(row, answers, rank, judge)
            if isinstance(verdict, Refusal):
                return verdict
            choice, requests = verdict
            index = _choice_index(choice.text, len(answers))
            tokens = choice.input_tokens, choice.output_tokens
        best = answers[index]
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
    ) -> tuple[ModelResponse, int] | Refusal:
        values = {**row.values, "candidates": [each.value for each in answers]}
        system, user = judge
        try:
            messages = [{"role": "user", "content": user.text(values)}]
            if system is not None:
                messages.insert(0, {"role": "system", "content": system.text(values)})
        except Unusable as error:
            return Refusal("prompt", f"judge: {error}", requests=len(answers))
        model = rank.model or self._pipeline.model
        body = self._body(messages, model, self._pipeline.seed)
        return await self._request(row, {**body, "temperature": 0.0}, "/judge")


def _search(retrieve: stores.Retrieve) -> dict[str, Any]:
    """The tool by which the gateway gives passages to the model."""
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


def _choice_index(text: str, among: int) -> int:
    """Index of the candidate that the judge names by its first number; 0 if it names none, so that
    the same texts lead to the same choice."""
    match = _NUMBER.search(text)
    number = int(match[0][:9]) if match else 1
    return number - 1 if 1 <= number <= among else 0
