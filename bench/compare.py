#!/usr/bin/env python3
"""Runs manyhead and the peers that are installed on the same work, in turn, and prints ratios of medians.

usage: compare.py [--command build/release/manyhead] [--peers PYTHON,...] [-t 2] [--rounds 5]
                  [--attention] [--models MODEL,...] [--only REGEX] [--json FILE] [--svg FILE]

Each PYTHON is the interpreter of an environment with any of llama-cpp-python, onnxruntime + onnx, torch; the first
that has a peer provides it, and a peer that none has is named and left out. Each round runs every program once on a
case, so that what disturbs the machine disturbs all; a program's figure is the median of its rounds' medians. A ratio
is the peer's time over ours. Rows of an existing --json FILE that are not measured anew are kept, so that a long
comparison can be run in parts; with --only '^$' nothing is measured and the FILE drawn.
"""
import argparse
import datetime
import html
import json
import math
import os
import pathlib
import re
import signal
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
# A case is disturbed where a program's slowest round took this much longer than its fastest.
NOISE = 1.25
PEERS = {"llama_cpp": "llama.cpp", "onnxruntime": "ONNX Runtime", "torch": "PyTorch"}


def warn(text):
    print(f"compare.py: {text}", file=sys.stderr, flush=True)


class Peers:
    """The path of each peer, and the version that it reported."""

    def __init__(self, pythons, modules):
        self.python, self.version = {}, {}
        for module in modules:
            name = PEERS[module]
            query = f"import {module}; print({module}.__version__)"
            for python in pythons:
                done = subprocess.run([python, "-c", query], capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    self.python[module], self.version[name] = python, done.stdout.split()[-1]
                    break
            else:
                warn(f"{name} left out, none of {', '.join(pythons)} has it")

    def call(self, name, words, timeout=3600):
        """The samples a peer's program prints; none, with a word on why, where it fails or declines."""
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout)
        except subprocess.TimeoutExpired:
            return warn(f"{name} took more than {timeout} s: {' '.join(words[1:])}")
        if done.returncode < 0:
            return warn(f"{name} ended by {signal.Signals(-done.returncode).name}: {' '.join(words[1:])}")
        if done.returncode > 0:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return warn(f"{name} declines {' '.join(words[2:])}: {reason}")
        try:
            return json.loads(done.stdout.splitlines()[-1])["samples_seconds"]
        except (IndexError, KeyError, ValueError):
            return warn(f"{name} printed no samples: {done.stdout[-200:]!r}")


