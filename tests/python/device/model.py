"""A pool with noise in it, and what is attended to, by numpy alone."""
import dataclasses

import numpy as np

import blockmgr
from blockmgr import cuda
from device_tensors import DeviceTensor, bfloat16_bits

STREAM = 0
PAGE = 16
DIM = 64


def layout_of(dtype="float16", **more):
    fields = dict(num_layers=2, num_heads=2, num_q_heads=4, head_dim=DIM,
                  page_size=PAGE, num_blocks=14, dtype=dtype)
    return blockmgr.KvLayout(**{**fields, **more})


def tensor(values, dtype):
    """Float32 values that the dtype can hold, as a tensor of it."""
    if dtype == "bfloat16":
        return DeviceTensor.of(bfloat16_bits(values), bfloat=True)
    return DeviceTensor.of(np.asarray(values, np.float16))


def floats(array, dtype):
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def noise(seed, *shape, dtype="float16"):
    """Float32 values that the dtype can hold."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    if dtype == "bfloat16":
        return floats(bfloat16_bits(values), dtype)
    return values.astype(np.float16).astype(np.float32)


@dataclasses.dataclass
class Model:
    """Kernels over a pool, and the same rows as float32."""
    layout: blockmgr.KvLayout
    rows: np.ndarray  # [num_layers, num_blocks, num_heads, 2, PAGE, DIM]
    pool: DeviceTensor
    kernels: cuda.CudaKernels

    @staticmethod
    def make(dtype="float16", seed=1):
        layout = layout_of(dtype)
        rows = noise(seed, layout.num_layers, layout.num_blocks,
                     layout.num_heads, 2, PAGE, DIM, dtype=dtype)
        pool = tensor(rows, dtype)
        return Model(layout, rows, pool, cuda.CudaKernels(layout, pool))

    def now(self):
        """The rows of the pool as they are now."""
        self.kernels.check(stream=STREAM)
        return floats(self.pool.array, self.layout.dtype)

    def tensor(self, values):
        return tensor(values, self.layout.dtype)

    def of_list(self, pages, count):
        """K and V of the first `count` slots of a page list."""
        flat = self.rows.reshape(-1, 2, PAGE, DIM)
        return flat[pages].transpose(0, 2, 1, 3).reshape(-1, 2, DIM)[:count]


def softmax_attention(query, rows, sink=-np.inf):
    """The sink is one more logit, of a value of zeros."""
    logits = rows[:, 0].astype(np.float64) @ query / np.sqrt(DIM)
    lse = np.logaddexp.reduce([*logits, sink])
    return np.exp(logits - lse) @ rows[:, 1], lse


def ints(values, dtype=np.int32):
    return DeviceTensor.of(np.asarray(values, dtype))


def zeros(shape, dtype=np.float32):
    return DeviceTensor.of(np.zeros(shape, dtype))


def close(got, expected, dtype):
    """Within the error that docs/kernels.md promises, in the 2-norm."""
    error = np.linalg.norm(np.asarray(got, np.float64) - expected)
    limit = 5e-4 if dtype == "float16" else 4e-3
    return error <= limit * np.linalg.norm(expected)


def entries_of(model, limit=70):
    """Entries of a sequence of 5 blocks: all layers and heads."""
    return blockmgr.index_entries(model.layout, [3, 8, 5, 10, 2], limit)


class Listed:
    """Entries on the device."""

    def __init__(self, model, entries, lengths):
        self.plan = model.kernels.plan_entries(entries.offsets, lengths)
        self.lists = model.kernels.entries(
            self.plan, ints(self.plan.words), ints(entries.slots, np.int64),
            ints(entries.positions))


class Batch:
    """Three sequences, the second with a region that is shorter in some heads."""

    def __init__(self, model):
        self.tails = ([7, 2, 5], [11], [12, 13, 6])
        self.lengths = [35, 4, 41]
        self.kept = np.array([[1, 40], [17, 9]], np.int32)
        self.region = blockmgr.lay_out(model.layout, [4, 9, 1], self.kept, cut=48)
        self.table = np.array([row + [0] * (5 - len(row)) for row in self.tails],
                              np.int32)
        lengths = np.zeros((2, 3, 2), np.int32)
        lengths[:, 1] = self.kept
        offsets = np.zeros((2, 3, 2), np.int64)
        offsets[:, 1] = self.region.page_offsets[:-1].reshape(2, 2)
        self.regions = dict(region_lengths=ints(lengths),
                            region_offsets=ints(offsets, np.int64),
                            region_pages=ints(self.region.pages))
        self.tail_lengths = ints(self.lengths)
        # The rows of a table may be part of a wider one.
        self.lists = model.kernels.lists(ints(self.table)[:, :3],
                                         self.tail_lengths, **self.regions)

    def rows(self, model, layer, sequence, head, seen):
        """What a query attends to that sees so many tokens of the tail."""
        pages = [model.layout.page_id(layer, block, head)
                 for block in self.tails[sequence]]
        rows = model.of_list(pages, seen)
        if sequence != 1:
            return rows
        index = layer * 2 + head
        own = self.region.pages[self.region.page_offsets[index]:
                                self.region.page_offsets[index + 1]]
        return np.concatenate([model.of_list(own, self.kept[layer, head]), rows])

    def num_slots(self):
        return 2 * sum(self.lengths) + 2 * 48
