"""The parts of the vLLM engine that need no vLLM: what goes in, what comes out, what is told of it."""

from types import SimpleNamespace
from typing import Any

import pytest

from jobs.domain.outcomes import Completed, FinishReason, Rejected, Retryable, TokenLogprob
from jobs.domain.policies import EnginePolicy
from jobs.domain.requests import Message, Role, Sampling
from workers.engines import vllm_memory, vllm_sampling
from workers.engines.registry import EngineConfig
from workers.engines.vllm_outputs import Answers
from workers.engines.vllm_precision import linear_precision
from workers.engines.vllm_prompts import prompt_tokens
from workers.engines.vllm_stats import StatRecorder

METRICS = SimpleNamespace(
    queued_ts=10.0, scheduled_ts=10.5, first_token_ts=11.0, last_token_ts=13.0, num_preemptions=1
)


def output(*parts: dict[str, Any], finished: bool = False) -> Any:
    """One `RequestOutput` of vLLM, as far as it is read."""
    defaults = {"index": 0, "text": "", "token_ids": (), "logprobs": None, "finish_reason": None}
    return SimpleNamespace(
        outputs=[SimpleNamespace(**(defaults | part)) for part in parts],
        finished=finished,
        metrics=METRICS,
        prompt_token_ids=[1, 2, 3],
        num_cached_tokens=2,
    )


def test_what_a_request_leaves_open_is_the_models_own() -> None:
    given = vllm_sampling.keywords(Sampling(top_p=0.5), {"temperature": 0.6, "top_p": 0.9}, most_tokens=100)
    assert (given["temperature"], given["top_p"]) == (0.6, 0.5)
    assert given["max_tokens"] == 100
    assert given["logprobs"] is given["logit_bias"] is given["structured_outputs"] is given["seed"] is None


def test_every_parameter_is_translated() -> None:
    sampling = Sampling(
        max_tokens=7,
        seed=2**70 + 3,
        stop=("a",),
        n=2,
        logprobs=True,
        top_logprobs=4,
        logit_bias={"17": -100},
        bad_words=("b",),
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    )
    given = vllm_sampling.keywords(sampling, {}, most_tokens=100)
    assert given == {
        "max_tokens": 7,
        "seed": 3,
        "stop": ["a"],
        "n": 2,
        "logprobs": 4,
        "logit_bias": {17: -100.0},
        "bad_words": ["b"],
        "structured_outputs": {"json": {"type": "object"}},
    }


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"logit_bias": {"house": 1}}, "logit_bias"),
        ({"logit_bias": {"1": float("nan")}}, "logit_bias"),
        ({"stop": ("\ud800",)}, "stop"),
        ({"bad_words": ("\ud800",)}, "bad_words"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
    ],
)
def test_a_wrong_parameter_is_named(wrong: dict[str, Any], name: str) -> None:
    sampling = Sampling(**wrong)
    with pytest.raises(ValueError, match=name) as refused:
        vllm_sampling.keywords(sampling, {}, most_tokens=1)
    assert vllm_sampling.invalid(refused.value, sampling).code == "invalid_request"


def test_what_vllm_finds_wrong_is_named() -> None:
    class Named(Exception):
        parameter = "temperature"

    told = vllm_sampling.invalid(Named("must be in [0, 2]"), Sampling())
    assert told.message == "temperature: must be in [0, 2]"
    schema = Sampling(response_format={"type": "json_object"})
    assert vllm_sampling.invalid(ValueError("The grammar is odd"), schema).message.startswith(
        "response_format: "
    )


def test_what_does_not_go_with_speculation_is_refused_by_name() -> None:
    speculating = vllm_sampling.PARAMETERS - vllm_sampling.NOT_SPECULATING
    for sampling in (Sampling(min_p=0.1), Sampling(logit_bias={"1": 2})):
        refused = vllm_sampling.refusal(sampling, speculating)
        assert isinstance(refused, Rejected)
        assert refused.code == "unsupported_parameter"
        assert refused.message.startswith(("min_p ", "logit_bias "))
        assert vllm_sampling.refusal(sampling, vllm_sampling.PARAMETERS) is None
    assert vllm_sampling.refusal(Sampling(min_p=0.0, logit_bias={}), speculating) is None


