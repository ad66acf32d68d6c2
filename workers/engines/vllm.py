"""vLLM in this process, through its `AsyncLLM`: the engine of a machine with GPUs."""

import asyncio
import copy
import itertools
import os
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import structlog

from jobs.domain.outcomes import Completed, Outcome, Rejected, Retryable, Usage
from jobs.domain.policies import Scheduling
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from workers.engines import vllm_environment, vllm_memory, vllm_sampling
from workers.engines.registry import EngineConfig
from workers.engines.seam import ENGINE_DEAD, Chunk, EngineStats
from workers.engines.vllm_arguments import arguments
from workers.engines.vllm_outputs import ABORTED, Answers
from workers.engines.vllm_precision import linear_precision
from workers.engines.vllm_prompts import prompt_tokens
from workers.engines.vllm_stats import StatRecorder
from workers.planning import model_shape
from workers.planning.model_shape import ModelShape

log = structlog.get_logger(__name__)


class EngineStartError(RuntimeError):
    """vLLM did not start; the message says why and, where memory lacks, what to change."""


class VllmEngine:
    """One model in vLLM's core process, which this process feeds and reads.

    Where memory runs out, the model is loaded again with half the batch, until it fits: at the start, and
    also later, when the requests in the core end as `Retryable` and new ones wait for the load.
    """

    name = "vllm"

    def __init__(self, config: EngineConfig) -> None:
        self.model = config.model
        self.precision = config.policy.precision.value  # what is asked for, until the model is loaded
        self.device = ""
        self.parameters = vllm_sampling.PARAMETERS
        if config.policy.speculation:
            self.parameters -= vllm_sampling.NOT_SPECULATING
        self.dead = False
        self.config = config
        self._llm: Any = None  # None: not started, or stopped
        self._ready = asyncio.Event()  # not set while the model is loaded
        self._recorder = StatRecorder()
        self._loss: Retryable | None = None  # what the core's death means for the requests in it
        self._watching: asyncio.Task[None] | None = None
        self._open: set[str] = set()
        self._numbers = itertools.count()

    async def start(self) -> None:
        """Load the model (a minute or more) and answer once. Raises `EngineStartError`."""
        self.dead, self._loss = False, None
        self._log = vllm_memory.CoreLog()
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        await self._load()
        self._watching = asyncio.create_task(self._watch(), name="vllm-core")

    async def _load(self) -> None:
        while True:
            self._recorder = StatRecorder()
            try:
                llm = await asyncio.to_thread(launch, self.config, self._log, self._recorder)
                break
            except RuntimeError as error:  # what vLLM raises where its core process ended
                self._shrink(error)
        config = llm.vllm_config
        self.precision, self.device = linear_precision(config.model_config), _device()
        self._tokenizer = copy.deepcopy(llm.get_tokenizer())  # the thread's own: tokenizers are not shareable
        self._defaults = config.model_config.get_diff_sampling_param()
        self._llm = llm
        self._ready.set()
        warm_up = GenerationRequest("warm-up", (Message(Role.USER, "Hello"),), Sampling(max_tokens=1))
        async for chunk in self.generate(warm_up):
            if chunk.outcome and not isinstance(chunk.outcome, Completed):
                raise EngineStartError(f"the engine does not answer: {chunk.outcome}")
        self._recorder.forget_prefixes()
        log.info(
            "engine.loaded",
            engine=self.name,
            precision=self.precision,
            device=self.device,
            max_model_len=config.model_config.max_model_len,
            sequences=config.scheduler_config.max_num_seqs,
            batched_tokens=config.scheduler_config.max_num_batched_tokens,
            kv_cache_tokens=config.cache_config.kv_cache_size_tokens,
        )

    def _shrink(self, error: Exception) -> None:
        """Halve the batch if memory ran out. Raises `EngineStartError` if it did not, or cannot be halved."""
        cause = self._log.cause() or str(error)
        if not self._log.short_of_memory():
            raise EngineStartError(f"vLLM did not start: {cause}") from error
        smaller = vllm_memory.halved(self.config)
        if smaller is None:
            raise EngineStartError(f"{cause} {vllm_memory.REMEDY}") from error
        log.warning(
            "engine.batch_halved",
            engine=self.name,
            sequences=smaller.policy.sequences,
            batched_tokens=smaller.policy.batched_tokens,
            cause=cause,
        )
        self.config = smaller
        self._log.clear()

    async def _watch(self) -> None:
        """Wait for the core's death; load the model again if memory ran out, else this engine is dead."""
        while not self.dead:
            llm = self._llm
            await asyncio.wait([llm.output_handler])
            loss = self._lose()
            log.error("engine.core_died", engine=self.name, code=loss.code, cause=self._log.cause())
            await _end(llm)
            if not self.dead:
                await self._reload(RuntimeError(loss.message))

    async def _reload(self, error: Exception) -> None:
        try:
            self._shrink(error)
            self._loss = None
            await self._load()
        except Exception as failed:  # the edge of the watch: else the requests would wait for ever
            log.error("engine.not_reloaded", engine=self.name, cause=str(failed))
            self._loss, self.dead = Retryable(ENGINE_DEAD, str(failed)), True
            self._ready.set()

    def _lose(self) -> Retryable:
        """What the core's death means; asked by every stream, decided once."""
        if self._loss is None:
            self._recorder = StatRecorder()
            if self._log.short_of_memory() and vllm_memory.halved(self.config):
                self._ready.clear()
                self._loss = Retryable("out_of_memory", "the card's memory ran out; the batch is halved")
            else:
                self._loss, self.dead = Retryable(ENGINE_DEAD, "the engine's process died"), True
        return self._loss

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Stream one answer; see `Engine.generate`. Of several answers the first is streamed."""
        prepared = await self._prepare(request)
        if not isinstance(prepared, tuple):
            yield Chunk(outcome=prepared)
            return
        from vllm.exceptions import VLLMError

        prompt, params = prepared
        key = f"{request.id}-{next(self._numbers)}"
        by_priority = self.config.policy.scheduling is Scheduling.PRIORITY
        answers = Answers(request.sampling)
        self._open.add(key)
        try:
            stream = self._llm.generate(prompt, params, key, priority=request.priority if by_priority else 0)
            async with aclosing(stream):
                async for output in stream:
                    if chunk := answers.take(output):
                        yield chunk
        except VLLMError as error:
            yield Chunk(outcome=self._failure(error, request.sampling))
        finally:
            self._open.discard(key)

    async def _prepare(self, request: GenerationRequest) -> Outcome | tuple[Any, Any]:
        """The prompt and the sampling parameters as vLLM takes them, or why there are none."""
        if self._llm is not None:
            await self._ready.wait()
        if self._llm is None:
            return ABORTED
        if refused := vllm_sampling.refusal(request.sampling, self.parameters):
            return refused
        in_thread = asyncio.get_running_loop().run_in_executor
        try:
            prompt = await in_thread(self._tokenizing, prompt_tokens, self._tokenizer, request.messages)
        except ValueError as error:
            return Rejected("invalid_request", f"messages: {error}"[:200])
        if self._llm is None:
            return ABORTED
        limit = self._llm.model_config.max_model_len
        if len(prompt) >= limit:
            message = f"the prompt is {len(prompt)} tokens long, the context holds {limit} with the answer"
            return Rejected("prompt_too_long", message, Usage(prompt_tokens=len(prompt)))
        from vllm.exceptions import VLLMError

        try:
            keywords = vllm_sampling.keywords(request.sampling, self._defaults, limit - len(prompt))
            return {"prompt_token_ids": prompt}, sampling_params(keywords, request.stop_repetition)
        except (ValueError, VLLMError) as error:
            return vllm_sampling.invalid(error, request.sampling)

    def _failure(self, error: Exception, sampling: Sampling) -> Outcome:
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        if isinstance(error, EngineDeadError):
            return ABORTED if self._llm is None else self._lose()
        cause = error.__cause__ or error
        if isinstance(cause, (VLLMClientError, ValueError, TypeError, OverflowError)):
            return vllm_sampling.invalid(cause, sampling)
        return Retryable("engine_error", f"vLLM failed: {type(cause).__name__}: {cause}"[:200])

    def stats(self) -> EngineStats:
        """As vLLM's scheduler told them after its last step."""
        return self._recorder.stats()

    async def stop(self) -> None:
        """End open iterators as `Retryable`, end the core process (some seconds)."""
        if self._llm is None:
            return
        self._llm, llm = None, self._llm
        if self._watching:
            self._watching.cancel()
        self._ready.set()
        await llm.abort(list(self._open))
        llm.output_handler.cancel()  # or it would log the end as a failure
        await _end(llm)
        self._recorder = StatRecorder()
        self._tokenizing.shutdown(wait=False)
        self._log.close()


