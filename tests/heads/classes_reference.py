#!/usr/bin/env python3
"""Recomputes scores and classes of heads from full attention matrices and compares them with the command's.

usage: classes_reference.py COMMAND SOURCE_DIR MODEL

MODEL is "bundled", or a name for which MODEL.gguf lies in the models' folder. Needs NumPy and the gguf package;
exit code 77 (skipped) without them or without the model. Nothing is shared with the library but the file: weights are
de-quantised by the gguf package, products are NumPy's, scores are those of tools/docs/head_classes.md.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
# Largest differences of scores, with exact arithmetic of the command: rounding, and arcs nearly as strong as the
# strongest. A class may differ only where a score is as close as that to a threshold.
TOLERANCE = 0.02
# ... and with int8 activations, which move the attention of models of 4 bits to random tokens.
FAST_TOLERANCE = 0.15


def import_or_skip(root):
    """Re-runs this script with the tests' own Python where that has what it needs."""
    global np, gguf
    try:
        import gguf
        import numpy as np
    except ImportError as error:
        python = root / "build" / "venv" / "bin" / "python"
        if python.exists() and pathlib.Path(sys.prefix).resolve() != (root / "build" / "venv").resolve():
            os.execv(python, [str(python), *sys.argv])
        print(f"skipped: {error}; tools/test.sh installs it")
        sys.exit(SKIPPED)


def find_model(root, name):
    if name == "bundled":
        return root / "tools/models/bundled.gguf"
    folder = os.environ.get("MANYHEAD_MODEL_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "manyhead/models")
    path = pathlib.Path(folder) / f"{name}.gguf"
    if not path.exists():
        print(f"skipped: {path} does not exist; tools/fetch_model.py {name} fetches it")
        sys.exit(SKIPPED)
    return path


class Model:
    """All sequences at once, layer by layer, so that one layer's weights are in memory at a time."""

    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.family = self.value("general.architecture")
        key = lambda name, default=None: self.value(f"{self.family}.{name}", default)
        self.layers, self.d = key("block_count"), key("embedding_length")
        self.heads = key("attention.head_count")
        self.kv_heads = key("attention.head_count_kv", self.heads)
        self.head_dim = key("attention.key_length", self.d // self.heads)
        self.eps, self.base = key("attention.layer_norm_rms_epsilon"), key("rope.freq_base", 10000.0)
        self.window = key("attention.sliding_window", 0)
        self.gemma = self.family == "gemma3"

    def value(self, name, default=None):
        field = self.reader.get_field(name)
        return default if field is None else field.contents()

    def weight(self, name, rows=slice(None)):
        t = self.tensors[name]
        return gguf.dequantize(t.data[rows], t.tensor_type).astype(np.float32)

    def norm(self, x, name):
        mean = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
        return (x / np.sqrt(mean + self.eps) * self.weight(name)).astype(np.float32)

    def project(self, x, name):
        y = x @ self.weight(name + ".weight").T
        return y + self.weight(name + ".bias") if name + ".bias" in self.tensors else y

    def rotate(self, x, local):
        half = self.head_dim // 2
        base = 10000.0 if self.gemma and local else self.base
        angle = np.outer(np.arange(len(x)), base ** (-np.arange(half) / half))[:, None, :]
        turned = np.empty_like(x)
        first, second = ((slice(0, None, 2), slice(1, None, 2)) if self.family == "llama" else
                         (slice(0, half), slice(half, None)))
        turned[..., first] = x[..., first] * np.cos(angle) - x[..., second] * np.sin(angle)
        turned[..., second] = x[..., first] * np.sin(angle) + x[..., second] * np.cos(angle)
        return turned

    def attention(self, q, k, v, local):
        """Output [T, H, D] and weights [H, T, T] of one sequence."""
        q, k = self.rotate(q, local), self.rotate(k, local)
        distance = np.arange(len(q))[:, None] - np.arange(len(q))
        visible = distance >= 0
        if self.window and (local or not self.gemma):
            visible &= distance < self.window
        group = self.heads // self.kv_heads
        scores = np.einsum("thd,shd->hts", q, np.repeat(k, group, 1)).astype(np.float64)
        scores = np.where(visible, scores / math.sqrt(self.head_dim), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hts,shd->thd", weights, np.repeat(v, group, 1)).astype(np.float32), weights

    def feed_forward(self, x, b):
        gate = self.project(x, b + "ffn_gate").astype(np.float64)
        if self.gemma:
            gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self.project((gate * self.project(x, b + "ffn_up")).astype(np.float32), b + "ffn_down")

    def run(self, sequences, on_layer):
        """Calls on_layer(layer, [weights of each sequence]); returns each sequence's last hidden states."""
        ends = np.cumsum([len(ids) for ids in sequences])[:-1]
        x = self.weight("token_embd.weight", np.concatenate(sequences))
        if self.gemma:
            x = x * np.float32(math.sqrt(self.d))
        for layer in range(self.layers):
            b = f"blk.{layer}."
            local = self.gemma and (layer + 1) % 6 != 0
            h = self.norm(x, b + "attn_norm.weight")
            q, k, v = (self.project(h, b + f"attn_{name}").reshape(len(x), -1, self.head_dim) for name in "qkv")
            if b + "attn_q_norm.weight" in self.tensors:
                q, k = self.norm(q, b + "attn_q_norm.weight"), self.norm(k, b + "attn_k_norm.weight")
            parts = [self.attention(*qkv, local) for qkv in zip(*(np.split(part, ends) for part in (q, k, v)))]
            on_layer(layer, [weights for _, weights in parts])
            y = self.project(np.concatenate([out for out, _ in parts]).reshape(len(x), -1), b + "attn_output")
            x = x + (self.norm(y, b + "post_attention_norm.weight") if self.gemma else y)
            y = self.feed_forward(self.norm(x, b + "ffn_norm.weight"), b)
            x = x + (self.norm(y, b + "post_ffw_norm.weight") if self.gemma else y)
        return np.split(self.norm(x, "output_norm.weight"), ends)

    def nll(self, hidden, targets):
        """-log p(target) after each row of `hidden`, the vocabulary piece by piece."""
        name = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        size = len(self.tensors[name].data)
        logits = np.concatenate([hidden @ self.weight(name, slice(i, i + 16384)).T
                                 for i in range(0, size, 16384)], -1).astype(np.float64)
        top = logits.max(-1, keepdims=True)
        log_sum = top[:, 0] + np.log(np.exp(logits - top).sum(-1))
        return log_sum - logits[np.arange(len(targets)), targets]

    def token_bytes(self):
        """The text of every token."""
        texts = self.reader.get_field("tokenizer.ggml.tokens").contents()
        types = self.reader.get_field("tokenizer.ggml.token_type").contents()
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        table = {chr(b): b for b in printable}
        table.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)})
        result = []
        for text, kind in zip(texts, types):
            if kind in (2, 3):
                result.append(b"")
            elif kind == 6:
                result.append(bytes([int(text[3:5], 16)]))
            elif self.value("tokenizer.ggml.model") == "gpt2":
                result.append(bytes(table[c] for c in text if c in table))
            else:
                result.append(text.replace("\u2581", " ").encode())
        return result


