#!/usr/bin/env python3
"""Memory of K and V, and latency of decode steps, over contexts of several lengths.

Compares a dense transformers cache, kvpress's masking (AdaKVPress, which keeps the rows
that it masks) and BlockmgrCache with and without a policy. Needs the wheel with
torch, transformers and kvpress (python/requirements-hf.txt). Without --model, a
random Llama is run: memory and time do not depend on the weights. Each measurement is
a process of its own, so that peaks of one do not hide those of another. On a GPU the
whole run is made once before, to warm up, and "grew" is what PyTorch allocated at most
beyond the model, less what of BlockPool's memory was never used.

    python python/bench/hf_memory.py --contexts 1024,2048,4096,8192
    python python/bench/hf_memory.py --device cuda --chunk 4096 --contexts 4096,32768,131072
"""
import argparse
import contextlib
import gc
import json
import resource
import statistics
import subprocess
import sys
import time

VARIANTS = ("dense", "kvpress masks", "blockmgr, all kept", "blockmgr")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"),
                        help="default: float32, on a GPU bfloat16")
    parser.add_argument("--model", help="a folder or name for from_pretrained")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=16, help="query heads")
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--contexts", default="1024,2048,4096,8192",
                        help="tokens, separated by commas")
    parser.add_argument("--chunk", type=int, default=0,
                        help="tokens of a pass over the prompt (0: all)")
    parser.add_argument("--steps", type=int, default=16,
                        help="decode steps, at least 2")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--policy", default="keydiff | adakv | topk")
    parser.add_argument("--keep-ratio", type=float, default=0.2)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_model(flags, torch):
    from transformers import (AutoModelForCausalLM, LlamaConfig,
                              LlamaForCausalLM)
    dtype = getattr(torch, flags.dtype or (
        "float32" if flags.device == "cpu" else "bfloat16"))
    if flags.model:
        model = AutoModelForCausalLM.from_pretrained(flags.model, dtype=dtype)
        return model.to(flags.device).eval()
    torch.manual_seed(1)
    hidden = flags.heads * flags.head_dim
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=1024, hidden_size=hidden, intermediate_size=2 * hidden,
        num_hidden_layers=flags.layers, num_attention_heads=flags.heads,
        num_key_value_heads=flags.kv_heads, head_dim=flags.head_dim,
        max_position_embeddings=1 << 18, dtype=dtype)).to(
            flags.device, dtype).eval()


def make_cache(flags, variant, model, pool):
    from transformers import DynamicCache
    if pool is None:
        return DynamicCache()
    from blockmgr.hf import BlockmgrCache
    return BlockmgrCache(pool, every_chunk=True, **(
        {} if variant != "blockmgr" else
        dict(policy=flags.policy, keep_ratio=flags.keep_ratio)))


def run(flags, variant, context, model, pool, torch):
    """Returns the cache, and the seconds of each pass."""
    press = contextlib.nullcontext()
    chunk = flags.chunk
    if variant == "kvpress masks":
        import kvpress
        press = kvpress.AdaKVPress(kvpress.KeyDiffPress(1 - flags.keep_ratio))(
            model)
        chunk = 0  # kvpress compresses in a single pass over the prompt
    cache = make_cache(flags, variant, model, pool)
    tokens = torch.randint(0, model.config.vocab_size,
                           (flags.batch, context + flags.steps),
                           device=flags.device)
    sizes = [min(chunk or context, context - i)
             for i in range(0, context, chunk or context)] + [1] * flags.steps
    wait = torch.cuda.synchronize if flags.device == "cuda" else lambda: None
    times, seen = [], 0
    with torch.no_grad(), press:
        for size in sizes:
            positions = torch.arange(seen, seen + size, device=flags.device)
            wait()
            start = time.perf_counter()
            model(tokens[:, seen:seen + size], past_key_values=cache,
                  position_ids=positions[None], cache_position=positions,
                  logits_to_keep=1)
            wait()
            times.append(time.perf_counter() - start)
            seen += size
    return cache, times


def memory_of(flags, torch):
    """The most bytes of the process, or on a GPU, so far."""
    if flags.device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(flags, variant, context):
    import torch

    model = make_model(flags, torch)
    pool = None
    if variant.startswith("blockmgr"):
        from blockmgr.hf import BlockPool
        model.set_attn_implementation("blockmgr")
    before = unused = 0
    if flags.device == "cuda":
        before = torch.cuda.memory_allocated()
    if variant.startswith("blockmgr"):
        pool = BlockPool(model.config,
                         flags.batch * (context + flags.steps + 32),
                         device=flags.device)
    if flags.device == "cuda":
        run(flags, variant, context, model, pool, torch)
        gc.collect()  # gives the blocks back
        torch.cuda.reset_peak_memory_stats()
        if pool:
            pool.peak_blocks = 0
    else:
        before = memory_of(flags, torch)
    cache, times = run(flags, variant, context, model, pool, torch)
    if pool:
        held, most = cache.used_bytes, pool.peak_bytes
        if flags.device == "cuda":
            unused = pool.kv.nbytes - most
    else:
        held = most = sum(rows.nbytes for layer in cache.layers
                          for rows in (layer.keys, layer.values))
    low, median, high = statistics.quantiles(
        [1e3 * seconds for seconds in times[-flags.steps:]], n=4)
    return {"prompt_s": sum(times[:-flags.steps]), "decode_ms": median,
            "decode_quartiles": f"{low:.2f}-{high:.2f}",
            "held_mib": held / 2**20, "peak_mib": most / 2**20,
            "grew_mib": (memory_of(flags, torch) - before - unused) / 2**20}


def main():
    flags = parse()
    if flags.one:
        variant, context = flags.one.rsplit(":", 1)
        print(json.dumps(measure(flags, variant, int(context))))
        return
    grew = "process" if flags.device == "cpu" else "GPU memory"
    print(f"{'tokens':>7} {'cache':20} {'prompt s':>9} {'decode ms':>10} "
          f"{'quartiles':>15} {'K and V MiB':>12} {'at most':>9} {grew + ' grew':>15}")
    for context in flags.contexts.split(","):
        for variant in VARIANTS:
            done = subprocess.run(
                [sys.executable, *sys.argv, "--one", f"{variant}:{context}"],
                check=True, stdout=subprocess.PIPE, text=True)
            row = json.loads(done.stdout.splitlines()[-1])
            print(f"{context:>7} {variant:20} {row['prompt_s']:9.2f} "
                  f"{row['decode_ms']:10.2f} {row['decode_quartiles']:>15} "
                  f"{row['held_mib']:12.2f} "
                  f"{row['peak_mib']:9.2f} {row['grew_mib']:15.1f}", flush=True)


if __name__ == "__main__":
    main()
