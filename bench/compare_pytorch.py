#!/usr/bin/env python3
"""Times PyTorch's attention on a problem of `blockmgr-bench kernels`.

  blockmgr-bench kernels --kv-mib 256 --problem ragged.bin --json > ours.json
  bench/compare_pytorch.py --problem ragged.bin > theirs.json

PyTorch has no kernel for ragged lists of pages: keys and values of each list
are gathered to contiguous tensors first, which is not timed. Then one decode
step is a call of scaled_dot_product_attention per list (--mode loop), or one
call for all of them padded to the longest, with a mask (--mode padded). The
report has the keys of kernel_report.h; percent_of_ceiling is null, for the
ceilings are in our report of the same problem.

--check reads the problem, prints what is in it and needs Python alone; the rest
needs numpy and PyTorch.
"""
import argparse
import array
import json
import math
import struct
import sys

MAGIC = b"BMKVPRB1"
HEADER = struct.Struct("<8sII6iQq")  # bench/kernel_problem.h
STEP = 0x9E3779B97F4A7C15
MIX = [(30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)]


class Problem:
    """What the file says, with every field checked."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        if len(data) < HEADER.size:
            raise ValueError(f"{path}: expected a header of {HEADER.size} "
                             f"bytes, got {len(data)}")
        (magic, version, element_type, self.num_sequences, self.num_heads,
         self.group_size, self.head_dim, self.page_size, self.num_pages,
         self.seed, num_page_ids) = HEADER.unpack_from(data)
        if magic != MAGIC or version != 1 or element_type != 0:
            raise ValueError(f"{path}: expected {MAGIC} version 1 with elements"
                             f" of type 0, got {magic} version {version} type "
                             f"{element_type}")
        num_lists = self.num_sequences * self.num_heads
        expected = HEADER.size + 4 * (num_lists + num_page_ids)
        if num_lists < 1 or num_page_ids < 0 or len(data) != expected:
            raise ValueError(f"{path}: expected {expected} bytes, "
                             f"got {len(data)}")
        words = array.array("i", data[HEADER.size:])
        if sys.byteorder != "little":
            words.byteswap()
        self.lengths = words[:num_lists]
        self.page_ids = words[num_lists:]
        self.pages_of = [-(-n // self.page_size) for n in self.lengths]
        if min(self.lengths) < 0 or sum(self.pages_of) != num_page_ids:
            raise ValueError(f"{path}: expected lengths of {num_page_ids} "
                             f"pages, got {sum(self.pages_of)}")
        if num_page_ids and (min(self.page_ids) < 0 or
                             max(self.page_ids) >= self.num_pages):
            raise ValueError(f"{path}: expected page ids in [0, "
                             f"{self.num_pages})")

    def kv_bytes(self):
        return sum(self.lengths) * self.head_dim * 4


def element(seed, index):
    """Element(seed, index) of kernel_problem.h before it is rounded to bf16."""
    x = ((seed << 40) + index + STEP) % 2**64
    for shift, factor in MIX:
        x = (x ^ (x >> shift)) * factor % 2**64
    return ((x ^ (x >> 31)) >> 48) / 32768 - 1


def elements(seed, indices):
    """element() of every index, as float32 (exact)."""
    import numpy
    with numpy.errstate(over="ignore"):
        x = numpy.uint64((seed << 40) % 2**64) + indices.astype(numpy.uint64)
        x = x + numpy.uint64(STEP)
        for shift, factor in MIX:
            x = (x ^ (x >> numpy.uint64(shift))) * numpy.uint64(factor)
        x = x ^ (x >> numpy.uint64(31))
    return ((x >> numpy.uint64(48)).astype(numpy.float32) /
            numpy.float32(32768) - numpy.float32(1))


def gather_list(problem, index, first_page):
    """K and V of one list, [2, length, head_dim]."""
    import numpy
    num_pages = problem.pages_of[index]
    pages = numpy.array(problem.page_ids[first_page:first_page + num_pages],
                        dtype=numpy.int64)
    shape = (2, problem.page_size, problem.head_dim)
    within = numpy.arange(math.prod(shape), dtype=numpy.int64)
    at = pages[:, None] * math.prod(shape) + within
    rows = elements(problem.seed, at).reshape(num_pages, *shape)
    rows = rows.transpose(1, 0, 2, 3).reshape(2, -1, problem.head_dim)
    return rows[:, :problem.lengths[index]]


def load(problem, torch, device):
    """Queries [lists, group_size, head_dim] and K, V per list, bf16."""
    import numpy
    num_lists = len(problem.lengths)
    shape = (num_lists, problem.group_size, problem.head_dim)
    queries = elements(problem.seed + 1,
                       numpy.arange(math.prod(shape))).reshape(shape)
    keys, values = [], []
    first_page = 0
    for index in range(num_lists):
        rows = torch.from_numpy(gather_list(problem, index, first_page).copy())
        rows = rows.to(device=device, dtype=torch.bfloat16)
        keys.append(rows[0])
        values.append(rows[1])
        first_page += problem.pages_of[index]
    queries = torch.from_numpy(queries).to(device=device, dtype=torch.bfloat16)
    return queries, keys, values


def make_step(problem, torch, device, mode):
    attention = torch.nn.functional.scaled_dot_product_attention
    queries, keys, values = load(problem, torch, device)
    if mode == "loop":
        lists = [(q[None, None], k[None, None], v[None, None])
                 for q, k, v in zip(queries, keys, values)]

        def loop():
            return [attention(q, k, v) for q, k, v in lists]
        return loop
    pad = torch.nn.utils.rnn.pad_sequence
    all_keys = pad(keys, batch_first=True)[:, None]
    all_values = pad(values, batch_first=True)[:, None]
    lengths = torch.tensor(problem.lengths.tolist(), device=device)
    ranks = torch.arange(all_keys.shape[2], device=device)
    mask = (ranks[None] < lengths[:, None])[:, None, None]
    return lambda: attention(queries[:, None], all_keys, all_values,
                             attn_mask=mask)


def time_step(torch, step, num_samples):
    """Microseconds of each call, between events of the device."""
    for _ in range(3):
        step()
    samples = []
    for _ in range(num_samples):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1000)
    return samples


def percentile(samples, percent):
    return sorted(samples)[math.ceil(percent / 100 * len(samples)) - 1]


def result_of(problem, mode, samples):
    median = percentile(samples, 50)
    useful_bytes = problem.kv_bytes()
    return {
        "kernel": f"pytorch_sdpa_{mode}", "distribution": "file",
        "group_size": problem.group_size, "kv_bytes": problem.kv_bytes(),
        "num_sequences": problem.num_sequences, "num_heads": problem.num_heads,
        "head_dim": problem.head_dim, "page_size": problem.page_size,
        "useful_bytes": useful_bytes, "flops": 0, "median_us": median,
        "p10_us": percentile(samples, 10), "p90_us": percentile(samples, 90),
        "num_samples": len(samples), "gb_per_s": useful_bytes / median * 1e-3,
        "tflop_per_s": None, "ceiling": None, "percent_of_ceiling": None}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", required=True, metavar="FILE")
    parser.add_argument("--mode", choices=["loop", "padded", "both"],
                        default="both")
    parser.add_argument("--num-samples", type=int, default=31)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.num_samples < 1:
        parser.error("--num-samples: expected at least 1")
    try:
        problem = Problem(arguments.problem)
    except (OSError, ValueError) as error:
        sys.exit(f"compare_pytorch.py: {error}")
    if arguments.check:
        page_elements = 2 * problem.page_size * problem.head_dim
        first = problem.page_ids[0] * page_elements if problem.page_ids else 0
        print(json.dumps({
            "num_sequences": problem.num_sequences,
            "num_heads": problem.num_heads, "group_size": problem.group_size,
            "kv_bytes": problem.kv_bytes(),
            "max_length": max(problem.lengths),
            "first_elements": [element(problem.seed, first + i)
                               for i in range(4)]}))
        return
    try:
        import numpy  # noqa: F401
        import torch
    except ImportError as error:
        sys.exit(f"compare_pytorch.py: expected numpy and PyTorch: {error}")
    if not torch.cuda.is_available():
        sys.exit("compare_pytorch.py: PyTorch finds no GPU")
    modes = ["loop", "padded"] if arguments.mode == "both" else [arguments.mode]
    results = []
    for mode in modes:
        step = make_step(problem, torch, arguments.device, mode)
        samples = time_step(torch, step, arguments.num_samples)
        results.append(result_of(problem, mode, samples))
    print(json.dumps({
        "device": torch.cuda.get_device_name(arguments.device),
        "pytorch": torch.__version__, "seed": problem.seed,
        "results": results}, indent=2))


if __name__ == "__main__":
    main()