def build(config: EngineConfig) -> VllmEngine:
    """The engine of `config`; imports nothing of vLLM yet."""
    return VllmEngine(config)


def launch(
    config: EngineConfig,
    core_log: vllm_memory.CoreLog | None = None,
    recorder: StatRecorder | None = None,
) -> Any:
    """A running `AsyncLLM`, bare where it has neither log nor recorder.

    Raises `RuntimeError` if its core process ended while it started.
    """
    vllm_environment.prepare()
    from vllm.config.logging import LoggingConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.logger import DEFAULT_LOGGING_CONFIG
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    if current_platform.is_cpu():
        vllm_environment.share_cores(config.threads)
    given = arguments(config, device=current_platform.device_type, shape=_shape(config))
    if core_log:
        file = core_log.configuration(DEFAULT_LOGGING_CONFIG)
        given["logging_config"] = LoggingConfig(pylogging_config_file=file)
    # Without vLLM's own lines about its figures; the recorder has them.
    args = AsyncEngineArgs(**given, disable_log_stats=True)
    return AsyncLLM.from_engine_args(args, stat_loggers=[lambda *_: recorder] if recorder else None)


async def _end(llm: Any) -> None:
    await asyncio.to_thread(llm.shutdown)
    llm.shutdown = lambda: None  # its finalizer calls this once more, when the interpreter is half gone


def _shape(config: EngineConfig) -> ModelShape | None:
    try:
        return model_shape.find(config.policy.checkpoint or config.model_path or config.model)
    except model_shape.UnknownShape as error:  # vLLM may know the model all the same
        log.warning("engine.shape_unknown", engine=VllmEngine.name, reason=str(error))
        return None


def sampling_params(keywords: dict[str, Any], stop_repetition: bool = False) -> Any:
    """vLLM's `SamplingParams` of `vllm_sampling.keywords`, for a stream of deltas."""
    from vllm.sampling_params import (
        RepetitionDetectionParams,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )

    if structure := keywords["structured_outputs"]:
        keywords["structured_outputs"] = StructuredOutputsParams(**structure)
    if stop_repetition:
        keywords["repetition_detection"] = RepetitionDetectionParams(**vllm_sampling.REPETITION)
    return SamplingParams(**keywords, output_kind=RequestOutputKind.DELTA)


def _device() -> str:
    from vllm.platforms import current_platform

    if current_platform.device_type == "cpu":
        return "cpu"
    return f"{current_platform.get_device_name(0)}:{os.environ.get('CUDA_VISIBLE_DEVICES', '0')}"