def read_conllu(path):
    """[(text, [(begin, end, head, relation)])] in bytes; the file is well formed."""
    sentences = []
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        text, words, shared = b"", [], {}
        for line in block.split("\n"):
            if line.startswith("#"):
                continue
            columns = line.split("\t")
            first, _, last = columns[0].partition("-")
            if int(first) in shared and not last:
                begin, end = shared[int(first)]
            else:
                begin, end = len(text), len(text) + len(columns[1].encode())
                text += columns[1].encode() + (b"" if "SpaceAfter=No" in columns[9] else b" ")
            if last:
                shared.update({i: (begin, end) for i in range(int(first), int(last) + 1)})
            else:
                words.append((begin, end, int(columns[6]) - 1, columns[7].split(":")[0]))
        sentences.append((text.rstrip(), words))
    return sentences


def word_weights(weights, ids, pieces, sentence):
    """[H, W, W]: summed over the tokens of the word looked at and over those of the word that looks."""
    text, words = sentence
    ends = np.cumsum([len(pieces[i]) for i in ids])
    shift = int(ends[-1]) - len(text)  # a space some tokenizers put first
    member = np.zeros((len(words), len(ids)))
    for w, (begin, end, _, _) in enumerate(words):
        for t, stop in enumerate(ends):
            start = stop - len(pieces[ids[t]])
            member[w, t] = start < end + shift and stop > begin + shift
    return np.einsum("wt,hts,vs->hwv", member, weights, member)


