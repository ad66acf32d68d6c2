"""A model's shape from its config.json alone: parameters by part, KV elements per token, longest text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.planning.checkpoint import StoredFormat, stored_format

# What transformers leaves out of config.json because it is the class's default.
_TIED_BY_DEFAULT = ("gemma", "cohere")
_BIASED_QKV = ("qwen2",)  # biases on q, k and v, none on o, and no key for it
_FOUR_NORMS = ("gemma2", "gemma3")  # norms before and after both attention and MLP
_QUERY_KEY_NORMS = ("qwen3", "gemma3")
_UNGATED_MLP = ("gpt_neox", "opt", "phi", "falcon", "starcoder2", "nemotron")
_UNSCALED_ROPE = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
_CONFIG_FILE = "config.json"


class UnknownShape(ValueError):
    """The model's config.json is missing, or lacks what the shape needs; the message says which."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by part. What quantises a model quantises `attention`, `mlp` and `experts` alone."""

    embedding: int  # both of input and output where they are not tied, and a vision tower
    attention: int
    mlp: int  # of dense layers, and shared experts
    experts: int
    other: int  # norms and routers

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.attention + self.mlp + self.experts + self.other


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What planning needs of a model. Widths are in elements.

    `kv_width` is what one token keeps in one layer: keys and values of all KV heads, or, where `latent`,
    the one compressed vector of multi-head latent attention with its rotary part, the same on every card.
    `windowed_layers` of the layers keep `window` tokens only.
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    parameters: Parameters
    kv_heads: int
    kv_width: int
    latent: bool
    windowed_layers: int
    window: int
    attention_width: int  # of queries, keys and values together, per token
    mlp_width: int  # the widest layer's: intermediate, or that of the experts which one token takes
    active_experts: int  # of one token; 0 in a dense model
    max_model_len: int
    dtype: str
    stored: StoredFormat | None

    @property
    def mixture(self) -> bool:
        """Whether some of its layers are mixtures of experts."""
        return self.parameters.experts > 0


def find(model: str | Path) -> ModelShape | None:
    """The shape of a folder, of a config.json, or of a hub's model that lies in the local cache.

    None where there is none of these; nothing is downloaded. Raises `UnknownShape`.
    """
    path = Path(model)
    file = path / _CONFIG_FILE if path.is_dir() else path
    if file.suffix == ".json" and file.is_file():
        return read(file)
    if file.exists() or str(model).count("/") != 1:
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(str(model), _CONFIG_FILE)
    return read(Path(cached)) if isinstance(cached, str) else None


def read(file: Path) -> ModelShape:
    """The shape that a config.json describes. Raises `UnknownShape`."""
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UnknownShape(f"{file}: not a readable config.json: {error}") from None
    try:
        return shape_of(config)
    except (KeyError, TypeError, AttributeError) as error:
        raise UnknownShape(f"{file}: its model cannot be planned: no usable {error}") from None


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape of a decoder, also one wrapped with a vision tower. Raises `KeyError` for a missing width.

    Names of keys and their defaults are those of the transformers library's configuration classes.
    """
    text: Mapping[str, Any] = config.get("text_config") or config
    kind = str(text.get("model_type", ""))
    hidden, layers = int(text["hidden_size"]), int(text["num_hidden_layers"])
    heads = int(text["num_attention_heads"])
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head = int(text.get("head_dim") or hidden // heads)
    latent = bool(text.get("kv_lora_rank"))
    windowed, window = _windows(text, kind, layers)
    mlp, experts, routers, mlp_width = _feed_forward(text, kind)
    return ModelShape(
        model_type=kind,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=int(text["vocab_size"]),
        parameters=Parameters(
            embedding=_embedding(text, config, kind) + _vision(config.get("vision_config") or {}),
            attention=layers * (_latent_attention(text) if latent else _attention(text, kind, head)),
            mlp=mlp,
            experts=experts,
            other=routers + _norms(text, kind, head, latent),
        ),
        kv_heads=1 if latent else kv_heads,
        kv_width=text["kv_lora_rank"] + text["qk_rope_head_dim"] if latent else 2 * kv_heads * head,
        latent=latent,
        windowed_layers=windowed,
        window=window,
        attention_width=_attention_width(text, head, latent),
        mlp_width=mlp_width,
        active_experts=int(text.get("num_experts_per_tok") or 1) if experts else 0,
        max_model_len=_longest(text),
        dtype=str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16"),
        stored=stored_format(config) or stored_format(text),
    )


def _embedding(text: Mapping[str, Any], config: Mapping[str, Any], kind: str) -> int:
    default = config.get("tie_word_embeddings", kind.startswith(_TIED_BY_DEFAULT))
    tied = text.get("tie_word_embeddings", default)
    return int(text["vocab_size"] * text["hidden_size"] * (1 if tied else 2))


def _attention_width(text: Mapping[str, Any], head: int, latent: bool) -> int:
    heads = text["num_attention_heads"]
    if latent:  # keys and values are widened to all heads for a prefill
        return int(3 * heads * (text["qk_nope_head_dim"] + text["qk_rope_head_dim"]))
    return int((heads + 2 * (text.get("num_key_value_heads") or heads)) * head)


def _attention(text: Mapping[str, Any], kind: str, head: int) -> int:
    """One layer's q, k, v and o, with the biases that the model has."""
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    kv_heads = text.get("num_key_value_heads") or heads
    qkv = (heads + 2 * kv_heads) * head
    count = hidden * qkv + heads * head * hidden
    if text.get("attention_bias") or kind.startswith(_BIASED_QKV):
        count += qkv
    if text.get("attention_bias"):
        count += hidden
    return int(count)


