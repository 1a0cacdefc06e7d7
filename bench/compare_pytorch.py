#!/usr/bin/env python3
"""Times PyTorch's attention on a problem of `blockmgr-bench kernels`.

  blockmgr-bench kernels --kv-mib 256 --problem ragged.bin --json > ours.json
  bench/compare_pytorch.py --problem ragged.bin > theirs.json

PyTorch has no kernel for ragged lists of pages: keys and values of each list,
of its region and then of its tail, are gathered to contiguous tensors of the
problem's type first, which is not timed. Then one decode
step is a call of scaled_dot_product_attention per list (--mode loop), or one
call for all of them padded to the longest, with a mask (--mode padded). As many
copies of the tensors take turns as ours do, so that none is in the cache. A
mode that fails, such as for want of memory, is in not_run with the reason, and
the other one in the results all the same. The report has the keys of
kernel_report.h; percent_of_ceiling is null, for the ceilings are in our report
of the same problem.

--check reads the problem, prints what is in it and needs Python alone; the rest
needs numpy and PyTorch.
"""
import argparse
import array
import gc
import json
import math
import struct
import sys
import time

MAGIC = b"BMKVPRB1"
COMMON = struct.Struct("<8sI")  # of all versions
VERSION = 2
HEADER = struct.Struct("<8sII6iQqq")  # bench/kernel_problem.h
DTYPES = ["bf16", "fp16"]
ROTATED_L2S = 6  # bench/kernel_run.cc
MAX_COPIES = 16  # bench/kernel_inputs.cc
UNKNOWN_L2_BYTES = 64 << 20  # of a PyTorch that does not say
STEP = 0x9E3779B97F4A7C15
MIX = [(30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)]