def dependency_targets(sentence):
    """{(relation, to_head): {word: earlier words}}"""
    targets = {}
    for i, (_, _, head, relation) in enumerate(sentence[1]):
        if head >= 0:
            targets.setdefault((relation, head < i), {}).setdefault(max(i, head), set()).add(min(i, head))
    return targets


class Scores:
    """Sums over probes, per layer, of what tools/docs/head_classes.md defines."""

    def __init__(self, model, probes, sentences):
        self.model, self.probes, self.sentences = model, probes, sentences
        self.pieces = model.token_bytes()
        self.scores = []   # [layer] of dicts of arrays [H]
        self.found = []    # [layer][needle] bool [H, 12]
        self.hits = {}     # (relation, to_head) -> [layer][H]
        self.counts, self.offsets = {}, {}
        for sentence in sentences:
            for name, words in dependency_targets(sentence).items():
                self.counts[name] = self.counts.get(name, 0) + len(words)
                tally = self.offsets.setdefault(name, np.zeros(11))
                for word, targets in words.items():
                    for to in targets:
                        tally[min(word - to, 11) % 11] += word - to <= 10

    def on_layer(self, layer, weights):
        by_kind = {}
        for probe, matrix in zip(self.probes, weights):
            by_kind.setdefault(probe["kind"], []).append((probe, matrix))
        text = by_kind["text"][0][1]
        rows = np.arange(64, text.shape[-1])
        entropy = -np.where(text > 0, text * np.log(np.maximum(text, 1e-300)), 0).sum(-1)
        offsets = np.stack([text[:, rows, rows - k].mean(-1) for k in range(17)], -1)
        scores = {"previous_token": offsets[:, 1], "fixed_offset": offsets.max(-1),
                  "sink": text[:, rows, :4].sum(-1).mean(-1), "local": offsets[:, :16].sum(-1),
                  "uniformity": (entropy[:, rows] / np.log(rows + 1)).mean(-1)}
        repeats = by_kind["repeat"]
        pattern = lambda shift: np.mean([m[:, at, at - p["count"] + shift].mean(-1) for p, m in repeats
                                         for at in [np.arange(p["again"], m.shape[-1])]], 0)
        scores["duplicate_token"], scores["induction"] = pattern(0), pattern(1)
        sampled = np.arange(16, repeats[0][1].shape[-1], 8)
        likeness = lambda a, b: 1 - 0.5 * np.abs(a - b).sum(-1)
        scores["constancy"] = np.mean([likeness(a[:, sampled], b[:, sampled]).mean(-1)
                                       for (_, a), (_, b) in zip(repeats, repeats[1:])], 0)
        heads = np.concatenate([np.pad(m[:, at], ((0, 0), (0, 0), (0, text.shape[-1] - m.shape[-1])))
                                for m in [text, *(m for _, m in repeats)]
                                for at in [np.arange(16, m.shape[-1], 8)]], 1)
        twins = [[likeness(heads[h], heads[g]).mean() for g in range(h)] for h in range(len(heads))]
        scores["twin"] = np.array([max(t, default=0) for t in twins])
        self.scores.append(scores)
        self.found.append([np.stack([m[:, p["again"] + i - 1].argmax(-1) == p["begin"] + i
                                     for i in range(4, p["count"])], -1) for p, m in by_kind["needle"]])
        self.count_arcs(layer, by_kind.get("sentence", []))

    def count_arcs(self, layer, sentences):
        for sentence, (probe, matrix) in zip(self.sentences, sentences):
            arcs = word_weights(matrix, probe["ids"], self.pieces, sentence)
            for name, words in dependency_targets(sentence).items():
                hits = self.hits.setdefault(name, np.zeros((self.model.layers, self.model.heads)))
                for word, targets in words.items():
                    strongest = arcs[:, word, :word].argmax(-1)
                    hits[layer] += np.isin(strongest, list(targets))

    def finish(self, hidden):
        """Retrieval, for which the model has to copy."""
        copied = []
        for probe, states in zip(self.probes, hidden):
            if probe["kind"] == "needle":
                at = np.arange(probe["again"] + 4, probe["again"] + probe["count"])
                nll = self.model.nll(states[at - 1], np.array(probe["ids"])[at])
                copied.append(nll < math.log(2))
        for scores, found in zip(self.scores, self.found):
            scores["retrieval"] = np.mean([f & c for f, c in zip(found, copied)], (0, 2))

    def dependencies(self, layer, head):
        return {name: (count, self.hits[name][layer, head] / count, self.offsets[name].max() / count)
                for name, count in self.counts.items()}


