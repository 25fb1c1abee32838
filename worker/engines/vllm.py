"""vLLM in process: `AsyncLLM`, token ids in and out, its own scheduler and prefix cache.

What it does not do for us, and who does:
- detokenising and stop strings: `worker.generation`, because vLLM starts both afresh on a continued
  response;
- penalties over a takeover: they count output tokens, and the former owner's are prompt to the new
  engine, so they weigh less after the seam;
- randomness over a takeover: the seed is moved on by the number of accepted tokens, else the same
  draws would repeat.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tailrace.protocol import records
from worker import generation
from worker.engines import base, pdeathsig
from worker.messages import plain

# Read by vLLM at import. Defaults only: whoever sets them in the environment knows better.
ENVIRONMENT: Final = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would inherit the service's sockets
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; 46,000 tokens of the default model
    "TOKENIZERS_PARALLELISM": "false",
}
WATCH_S: Final = 0.5
SHUTDOWN_S: Final = 3
_CONTEXT_IDS: Final = 8  # ids before a held-back character that its decoding may depend on


class Detokenizer:
    """The tokenizers library's incremental decoder, and what it holds back at the end."""

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import decoders

        self._tokenizer = tokenizer
        self._make: Callable[[], Any] = lambda: decoders.DecodeStream(skip_special_tokens=True)
        self._stream = self._make()
        self._context: list[int] = []  # last ids whose text was returned
        self._held: list[int] = []  # ids whose text was not

    def push(self, ids: Sequence[int]) -> str:
        return "".join(map(self._one, ids))

    def flush(self) -> str:
        if not self._held:
            return ""
        before = self._decode(self._context)
        held, self._held = self._decode(self._context + self._held)[len(before) :], []
        return held

    def _one(self, token: int) -> str:
        try:
            text = self._stream.step(self._tokenizer, token)
        except Exception as error:  # the library raises plain Exception
            if "Invalid prefix" not in str(error):
                raise
            self._stream = (
                self._make()
            )  # what vLLM does: start anew behind the sequence that is no text
            text = self._stream.step(self._tokenizer, token)
        self._held.append(token)
        if not text:
            return ""
        self._context, self._held = (self._context + self._held)[-_CONTEXT_IDS:], []
        return str(text)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


class Sink:
    """One request's end of vLLM's output loop, in the place of its queue. By way of the queue each
    token of each response costs an output object, an event and the wake-up of a task: twice what is
    done with it here.

    Attributes:
        over: done when nothing more will come, or is wanted; fails as the request does.
        finished: vLLM has nothing of this request any more.
        _state: vLLM's `RequestState` of it; knows how much of the prompt was cached.
    """

    def __init__(self, take: base.Take, over: asyncio.Future[None]) -> None:
        self.over = over
        self.finished = False
        self._take = take
        self._state: Any = None

    def replace(self, queue: Any, state: Any) -> None:
        """Stand in for `queue` from now on; `state` is None when the request is over already."""
        if state is not None:
            self._state = state
            state.make_request_output = self.made
            state.queue = self
        if (early := queue.get_nowait()) is not None:  # raises what the queue was given
            out = early.outputs[0]
            self._step(out.token_ids, out.finish_reason, early.num_cached_tokens)

    def forget(self) -> None:
        """Nothing is called any more: no cycle is left for the collector."""
        self._state = None

    def made(
        self,
        new_token_ids: list[int],
        pooling_output: Any,
        finish_reason: Any,
        *_more: Any,
        **_named: Any,
    ) -> None:
        """As `RequestState.make_request_output`, called once per step; that it makes none leaves
        the queue out of it."""
        del pooling_output
        try:
            self._step(
                new_token_ids,
                None if finish_reason is None else str(finish_reason),
                self._state.num_cached_tokens,
            )
        except Exception as error:  # it is the loop of everybody's outputs that calls
            self._fail(error)

    def put(self, error: Exception) -> None:
        """As `RequestOutputCollector.put`: what vLLM puts here is that the engine died, and then
        there is nothing left to abort."""
        self.finished = True
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)

    def _step(self, ids: list[int], reason: str | None, cached: int | None) -> None:
        self.finished = reason is not None
        if self.over.done() or reason == "abort":
            return
        if reason == "error":
            raise base.Transient("the engine failed this request")
        finish = None if reason is None else "length" if reason == "length" else "stop"
        wanted = self._take(base.Step(ids, finish, cached))
        if finish is not None or not wanted:
            self.over.set_result(None)


