#!/usr/bin/env python3
r"""Times FlashInfer's decode attention on a problem of `blockmgr-bench kernels`.

  blockmgr-bench kernels --kv-mib 256 --distribution ragged --group-size 4 \
      --problem ragged.bin --json > ours.json
  bench/compare_flashinfer.py --problem ragged.bin > theirs.json

FlashInfer has one page list for all heads of a request. So each list of the
problem is a request with one KV head here, on the pool as it is: a page is
[2, page_size, head_dim]. Planning is not timed. The mode `cores` has
use_tensor_cores=True, as FlashInfer advises for groups of query heads. A mode
is timed only if some of its rows are those of PyTorch's attention. FlashInfer
has no tails behind a page that is not full: problems with tails are refused.
Its results have the keys of compare_pytorch.py.
"""
import argparse
import json
import sys
import time

import compare_pytorch as base

MODES = ["plain", "cores"]
WORKSPACE_BYTES = 256 << 20
PAGES_AT_A_TIME = 4096
NUM_CHECKED = 4  # lists whose outputs are compared
# Far above the error of bf16, far below that of a wrong page.
TOLERANCE = 0.03


def page_tables(problem):
    """indptr, indices and last_page_len as FlashInfer's tutorial has them."""
    if any(problem.tail_lengths):
        raise ValueError("FlashInfer has no tails: expected a problem without, "
                         f"got {sum(problem.tail_lengths)} tokens in tails")
    if min(problem.lengths) < 1:
        raise ValueError("expected lists of at least one token, got "
                         f"{problem.lengths.index(min(problem.lengths))} empty")
    indptr, indices = [0], []
    for pages in problem.region_pages:
        indices.extend(pages)
        indptr.append(len(indices))
    last = [(n - 1) % problem.page_size + 1 for n in problem.lengths]
    return indptr, indices, last


def make_pool(problem, torch, device):
    """[num_pages, 2, page_size, 1, head_dim], as ours."""
    import numpy
    per_page = 2 * problem.page_size * problem.head_dim
    pool = torch.empty((problem.num_pages, 2, problem.page_size, 1,
                        problem.head_dim), dtype=base.dtype_of(problem, torch),
                       device=device)
    for first in range(0, problem.num_pages, PAGES_AT_A_TIME):
        part = pool[first:first + PAGES_AT_A_TIME]
        at = numpy.arange(first * per_page, (first + len(part)) * per_page)
        rows = base.elements(problem.seed, at).reshape(part.shape)
        part.copy_(torch.from_numpy(rows))
    return pool


def check_rows(problem, torch, device, queries, got):
    """Raises RuntimeError unless the outputs of some lists are right."""
    attention = torch.nn.functional.scaled_dot_product_attention
    step = max(1, len(problem.lengths) // NUM_CHECKED)
    for index in range(0, len(problem.lengths), step):
        keys, values = base.load_list(problem, torch, device, index).float()
        expected = attention(queries[index][None].float(), keys[None],
                             values[None])[0]
        error = float((got[index].float() - expected).norm() / expected.norm())
        if not error < TOLERANCE:
            raise RuntimeError(f"list {index}: expected an error below "
                               f"{TOLERANCE} of PyTorch's rows, got {error}")


def make_step(problem, torch, flashinfer, device, tensor_cores):
    """A step, which takes the number of a copy, and how many there are."""
    indptr, indices, last = page_tables(problem)
    dtype = base.dtype_of(problem, torch)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device), "NHD",
        use_tensor_cores=tensor_cores)
    wrapper.plan(torch.tensor(indptr, dtype=torch.int32, device=device),
                 torch.tensor(indices, dtype=torch.int32, device=device),
                 torch.tensor(last, dtype=torch.int32, device=device),
                 problem.group_size, 1, problem.head_dim, problem.page_size,
                 pos_encoding_mode="NONE", q_data_type=dtype,
                 kv_data_type=dtype)
    l2_bytes = getattr(torch.cuda.get_device_properties(device),
                       "L2_cache_size", base.UNKNOWN_L2_BYTES)
    count = base.num_copies(problem.kv_bytes(), l2_bytes)
    pool = make_pool(problem, torch, device)
    pools = [pool] + [pool.clone() for _ in range(count - 1)]
    queries = base.load_queries(problem, torch, device)
    check_rows(problem, torch, device, queries, wrapper.run(queries, pool))
    return lambda copy: wrapper.run(queries, pools[copy]), count


def name_of(mode):
    return f"flashinfer_decode_{mode}"


def run_modes(problem, torch, flashinfer, device, num_samples):
    """results[] and not_run[] of the report."""
    results, not_run = [], []
    for mode in MODES:
        try:
            step, count = make_step(problem, torch, flashinfer, device,
                                    mode == "cores")
            samples = base.time_step(torch, step, count, num_samples)
        # FlashInfer compiles when it plans, which fails in many ways.
        except Exception as error:  # pylint: disable=broad-except
            why = str(error) or type(error).__name__
            not_run.append({"kernel": name_of(mode), "why": why})
            print(f"{name_of(mode)}: not run: {why}", file=sys.stderr)
        else:
            results.append({**base.result_of(problem, mode, samples),
                            "kernel": name_of(mode)})
        step = None
        torch.cuda.empty_cache()
    return results, not_run


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", required=True, metavar="FILE")
    parser.add_argument("--num-samples", type=int, default=31)
    arguments = parser.parse_args()
    if arguments.num_samples < 1:
        parser.error("--num-samples: expected at least 1")
    try:
        problem = base.Problem(arguments.problem)
        page_tables(problem)
    except (OSError, ValueError) as error:
        sys.exit(f"compare_flashinfer.py: {error}")
    try:
        import numpy  # noqa: F401
        import torch
        import flashinfer
    except ImportError as error:
        sys.exit("compare_flashinfer.py: not compared, expected numpy, PyTorch "
                 f"and FlashInfer: {error}")
    if not torch.cuda.is_available():
        sys.exit("compare_flashinfer.py: PyTorch finds no GPU")
    device = torch.device("cuda", torch.cuda.current_device())
    results, not_run = run_modes(problem, torch, flashinfer, device,
                                 arguments.num_samples)
    print(json.dumps({
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": torch.cuda.get_device_name(device),
        "flashinfer": flashinfer.__version__, "pytorch": torch.__version__,
        "seed": problem.seed, "results": results, "not_run": not_run},
        indent=2))
    if not results:
        sys.exit("compare_flashinfer.py: no mode ran")


if __name__ == "__main__":
    main()
