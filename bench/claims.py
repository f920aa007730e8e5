#!/usr/bin/env python3
"""Measures what manyhead claims of itself: threads, growth, the cost of features, the share of the roofline.

usage: claims.py [--command build/release/manyhead] [--models MODEL,...] [-t 2] [--rounds 3] [--only REGEX]
                 [--json FILE] [--strict]

Every setting runs once a round, so that what disturbs the machine disturbs all; its figure is the median of its
rounds' medians. Each line is a ratio, what is claimed of it, and whether it holds; with --strict the exit code is 1
where one does not. `manyhead bench attention` and `manyhead bench` give the times.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

HEADS = {"heads": 32, "kv-heads": 8, "head-dim": 128}


class Bench:
    """Times of settings, each a dict of the command's flags; `model` among them selects `manyhead bench`."""

    def __init__(self, command, repetitions):
        self.command, self.repetitions = command, repetitions
        self.rows = {}  # setting -> rows of the rounds

    @staticmethod
    def key(setting):
        return tuple(sorted(setting.items()))

    def run(self, setting):
        words = ["bench"]
        for name, value in setting.items():
            short = {"model": "-m", "prompt": "-p", "generate": "-n", "depth": "-d"}.get(name, f"--{name}")
            words += [short] if value is True else [short, str(value)]
        repetitions = self.repetitions
        if "model" not in setting:
            words.insert(1, "attention")
        elif repetitions > 2:
            repetitions = 2
        done = subprocess.run([self.command, *words, "-r", str(repetitions), "-o", "json"], capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"claims.py: {' '.join(words)}: {done.stderr.strip()}")
        self.rows.setdefault(self.key(setting), []).extend(json.loads(done.stdout))

    def seconds(self, setting):
        return statistics.median(
            row["median_seconds"] if "median_seconds" in row else statistics.median(row["samples_ns"]) * 1e-9
            for row in self.rows[self.key(setting)])

    def share(self, setting):
        """Returns the share of the roofline, or for a model of the memory bandwidth."""
        return statistics.median(row["of_roofline"] if "of_roofline" in row else row["bandwidth_percent"] / 100
                                 for row in self.rows[self.key(setting)])


class Claim:
    def __init__(self, name, bound, settings, value, at_least=True):
        self.name, self.bound, self.settings, self.value, self.at_least = name, bound, settings, value, at_least

    def holds(self, value):
        return value >= self.bound if self.at_least else value <= self.bound


def ratio(name, bound, slow, fast):
    """Time of `slow` over that of `fast`."""
    return Claim(name, bound, [slow, fast], lambda bench: bench.seconds(slow) / bench.seconds(fast))


def decode(args, **flags):
    return HEADS | {"q-len": 1, "kv-len": args.tokens, "kv-type": "f16", "threads": args.threads} | flags


def prefill(args, **flags):
    tokens = args.tokens // 2
    return HEADS | {"q-len": tokens, "kv-len": tokens, "kv-type": "f32", "threads": args.threads} | flags


def thread_claims(args):
    works = [("decode, kv 4k", decode(args)), ("decode, kv 32k", decode(args, **{"kv-len": 8 * args.tokens})),
             ("prefill 2k", prefill(args))]
    for path in args.models:
        model = {"model": path, "threads": args.threads, "depth": 0}
        name = pathlib.Path(path).stem
        works += [(f"{name} tg64", model | {"prompt": 0, "generate": 64}),
                  (f"{name} pp512", model | {"prompt": 512, "generate": 0})]
    for name, setting in works:
        yield ratio(f"threads: one over {args.threads}, {name}", 0.925 * args.threads, setting | {"threads": 1}, setting)


def spread(name, settings, per):
    """The largest time per unit over the smallest."""
    def value(bench):
        times = [bench.seconds(setting) / unit for setting, unit in zip(settings, per)]
        return max(times) / min(times)
    return Claim(name, 1.15, settings, value, at_least=False)


def doubling(name, settings):
    """The largest time of twice the keys over twice the time: above 1 where cost grows faster than the keys."""
    def value(bench):
        times = [bench.seconds(setting) for setting in settings]
        return max(more / (2 * less) for less, more in zip(times, times[1:]))
    return Claim(name, 1.15, settings, value, at_least=False)


