"""Tiny random checkpoints of several architectures, each with a tokenizer, for the tests of every package.

    folder = tiny_checkpoint(tmp_path / "model", "llama", shards=3)

Norms, biases and routers get random values, so that a wrong statistic cannot hide behind constant activations.
"""

import json
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
VISION: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
WRAPPERS = ("gemma3", "mistral3")
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "qwen2": dict(COMMON),
    "qwen3": {**COMMON, "head_dim": 8},
    "gemma2": {**COMMON, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": {**COMMON, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8},
    "phi": {**COMMON, "num_key_value_heads": 4},
    "phi3": dict(COMMON),
    "gpt2": {
        "vocab_size": 256,
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gpt_neox": {
        "vocab_size": 256,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "mixtral": {**COMMON, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**COMMON, **MOE, "head_dim": 8, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "gpt_oss": {**COMMON, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "mistral": {**COMMON, "sliding_window": 8, "tie_word_embeddings": False},
    "ministral3": {**COMMON, "head_dim": 8},
    "olmoe": {**COMMON, "num_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v3": {
        **COMMON,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "qwen3_next": {
        **COMMON,
        **MOE,
        "num_hidden_layers": 4,
        "head_dim": 8,
        "shared_expert_intermediate_size": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
    },
    "gemma3n_text": {
        **COMMON,
        "vocab_size_per_layer_input": 256,
        "hidden_size_per_layer_input": 8,
        "num_hidden_layers": 6,
        "head_dim": 8,
        "sliding_window": 8,
        "num_kv_shared_layers": 2,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.0] * 6,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
    "gemma3": {
        "text_config": {**COMMON, "head_dim": 8, "sliding_window": 8, "model_type": "gemma3_text"},
        "vision_config": {**VISION, "image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 4,
    },
    "mistral3": {
        "text_config": {**COMMON, "head_dim": 8, "model_type": "mistral", "tie_word_embeddings": False},
        "vision_config": {**VISION, "image_size": 28, "patch_size": 14, "head_dim": 8, "model_type": "pixtral"},
        "image_token_index": 5,
        "tie_word_embeddings": False,
    },
    "mamba": {
        "vocab_size": 256,
        "hidden_size": 32,
        "state_size": 8,
        "num_hidden_layers": 3,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_checkpoint(
    folder: Path,
    arch: str = "llama",
    shards: int = 1,
    dtype: str = "bfloat16",
    seed: int = 0,
    **config: Any,
) -> Path:
    """Save a random model of `arch` with its tokenizer in `folder`, in about `shards` files, and return `folder`.

    `config` overrides entries of the architecture's config. The same arguments give the same bytes.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    torch.set_num_threads(1)
    settings = AutoConfig.for_model(arch, **{**ARCHITECTURES[arch], **config})
    generator = torch.Generator().manual_seed(seed)
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    factory = AutoModelForImageTextToText if arch in WRAPPERS else AutoModelForCausalLM
    model = factory.from_config(settings, dtype=torch.float32).eval()
    torch.random.set_rng_state(state)
    randomise(model, generator)
    model = model.to(getattr(torch, dtype))
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    save(model, folder, size if shards == 1 else size // shards + size // (4 * shards))
    tiny_tokenizer().save_pretrained(folder)
    return folder


def randomise(model: Any, generator: Any) -> None:
    """Fill matrices with 0.3 N(0, 1), norm weights with 1 + 0.2 N, biases with 0.2 N, in the parameters' order."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                parameter.copy_(noise * 0.3)
            elif name.endswith("weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.2 * noise)


def save(model: Any, folder: Path, shard_bytes: int) -> None:
    import transformers

    progress = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    try:
        model.save_pretrained(folder, max_shard_size=shard_bytes)
    finally:
        if progress:
            transformers.logging.enable_progress_bar()


def tiny_tokenizer(extra: int = 0) -> Any:
    """A tokenizer of single characters (ASCII; any other is `<unk>`) that puts `<bos>` first.

    103 entries and `extra` further ones, named `<extra0>`, `<extra1>`, ...
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<bos>", "<eos>", "<unk>", "<|user|>", "<|assistant|>"]
    characters = ["\t", "\n", *(chr(i) for i in range(32, 127))]
    entries = special + characters + [f"<extra{i}>" for i in range(extra)]
    tokenizer = Tokenizer(models.WordLevel({text: i for i, text in enumerate(entries)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=special[4:] + entries[len(special) + len(characters) :],
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def sentences(count: int, seed: int = 0) -> list[str]:
    """`count` different texts of ragged lengths (3 to 90 characters)."""
    words = [
        "the sum",
        "of 3",
        "and",
        "17",
        "is 20",
        "a river",
        "ran",
        "cold",
        "twice",
        "half",
        "apples",
        "= 51 -",
        "so",
    ]
    texts = []
    for i in range(count):
        mixed = (i * 7919 + seed * 104729 + 11) % 2**31
        chosen = []
        for _ in range(1 + mixed % 13):
            mixed = (mixed * 1103515245 + 12345) % 2**31
            chosen.append(words[(mixed >> 16) % len(words)])
        texts.append(f"{i}: " + " ".join(chosen))
    return texts
