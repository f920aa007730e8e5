#!/usr/bin/env python3
"""Runs manyhead and the peers that are installed on the same work, in turn, and prints ratios of medians.

usage: compare.py [--command build/release/manyhead] [--peers PYTHON] [-t 2] [--rounds 5]
                  [--attention | --models MODEL,...] [--json FILE] [--svg FILE]

PYTHON is the interpreter of an environment with any of llama-cpp-python, onnxruntime + onnx, torch; a peer that it
lacks is named and left out. Each round runs every program once on a case, so that what disturbs the machine
disturbs all; a program's figure is the median of its rounds' medians. A ratio is the peer's time over ours.
"""
import argparse
import html
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# heads, KV heads, head_dim, q_len, kv_len, type; the shapes of Llama 3 8B, Llama 2 7B, Qwen2.5 0.5B and 1.5B, Gemma 3.
ATTENTION = [
    (32, 8, 128, 1, 4096, "f16"), (32, 8, 128, 1, 4096, "f32"), (32, 8, 128, 1, 4096, "int8"),
    (32, 8, 128, 1, 32768, "f16"), (14, 2, 64, 1, 4096, "f16"), (4, 1, 256, 1, 4096, "f16"),
    (32, 32, 128, 1, 4096, "f16"), (32, 8, 128, 2048, 2048, "f32"), (12, 2, 128, 512, 4608, "f16"),
    (32, 8, 128, 2048, 2048, "int8")]
# prompt, generated tokens, depth
MODEL = [(0, 64, 0), (512, 0, 0), (0, 64, 4096), (512, 0, 4096)]


