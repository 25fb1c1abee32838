"""The vLLM engine: `AsyncLLM` in the worker's process, token ids in and out.

Batching, scheduling and the prefix cache are vLLM's. A continued response needs more:

- Detokenizing and stop strings: `worker.text.generation` does both, because vLLM starts them
  afresh.
- Penalties count output tokens. The former owner's tokens are prompt to the new engine, so
  penalties weigh less after a takeover.
- Randomness: the seed is increased by the number of accepted tokens. Without that the same draws
  would repeat.

`vllm_internals` uses private parts of vLLM. Where the installed version differs, or with
TAILRACE_VLLM_PUBLIC_API=1, the engine uses `vllm_public`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import dataclasses
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from tailrace import private_parts, settings, telemetry
from tailrace.prompts import agreement, chat_template
from tailrace.protocol import images, records
from tailrace.protocol.features import Feature
from worker.engines import (
    base,
    detokenizer,
    pdeathsig,
    vllm_adapters,
    vllm_arguments,
    vllm_cpu,
    vllm_embeddings,
    vllm_formats,
    vllm_grammar,
    vllm_images,
    vllm_internals,
    vllm_kv_events,
    vllm_logprobs,
    vllm_parsers,
    vllm_public,
    vllm_request,
    vllm_template,
)
from worker.prefixes import cached_blocks
from worker.text import generation

# vLLM reads these at import. A value in the environment wins.
ENVIRONMENT: Final = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would inherit the service's sockets
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; 46,000 tokens of the default model
    "TOKENIZERS_PARALLELISM": "false",
}
# Files that decide the tokens and inputs of a prompt, besides the tokenizer.
CONFIGURATIONS: Final = ("config.json", "preprocessor_config.json", "processor_config.json")
NO_PREFIX_CACHE: Final = {"enable_prefix_caching": False}
WATCH_S: Final = 0.5
SHUTDOWN_S: Final = 3

T = TypeVar("T")


def create(s: settings.WorkerSettings) -> VLLM:
    """The engine for these settings."""
    return VLLM(
        model=s.model,
        capacity=s.max_num_seqs,
        max_model_len=s.max_model_len,
        public_api=bool(s.vllm_public_api),
        tool_parser=s.tool_parser,
        reasoning_parser=s.reasoning_parser,
        engine_args=s.engine_args,
        adapters=s.adapters,
        prefix_cache=s.cache == "prefix",
    )


class VLLM:
    """The engine; see the module's docstring.

    Attributes:
        internals: whether `vllm_internals` is used. Set by `start`.
        template, item_parsers: of the model (`vllm_template`, `vllm_parsers`). None until started,
            and where it makes embeddings.
        _adapters: vLLM's requests for the adapters, by name. Empty until started.
        _by_class: vLLM prefers requests by their class. Set by `start`.
        _llm: AsyncLLM. None until started and after `shutdown`.
        _tokenizer: the model's tokenizer, of transformers. None until started.
        _fast: the Rust tokenizer inside `_tokenizer`. None until started.
        _bytes: of the tokens, for log probabilities. None until a request asks for them.
        _embeds: the model makes embeddings and no text. Set by `start`.
        _names: of the model's parsers. None until started, and where it makes embeddings.
        _parent: the thread that started the engine processes. It lives as long as they do (see
            `pdeathsig`). None until started.
        _release: set to end `_parent`.
        _encoder: one thread, because two threads must not use the Rust tokenizer at once.
        _pictures: one thread that decodes and processes images, so that other prompts do not wait
            for it. Only it uses the tokenizer of vLLM's renderer, if the model reads images;
            `_tokenizer` is a copy then.
        _watcher: the task that sets `dead`. None until started.
        _events: vLLM's events of its KV cache; None without them.
        _reading: the task that reads them. None until started.
    """

    ids_are_tokens = True

    def __init__(
        self,
        *,
        model: str,
        capacity: int,
        max_model_len: int,
        public_api: bool = False,
        cpu_dtype: str | None = None,
        tool_parser: str = vllm_parsers.AUTO,
        reasoning_parser: str = vllm_parsers.AUTO,
        engine_args: Mapping[str, Any] = MappingProxyType({}),
        adapters: Mapping[str, str] = MappingProxyType({}),
        prefix_cache: bool = True,
    ) -> None:
        """`model`: a folder or a hub name. `public_api`: do without `vllm_internals`. `cpu_dtype`:
        of weights and arithmetic where there is no GPU, by default `native_dtype`.
        `tool_parser`, `reasoning_parser`: names of vLLM, `AUTO` or `NONE`. `engine_args`: further
        arguments for vLLM. `adapters`: LoRA adapters, name -> folder or hub name. `prefix_cache`:
        cache the beginnings of prompts."""
        self.capacity = capacity
        self.model_rev = ""
        self.tokenizer_digest = ""
        self.counting_digest = ""
        self.stop_ids: frozenset[int] = frozenset()
        self.features: frozenset[Feature] = frozenset()
        self.parsers: tuple[str, ...] = ()
        self.dead = asyncio.Event()
        self.internals = False
        self._model = model
        self.max_model_len = max_model_len
        self._public_api = public_api
        self._cpu_dtype = cpu_dtype or vllm_cpu.native_dtype()
        self._parser_settings = (tool_parser, reasoning_parser)
        self._engine_args = engine_args if prefix_cache else {**engine_args, **NO_PREFIX_CACHE}
        self._sources = adapters
        self._adapters: dict[str, Any] = {}
        self._by_class = False
        self._llm: Any = None
        self._embeds = False
        self._tokenizer: Any = None
        self._fast: Any = None
        self._bytes: vllm_logprobs.TokenBytes | None = None
        self.template: Any = None
        self._names: Any = None
        self.item_parsers: Any = None
        self._parent: threading.Thread | None = None
        self._release = threading.Event()
        self._encoder = concurrent.futures.ThreadPoolExecutor(1, "encode")
        self._pictures = concurrent.futures.ThreadPoolExecutor(1, "pictures")
        self._watcher: asyncio.Task[None] | None = None
        self.cached_blocks: cached_blocks.CachedBlocks | None = None
        self._events: vllm_kv_events.KvEvents | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def config(self) -> Any:
        """vLLM's configuration, with vLLM's own choices. Only while the engine runs."""
        return self._llm.vllm_config

    async def start(self) -> None:
        self._set_environment()
        pdeathsig.guard()
        self._renew()
        loop = asyncio.get_running_loop()
        llm: asyncio.Future[Any] = loop.create_future()
        self._parent = threading.Thread(
            target=self._load, args=(loop, llm), name="engine-parent", daemon=True
        )
        self._parent.start()
        self._llm = await llm
        self._describe()
        if self._events is not None:
            self.cached_blocks = self._events.begin(self.config.cache_config.block_size)
            self._reading = asyncio.create_task(self._events.run())
        if self._sources and self._embeds:
            raise base.ArgumentRefused("adapters: the model makes embeddings")
        self._adapters = await vllm_adapters.load(self._llm, self._sources)
        await self._warm_up()
        self._watcher = asyncio.create_task(self._watch())

    async def shutdown(self) -> None:
        for task in (self._watcher, self._reading):
            if task is not None:
                task.cancel()
        llm, self._llm = self._llm, None
        if llm is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SHUTDOWN_S + 5):
                    await asyncio.to_thread(llm.shutdown, SHUTDOWN_S)
        if self._events is not None:
            self._events.close()
        self._release.set()
        self._encoder.shutdown(wait=False)
        self._pictures.shutdown(wait=False)

    async def encode(self, request: records.Request) -> list[int]:
        ids: list[int]
        if images.any_in(request.messages):
            ids = (await self._with_images(request))["prompt_token_ids"]
        else:
            render = self._raw_ids if request.raw else self.template.render
            ids = await self._in_encoder(render, request)
        base.check_length(len(ids), self.max_model_len)
        return ids

    async def encode_inputs(self, request: records.Request) -> list[list[int]]:
        # By the tokenizer's own call: its file may enable truncation, which no request asked for.
        return await self._in_encoder(
            vllm_embeddings.encode, request, self._tokenizer.encode, self._llm.model_config
        )

    async def generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        try:
            if job.inputs:
                await vllm_embeddings.run(self._llm, job, on_step)
            else:
                await self._generate(job, on_step)
        except EngineDeadError as error:
            self.dead.set()
            raise base.EngineDead("vLLM's engine process ended") from error
        except EngineGenerateError as error:  # the public API's wrapper of any other error
            if isinstance(error.__cause__, ValueError):
                raise _refusal(error.__cause__) from error
            raise base.Transient(f"vLLM failed: {type(error.__cause__).__name__}") from error
        except (VLLMClientError, ValueError) as error:
            raise _refusal(error) from error

    async def _generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
        try:
            outline = await self._in_encoder(
                self.item_parsers.outline, job, self.template.variables(job.request)
            )
            if outline.under_it and "formats_resumable" not in self.features:
                raise base.NotResumable
            prompt = vllm_request.prompt(job)
            adapter = self._adapters.get(job.request.model)
            if images.any_in(job.request.messages):
                image_prompt = await self._with_images(await job.with_files())
                prompt = {**image_prompt, "prompt_token_ids": prompt["prompt_token_ids"]}
            await self._run(
                prompt,
                vllm_request.sampling(job, outline.constraint, outline.under_it),
                job.key,
                on_step,
                self._describe_ids(job.request.sampling.logprobs),
                **outline.further,
                **({"priority": job.rank} if self._by_class else {}),
                **({"lora_request": adapter} if adapter is not None else {}),
            )
        except vllm_public.GaveUp as error:
            if (
                outline.under_it and error.reason == "error"
            ):  # the accepted ids do not fit the grammar
                raise base.NotResumable from error
            raise

    def detokenizer(self, prefix_ids: Sequence[int] = ()) -> generation.Detokenizer:
        return detokenizer.Detokenizer(self._fast, prefix_ids=prefix_ids)

    def repeatable(self, request: records.Request) -> str | None:
        # Without this digest the template may depend on the time.
        if not self.counting_digest:
            return None
        return f"{self.counting_digest} {self._cpu_dtype} {sorted(self._engine_args.items())!r}"

    def prefix_scope(self, request: records.Request) -> Sequence[str]:
        adapter = (request.model,) if request.model in self._adapters else ()
        return (*adapter, request.owner.cache_scope)

    def parser_name(self, request: records.Request) -> str:
        return "" if self._embeds else str(self.item_parsers.name(request))

    async def item_parser(
        self, request: records.Request, prompt_ids: Sequence[int]
    ) -> base.ItemParser:
        # It also compiles its grammar: 40 ms for 300 KiB of tools.
        return await self._in_encoder(self._new_parser, request, prompt_ids)

    def _new_parser(self, request: records.Request, prompt_ids: Sequence[int]) -> base.ItemParser:
        variables = self.template.variables(request)
        parser: base.ItemParser = self.item_parsers.item_parser(request, prompt_ids, variables)
        return parser

    async def token_ids(self, text: str) -> list[int]:
        return await self._in_encoder(self._text_ids, text)

    def _text_ids(self, text: str) -> list[int]:
        """A text's ids, without markers."""
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    async def _with_images(self, request: records.Request) -> dict[str, Any]:
        """vLLM's input without accepted ids. Every attempt needs a new one."""
        ids = await self._in_encoder(self.template.render, request)
        return await asyncio.get_running_loop().run_in_executor(
            self._pictures, vllm_images.prompt, self._llm.renderer, ids, request
        )

    def _raw_ids(self, request: records.Request) -> list[int]:
        """The ids of a prompt that is a text, with the tokenizer's prefix of any text."""
        return list(self._fast.encode(chat_template.raw_text(request)).ids)

    async def _run(
        self,
        prompt: dict[str, Any],
        sampling: Any,
        key: str,
        on_step: base.OnStep,
        describe: vllm_public.Describe = vllm_public.nothing,
        **further: Any,
    ) -> None:
        run = vllm_internals.run if self.internals else vllm_public.run
        await run(self._llm, prompt, sampling, key, on_step, describe, **further)

    async def _in_encoder(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._encoder, function, *arguments)

    def _describe_ids(self, count: int | None) -> vllm_public.Describe:
        if count is None:
            return vllm_public.nothing
        if self._bytes is None:
            self._bytes = vllm_logprobs.TokenBytes(self._fast)
        return functools.partial(vllm_logprobs.entries, count=count, table=self._bytes)

    def trial_key(self) -> str | None:
        import torch
        import vllm

        # They select implementations. One may contain a key, so only a digest of them is stored.
        variables = {n: v for n, v in os.environ.items() if n.startswith("VLLM_")}
        parts = (
            *(vllm.__version__, torch.__version__, self.internals, self.parsers),
            *(self.model_rev, self.tokenizer_digest, self.max_model_len, self.capacity),
            *(sorted(self._engine_args.items()), sorted(self._sources), sorted(variables.items())),
            *(str(self.config.model_config.dtype), vllm_cpu.machine()),
        )
        return repr(parts)

    # ---- starting --------------------------------------------------------------------------------

    def _renew(self) -> None:
        """Create again what `shutdown` has ended, unless this is the first start."""
        if not self._release.is_set():
            return
        self._release, self._watcher, self._reading = threading.Event(), None, None
        self._encoder = concurrent.futures.ThreadPoolExecutor(1, "encode")
        self._pictures = concurrent.futures.ThreadPoolExecutor(1, "pictures")
        self._bytes = self._events = self.cached_blocks = None
        self.dead.clear()

    def _set_environment(self) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if Path(self._model).is_dir():
            os.environ.setdefault("HF_HUB_OFFLINE", "1")

    def _load(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
        """Runs in `_parent`. It must not end before the engine: the engine's processes die with the
        thread that started them."""
        try:
            llm = self._construct()
        except base.ArgumentRefused as error:
            loop.call_soon_threadsafe(_settle, future, error)
            return
        except BaseException as error:
            hint = (
                f" (with engine_args {', '.join(self._engine_args)})" if self._engine_args else ""
            )
            dead = base.EngineDead(f"{type(error).__name__}: {error}{hint}")
            loop.call_soon_threadsafe(_settle, future, dead)
            return
        loop.call_soon_threadsafe(_settle, future, llm)
        self._release.wait()

    def _construct(self) -> Any:
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        on_cpu = current_platform.is_cpu()
        parts = vllm_internals.PARTS + (vllm_internals.CPU_PARTS if on_cpu else ())
        self.internals = vllm_internals.usable(
            vllm.__version__, private_parts.changes(parts), public_api=self._public_api
        )
        # The model in the scheduler's process is one process.
        in_one = self.internals and not vllm_cpu.PARALLEL.intersection(self._engine_args)
        own: dict[str, Any] = {  # with a prefix cache, unless the model does not support one
            "model": self._model,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.capacity,
            "structured_outputs_config": dict(vllm_formats.BACKEND),
            "scheduling_policy": "priority",
            **vllm_images.ARGUMENTS,
            **vllm_adapters.arguments(self._sources, self._engine_args, on_cpu=on_cpu),
            **(vllm_cpu.arguments(internals=in_one, dtype=self._cpu_dtype) if on_cpu else {}),
        }
        if vllm_kv_events.available(self._engine_args):
            self._events = vllm_kv_events.KvEvents()
            own |= self._events.arguments()

        def build(arguments: Mapping[str, Any]) -> Any:
            return AsyncEngineArgs(**{**own, **arguments}).create_engine_config()

        names = [field.name for field in dataclasses.fields(AsyncEngineArgs)]
        vllm_arguments.check_names(self._engine_args, names, vllm.__version__)
        config = vllm_arguments.configure(build, self._engine_args, vllm.__version__)
        self._by_class = str(config.scheduler_config.policy) == "priority"
        self._embeds = vllm_embeddings.pools(config.model_config)
        if not self._embeds:
            self._names = self._find_parsers(config.model_config)
            config.structured_outputs_config.reasoning_parser = self._names.reasoning
        silent = bool(self._engine_args.get("disable_log_stats"))
        with vllm_cpu.cores(config, internals=in_one):
            return AsyncLLM.from_vllm_config(config, disable_log_stats=silent)

    def _find_parsers(self, model: Any) -> vllm_parsers.Names:
        """The model's parsers. Before the engine starts, because its grammars need the one for
        reasoning."""
        from vllm.tokenizers import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(model)
        template = vllm_template.Template(tokenizer)
        parser_names = vllm_parsers.names(
            *self._parser_settings,
            str(getattr(model.hf_config, "model_type", "")),
            template.text,
            opens_thinking=template.opens_thinking,
        )
        changes = private_parts.changes(vllm_internals.PARSER_PARTS)
        parser_names = vllm_parsers.usable(parser_names, *self._parser_settings, changes)
        return vllm_parsers.fitting(parser_names, *self._parser_settings, tokenizer)

    def _describe(self) -> None:
        config = self.config.model_config
        self._tokenizer = self._llm.renderer.tokenizer
        if vllm_images.reads_images(config):
            self._tokenizer = copy.deepcopy(self._tokenizer)
        self._fast = self._tokenizer.backend_tokenizer
        weights = revision(self._model, getattr(config.hf_config, "_commit_hash", None))
        self.model_rev = vllm_adapters.revision(weights, self._sources, revision)
        self.tokenizer_digest = hashlib.blake2b(
            self._fast.to_str().encode(), digest_size=8
        ).hexdigest()
        if self._embeds:
            return
        eos = config.try_get_generation_config().get("eos_token_id")
        eos_ids = {self._tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])}
        self.stop_ids = frozenset(int(e) for e in eos_ids if e is not None)
        self.template = vllm_template.Template(self._tokenizer)
        self.item_parsers = vllm_parsers.Parsers(
            self._names, self._tokenizer, self._fast, config, self.stop_ids
        )

    async def _warm_up(self) -> None:
        """Run the first request, which pays for lazy initialisation, before any client's
        request."""
        if self._embeds:
            self.features = await vllm_embeddings.warm_up(self._llm)
            return
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.counting_digest = await self._in_encoder(self._digest)
        two_tokens = SamplingParams(
            max_tokens=2, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        some_prompt = {"type": "token", "prompt_token_ids": [0, 1, 2, 3]}
        await self._run(some_prompt, two_tokens, "warm-up", lambda _step: True)
        features: set[Feature] = {
            "logprobs",
            "formats",
            "raw_prompts",
            "forks",
            "truncation",
        }
        if self._names.tools and self.template.takes_tools:
            features |= {"tools", "custom_tools"}
        if self._names.reasoning:
            features.add("reasoning")
        if self.template.takes_images and vllm_images.reads_images(self._llm.model_config):
            features.add("images")
            if self.template.takes_tool_images:
                features.add("tool_images")
        if self.template.continues:
            features.add("continuation")
        if self.template.switches:
            features.add("effort")
        if await self._continues_a_grammar():
            features.add("formats_resumable")
        else:
            because = "vLLM did not continue a grammar: answers with a format end with their worker"
            telemetry.log(telemetry.Action.ENGINE_FALLBACK, because=because)
        self.features = frozenset(features)
        self.parsers = tuple(filter(None, (self._names.tools, self._names.reasoning)))

    def _digest(self) -> str:
        return agreement.digest(
            self.template.render,
            lambda text: list(self._fast.encode(text).ids),
            self.template.text,
            self._fast.to_str(),
        )

    async def _continues_a_grammar(self) -> bool:
        """The canary: whether the plugin `vllm_grammar` is loaded and works."""
        whole = self._text_ids(vllm_grammar.CANARY)
        ids = whole[: len(whole) // 2]
        sampling = vllm_request.canary(len(ids))
        prompt = {"type": "token", "prompt_token_ids": [0, 1, *ids]}

        def append(step: base.Step) -> bool:
            ids.extend(step.ids)
            return True

        try:
            await self._run(prompt, sampling, "canary", append, reasoning_ended=True)
        except (ValueError, vllm_public.GaveUp):
            return False
        return bool(self._fast.decode(ids, skip_special_tokens=True) == vllm_grammar.CANARY)

    async def _watch(self) -> None:
        while not self._llm.errored:  # noqa: ASYNC110 - vLLM has a flag, no event
            await asyncio.sleep(WATCH_S)
        self.dead.set()


def revision(model: str, commit: str | None = None) -> str:
    """Identifies the weights: hub name and commit, or the folder's name and a digest of its
    configuration and file sizes. Hashing gigabytes would cost every start."""
    folder = Path(model)
    if not folder.is_dir():
        return f"{model}@{commit or 'unknown'}"
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(folder.iterdir()):
        if path.name in CONFIGURATIONS:
            digest.update(path.read_bytes())
        elif path.suffix in (".safetensors", ".bin"):
            digest.update(f"{path.name}:{path.stat().st_size}".encode())
    return f"{folder.name}@{digest.hexdigest()}"


# What the client has sent under the same name. It has sent `max_tokens` under several.
_SAMPLING_FIELDS: Final = {*records.Sampling.__struct_fields__} - {"max_tokens"}


def _refusal(error: Exception) -> base.Refused:
    message = str(error.args[0] if error.args else error)[:500]
    field = getattr(error, "parameter", None)  # of VLLMValidationError
    if field in _SAMPLING_FIELDS:
        return base.Refused("invalid_value", message, base.PARAMS.get(field, field))
    return base.Refused("invalid_prompt", message)


def _settle(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():  # the start was cancelled
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