class Problem:
    """What the file says, with every field checked."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        if len(data) < COMMON.size:
            raise ValueError(f"{path}: expected a problem of blockmgr-bench "
                             f"kernels, got {len(data)} bytes")
        magic, version = COMMON.unpack_from(data)
        if magic != MAGIC or version != VERSION:
            raise ValueError(f"{path}: expected {MAGIC} version {VERSION}, "
                             f"got {magic} version {version}")
        if len(data) < HEADER.size:
            raise ValueError(f"{path}: expected a header of {HEADER.size} "
                             f"bytes, got {len(data)}")
        (_, _, element_type, self.num_sequences, self.num_heads,
         self.group_size, self.head_dim, self.page_size, self.num_pages,
         self.seed, num_page_ids, num_tail_blocks) = HEADER.unpack_from(data)
        if element_type >= len(DTYPES):
            raise ValueError(f"{path}: expected elements of type 0 (bf16) or 1 "
                             f"(fp16), got type {element_type}")
        self.dtype = DTYPES[element_type]
        num_lists = self.num_sequences * self.num_heads
        counts = [num_lists, self.num_sequences, num_page_ids, num_tail_blocks]
        expected = HEADER.size + 4 * sum(counts)
        if num_lists < 1 or min(counts) < 0 or len(data) != expected:
            raise ValueError(f"{path}: expected {expected} bytes, "
                             f"got {len(data)}")
        if self.page_size < 1:
            raise ValueError(f"{path}: expected a page size of at least 1, "
                             f"got {self.page_size}")
        words = array.array("i", data[HEADER.size:])
        if sys.byteorder != "little":
            words.byteswap()
        arrays = []
        for count in counts:
            arrays.append(words[:count])
            words = words[count:]
        self.lengths, self.tail_lengths, page_ids, tail_blocks = arrays
        self.set_pages(path, page_ids, tail_blocks)

    def set_pages(self, path, page_ids, tail_blocks):
        """Pages of every list: those of its region and of its tail."""
        pages_of = [-(-n // self.page_size) for n in self.lengths]
        blocks_of = [-(-n // self.page_size) for n in self.tail_lengths]
        for what, lengths, sizes, ids in (
                ("page ids", self.lengths, pages_of, page_ids),
                ("tail blocks", self.tail_lengths, blocks_of, tail_blocks)):
            if min(lengths) < 0 or sum(sizes) != len(ids):
                raise ValueError(f"{path}: expected lengths of {len(ids)} "
                                 f"{what}, got {sum(sizes)}")
        num_blocks = self.num_pages // self.num_heads
        for what, ids, limit in (("page ids", page_ids, self.num_pages),
                                 ("tail blocks", tail_blocks, num_blocks)):
            if ids and (min(ids) < 0 or max(ids) >= limit):
                raise ValueError(f"{path}: expected {what} in [0, {limit})")
        self.region_pages, self.tail_pages = [], []
        page, block = 0, 0
        for index, num_pages in enumerate(pages_of):
            self.region_pages.append(page_ids[page:page + num_pages])
            page += num_pages
            sequence, head = divmod(index, self.num_heads)
            end = block + blocks_of[sequence]
            self.tail_pages.append([b * self.num_heads + head
                                    for b in tail_blocks[block:end]])
            if head == self.num_heads - 1:
                block = end

    def list_length(self, index):
        return self.lengths[index] + self.tail_lengths[index // self.num_heads]

    def max_over_mean(self):
        lengths = [self.list_length(index)
                   for index in range(len(self.lengths))]
        return max(lengths) * len(lengths) / max(sum(lengths), 1)

    def kv_bytes(self):
        num_tokens = (sum(self.lengths) +
                      sum(self.tail_lengths) * self.num_heads)
        return num_tokens * self.head_dim * 4


def element(seed, index):
    """Element(seed, index) of kernel_problem.h before it is rounded."""
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


def gather_pages(problem, page_ids, length):
    """The first K and V of some pages, [2, length, head_dim]."""
    import numpy
    pages = numpy.array(page_ids, dtype=numpy.int64)
    shape = (2, problem.page_size, problem.head_dim)
    within = numpy.arange(math.prod(shape), dtype=numpy.int64)
    at = pages[:, None] * math.prod(shape) + within
    rows = elements(problem.seed, at).reshape(len(pages), *shape)
    rows = rows.transpose(1, 0, 2, 3)
    rows = rows.reshape(2, len(pages) * problem.page_size, problem.head_dim)
    return rows[:, :length]


def gather_list(problem, index):
    """K and V of one list, region and tail, [2, length, head_dim]."""
    import numpy
    tail_length = problem.tail_lengths[index // problem.num_heads]
    return numpy.concatenate(
        [gather_pages(problem, problem.region_pages[index],
                      problem.lengths[index]),
         gather_pages(problem, problem.tail_pages[index], tail_length)],
        axis=1)


def num_copies(num_bytes, l2_bytes):
    """How many copies take turns: as in kernel_run.cc and kernel_inputs.cc."""
    return min(max(-(-ROTATED_L2S * l2_bytes // num_bytes), 1), MAX_COPIES)


def padded_bytes(problem):
    longest = max(map(problem.list_length, range(len(problem.lengths))))
    return len(problem.lengths) * longest * problem.head_dim * 4


def load_queries(problem, torch, device):
    """[lists, group_size, head_dim], rounded."""
    import numpy
    shape = (len(problem.lengths), problem.group_size, problem.head_dim)
    queries = elements(problem.seed + 1,
                       numpy.arange(math.prod(shape))).reshape(shape)
    return torch.from_numpy(queries).to(device=device,
                                        dtype=dtype_of(problem, torch))


def dtype_of(problem, torch):
    return torch.float16 if problem.dtype == "fp16" else torch.bfloat16


def load_list(problem, torch, device, index):
    """K and V of a list, [2, length, head_dim], rounded."""
    rows = torch.from_numpy(gather_list(problem, index))
    return rows.to(device=device, dtype=dtype_of(problem, torch))


def make_loop(problem, torch, device, l2_bytes):
    """A step, which takes the number of a copy, and how many there are."""
    attention = torch.nn.functional.scaled_dot_product_attention
    queries = load_queries(problem, torch, device)
    count = num_copies(problem.kv_bytes(), l2_bytes)
    first = [load_list(problem, torch, device, index)
             for index in range(len(problem.lengths))]
    copies = [first] + [[rows.clone() for rows in first]
                        for _ in range(count - 1)]
    lists = [[(q[None, None], rows[None, None, 0], rows[None, None, 1])
              for q, rows in zip(queries, copy)] for copy in copies]

    def step(copy):
        return [attention(q, k, v) for q, k, v in lists[copy]]
    return step, count


def make_padded(problem, torch, device, l2_bytes):
    attention = torch.nn.functional.scaled_dot_product_attention
    num_bytes = padded_bytes(problem)
    count = num_copies(num_bytes, l2_bytes)
    lengths = [problem.list_length(index)
               for index in range(len(problem.lengths))]
    # One list beside it at a time: all of them may not fit twice.
    first = torch.zeros((2, len(lengths), 1, max(lengths), problem.head_dim),
                        dtype=dtype_of(problem, torch), device=device)
    for index, length in enumerate(lengths):
        first[:, index, 0, :length] = load_list(problem, torch, device, index)
    copies = [first] + [first.clone() for _ in range(count - 1)]
    ranks = torch.arange(max(lengths), device=device)
    mask = (ranks[None] < torch.tensor(lengths, device=device)[:, None])
    mask = mask[:, None, None]
    queries = load_queries(problem, torch, device)[:, None]
    return lambda copy: attention(queries, copies[copy][0], copies[copy][1],
                                  attn_mask=mask), count


MAKERS = {"loop": make_loop, "padded": make_padded}


def time_step(torch, step, count, num_samples):
    """Microseconds of each call, between events of the device."""
    for i in range(max(3, count)):
        step(i % count)
    samples = []
    for i in range(num_samples):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        step(i % count)
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1000)
    return samples


def check_room(problem, torch, device, mode):
    """Before the host has made what the device cannot hold."""
    if mode != "padded":
        return
    free, _ = torch.cuda.mem_get_info(device)
    num_bytes = padded_bytes(problem)
    if num_bytes > free:
        raise MemoryError(
            f"lists padded to the longest take {num_bytes / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free")


def run_mode(problem, torch, device, mode, num_samples):
    """The mode's samples, or (None, why there are none). Nothing it has
    allocated is left."""
    why = ""
    try:
        check_room(problem, torch, device, mode)
        properties = torch.cuda.get_device_properties(device)
        l2_bytes = getattr(properties, "L2_cache_size", UNKNOWN_L2_BYTES)
        step, count = MAKERS[mode](problem, torch, device, l2_bytes)
        return time_step(torch, step, count, num_samples), ""
    # PyTorch's errors of memory and of the device are RuntimeErrors.
    except (MemoryError, RuntimeError) as error:
        why = str(error) or type(error).__name__
    finally:
        step = None
        gc.collect()
        torch.cuda.empty_cache()
    return None, why


def run_modes(problem, torch, device, modes, num_samples):
    """results[] and not_run[] of the report."""
    results, not_run = [], []
    for mode in modes:
        samples, why = run_mode(problem, torch, device, mode, num_samples)
        if samples is not None:
            results.append(result_of(problem, mode, samples))
            continue
        not_run.append({
            "kernel": kernel_of(mode), "distribution": "file",
            "group_size": problem.group_size, "kv_bytes": problem.kv_bytes(),
            "why": why})
        print(f"{kernel_of(mode)}: not run: {why}", file=sys.stderr)
    return results, not_run


def kernel_of(mode):
    return f"pytorch_sdpa_{mode}"


def percentile(samples, percent):
    return sorted(samples)[math.ceil(percent / 100 * len(samples)) - 1]


def result_of(problem, mode, samples):
    median = percentile(samples, 50)
    useful_bytes = problem.kv_bytes()
    return {
        "kernel": kernel_of(mode), "distribution": "file",
        "group_size": problem.group_size, "dtype": problem.dtype,
        "kv_bytes": problem.kv_bytes(),
        "tail_tokens": sum(problem.tail_lengths),
        "num_sequences": problem.num_sequences, "num_heads": problem.num_heads,
        "head_dim": problem.head_dim, "page_size": problem.page_size,
        "max_over_mean": problem.max_over_mean(),
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
        first = [pages[0] * page_elements if pages else 0
                 for pages in (problem.region_pages[0], problem.tail_pages[-1])]
        print(json.dumps({
            "num_sequences": problem.num_sequences,
            "num_heads": problem.num_heads, "group_size": problem.group_size,
            "dtype": problem.dtype, "kv_bytes": problem.kv_bytes(),
            "tail_tokens": sum(problem.tail_lengths),
            "max_length": max(map(problem.list_length,
                                  range(len(problem.lengths)))),
            "first_elements": [element(problem.seed, first[0] + i)
                               for i in range(4)],
            "last_tail_elements": [element(problem.seed, first[1] + i)
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
    # "cuda" alone names no device, and set_device takes nothing else.
    device = torch.device(arguments.device)
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.set_device(device)
    results, not_run = run_modes(problem, torch, device, modes,
                                 arguments.num_samples)
    print(json.dumps({
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": torch.cuda.get_device_name(device),
        "pytorch": torch.__version__, "cuda_runtime": torch.version.cuda,
        "seed": problem.seed, "results": results, "not_run": not_run},
        indent=2))
    if not results:
        sys.exit("compare_pytorch.py: no mode ran")


if __name__ == "__main__":
    main()