def test_tokens_wait_for_the_text_they_stand_for() -> None:
    answers = Answers(Sampling())
    assert answers.take(output({"token_ids": (5,)})) is None
    chunk = answers.take(output({"text": "é", "token_ids": (6,)}))
    assert chunk is not None
    assert (chunk.text, chunk.tokens, chunk.token_ids) == ("é", 2, (5, 6))
    last = answers.take(output({"token_ids": (7,), "finish_reason": "stop"}, finished=True))
    assert last is not None
    assert last.tokens == 1
    assert isinstance(last.outcome, Completed)
    assert last.outcome.finish_reason is FinishReason.STOP
    assert (last.outcome.usage.output_tokens, last.outcome.usage.cached_tokens) == (3, 2)
    assert last.outcome.timings.engine_queue_ms == 500
    assert last.outcome.timings.prefill_ms == 500
    assert last.outcome.timings.decode_ms == 2000
    assert last.outcome.timings.preemptions == 1
    assert last.outcome.choices == ()


def test_several_answers_come_together_and_the_first_streams() -> None:
    answers = Answers(Sampling(n=2, logprobs=True, top_logprobs=1))

    def part(index: int, text: str, token: int, reason: str | None = None) -> dict[str, Any]:
        position = {
            token: SimpleNamespace(decoded_token=text, logprob=-1.0, rank=2),
            99: SimpleNamespace(decoded_token="best", logprob=-0.5, rank=1),
        }
        return {
            "index": index,
            "text": text,
            "token_ids": [token],
            "logprobs": [position],
            "finish_reason": reason,
        }

    first = answers.take(output(part(1, "b", 2), part(0, "a", 1)))
    assert first is not None and first.text == "a"
    assert answers.take(output(part(0, "", 3, "length"))) is None
    last = answers.take(output(part(1, "c", 4, "repetition"), finished=True))
    assert last is not None and isinstance(last.outcome, Completed)
    assert last.text == ""
    one, other = last.outcome.choices
    assert (one.text, other.text) == ("a", "bc")
    assert (one.finish_reason, other.finish_reason) == (FinishReason.LENGTH, FinishReason.REPETITION)
    assert one.logprobs is not None
    assert one.logprobs[0] == TokenLogprob("a", -1.0, (("best", -0.5),))
    assert last.outcome.usage.output_tokens == 4


@pytest.mark.parametrize(("reason", "code"), [("abort", "engine_stopped"), ("error", "engine_error")])
def test_an_answer_that_vllm_gave_up_is_retryable(reason: str, code: str) -> None:
    last = Answers(Sampling()).take(output({"finish_reason": reason}, finished=True))
    assert last is not None and isinstance(last.outcome, Retryable)
    assert last.outcome.code == code


def scheduler(**figures: Any) -> Any:
    """`SchedulerStats` of vLLM, as far as they are read."""
    prefix = SimpleNamespace(queries=figures.pop("queries", 0), hits=figures.pop("hits", 0))
    defaults = {
        "num_running_reqs": 0,
        "num_waiting_reqs": 0,
        "num_skipped_waiting_reqs": 0,
        "kv_cache_usage": 0.0,
        "spec_decoding_stats": None,
        "prefix_cache_stats": prefix,
    }
    return SimpleNamespace(**(defaults | figures))


def test_statistics_are_the_schedulers_own() -> None:
    recorder = StatRecorder()
    assert recorder.stats().prefix_hit_rate is recorder.stats().spec_acceptance is None
    recorder.record(scheduler(queries=100, hits=50), None)
    step = scheduler(num_running_reqs=3, num_waiting_reqs=1, num_skipped_waiting_reqs=1, kv_cache_usage=0.5)
    recorder.record(step, SimpleNamespace(num_preempted_reqs=2))
    recorder.record(None, SimpleNamespace(num_preempted_reqs=1))
    stats = recorder.stats()
    assert (stats.running, stats.waiting, stats.kv_usage, stats.preemptions) == (3, 2, 0.5, 3)
    assert stats.prefix_hit_rate == 0.5
    recorder.forget_prefixes()
    assert recorder.stats().prefix_hit_rate is None


