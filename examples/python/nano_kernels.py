"""Attention of nano_engine.py on a GPU, with the CUDA kernels of blockmgr.

The kernels read the pool where it is: a block table and a length for every tail, and a
page list for every head of every region. Nothing is gathered, and nothing is padded.
The pool has the elements that the kernels read; the model around is in float32.
"""
import torch

import blockmgr
from blockmgr import cuda


def use_gpu():
    """Has PyTorch make tensors on the GPU: weights, pool and tables.

    Returns KernelAttention, and the dtype of a pool for it.
    """
    reason = cuda.why_unavailable()
    if reason is not None:
        raise blockmgr.UnavailableError(reason)
    if not torch.cuda.is_available():
        raise blockmgr.UnavailableError(
            "torch: expected a build with CUDA, got one without")
    torch.set_default_device("cuda")
    return KernelAttention, "bfloat16"


class KernelAttention:
    """The launchers for one pool: a tensor on the GPU of KvLayout's shape "pages"."""

    def __init__(self, layout, pool):
        self.kernels = self.launchers(layout, pool)
        self.dtype = pool.dtype

    # Tests replace these two.

    @staticmethod
    def launchers(layout, pool):
        return cuda.CudaKernels(layout, pool)

    @staticmethod
    def stream():
        return torch.cuda.current_stream()

    def check(self):
        """Raises what kernels have refused. Waits for the GPU."""
        self.kernels.check(stream=self.stream())

    def of(self, tables, plan, inputs):
        """Returns attend(layer, queries, keys, values) for the tokens of a step."""
        kernels = self.kernels
        # 1. What a step needs goes to the GPU once, for all layers.
        slots = torch.tensor(tables.slot_mapping())
        blocks = torch.tensor(tables.block_tables(plan.slots))
        regions = tables.region_lists(plan.slots)
        # The tail begins where the region ends.
        lengths = torch.tensor(inputs.lengths - regions.cuts)
        lists = kernels.lists(
            blocks, lengths, region_lengths=torch.tensor(regions.lengths),
            region_offsets=torch.tensor(regions.offsets),
            region_pages=torch.tensor(regions.pages))
        # 2. One kernel is for sequences that decode, the other for chunks of prompts.
        decodes = len(inputs.tokens) == len(plan)
        if decodes:
            workspace = torch.empty(
                kernels.decode_workspace_bytes(len(plan), 0, balanced=True),
                dtype=torch.uint8)
        else:
            chunks = kernels.plan_prefill(inputs.offsets)
            words = torch.tensor(chunks.words)

        def attend(layer, queries, keys, values):
            stream = self.stream()
            queries, keys, values = (
                rows.to(self.dtype).contiguous() for rows in (queries, keys, values))
            kernels.append(layer, slots, keys, values, stream=stream)
            output = torch.empty_like(queries)
            if decodes:
                kernels.decode(layer, lists, queries, output, workspace,
                               balanced=True, stream=stream)
            else:
                kernels.prefill(layer, lists, chunks, words, queries, output,
                                stream=stream)
            return output.to(torch.float32)

        return attend
