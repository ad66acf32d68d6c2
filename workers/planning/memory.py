"""What an engine needs of a card's memory: weights, activations, CUDA graphs, KV cache, against its cap."""

import math
from dataclasses import dataclass

from jobs.domain.policies import EnginePolicy, Precision
from workers.planning.model_shape import ModelShape

GIB = 1 << 30
BLOCK_TOKENS = 16  # vLLM's KV block (CacheConfig.DEFAULT_BLOCK_SIZE)

# Bytes of one weight; 8 and 4 bits with 16-bit scales (and zero points) for groups of 128.
_WEIGHT_BYTES = {
    Precision.FP32: 4.0,
    Precision.BF16: 2.0,
    Precision.FP16: 2.0,
    Precision.FP8: 1.0,
    Precision.INT8: 1.02,
    Precision.INT4: 0.53,
    Precision.AUTO: 2.0,
}
# Bytes of one element of the KV cache, by the beginning of vLLM's name for its format.
_CACHE_BYTES = {"fp8": 1.0, "int8": 1.0, "nvfp4": 0.5625, "int4": 0.5625, "turboquant": 1.0, "ultra": 0.5625}

# Allowances. vLLM measured 1.26 GiB at the peak of a step for Llama-3-8B on an A100-80G with 256 sequences
# and 8,192 tokens (vllm-project/vllm, pull request 10511); the first two make that 1.22.
_SAMPLER_BYTES = 40  # per logit: FP32 copies, softmax, a sort with its indices
_ALLOCATOR_ROOM = 1.25  # fragments of the caching allocator
_GRAPH_BYTES = 0.3 * (1 << 20)  # per layer and captured batch size
_CONTEXT_BYTES = GIB  # CUDA's context and libraries, and what the driver keeps of the card's memory
_COLLECTIVES_BYTES = GIB  # NCCL's buffers and those of the custom all-reduce, on each of several cards


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on each card. `cache` is what remains of the cap for KV, `sequence` what one full one takes."""

    cap: int
    weights: int
    activations: int
    graphs: int
    context: int
    cache: int
    sequence: int

    @property
    def fixed(self) -> int:
        """What is needed before the first token is kept."""
        return self.weights + self.activations + self.graphs + self.context

    @property
    def sequences(self) -> int:
        """How many sequences of the full length the cache holds."""
        return max(self.cache, 0) // self.sequence

    @property
    def used(self) -> int:
        """What the engine takes of the card: vLLM gives all that remains of the cap to the cache."""
        return self.fixed + max(self.cache, 0)


def estimate(
    shape: ModelShape,
    policy: EnginePolicy,
    precision: Precision,
    max_model_len: int,
    card_bytes: int,
    draft: ModelShape | None = None,
) -> Memory:
    """The memory of one engine on each of its cards of `card_bytes`, from the model's config.json alone.

    A `draft` model, which proposes tokens, has weights and a cache of its own.

    As vLLM counts it (v1/worker/gpu_worker.py, determine_available_memory): the cache gets what the cap
    leaves after weights, the peak of a step of `batched_tokens`, CUDA graphs and what is not PyTorch's.
    """
    weights = weight_bytes(shape, widest(precision, policy), policy.tensor_parallel)
    sequence = sequence_bytes(shape, policy, max_model_len, precision)
    if draft:
        weights += weight_bytes(draft, Precision.AUTO, policy.tensor_parallel)
        sequence += sequence_bytes(draft, policy, max_model_len)
    activations = _activation_bytes(shape, policy, precision)
    graphs = 0 if policy.enforce_eager else _graph_bytes(shape, policy)
    context = _CONTEXT_BYTES + (_COLLECTIVES_BYTES if policy.tensor_parallel > 1 else 0)
    cap = int(policy.memory_share * card_bytes)
    fixed = weights + activations + graphs + context
    return Memory(
        cap=cap,
        weights=weights,
        activations=activations,
        graphs=graphs,
        context=context,
        cache=cap - fixed if policy.kv_cache_gib is None else int(policy.kv_cache_gib * GIB),
        sequence=sequence,
    )


def widest(precision: Precision, policy: EnginePolicy) -> Precision:
    """The precision that a mix by layers is counted in: which layers match is not in config.json."""
    return max((precision, *policy.layers.values()), key=lambda part: _WEIGHT_BYTES[part])


def weight_bytes(shape: ModelShape, precision: Precision, tensor_parallel: int = 1) -> int:
    """The weights on one of the cards. Embeddings, norms and routers stay as wide as the checkpoint's."""
    parts = shape.parameters
    plain = _plain_bytes(precision)
    layers, experts = parts.attention + parts.mlp, parts.experts
    of_layers = of_experts = _WEIGHT_BYTES[precision]
    if shape.stored:
        of_experts = shape.stored.bits / 8 * (1.02 if shape.stored.bits < 16 else 1)
        of_layers = plain if shape.stored.experts_only else of_experts
    split = layers * of_layers + experts * of_experts + parts.embedding * plain
    return math.ceil(split / tensor_parallel + parts.other * plain)