def test_acceptance_is_that_of_the_last_candidates() -> None:
    recorder = StatRecorder()

    def drafted(candidates: int, accepted: int) -> None:
        drafts = SimpleNamespace(num_draft_tokens=candidates, num_accepted_tokens=accepted)
        recorder.record(scheduler(spec_decoding_stats=drafts), None)

    drafted(500, 500)
    assert recorder.stats().spec_acceptance == 1.0
    for _ in range(10):
        drafted(100, 0)
    assert recorder.stats().spec_acceptance == 0.0


CONFIG = EngineConfig("m", slots=8, max_model_len=512, policy=EnginePolicy(8, batched_tokens=4096))


def test_the_batch_is_halved_down_to_one_sequence() -> None:
    sizes, config = [], vllm_memory.halved(CONFIG)
    while config:
        sizes.append((config.policy.sequences, config.policy.batched_tokens, config.slots))
        config = vllm_memory.halved(config)
    assert sizes == [(4, 2048, 4), (2, 1024, 2), (1, 512, 1)]


def test_the_first_error_is_the_cause_and_a_lack_of_memory_goes_before_it() -> None:
    core_log = vllm_memory.CoreLog()
    assert core_log.cause() is core_log.short_of_memory() is None
    core_log.path.write_text(
        "Traceback\n  raise\nValueError: bad model\nRuntimeError: it follows from that\n"
    )
    assert core_log.cause() == "ValueError: bad model"
    assert core_log.short_of_memory() is None
    with core_log.path.open("a") as file:
        file.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    assert core_log.cause() == core_log.short_of_memory()
    assert "Tried to allocate" in str(core_log.cause())
    core_log.clear()
    assert core_log.cause() is None
    core_log.close()
    assert not core_log.path.parent.exists()


W8A8 = {"config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}}}
MIXED = {
    "config_groups": {
        "a": {"weights": {"num_bits": 8, "type": "float"}},
        "b": {"weights": {"num_bits": 4, "type": "int"}},
    }
}


@pytest.mark.parametrize(
    ("method", "checkpoint", "online", "precision"),
    [
        (None, None, None, "bf16"),
        ("int8_per_channel_weight_only", None, None, "bf16"),
        ("experts_int8", None, None, "bf16"),
        ("compressed-tensors", W8A8, None, "int8"),
        ("compressed-tensors", MIXED, None, "fp8+int4"),
        ("gptq", {"bits": 8}, None, "int8"),
        ("awq_marlin", {"bits": 4}, None, "int4"),
        ("fp8", {"quant_method": "fp8"}, None, "fp8"),
        ("fp8_per_tensor", None, SimpleNamespace(linear="fp8_per_tensor_static", targets=None), "fp8"),
        ("online", None, SimpleNamespace(linear=None, targets={"re:.*mlp.*": "fp8_per_tensor"}), "bf16+fp8"),
        (
            "online",
            None,
            SimpleNamespace(linear=None, targets={"x": "int8_per_channel_weight_only"}),
            "bf16",
        ),
        ("online", None, SimpleNamespace(linear=None, targets=None), "bf16"),
        ("bitsandbytes", {}, None, "bitsandbytes"),
    ],
)
def test_precision_is_that_of_the_linear_layers(
    method: str | None, checkpoint: dict[str, Any] | None, online: Any, precision: str
) -> None:
    config = SimpleNamespace(
        dtype="torch.bfloat16",
        quantization=method,
        quantization_config=online,
        hf_config=SimpleNamespace(quantization_config=checkpoint),
    )
    assert linear_precision(config) == precision


def test_a_model_without_a_chat_template_gets_plain_lines() -> None:
    class Tokenizer:
        chat_template = None

        def encode(self, text: str) -> list[int]:
            return list(text.encode())

    messages = (Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Hi"))
    tokens = prompt_tokens(Tokenizer(), messages)
    assert bytes(tokens).decode() == "system: Be brief.\nuser: Hi\nassistant:"
    with pytest.raises(ValueError, match="surrogates not allowed"):
        prompt_tokens(Tokenizer(), (Message(Role.USER, "\ud800"),))
