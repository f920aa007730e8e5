"""Times prefill and decode of llama.cpp through llama-cpp-python, for bench/compare.py.

usage: llama_model.py MODEL.gguf PROMPT GENERATE DEPTH THREADS REPETITIONS
Prints {"samples_seconds": [...]} of the prompt or, with PROMPT 0, of the generated tokens.
"""
import json
import sys
import time

import llama_cpp


def main(path, prompt, generate, depth, threads, repetitions):
    model = llama_cpp.Llama(path, n_ctx=depth + prompt + generate + 8, n_threads=threads, n_threads_batch=threads,
                            n_batch=2048, n_ubatch=512, flash_attn=True, type_k=llama_cpp.GGML_TYPE_F16,
                            type_v=llama_cpp.GGML_TYPE_F16, verbose=False)
    ids = [(i * 7919 + 13) % model.n_vocab() for i in range(depth + prompt + generate)]
    model.reset()
    for first in range(0, depth, 2048):
        model.eval(ids[first:min(first + 2048, depth)])
    samples = []
    for i in range(repetitions + 1):
        model.n_tokens = depth  # the next eval drops later tokens from the cache
        start = time.perf_counter()
        if prompt:
            model.eval(ids[depth:depth + prompt])
        for j in range(generate):
            model.eval(ids[depth + j:depth + j + 1])
        if i > 0:
            samples.append(time.perf_counter() - start)
    return {"samples_seconds": samples}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *[int(x) for x in sys.argv[2:7]])))