def stands_out(count, accuracy, baseline, slack=0.0):
    gain = accuracy - baseline + slack
    return count >= 10 and gain >= 0.1 and gain >= 3 * math.sqrt(baseline * (1 - baseline) / count)


def class_of(s, dependencies):
    if s["twin"] >= 0.95 and s["sink"] < 0.5:
        return "collapsed"
    for name, threshold, label in (("induction", 0.4, "induction"), ("retrieval", 0.1, "retrieval"),
                                   ("previous_token", 0.4, "previous-token"),
                                   ("fixed_offset", 0.4, "fixed-offset"),
                                   ("duplicate_token", 0.4, "duplicate-token")):
        if s[name] >= threshold:
            return label
    if any(stands_out(*d) for d in dependencies.values()):
        return "syntactic"
    if s["sink"] >= 0.5:
        return "sink"
    if s["uniformity"] >= 0.95 or s["constancy"] >= 0.95:
        return "collapsed"
    return "local" if s["local"] >= 0.7 else "mixed"


def borderline(s, dependencies, tolerance):
    """Whether a score lies so close to a threshold that rounding may decide."""
    thresholds = {"twin": 0.95, "induction": 0.4, "retrieval": 0.1, "previous_token": 0.4, "fixed_offset": 0.4,
                  "duplicate_token": 0.4, "sink": 0.5, "uniformity": 0.95, "constancy": 0.95, "local": 0.7}
    return (any(abs(s[name] - threshold) <= tolerance for name, threshold in thresholds.items()) or
            any(stands_out(*d, slack=tolerance) != stands_out(*d, slack=-tolerance)
                for d in dependencies.values()))


def compare(reports, reference, tolerance):
    """Prints what differs; returns the number of failures."""
    failures, worst, doubtful = 0, 0.0, 0
    for report in reports:
        layer, head = report["layer"], report["head"]
        s = {name: float(values[head]) for name, values in reference.scores[layer].items()}
        for name, value in s.items():
            difference = abs(value - report["scores"][name])
            if name == "retrieval":  # counts of 36 arcs; one or two may be as strong as another
                difference = max(0, difference - 2.01 / 36)
            worst = max(worst, difference)
            if difference > tolerance:
                failures += 1
                print(f"head {layer}.{head}: {name} = {report['scores'][name]:.4f}, reference {value:.4f}")
        dependencies = reference.dependencies(layer, head)
        for d in report["scores"]["dependencies"]:
            count, accuracy, baseline = dependencies[d["relation"], d["direction"] == "to_head"]
            if (d["count"] != count or abs(d["baseline"] - baseline) > 1e-9 or
                    abs(d["accuracy"] - accuracy) > max(2.01 / count, tolerance)):
                failures += 1
                print(f"head {layer}.{head}: {d}, reference {count} {accuracy:.4f} {baseline:.4f}")
        expected = class_of(s, dependencies)
        if report["class"] != expected:
            doubtful += 1
            if not borderline(s, dependencies, tolerance):
                failures += 1
                print(f"head {layer}.{head}: class {report['class']}, reference {expected}: {s}")
    print(f"{len(reports)} heads, largest difference of a score {worst:.4f}, {doubtful} classes differ")
    return failures + (doubtful > len(reports) // 20)


def classify(command, path, conllu, math_mode):
    """The command's reports, and the probes they are about."""
    with tempfile.TemporaryDirectory() as folder:
        probes = pathlib.Path(folder) / "probes.json"
        run = subprocess.run([command, "heads", "classify", "-m", path, "--conllu", conllu, "-o", "json",
                              "--math", math_mode, "--probes", probes], capture_output=True, text=True, check=True)
        return json.loads(run.stdout)["heads"], json.loads(probes.read_text())


def main(command, root, name):
    import_or_skip(root)
    path = find_model(root, name)
    conllu = root / "tools/data/sample.conllu"
    exact, probes = classify(command, path, conllu, "exact")
    fast, _ = classify(command, path, conllu, "fast")
    model = Model(path)
    reference = Scores(model, probes, read_conllu(conllu))
    reference.finish(model.run([np.array(p["ids"]) for p in probes], reference.on_layer))
    return compare(exact, reference, TOLERANCE) + compare(fast, reference, FAST_TOLERANCE)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), sys.argv[3])))
