#!/usr/bin/env python3
"""Makes tiny models of random weights with Hugging Face transformers, as folders, and the logits of a text.

usage: make_hf_folders.py FOLDER [NAME...]

Writes FOLDER/NAME with config.json, generation_config.json, model.safetensors (or several and their index),
tokenizer.json, and logits.f32: the logits after each token of PROMPT, one row of vocab_size floats each, computed in
float32. hf_folder_test compares them with what this library computes. Needs the packages torch, transformers (5),
tokenizers and safetensors; the files are kept, so that tests need none.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers

from random_weights import randomise

VOCAB = 72
PREFILL, STEPS = 21, 40
PROMPT = [(7 * i * i + 3 * i + 1) % 70 for i in range(PREFILL + STEPS)]


def tokenizer() -> Tokenizer:
    """A vocabulary of small letters and what else a config of 72 tokens has room for."""
    tokens = {"<unk>": 0, "<s>": 1, "</s>": 2, "\u2581": 3}
    for character in "abcdefghijklmnopqrstuvwxyz0123456789.,!?":
        tokens[character] = len(tokens)
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("i", "n"), ("a", "n")]
    for left, right in merges:
        tokens[left + right] = len(tokens)
    made = Tokenizer(models.BPE(vocab=tokens, merges=merges, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def sizes(**changes) -> dict:
    return {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 64, "bos_token_id": 1,
            "eos_token_id": 2, "pad_token_id": 0, "attn_implementation": "eager"} | changes


def rope(kind: str, **values) -> dict:
    return {"rope_type": kind, "rope_theta": 10000.0} | values


def llama(**changes):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes(**changes)))


def phi3(original: int):
    """Factors for contexts of up to `original` tokens, and others for longer ones."""
    scaling = rope("longrope", short_factor=[1.0, 1.1, 1.3, 1.7], long_factor=[1.5, 2.0, 3.0, 5.0],
                   original_max_position_embeddings=original)
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(
        **sizes(rope_parameters=scaling, max_position_embeddings=128, original_max_position_embeddings=original)))


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=16)
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)

# Each with the type of its weights: float16 and bfloat16 widen exactly, so that the reference stays one in float32.
MODELS = {
    # Seven query heads for each of a single key head, of 80 elements.
    "llama": (lambda: llama(num_attention_heads=7, num_key_value_heads=1, head_dim=80, num_hidden_layers=1,
                            hidden_size=28),
              torch.bfloat16),
    "llama-sharded": (lambda: llama(num_attention_heads=3, num_key_value_heads=3, hidden_size=30, attention_bias=True,
                                    mlp_bias=True, tie_word_embeddings=True), torch.float16),
    "llama-linear": (lambda: llama(rope_parameters=rope("linear", factor=2.5)), torch.float32),
    "llama-llama3": (lambda: llama(rope_parameters=LLAMA3), torch.bfloat16),
    "llama-yarn": (lambda: llama(rope_parameters=YARN), torch.bfloat16),
    "mistral": (lambda: transformers.MistralForCausalLM(transformers.MistralConfig(
        **sizes(sliding_window=5, head_dim=12))), torch.bfloat16),
    "qwen2": (lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **sizes(num_attention_heads=7, num_key_value_heads=1, hidden_size=42, num_hidden_layers=3,
                use_sliding_window=True, sliding_window=6, max_window_layers=1))), torch.bfloat16),
    "qwen3": (lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        **sizes(head_dim=24, num_attention_heads=5, num_key_value_heads=5, hidden_size=30))), torch.bfloat16),
    "gemma": (lambda: transformers.GemmaForCausalLM(transformers.GemmaConfig(**sizes(head_dim=12))), torch.bfloat16),
    "gemma2": (lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **sizes(head_dim=12, sliding_window=4, query_pre_attn_scalar=20, attn_logit_softcapping=3.0,
                final_logit_softcapping=5.0, num_hidden_layers=3))), torch.bfloat16),
    "gemma3": (lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        **sizes(head_dim=12, sliding_window=4, query_pre_attn_scalar=20, num_hidden_layers=3,
                layer_types=["sliding_attention", "sliding_attention", "full_attention"]))), torch.bfloat16),
    "phi3": (lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**sizes(sliding_window=9))), torch.bfloat16),
    "phi3-short": (lambda: phi3(original=64), torch.bfloat16),
    "phi3-long": (lambda: phi3(original=32), torch.bfloat16),
    "gpt2": (lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=3, n_positions=64, bos_token_id=1, eos_token_id=2,
        attn_implementation="eager")), torch.bfloat16),
    "gpt-neox": (lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        **{key: value for key, value in sizes().items() if key != "num_key_value_heads"})), torch.bfloat16),
    "gpt-neox-serial": (lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        use_parallel_residual=False, rope_parameters=rope("default", partial_rotary_factor=0.5),
        **{key: value for key, value in sizes().items() if key != "num_key_value_heads"})), torch.bfloat16),
    "olmo2": (lambda: transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**sizes())), torch.bfloat16),
}


def save(folder: pathlib.Path, name: str, model: torch.nn.Module) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size="20KB" if name.endswith("-sharded") else "50MB")
    tokenizer().save(str(folder / "tokenizer.json"))
    if name == "llama-llama3":  # as older versions wrote it
        config = json.loads((folder / "config.json").read_text())
        scaling = config.pop("rope_parameters")
        config |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main(folder: pathlib.Path, names: list[str]) -> None:
    torch.manual_seed(7)
    for name in names or MODELS:
        make, dtype = MODELS[name]
        model = make().eval()
        randomise(model, 1.0 if name.startswith("gpt") else 1.5)
        model.to(dtype)
        save(folder / name, name, model)
        # Read anew, so that tables of frequencies are computed in float32 too.
        model = type(model).from_pretrained(folder / name, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT])).logits[0]
        (folder / name / "logits.f32").write_bytes(logits.to(torch.float32).numpy().tobytes())
        print(name, type(model).__name__, float(logits.abs().max()))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
