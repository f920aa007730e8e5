"""Qwen2.5-Coder 0.5B against transformers' eager attention, as one research file would use it: induction heads,
ablation, patches from another prompt, export."""
import os
import pathlib
import tempfile
import time
import unittest

import gguf
import numpy as np
import torch
import transformers

import manyhead

FOLDER = os.environ.get("MANYHEAD_MODEL_DIR") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "manyhead/models")
PATH = pathlib.Path(FOLDER) / "qwen2.5-coder-0.5b.gguf"
EXACT = {"math": "exact", "k_type": "f32", "v_type": "f32"}
TOLERANCE = 2e-3
NAMES = {"attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
         "attn_output.weight": "self_attn.o_proj.weight", "ffn_gate.weight": "mlp.gate_proj.weight",
         "ffn_up.weight": "mlp.up_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
         **{f"attn_{x}.{kind}": f"self_attn.{x}_proj.{kind}" for x in "qkv" for kind in ("weight", "bias")}}


def hugging_face_model(path):
    """A Qwen2ForCausalLM of the file's dequantised weights, in float32."""
    reader = gguf.GGUFReader(path)
    key = lambda name: reader.get_field(f"qwen2.{name}").contents()
    tensors = {t.name: torch.from_numpy(gguf.dequantize(t.data, t.tensor_type).astype(np.float32))
               for t in reader.tensors}
    config = transformers.Qwen2Config(
        vocab_size=len(tensors["token_embd.weight"]), hidden_size=key("embedding_length"),
        intermediate_size=key("feed_forward_length"), num_hidden_layers=key("block_count"),
        num_attention_heads=key("attention.head_count"), num_key_value_heads=key("attention.head_count_kv"),
        rms_norm_eps=key("attention.layer_norm_rms_epsilon"), rope_theta=key("rope.freq_base"),
        max_position_embeddings=key("context_length"), tie_word_embeddings="output.weight" not in tensors,
        attn_implementation="eager")
    if hasattr(config, "rope_parameters"):
        config.rope_parameters = {"rope_type": "default", "rope_theta": key("rope.freq_base")}
    model = transformers.Qwen2ForCausalLM(config)
    state = {"model.embed_tokens.weight": tensors["token_embd.weight"],
             "model.norm.weight": tensors["output_norm.weight"],
             "lm_head.weight": tensors.get("output.weight", tensors["token_embd.weight"])}
    for layer in range(config.num_hidden_layers):
        for ours, theirs in NAMES.items():
            state[f"model.layers.{layer}.{theirs}"] = tensors[f"blk.{layer}.{ours}"]
    model.load_state_dict(state, strict=True)
    return model.eval()


@unittest.skipUnless(PATH.exists(), f"{PATH} does not exist; tools/fetch_model.py fetches it")
class TransformersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = manyhead.Model.load(PATH)
        cls.theirs = hugging_face_model(PATH)
        rng = np.random.default_rng(7)
        half = rng.integers(1000, 100_000, 24).tolist()
        cls.ids = half + half  # whatever follows the first half is what an induction head looks at
        cls.other = rng.integers(1000, 100_000, 48).tolist()

    def run_theirs(self, ids, edit=lambda layer, z: None):
        """Logits, patterns and head outputs [n, H, D]; edit(layer, z) may change these in place."""
        outputs, hooks = {}, []
        heads = self.theirs.config.num_attention_heads

        def hook(layer):
            def before(module, arguments):
                z = arguments[0].clone().view(1, len(ids), heads, -1)
                edit(layer, z[0])
                outputs[layer] = z[0].numpy()
                return (z.view_as(arguments[0]),)
            return before

        for number, layer in enumerate(self.theirs.model.layers):
            hooks.append(layer.self_attn.o_proj.register_forward_pre_hook(hook(number)))
        try:
            with torch.no_grad():
                result = self.theirs(torch.tensor([ids]), output_attentions=True)
        finally:
            for handle in hooks:
                handle.remove()
        return result.logits[0].numpy(), [a[0].numpy() for a in result.attentions], outputs

    def close(self, ours, theirs):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)

    def test_research_in_one_file(self):
        capture = self.model.capture(self.ids, logits=True, **EXACT)
        logits, patterns, outputs = self.run_theirs(self.ids)
        self.close(capture.logits, logits)
        for layer in range(len(patterns)):
            self.close(capture.patterns[layer], patterns[layer])
            self.close(capture.outputs[layer], outputs[layer])
        # Induction heads: the weight of what followed the earlier occurrence.
        n = len(self.ids) // 2
        score = {(layer, head): np.diagonal(weights[head], 1 - n)[1:].mean()
                 for layer, weights in capture.patterns.items() for head in range(len(weights))}
        best = sorted(score, key=score.get, reverse=True)[:5]
        self.assertGreater(score[best[0]], 0.4)
        # Ablated.
        edits = ",".join(f"{layer}.{head}" for layer, head in best)
        def zero(layer, z):
            for head in (h for l, h in best if l == layer):
                z[:, head] = 0
        expected, _, _ = self.run_theirs(self.ids, zero)
        self.close(self.model.ablate(edits).logits(self.ids, positions="all", **EXACT), expected)
        plain = self.model.loss(self.ids, **EXACT)[n:].mean()
        self.assertGreater(self.model.loss(self.ids, ablate=edits, **EXACT)[n:].mean(), plain)
        # Patched from another prompt.
        source = self.model.capture(self.other, patterns=False, **EXACT)
        layer, head = best[0]
        patches = [source.patch(layer, head, slice(30, 40)), source.patch(2, 5, 7, to=12)]
        def patch(number, z):
            if number == layer:
                z[30:40, head] = torch.from_numpy(source.outputs[layer][30:40, head])
            if number == 2:
                z[12, 5] = torch.from_numpy(source.outputs[2][7, 5])
        expected, _, _ = self.run_theirs(self.ids, patch)
        self.close(self.model.patch(patches).logits(self.ids, positions="all", **EXACT), expected)
        self.assertGreater(np.abs(expected - logits).max(), 10 * TOLERANCE)
        # Exported.
        with tempfile.TemporaryDirectory() as folder:
            capture.save_npz(os.path.join(folder, "run.npz"))
            with np.load(os.path.join(folder, "run.npz")) as file:
                self.close(file[f"blocks.{layer}.attn.hook_pattern"][0], patterns[layer])
                self.close(file[f"blocks.{layer}.attn.hook_z"][0], outputs[layer])

    def test_all_patterns_take_less_than_three_prefills(self):
        ids = np.random.default_rng(3).integers(1000, 100_000, 512).tolist()

        def seconds(work):
            best = np.inf
            for _ in range(3):
                begin = time.process_time()
                work()
                best = min(best, time.process_time() - begin)
            return best

        with self.model.session(context=512) as session:
            def prefill():
                session.truncate(0)
                session.append(ids)

            def capture():
                session.truncate(0)
                return session.capture(ids, outputs=False)

            plain, captured = seconds(prefill), seconds(capture)
        print(f"prefill {plain:.2f} s of CPU time, with all patterns {captured:.2f} s")
        self.assertLess(captured, 3 * plain)


if __name__ == "__main__":
    unittest.main()
