"""The models of the tests on real vLLM: SmolLM2, converted from its GGUF, and a tiny Llama."""

import json
import shutil
import sys
from pathlib import Path

from jobs.model_files import smollm2_path

TINY_CONTEXT = 512


def smollm2() -> Path:
    """SmolLM2 as float32 in safetensors (540 MB); converted once (a minute) and kept in this environment."""
    directory = Path(sys.prefix, "models", "smollm2")
    if directory.exists():
        return directory
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = smollm2_path()
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # The weights are plain numbers now, though the model still says that it is quantized.
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    half_made = directory.with_name("half-made")
    model.save_pretrained(half_made)
    AutoTokenizer.from_pretrained(**source).save_pretrained(half_made)
    half_made.rename(directory)
    return directory


def tiny_llama(directory: Path, *, context: int = TINY_CONTEXT) -> Path:
    """Two layers, 64 wide, random weights from a fixed seed, with SmolLM2's tokenizer and chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = smollm2()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, directory / name)
    vocabulary = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory
