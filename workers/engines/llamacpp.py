"""llama.cpp in this process, through the `xllamacpp` wheel: the engine of a machine without a GPU."""

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from jobs import gguf
from jobs.domain.outcomes import (
    Choice,
    Completed,
    EngineTimings,
    FinishReason,
    Outcome,
    Rejected,
    Retryable,
    TokenLogprob,
    Usage,
)
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from jobs.model_files import ModelFileMissing, smollm2_path
from workers.engines import llamacpp_wire
from workers.engines.registry import EngineConfig
from workers.engines.seam import BASIC_PARAMETERS, Chunk, EngineStats

# During a prefill llama.cpp looks for a closed request once per batch, and a short prompt waits for the
# batch of a long one: 64 tokens are about 0.4 s on two slow cores, 2,048 were 8 s.
BATCH_TOKENS = 64

log = structlog.get_logger(__name__)
_STOPPED = Retryable("engine_stopped", "the engine was stopped")


class LlamaCppEngine:
    """One GGUF model on the CPU: `slots` sequences of at most `ctx_per_slot` tokens each, answer included.

    A sequence never gets more than the model was trained for, and there are only so many as `kv_cache_gib`
    (GiB) holds; further requests wait. `threads` is the number of compute threads (default: the machine's
    cores); they sleep while they wait for each other, so that several engines can share the cores.
    """

    name = "llamacpp"
    device = "cpu"
    parameters = BASIC_PARAMETERS | {
        "top_k",
        "min_p",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "response_format",
    }
    dead = False

    def __init__(
        self,
        model_path: Path,
        model: str,
        *,
        slots: int = 4,
        ctx_per_slot: int = 4096,
        threads: int | None = None,
        kv_cache_gib: float = 1.0,
    ) -> None:
        """Read the file's header. Raises `ModelFileMissing`, or `ValueError` if it is no model."""
        if not model_path.is_file():
            raise ModelFileMissing(f"there is no model file at {model_path}")
        metadata = gguf.read_metadata(model_path)
        self.model = model
        self.precision = gguf.precision(metadata)
        self._path = model_path
        self._ctx_per_slot = min(ctx_per_slot, gguf.context_length(metadata))
        slot_bytes = self._ctx_per_slot * gguf.kv_bytes_per_token(metadata)
        self._slots = min(slots, max(1, int(kv_cache_gib * 2**30 / slot_bytes)))
        self._threads = threads or os.cpu_count() or 1
        self._server: Any = None
        self._open: set[_Call] = set()
        self._waiting = 0
        self._prompt_tokens = self._cached_tokens = 0

    async def start(self) -> None:
        """Load the model (about a second for SmolLM2, in which the loop stands still) and answer once."""
        # The wheel is built with OpenMP, which reads this when it loads (llama.cpp's own `poll` has no effect
        # then). Spinning at barriers decodes up to 1.5x as fast on cores of one's own, and a tenth as fast
        # (3 against 45 tokens/s on two cores) as soon as anybody else wants them.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        import xllamacpp

        log.info("engine.loading", engine=self.name, slots=self._slots, ctx_per_slot=self._ctx_per_slot)
        self._free = asyncio.Semaphore(self._slots)
        self._pool = ThreadPoolExecutor(self._slots, thread_name_prefix="llamacpp")
        self._server = xllamacpp.Server(self._params(xllamacpp.CommonParams()))
        warm_up = GenerationRequest("warm-up", (Message(Role.USER, "Hello"),), Sampling(max_tokens=1))
        async for chunk in self.generate(warm_up):
            if chunk.outcome and not isinstance(chunk.outcome, Completed):
                raise RuntimeError(f"the engine does not answer: {chunk.outcome}")
        self._prompt_tokens = self._cached_tokens = 0

    def _params(self, params: Any) -> Any:
        params.model.path = str(self._path)
        params.n_parallel = self._slots
        params.n_ctx = self._slots * self._ctx_per_slot
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self._threads
        params.ctx_shift = False  # a full context ends the text; nothing is cut silently
        params.fit_params = False  # or a small machine would get a smaller context than asked for
        params.cache_ram_mib = 0  # no copies of old prompts in memory; each slot still keeps its last prompt
        params.cache_idle_slots = False
        params.prefill_assistant = False  # a last message of the assistant is a turn like any other
        # Forced, the pure parser would leave out the grammar of `response_format` as well.
        params.force_pure_content_parser = False
        params.verbosity = 0  # higher levels print prompts
        # The wheel always listens on a loopback port. We never use it; nobody else shall.
        params.api_keys = [secrets.token_urlsafe(32)]
        params.endpoint_slots = params.ui = False
        params.endpoint_metrics = True
        params.sse_ping_interval = -1
        return params

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Stream one answer; see `Engine.generate`. More than `slots` requests wait their turn in order."""
        if self._server is None:
            yield Chunk(outcome=_STOPPED)
            return
        free = self._free  # this start's own: after a restart there is another
        try:
            body = llamacpp_wire.body(request)
        except ValueError:  # a lone surrogate or a NaN, which no JSON can carry
            yield Chunk(outcome=Rejected("invalid_request", "a text or a number of the request is not valid"))
            return
        asked_at = time.perf_counter()
        self._waiting += 1
        try:
            await free.acquire()
        finally:
            self._waiting -= 1
        if self._server is None or self._free is not free:
            free.release()
            yield Chunk(outcome=_STOPPED)
            return
        loop = asyncio.get_running_loop()
        call = _Call(loop, request.sampling, queue_ms=(time.perf_counter() - asked_at) * 1000)
        self._open.add(call)
        running = loop.run_in_executor(self._pool, call.run, self._server, body)
        running.add_done_callback(lambda _: self._ended(call, free))
        try:
            while True:
                chunk = await call.chunks.get()
                if chunk.outcome is not None:
                    await asyncio.wait([running])  # so that whoever reads the outcome finds the slot free
                yield chunk
                if chunk.outcome is not None:
                    return
        finally:
            call.closed = True

    def _ended(self, call: "_Call", free: asyncio.Semaphore) -> None:
        self._open.discard(call)
        self._prompt_tokens += call.usage.prompt_tokens
        self._cached_tokens += call.usage.cached_tokens
        free.release()

    def stats(self) -> EngineStats:
        """Counted here, so that asking does not wait for llama.cpp's current step."""
        return EngineStats(
            running=len(self._open),
            waiting=self._waiting,
            kv_usage=sum(call.kv_tokens for call in self._open) / (self._slots * self._ctx_per_slot),
            prefix_hit_rate=self._cached_tokens / self._prompt_tokens if self._prompt_tokens else None,
        )

    def metrics(self) -> str:
        """llama.cpp's own metrics, in Prometheus' text format; waits for its current step."""
        return str(self._server.handle_metrics())

    async def stop(self) -> None:
        """End open iterators as `Retryable`, wait until llama.cpp freed them (one step), free the model."""
        if self._server is None:
            return
        self._server, server = None, self._server
        for call in self._open:
            call.end(_STOPPED)
        await asyncio.to_thread(self._pool.shutdown)
        del server  # the last reference: frees the weights and the KV cache