def _latent_attention(text: Mapping[str, Any]) -> int:
    """One layer of multi-head latent attention, as in DeepSeek-V2 (arXiv 2405.04434, section 2.1)."""
    hidden, heads, rank = text["hidden_size"], text["num_attention_heads"], text["kv_lora_rank"]
    rope, value = text["qk_rope_head_dim"], text["v_head_dim"]
    query = heads * (text["qk_nope_head_dim"] + rope)
    query_rank = text.get("q_lora_rank")
    queries = query_rank * (hidden + query) if query_rank else hidden * query
    keys_values = hidden * (rank + rope) + rank * heads * (text["qk_nope_head_dim"] + value)
    return int(queries + keys_values + heads * value * hidden)


def _feed_forward(text: Mapping[str, Any], kind: str) -> tuple[int, int, int, int]:
    """Parameters of dense MLPs and shared experts, of experts, of routers; and the widest layer's width."""
    hidden, layers = text["hidden_size"], text["num_hidden_layers"]
    matrices = 2 if kind in _UNGATED_MLP else 3
    dense = int(text.get("intermediate_size") or 4 * hidden)
    keys = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((int(text[key]) for key in keys if text.get(key)), 0)
    if not experts:
        return layers * matrices * hidden * dense, 0, 0, dense
    width = int(text.get("moe_intermediate_size") or dense)
    shared = int(text.get("n_shared_experts") or 0) * width + int(
        text.get("shared_expert_intermediate_size") or 0
    )
    sparse = sum(_is_sparse(text, layer) for layer in range(layers))
    active = int(text.get("num_experts_per_tok") or 1) * width + shared
    return (
        matrices * hidden * (sparse * shared + (layers - sparse) * dense),
        sparse * experts * matrices * hidden * width,
        sparse * experts * (hidden + 1),
        max(active, dense if sparse < layers else 0),
    )


def _is_sparse(text: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer is a mixture: DeepSeek's first layers are dense, Qwen names its dense ones."""
    if layer < (text.get("first_k_dense_replace") or 0) or layer in (text.get("mlp_only_layers") or ()):
        return False
    return (layer + 1) % (text.get("decoder_sparse_step") or 1) == 0


def _norms(text: Mapping[str, Any], kind: str, head: int, latent: bool) -> int:
    per_layer = (4 if kind.startswith(_FOUR_NORMS) else 2) * text["hidden_size"]
    if latent:
        per_layer += text["kv_lora_rank"] + (text.get("q_lora_rank") or 0)
    elif kind.startswith(_QUERY_KEY_NORMS):
        per_layer += 2 * head
    return int(text["num_hidden_layers"] * per_layer + text["hidden_size"])


def _vision(vision: Mapping[str, Any]) -> int:
    """A vision tower, as the plain transformer that it nearly is; 0 where the model has none."""
    width = vision.get("embed_dim") or vision.get("hidden_size")
    depth = vision.get("depth") or vision.get("num_hidden_layers")
    if not width or not depth:
        return 0
    return int(depth * width * (4 * width + 2 * (vision.get("intermediate_size") or 4 * width)))


def _windows(text: Mapping[str, Any], kind: str, layers: int) -> tuple[int, int]:
    """How many layers keep a window only, and its tokens; (0, 0) where all keep everything."""
    window = text.get("sliding_window")
    if not window or text.get("use_sliding_window") is False:
        return 0, 0
    if kinds := text.get("layer_types"):
        return sum(kind == "sliding_attention" for kind in kinds), int(window)
    if kind.startswith("gemma2"):  # every other layer, the first of them windowed
        return (layers + 1) // 2, int(window)
    pattern = text.get("sliding_window_pattern")
    return (layers - layers // pattern if pattern else layers), int(window)


def _longest(text: Mapping[str, Any]) -> int:
    """The longest text as vLLM 0.32 derives it: position scalings but the named ones multiply the length."""
    longest = int(text.get("max_position_embeddings") or 2_048)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    return int(longest * (scaling.get("factor") or 1)) if kind not in _UNSCALED_ROPE else longest
