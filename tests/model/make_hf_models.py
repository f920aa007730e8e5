#!/usr/bin/env python3
"""Makes tiny models of random weights with Hugging Face transformers: each as a GGUF file, and the logits of a prompt.

usage: make_hf_models.py FOLDER [FAMILY...]

Writes FOLDER/FAMILY.gguf and FOLDER/FAMILY.json, which hf_logits_test compares with what this library computes. The
JSON holds the prompt's ids, the logits after each of them in float32, and the names and shapes of the tensors in
transformers. Needs the packages torch, transformers (4.44) and gguf; the files are kept, so that tests need none.
"""
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers

from random_weights import randomise

PROMPT = [1, 72, 104, 111, 114, 3, 200, 41, 72, 104, 111, 55, 250, 9, 9, 130, 72, 104, 17, 88, 201]
BYTES = 256


def add_byte_tokens(writer: gguf.GGUFWriter) -> None:
    """A SentencePiece vocabulary of all bytes."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(BYTES)])
    writer.add_token_scores([0.0] * (BYTES + 3))
    writer.add_token_types([2, 3, 3] + [6] * BYTES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def add_gpt2_tokens(writer: gguf.GGUFWriter) -> None:
    """GPT-2's stand-ins for all bytes, one merge of them, and the end of a text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(BYTES) if byte not in printable]
    character = {byte: chr(byte) for byte in printable} | {byte: chr(BYTES + i) for i, byte in enumerate(hidden)}
    tokens = [character[byte] for byte in range(BYTES)] + [character[32] + "t", "<|endoftext|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (BYTES + 1) + [3])
    writer.add_token_merges([character[32] + " t"])
    writer.add_bos_token_id(BYTES + 1)
    writer.add_eos_token_id(BYTES + 1)


SIZES = {"vocab_size": BYTES + 3, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
         "intermediate_size": 40, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
         "attn_implementation": "eager"}
GEMMA_NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
               "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
               "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
GEMMA2_NORMS = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                "post_feedforward_layernorm": "post_ffw_norm"}


def write_gemma(writer: gguf.GGUFWriter, model: torch.nn.Module, names: dict[str, str]) -> None:
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    add_byte_tokens(writer)
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if "norm" in name:
            values = values + np.float32(1)  # GGUF files hold the factor itself
        if name.startswith("model.layers."):
            layer, rest = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
            writer.add_tensor(f"blk.{layer}.{names[rest]}.weight", values)
        elif name != "lm_head.weight":  # the embedding
            writer.add_tensor({"model.embed_tokens.weight": "token_embd.weight",
                               "model.norm.weight": "output_norm.weight"}[name], values)


def make_gemma(writer: gguf.GGUFWriter) -> torch.nn.Module:
    config = transformers.GemmaConfig(**SIZES, num_hidden_layers=2, hidden_activation="gelu_pytorch_tanh")
    model = transformers.GemmaForCausalLM(config)
    randomise(model, 1.5)
    write_gemma(writer, model, GEMMA_NAMES | {"post_attention_layernorm": "ffn_norm"})
    return model


def make_gemma2(writer: gguf.GGUFWriter) -> torch.nn.Module:
    config = transformers.Gemma2Config(**SIZES, num_hidden_layers=3, sliding_window=4, query_pre_attn_scalar=20,
                                       attn_logit_softcapping=3.0, final_logit_softcapping=5.0)
    model = transformers.Gemma2ForCausalLM(config)
    randomise(model, 1.5)
    writer.add_sliding_window(config.sliding_window)
    writer.add_float32("gemma2.attention.scale", config.query_pre_attn_scalar ** -0.5)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    write_gemma(writer, model, GEMMA_NAMES | GEMMA2_NORMS)
    return model


def make_gpt2(writer: gguf.GGUFWriter) -> torch.nn.Module:
    config = transformers.GPT2Config(
        vocab_size=BYTES + 2, n_embd=24, n_layer=2, n_head=4, n_positions=40, attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config)
    randomise(model, 1.0)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    add_gpt2_tokens(writer)
    names = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
             "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if name.startswith("transformer.h."):
            layer, rest = name.removeprefix("transformer.h.").split(".", 1)
            rest, part = rest.rsplit(".", 1)
            if values.ndim == 2:
                values = np.ascontiguousarray(values.T)  # stored as [inputs, outputs]
            writer.add_tensor(f"blk.{layer}.{names[rest]}.{part}", values)
        elif name != "lm_head.weight":  # the embedding
            writer.add_tensor({"transformer.wte.weight": "token_embd.weight",
                               "transformer.wpe.weight": "position_embd.weight",
                               "transformer.ln_f.weight": "output_norm.weight",
                               "transformer.ln_f.bias": "output_norm.bias"}[name], values)
    return model


FAMILIES = {"gemma": make_gemma, "gemma2": make_gemma2, "gpt2": make_gpt2}


def main(folder: pathlib.Path, families: list[str]) -> None:
    torch.manual_seed(7)
    for family in families or FAMILIES:
        writer = gguf.GGUFWriter(str(folder / f"{family}.gguf"), family)
        writer.add_name("tiny " + family)
        model = FAMILIES[family](writer).eval()
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT])).logits[0]
        reference = {
            "source": f"transformers {transformers.__version__}, torch {torch.__version__}, float32, eager attention",
            "ids": PROMPT,
            "tensors": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
            "logits": [[round(value, 6) for value in row] for row in logits.tolist()]}
        (folder / f"{family}.json").write_text(json.dumps(reference) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