def build(config: EngineConfig) -> LlamaCppEngine:
    """The engine of `config`; without a model path, the model that the local stack carries."""
    return LlamaCppEngine(
        config.model_path or smollm2_path(),
        config.model,
        slots=config.slots,
        ctx_per_slot=config.max_model_len,
        threads=config.threads,
        **config.options,
    )


class _Call:
    """One call into llama.cpp: it runs in a thread of its own, its chunks are read on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sampling: Sampling, queue_ms: float) -> None:
        self.chunks: asyncio.Queue[Chunk] = asyncio.Queue()
        self.closed = False  # set on the loop, seen by the thread at llama.cpp's next step
        self.kv_tokens = 0
        self.usage = Usage()
        self._loop = loop
        self._sampling = sampling
        self._queue_ms = queue_ms
        self._output_tokens = 0
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._finish_reason = FinishReason.STOP

    def end(self, outcome: Outcome) -> None:
        """End the stream from the loop's side."""
        self.closed = True
        self.chunks.put_nowait(Chunk(outcome=outcome))

    def run(self, server: Any, body: bytes) -> None:
        """Generate; returns when llama.cpp has freed the slot."""
        try:
            server.handle_chat_completions(body, self._on_event)
        except Exception as error:  # the edge of the thread: C++ exceptions arrive as several Python ones
            log.warning("engine.call_failed", engine=LlamaCppEngine.name, error=type(error).__name__)
            self._post(Chunk(outcome=llamacpp_wire.raised(error, self._sampling)))
        # Nobody reads on after an outcome, so this is seen only by a stream that has none yet.
        self._post(Chunk(outcome=Retryable("engine_error", "llama.cpp ended the stream without an answer")))

    def _on_event(self, event_json: bytes) -> bool:
        """Take one event of the stream; True closes the request, which frees its slot."""
        if self.closed:
            return True
        event = json.loads(event_json)
        if "error" in event:
            self._post(Chunk(outcome=llamacpp_wire.failure(event["error"])))
        elif event.get("usage"):
            self._post(self._last_chunk(event))
        elif "prompt_progress" in event:
            self.kv_tokens = event["prompt_progress"]["processed"]
        else:
            self._on_choice(event)
        return False

    def _on_choice(self, event: dict[str, Any]) -> None:
        choice = event["choices"][0]
        if choice["finish_reason"]:
            self._finish_reason = FinishReason(choice["finish_reason"])
        if text := choice["delta"].get("content"):
            # A chunk stands for several tokens where a character or a possible stop string spans them.
            tokens = event["timings"]["predicted_n"] - self._output_tokens
            self._output_tokens += tokens
            self.kv_tokens += tokens
            told = (choice.get("logprobs") or {}).get("content", [])
            if self._sampling.logprobs:
                self._text.append(text)
                self._logprobs += (
                    llamacpp_wire.logprob(one, self._sampling.top_logprobs or 0) for one in told
                )
            self._post(Chunk(text, tokens, token_ids=tuple(one["id"] for one in told)))

    def _last_chunk(self, event: dict[str, Any]) -> Chunk:
        usage, timings = event["usage"], event["timings"]
        self.usage = Usage(
            prompt_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        )
        measured = EngineTimings(self._queue_ms, timings["prompt_ms"], timings["predicted_ms"])
        choice = Choice("".join(self._text), self._finish_reason, tuple(self._logprobs))
        choices = (choice,) if self._sampling.logprobs else ()
        return Chunk(
            tokens=self.usage.output_tokens - self._output_tokens,
            outcome=Completed(self._finish_reason, self.usage, measured, choices),
        )

    def _post(self, chunk: Chunk) -> None:
        self._loop.call_soon_threadsafe(self.chunks.put_nowait, chunk)
