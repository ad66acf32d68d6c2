"""Where the time of one attempt went."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatencyRecord:
    """One attempt, in milliseconds, tokens and shares between 0 and 1; None where it was not reached.

    queue: ready until claimed. claim: the claim's own transaction. admission: in the lane's gate.
    engine_queue, prefill, decode: by the engine, or seen from outside it. ttft: ready until the first
    token. record: from the last token until the transaction that writes the result. total: asked for
    (accepted, `not_before` or redriven, the last of them) until then.
    """

    outcome: str
    lane: str
    worker: str | None = None
    gpu: str | None = None
    engine: str | None = None
    precision: str | None = None
    queue_ms: float | None = None
    claim_ms: float | None = None
    admission_ms: float | None = None
    engine_queue_ms: float | None = None
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    decode_ms: float | None = None
    record_ms: float | None = None
    total_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    batch_size: int | None = None
    kv_usage: float | None = None
    preemptions: int | None = None