def run(words):
    """The JSON a program prints; None where it declines the case."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=3600)
    if done.returncode < 0:
        print(f"compare.py: {pathlib.Path(words[0]).name} ended by signal {-done.returncode}: {words[1:]}", file=sys.stderr)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 and done.stdout else None


def has(python, module):
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def build_ggml(python, folder):
    """The program that times llama.cpp's operator, compiled against its package."""
    query = "import llama_cpp, pathlib; print(pathlib.Path(llama_cpp.__file__).resolve().parent)"
    package = pathlib.Path(subprocess.check_output([python, "-c", query], text=True).strip())
    lib, program = package / "lib", folder / "ggml_attention"
    done = subprocess.run(
        ["g++", "-O2", "-std=c++17", f"-I{package.parent / 'include'}", f"-I{package / 'include'}",
         str(HERE / "peers" / "ggml_attention.cc"), "-o", str(program), f"-L{lib}", "-lggml", "-lggml-base",
         "-lggml-cpu", f"-Wl,-rpath,{lib}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"ggml left out, it does not compile: {done.stderr.splitlines()[0]}", file=sys.stderr)
        return None
    return program


def attention_programs(args, folder):
    """name -> function of a case and the repetitions, giving the program's samples in seconds."""
    def ours(case, repetitions):
        heads, kv_heads, dim, q_len, kv_len, kind = (str(x) for x in case)
        rows = json.loads(subprocess.check_output(
            [args.command, "bench", "attention", "--heads", heads, "--kv-heads", kv_heads, "--head-dim", dim,
             "--q-len", q_len, "--kv-len", kv_len, "--kv-type", kind, "-t", str(args.threads), "-r",
             str(repetitions), "-o", "json"]))
        if not rows[0]["max_abs_error"] < 1e-4:
            sys.exit(f"compare.py: {case}: max_abs_error = {rows[0]['max_abs_error']}")
        return rows[0]["samples_seconds"]

    def peer(words):
        def call(case, repetitions):
            result = run([*words, *(str(x) for x in case), str(args.threads), str(repetitions)])
            return result and result["samples_seconds"]
        return call
    programs = {"manyhead": ours}
    if has(args.peers, "llama_cpp"):
        ggml = build_ggml(args.peers, folder)
        if ggml:
            programs["ggml"] = peer([str(ggml)])
    for module, name in (("onnxruntime", "ONNX Runtime"), ("torch", "PyTorch")):
        if has(args.peers, module):
            programs[name] = peer([args.peers, str(HERE / "peers" / f"{module}_attention.py")])
    return programs


def model_programs(args, model):
    def ours(case, repetitions):
        prompt, generate, depth = (str(x) for x in case)
        rows = json.loads(subprocess.check_output(
            [args.command, "bench", "-m", model, "-p", prompt, "-n", generate, "-d", depth, "-t",
             str(args.threads), "-r", str(repetitions), "-o", "json"]))
        return [ns * 1e-9 for ns in rows[0]["samples_ns"]]

    def llama(case, repetitions):
        result = run([args.peers, str(HERE / "peers" / "llama_model.py"), model, *(str(x) for x in case),
                      str(args.threads), str(repetitions)])
        return result and result["samples_seconds"]
    programs = {"manyhead": ours}
    if has(args.peers, "llama_cpp"):
        programs["llama.cpp"] = llama
    return programs


def measure(programs, case, name, rounds, repetitions):
    medians = {program: [] for program in programs}
    for _ in range(rounds):
        for program, call in programs.items():
            samples = call(case, repetitions)
            if samples:
                medians[program].append(statistics.median(samples))
    seconds = {program: statistics.median(times) for program, times in medians.items() if times}
    ours = seconds["manyhead"]
    row = {"case": name, "seconds": seconds, "rounds": medians,
           "ratios": {program: time / ours for program, time in seconds.items() if program != "manyhead"}}
    ratios = ", ".join(f"{program} {ratio:.2f}" for program, ratio in row["ratios"].items())
    print(f"{name:42} {ours * 1e3:10.3f} ms   {ratios or 'no peer'}", flush=True)
    return row


def svg(rows):
    """Bars of the ratios, a line at 1; readable in light and dark."""
    bars = [(row["case"], peer, ratio) for row in rows for peer, ratio in row["ratios"].items()]
    longest = max((ratio for _, _, ratio in bars), default=1)
    height, left, width = 22, 330, 420
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 70}" height="{height * len(bars) + 40}" '
             'font-family="sans-serif" font-size="12" role="img" aria-label="time of each peer over ours">',
             "<style>text{fill:#222}.bar{fill:#3572b0}.one{stroke:#888}@media(prefers-color-scheme:dark)"
             "{text{fill:#ddd}.bar{fill:#6aa5e0}}</style>"]
    for i, (case, peer, ratio) in enumerate(bars):
        y = 30 + i * height
        parts.append(f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{html.escape(case)}, {peer}</text>'
                     f'<rect class="bar" x="{left}" y="{y}" width="{ratio / longest * width:.1f}" height="15"/>'
                     f'<text x="{left + ratio / longest * width + 5:.1f}" y="{y + 11}">{ratio:.2f}</text>')
    one = left + width / longest
    parts.append(f'<line class="one" x1="{one:.1f}" x2="{one:.1f}" y1="20" y2="{30 + height * len(bars)}"/>'
                 f'<text x="{one:.1f}" y="14" text-anchor="middle">equal</text></svg>')
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="build/release/manyhead")
    parser.add_argument("--peers", default=sys.executable, help="interpreter of the peers' environment")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--attention", action="store_true", help="the operator only")
    parser.add_argument("--models", default="", help="GGUF files, separated by commas: models only")
    parser.add_argument("--json")
    parser.add_argument("--svg")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"compare.py: the machine is busy (load {load:.1f}): figures will be noisy", file=sys.stderr)
    rows = []
    if args.attention or not args.models:
        with tempfile.TemporaryDirectory() as folder:
            programs = attention_programs(args, pathlib.Path(folder))
            for case in ATTENTION:
                heads, kv_heads, dim, q_len, kv_len, kind = case
                name = f"{heads}/{kv_heads} D {dim} q {q_len} kv {kv_len} {kind}"
                rows.append(measure(programs, case, name, args.rounds, 3 if q_len > 1 else 9))
    for model in filter(None, args.models.split(",")):
        programs = model_programs(args, model)
        for case in MODEL:
            kind = f"pp{case[0]}" if case[0] else f"tg{case[1]}"
            name = f"{pathlib.Path(model).stem} {kind}" + (f" at {case[2]}" if case[2] else "")
            rows.append(measure(programs, case, name, args.rounds, 2))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if args.svg:
        pathlib.Path(args.svg).write_text(svg(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