def build_ggml(python, folder):
    """The program that times llama.cpp's operator, compiled against its package; none where that fails."""
    query = "import llama_cpp, pathlib; print(pathlib.Path(llama_cpp.__file__).resolve().parent)"
    package = pathlib.Path(subprocess.check_output([python, "-c", query], text=True).strip())
    lib, program = package / "lib", folder / "ggml_attention"
    done = subprocess.run(
        ["g++", "-O2", "-std=c++17", f"-I{package.parent / 'include'}", f"-I{package / 'include'}",
         str(HERE / "peers" / "ggml_attention.cc"), "-o", str(program), f"-L{lib}", "-lggml", "-lggml-base",
         "-lggml-cpu", f"-Wl,-rpath,{lib}"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return program
    return warn(f"ggml left out, it does not compile: {(done.stderr.splitlines() or ['?'])[0]}")


def run_ours(command, words):
    return json.loads(subprocess.check_output([command, "bench", *words, "-o", "json"], stderr=subprocess.DEVNULL))[0]


def attention_programs(args, peers, folder):
    """name -> function of a case and the repetitions, giving the program's samples in seconds."""
    def ours(case, repetitions):
        heads, kv_heads, dim, q_len, kv_len, kind = (str(x) for x in case)
        row = run_ours(args.command, ["attention", "--heads", heads, "--kv-heads", kv_heads, "--head-dim", dim,
                                      "--q-len", q_len, "--kv-len", kv_len, "--kv-type", kind,
                                      "-t", str(args.threads), "-r", str(repetitions)])
        if not row["max_abs_error"] < 1e-4:
            sys.exit(f"compare.py: {case}: max_abs_error = {row['max_abs_error']}; expected less than 1e-4")
        return row["samples_seconds"]

    def peer(name, words):
        return lambda case, repetitions: peers.call(
            name, [*words, *(str(x) for x in case), str(args.threads), str(repetitions)])
    programs = {"manyhead": ours}
    if "llama_cpp" in peers.python:
        ggml = build_ggml(peers.python["llama_cpp"], folder)
        if ggml:
            programs["ggml"] = peer("ggml", [str(ggml)])
    for module in ("onnxruntime", "torch"):
        if module in peers.python:
            words = [peers.python[module], str(HERE / "peers" / f"{module}_attention.py")]
            programs[PEERS[module]] = peer(PEERS[module], words)
    return programs


def model_programs(args, peers, model):
    def ours(case, repetitions):
        prompt, generate, depth = (str(x) for x in case)
        row = run_ours(args.command, ["-m", model, "-p", prompt, "-n", generate, "-d", depth,
                                      "-t", str(args.threads), "-r", str(repetitions)])
        return [ns * 1e-9 for ns in row["samples_ns"]]

    def llama(case, repetitions):
        return peers.call("llama.cpp", [peers.python["llama_cpp"], str(HERE / "peers" / "llama_model.py"), model,
                                        *(str(x) for x in case), str(args.threads), str(repetitions)])
    return {"manyhead": ours} | ({"llama.cpp": llama} if "llama_cpp" in peers.python else {})


def measure(programs, case, name, rounds, repetitions):
    medians = {program: [] for program in programs}
    for _ in range(rounds):
        for program, call in list(programs.items()):
            samples = call(case, repetitions)
            if samples:
                medians[program].append(statistics.median(samples))
            else:
                programs = {other: function for other, function in programs.items() if other != program}
    seconds = {program: statistics.median(times) for program, times in medians.items() if times}
    ours = seconds["manyhead"]
    row = {"case": name, "seconds": seconds, "rounds": medians,
           "ratios": {program: time / ours for program, time in seconds.items() if program != "manyhead"}}
    row["spread"] = max(max(times) / min(times) for times in medians.values() if times)
    ratios = ", ".join(f"{program} {ratio:.2f}" for program, ratio in row["ratios"].items()) or "no peer"
    noise = f"   disturbed: rounds differ by {row['spread']:.2f}" if row["spread"] > NOISE else ""
    print(f"{name:42} {ours * 1e3:10.3f} ms   {ratios}{noise}", flush=True)
    return row


def cases_of(args, peers, folder):
    """(programs, case, name, repetitions) of what is to be measured."""
    if args.attention or not args.models:
        programs = attention_programs(args, peers, folder)
        for case in ATTENTION:
            heads, kv_heads, dim, q_len, kv_len, kind = case
            name = f"attention {heads}/{kv_heads} D {dim} q {q_len} kv {kv_len} {kind}"
            yield programs, case, name, 3 if q_len > 1 else 9
    for model in filter(None, args.models.split(",")):
        programs = model_programs(args, peers, model)
        for case in MODEL:
            kind = f"pp{case[0]}" if case[0] else f"tg{case[1]}"
            name = f"{pathlib.Path(model).stem} {kind}" + (f" at {case[2]}" if case[2] else "")
            yield programs, case, name, 2


def svg(rows):
    """Bars of the ratios from the line of equality, on a logarithmic axis; readable in light and dark."""
    colours = {"ggml": 0, "llama.cpp": 0, "ONNX Runtime": 1, "PyTorch": 2}
    bars = [(row["case"], peer, ratio) for row in rows for peer, ratio in row["ratios"].items()]
    octaves = [math.log2(ratio) for _, _, ratio in bars]
    low, high = math.floor(min([0, *octaves])), math.ceil(max([1, *octaves]))
    height, left, width = 22, 390, 420

    def x(octave):
        return left + (octave - low) / (high - low) * width

    bottom = 30 + height * len(bars)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 70}" height="{bottom + 10}" '
             'font-family="sans-serif" font-size="12" role="img" aria-label="time of each peer over ours">',
             "<style>text{fill:#222}.p0{fill:#3572b0}.p1{fill:#b0653a}.p2{fill:#5a8f3c}.one{stroke:#888}.tick{stroke:#8884}"
             "@media(prefers-color-scheme:dark){text{fill:#ddd}.p0{fill:#6aa5e0}.p1{fill:#e09a6a}.p2{fill:#8fc46e}}"
             "</style>"]
    for octave in range(low, high + 1):
        name = "equal" if octave == 0 else f"{2 ** octave:g}"
        parts.append(f'<line class="{"tick" if octave else "one"}" x1="{x(octave):.1f}" x2="{x(octave):.1f}" y1="20" '
                     f'y2="{bottom}"/><text x="{x(octave):.1f}" y="14" text-anchor="middle">{name}</text>')
    for i, ((case, peer, ratio), octave) in enumerate(zip(bars, octaves)):
        y, begin, end = 30 + i * height, x(min(0, octave)), x(max(0, octave))
        parts.append(f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{html.escape(case)}, {peer}</text>'
                     f'<rect class="p{colours[peer]}" x="{begin:.1f}" y="{y}" width="{end - begin:.1f}" height="15"/>'
                     f'<text x="{end + 5:.1f}" y="{y + 11}">{ratio:.2f}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def merge(path, rows):
    """`rows`, and those of the file that are not measured anew in the places they had."""
    old = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    new = {row["case"]: row for row in rows}
    merged = [new.pop(row["case"], row) for row in old]
    return merged + list(new.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="build/release/manyhead")
    parser.add_argument("--peers", default=sys.executable, help="interpreters of the peers' environments")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--attention", action="store_true", help="the operator; what runs without --models too")
    parser.add_argument("--models", default="", help="GGUF files, separated by commas")
    parser.add_argument("--only", default="", help="cases whose names hold this expression")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--svg", type=pathlib.Path)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    if load > 0.5:
        warn(f"the machine is busy (load {load:.1f}): figures will be noisy")
    peers = Peers(args.peers.split(","), PEERS if args.attention or not args.models else ["llama_cpp"])
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(programs, case, name, args.rounds, repetitions)
                for programs, case, name, repetitions in cases_of(args, peers, pathlib.Path(folder))
                if re.search(args.only, name)]
    if args.json:
        rows = merge(args.json, rows)
        info = json.loads(subprocess.check_output([args.command, "info", "-o", "json"]))
        about = {"cpu": info["cpu"], "isa": info["isa"], "threads": args.threads, "versions": peers.version,
                 "date": datetime.date.today().isoformat(), "rows": rows}
        args.json.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    if args.svg:
        args.svg.write_text(svg(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