class VLLM:
    """The engine; see the module's text.

    Attributes:
        _llm: AsyncLLM; None until started.
        _tokenizer: the model's own, of transformers; `_fast` the Rust one inside it.
        _parent: the thread that started the engine processes and stays as long as they do (see
            `pdeathsig`).
        _release: set to let `_parent` end.
        _encoder: one thread, because the Rust tokenizer must not be used by two at once.
        _watcher: sets `dead`; None until started.
    """

    resumable = True
    ids_are_tokens = True

    def __init__(self, *, model: str, capacity: int, max_model_len: int) -> None:
        self.capacity = capacity
        self.model_rev = ""
        self.tokenizer_digest = ""
        self.stop_ids: frozenset[int] = frozenset()
        self.dead = asyncio.Event()
        self._model = model
        self._max_model_len = max_model_len
        self._llm: Any = None
        self._tokenizer: Any = None
        self._fast: Any = None
        self._parent: threading.Thread | None = None
        self._release = threading.Event()
        self._encoder = concurrent.futures.ThreadPoolExecutor(1, "encode")
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._set_environment()
        pdeathsig.guard()
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[Any] = loop.create_future()
        self._parent = threading.Thread(
            target=self._load, args=(loop, loaded), name="engine-parent", daemon=True
        )
        self._parent.start()
        self._llm = await loaded
        self._describe()
        await self._warm_up()
        self._watcher = asyncio.create_task(self._watch())

    async def shutdown(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        llm, self._llm = self._llm, None
        if llm is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(llm.shutdown, SHUTDOWN_S), SHUTDOWN_S + 5)
        self._release.set()
        self._encoder.shutdown(wait=False)

    async def encode(self, request: records.Request) -> list[int]:
        ids = await asyncio.get_running_loop().run_in_executor(
            self._encoder, self._render, plain(request.messages)
        )
        base.check_length(len(ids), self._max_model_len)
        return ids

    async def generate(self, job: base.GenerationInput, take: base.Take) -> None:
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await self._run(self._prompt(job), self._sampling(job), job.key, take)
        except EngineDeadError as error:
            self.dead.set()
            raise base.EngineDead("vLLM's engine process ended") from error
        except (VLLMClientError, ValueError) as error:
            raise base.Refused(
                "invalid_prompt", str(error.args[0] if error.args else error)[:500]
            ) from error

    async def _run(self, prompt: dict[str, Any], sampling: Any, key: str, take: base.Take) -> None:
        sink = Sink(take, asyncio.get_running_loop().create_future())
        try:
            queue = await self._llm.add_request(key, prompt, sampling)
            sink.replace(queue, self._llm.output_processor.request_states.get(queue.request_id))
            await sink.over
        finally:
            try:
                if not sink.finished:
                    await self._llm.abort(key)
            finally:
                sink.forget()

    def detokenizer(self, request: records.Request) -> generation.Detokenizer:
        return Detokenizer(self._fast)

    # ---- starting --------------------------------------------------------------------------------

    def _set_environment(self) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if Path(self._model).is_dir():
            os.environ.setdefault("HF_HUB_OFFLINE", "1")

    def _load(self, loop: asyncio.AbstractEventLoop, loaded: asyncio.Future[Any]) -> None:
        """Runs in `_parent`, which must not end before the engine: its processes die with the
        thread that started them."""
        try:
            llm = self._construct()
        except BaseException as error:
            dead = base.EngineDead(f"{type(error).__name__}: {error}")
            loop.call_soon_threadsafe(_settle, loaded, dead)
            return
        loop.call_soon_threadsafe(_settle, loaded, llm)
        self._release.wait()

    def _construct(self) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        config = AsyncEngineArgs(
            model=self._model,
            max_model_len=self._max_model_len,
            max_num_seqs=self.capacity,
            enable_prefix_caching=True,
            disable_log_stats=True,
            **(on_cpu() if current_platform.is_cpu() else {}),
        ).create_engine_config()
        with cores(config):
            return AsyncLLM.from_vllm_config(config, disable_log_stats=True)

    def _describe(self) -> None:
        config = self._llm.model_config
        self._tokenizer = self._llm.renderer.tokenizer
        self._fast = self._tokenizer.backend_tokenizer
        eos = config.try_get_generation_config().get("eos_token_id")
        found = {self._tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])}
        self.stop_ids = frozenset(int(e) for e in found if e is not None)
        self.model_rev = revision(self._model, getattr(config.hf_config, "_commit_hash", None))
        self.tokenizer_digest = hashlib.blake2b(
            self._fast.to_str().encode(), digest_size=8
        ).hexdigest()

    async def _warm_up(self) -> None:
        """The first request of a process pays for lazy initialisation: let it be ours."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            max_tokens=2, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        await self._run(
            {"type": "token", "prompt_token_ids": [0, 1, 2, 3]},
            sampling,
            "warm-up",
            lambda _step: True,
        )

    async def _watch(self) -> None:
        while not self._llm.errored:  # noqa: ASYNC110 - vLLM has a flag, no event
            await asyncio.sleep(WATCH_S)
        self.dead.set()

    # ---- one request -----------------------------------------------------------------------------

    def _render(self, messages: list[dict[str, str]]) -> list[int]:
        try:
            ids = self._tokenizer.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=True, return_dict=False
            )
        except (
            Exception
        ) as error:  # templates raise what they like, for example on the order of roles
            raise base.Refused(
                "invalid_prompt",
                f"The model's chat template refused the messages: {type(error).__name__}",
            ) from error
        return list(ids)

    @staticmethod
    def _prompt(job: base.GenerationInput) -> dict[str, Any]:
        prompt: dict[str, Any] = {
            "type": "token",
            "prompt_token_ids": [*job.prompt_ids, *job.output_so_far],
        }
        if job.request.owner.tenant:
            prompt["cache_salt"] = (
                job.request.owner.tenant
            )  # a shared prefix cache tells tenants apart by its timing
        return prompt

    @staticmethod
    def _sampling(job: base.GenerationInput) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        s = job.request.sampling
        return SamplingParams(
            max_tokens=job.max_tokens,
            temperature=s.temperature,
            top_p=s.top_p,
            presence_penalty=s.presence_penalty,
            frequency_penalty=s.frequency_penalty,
            seed=None if s.seed is None else s.seed + len(job.output_so_far),
            logit_bias={int(k): v for k, v in s.logit_bias.items()} or None,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )


def on_cpu() -> dict[str, Any]:
    """Settings where there is no GPU: as on a GPU the model runs in the scheduler's process. By
    itself vLLM gives it one of its own there, and the two wait for each other by spinning, which
    takes a core that they need only in turn; the reason that vLLM names is taken care of by
    `cores`."""
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    # The class, because the name "uni" is changed to "mp". Compiling would cost more seconds at
    # every start than it saves.
    return {
        "dtype": "bfloat16",
        "enforce_eager": True,
        "distributed_executor_backend": UniProcExecutor,
    }


def cores(config: Any) -> contextlib.AbstractContextManager[None]:
    """Processes started in it compute on the cores vLLM means for it (all but one of a NUMA node,
    or VLLM_CPU_OMP_THREADS_BIND): OpenMP reads its variables once, when a process starts. Without
    effect on a GPU."""
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    manager: contextlib.AbstractContextManager[None] = OMPProcessManager(config).configure_omp_envs(
        rank=0, local_rank=0
    )
    return manager


def _settle(loaded: asyncio.Future[Any], outcome: Any) -> None:
    if loaded.done():  # whoever waited was cancelled
        return
    if isinstance(outcome, BaseException):
        loaded.set_exception(outcome)
    else:
        loaded.set_result(outcome)


def revision(model: str, commit: str | None = None) -> str:
    """Names the weights: hub name and commit, or the folder's name and a digest of its
    configuration and file sizes (hashing gigabytes would cost every start)."""
    folder = Path(model)
    if not folder.is_dir():
        return f"{model}@{commit or 'unknown'}"
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(folder.iterdir()):
        if path.name == "config.json":
            digest.update(path.read_bytes())
        elif path.suffix in (".safetensors", ".bin"):
            digest.update(f"{path.name}:{path.stat().st_size}".encode())
    return f"{folder.name}@{digest.hexdigest()}"