def growth_claims(args):
    lengths = [args.tokens * 2**i // 4 for i in range(8)]
    for kind in ("f16", "int8"):
        settings = [decode(args, **{"kv-len": n, "kv-type": kind}) for n in lengths]
        # Few keys lie in the CPU's caches and take less time each: growth is compared from step to step.
        yield doubling(f"growth: twice the keys over twice the time, 1k to 128k, {kind}", settings)
        yield spread(f"growth: time per key, largest over smallest, 32k to 128k, {kind}", settings[-3:], lengths[-3:])
    settings = [decode(args, **{"kv-len": n, "window": args.tokens // 4}) for n in lengths[2:]]
    yield spread("growth: a window of 1k, largest over smallest, 4k to 128k", settings, [1] * len(settings))


def feature_claims(args):
    features = {"soft-cap": {"softcap": 30}, "sinks": {"sinks": 1}, "ALiBi": {"alibi": 1}}
    for kind, work in (("decode", decode), ("prefill", prefill)):
        for name, flags in features.items():
            yield ratio(f"features: {kind}, plain over {name}", 0.8, work(args), work(args, **flags))
        for odd, even in ((127, 128), (100, 112), (72, 80)):
            yield ratio(f"features: {kind}, head_dim {even} over {odd}", 0.8, work(args, **{"head-dim": even}),
                        work(args, **{"head-dim": odd}))
    for path in args.models:
        model = {"model": path, "prompt": 0, "generate": 64, "threads": args.threads, "depth": args.tokens}
        name = pathlib.Path(path).stem
        yield ratio(f"features: {name} tg64 at {args.tokens}, plain over profiled heads", 0.9, model,
                    model | {"profile-heads": True})
        yield ratio(f"features: {name} tg64, mapped weights over packed", 1.0, model | {"depth": 0, "weights": "mapped"},
                    model | {"depth": 0})
    # Half the heads that are there, or all of twice as many of which half are off: the same work.
    yield ratio("features: decode, 16/4 heads over 32/8 of which half are off", 0.9,
                decode(args, heads=16, **{"kv-heads": 4}), decode(args, off=4))
    visible = args.tokens // 2
    yield ratio("features: decode, kv 2k over window of 2k in 4k", 0.8, decode(args, **{"kv-len": visible}),
                decode(args, window=visible))
    # Work of a window of w in n causal queries: n w - w^2 / 2 pairs, against n^2 / 2.
    n, w = visible, visible // 4
    plain, windowed = prefill(args), prefill(args, window=w)
    yield Claim("features: prefill, plain over window, per visible pair", 0.8, [plain, windowed],
                lambda bench: bench.seconds(plain) / bench.seconds(windowed) * (n * w - w * w / 2) / (n * n / 2))


def roofline_claims(args):
    def share(name, bound, setting):
        return Claim(f"roofline: {name}", bound, [setting], lambda bench: bench.share(setting))
    yield share("decode 32/8, kv 32k, f16", 0.85, decode(args, **{"kv-len": 8 * args.tokens}))
    yield share("prefill 32/8, 2k, f32", 0.78, prefill(args))
    for path in args.models:
        yield share(f"{pathlib.Path(path).stem} tg64, of memory bandwidth", 0.8,
                    {"model": path, "prompt": 0, "generate": 64, "depth": 0, "threads": args.threads})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="build/release/manyhead")
    parser.add_argument("--models", default=[], type=lambda text: text.split(","), help="separated by commas")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-r", "--repetitions", type=int, default=9, help="of a round")
    parser.add_argument("--tokens", type=int, default=4096, help="in the cache; other lengths follow it")
    parser.add_argument("--only", default="", help="claims whose names hold this expression")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    claims = [claim for group in (thread_claims, growth_claims, feature_claims, roofline_claims)
              for claim in group(args) if re.search(args.only, claim.name)]
    bench = Bench(args.command, args.repetitions)
    settings = {bench.key(setting): setting for claim in claims for setting in claim.settings}
    for _ in range(args.rounds):
        for setting in settings.values():
            bench.run(setting)
    rows = []
    for claim in claims:
        value = claim.value(bench)
        sign, word = (">=" if claim.at_least else "<="), ("holds" if claim.holds(value) else "MISSED")
        print(f"{claim.name:66} {value:7.2f}   {sign} {claim.bound:.2f}   {word}")
        rows.append({"claim": claim.name, "value": value, "at_least" if claim.at_least else "at_most": claim.bound,
                     "holds": claim.holds(value), "seconds": [bench.seconds(setting) for setting in claim.settings]})
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(args.strict and not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