def token_bytes(shape: ModelShape, policy: EnginePolicy, precision: Precision = Precision.AUTO) -> float:
    """What one token keeps in one layer of one card.

    Keys and values are split by heads, of which a card has at least one; a latent vector (MLA) is whole on
    every card (DeepSeek-V2, arXiv 2405.04434).
    """
    split = 1 if shape.latent else min(policy.tensor_parallel, shape.kv_heads)
    wide = _plain_bytes(precision) if policy.kv_cache_dtype == "auto" else 2
    narrow = (size for name, size in _CACHE_BYTES.items() if policy.kv_cache_dtype.startswith(name))
    return shape.kv_width / split * next(narrow, wide)


def sequence_bytes(
    shape: ModelShape, policy: EnginePolicy, tokens: int, precision: Precision = Precision.AUTO
) -> int:
    """The KV cache of one sequence of `tokens` on one card, in whole blocks.

    A windowed layer keeps its window, the step in flight and one block more (v1/kv_cache_interface.py,
    SlidingWindowSpec).
    """
    per_token = token_bytes(shape, policy, precision)
    windowed = min(shape.window - 1 + policy.batched_tokens, tokens)
    kept = (shape.layers - shape.windowed_layers) * _blocks(tokens)
    kept += shape.windowed_layers * (_blocks(windowed) + 1)
    return math.ceil(kept * BLOCK_TOKENS * per_token)


def _blocks(tokens: int) -> int:
    return math.ceil(tokens / BLOCK_TOKENS)


def _sequences(policy: EnginePolicy) -> int:
    """Rows of a decode step: candidates are verified beside the token itself."""
    return policy.sequences * (1 + (policy.speculation.tokens if policy.speculation else 0))


def _plain_bytes(precision: Precision) -> int:
    """What is not quantised: vLLM runs FP32 checkpoints in 16 bits unless it is told otherwise."""
    return 4 if precision is Precision.FP32 else 2


def _activation_bytes(shape: ModelShape, policy: EnginePolicy, precision: Precision) -> int:
    """The larger peak of a step's forward pass and of the sampler.

    Forward: the residual twice, and the widest product that stands at once, which is queries, keys and
    values, or an MLP's gate, up and product of both; experts' outputs stand until they are summed.
    """
    widest_product = max(shape.attention_width, 3 * shape.mlp_width) / policy.tensor_parallel
    elements = 2 * shape.hidden + widest_product + shape.active_experts * shape.hidden
    forward = policy.batched_tokens * elements * _plain_bytes(precision) * _ALLOCATOR_ROOM
    return math.ceil(max(forward, _sequences(policy) * shape.vocabulary * _SAMPLER_BYTES))


def _graph_bytes(shape: ModelShape, policy: EnginePolicy) -> int:
    """vLLM captures batches of 1, 2, 4 and multiples of 8, up to twice the sequences, 512 at most."""
    most = min(2 * _sequences(policy), 512)
    return math.ceil((3 + most // 8) * shape.layers * _GRAPH_BYTES)
