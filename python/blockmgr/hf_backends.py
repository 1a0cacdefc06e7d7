"""What blockmgr.hf computes with: the CPU kernels, or the CUDA kernels on a GPU.

Both backends have the same methods. A backend works on one pool, a tensor
[num_layers, num_blocks, num_heads, 2 (K, V), page_size, head_dim], which the caller
owns. CUDA kernels run on PyTorch's current stream of the pool's device.
"""
import dataclasses
import typing

import numpy as np
import torch

import blockmgr
from blockmgr import cuda
from blockmgr.errors import (FailedPreconditionError, InvalidArgumentError,
                             UnavailableError)

KEYS, VALUES = 0, 1
#: Scorers that read neither keys nor queries.
_UNSCORED = ("streaming", "random")
# The workspace of moves whose sources and destinations overlap.
_STAGED_BYTES = 64 << 20
# Larger arrays are sent without page-locked memory, which PyTorch would keep.
_PINNED_BYTES = 4 << 20


@dataclasses.dataclass
class Tables:
    """Where the new tokens of a pass belong, and what they attend to."""
    slots: np.ndarray  # int64 [tokens], block * page_size + offset
    query_offsets: np.ndarray  # int32 [sequences + 1]
    blocks: np.ndarray  # int32 [sequences, width], of the tails
    lengths: np.ndarray  # int32 [sequences], of the tails, with the new tokens
    regions: typing.Any  # what load_regions has returned


@dataclasses.dataclass
class Eviction:
    """The entries of one sequence, and how to select the ones that it keeps."""
    policy: blockmgr.Policy
    target: blockmgr.Target
    table: typing.Optional[blockmgr.BudgetTable]
    entries: blockmgr.Entries
    length: int  # tokens
    # The next three have an element for each layer. The queries are the last ones,
    # [count, num_q_heads, head_dim], or None if the scorer reads none.
    queries: typing.List[typing.Optional[torch.Tensor]]
    scales: typing.List[typing.Optional[float]]  # None: 1 / sqrt(head_dim)
    modules: typing.List[torch.nn.Module]  # of attention

    @property
    def is_scored(self):
        return self.policy.scorer[0] not in _UNSCORED

    @property
    def needs_norms(self):
        return self.policy.selector[0] == "critical"

    def select(self, scores, norms, page_size):
        """Selects on the host. Returns the KeepSets."""
        return blockmgr.select(
            self.policy, self.target, scores, entries=self.entries,
            cut=self.length, length=self.length, page_size=page_size,
            value_norms=norms, table=self.table)


class CpuBackend:
    """The CPU kernels."""

    def __init__(self, layout, kv, num_threads=None):
        self._layout = layout
        self._kv = kv
        self._kernels = blockmgr.CpuKernels(
            layout, kv, num_threads or torch.get_num_threads())

    @staticmethod
    def require():
        """Raises UnavailableError if the backend cannot work on this machine."""

    def check_policy(self, policy):
        """Raises InvalidArgumentError if there is no kernel for the scores."""

    def send(self, *arrays):
        """Returns arrays as tensors on the device, without waiting for it."""
        return [torch.from_numpy(array) for array in arrays]

    def fetch(self, tensor):
        """Returns a tensor as an array. On a GPU this waits."""
        return tensor.numpy()

    def load_regions(self, regions):
        """Prepares the Region, or None, of every sequence for Tables.regions."""
        return regions

    def begin(self, tables):
        """Returns a pass with the methods append and attend."""
        return _CpuPass(self._kernels, self._kv, tables)

    def select(self, eviction):
        """Returns the KeepSets of an Eviction."""
        scores = norms = None
        layers = range(self._layout.num_layers)
        if eviction.is_scored:
            scores = np.concatenate([
                self._kernels.score(
                    eviction.policy, layer, eviction.entries, eviction.length,
                    queries=_as_float(eviction.queries[layer]),
                    scale=eviction.scales[layer])
                for layer in layers])
        if eviction.needs_norms:
            norms = np.concatenate([
                self._kernels.value_norms(
                    eviction.policy, layer, eviction.entries,
                    projection_of(eviction.modules[layer], self._layout,
                                  torch.float32))
                for layer in layers])
        return eviction.select(scores, norms, self._layout.page_size)

    def move(self, placed):
        """Carries out the moves of a Placement."""
        size = self._layout.page_size
        pages = self._kv.view(-1, 2, size, self._layout.head_dim)
        begin = 0
        for end in placed.group_ends.tolist():
            slots = torch.from_numpy(placed.moves[begin:end].copy())
            page, offset = slots // size, slots % size
            pages[page[:, 1], :, offset[:, 1]] = pages[page[:, 0], :,
                                                       offset[:, 0]]
            begin = end


class _CpuPass:

    def __init__(self, kernels, kv, tables):
        self._kernels = kernels
        self._kv = kv
        self._tables = tables
        slots = torch.from_numpy(tables.slots)
        self._blocks = slots // kv.shape[4]
        self._offsets = slots % kv.shape[4]

    def append(self, layer, keys, values):
        """Writes the rows [tokens, num_heads, head_dim] of the new tokens."""
        rows = self._kv[layer]
        rows[self._blocks, :, KEYS, self._offsets] = keys
        rows[self._blocks, :, VALUES, self._offsets] = values

    def attend(self, layer, queries, scale):
        """Returns [tokens, num_q_heads, head_dim], as queries are."""
        tables = self._tables
        return torch.from_numpy(self._kernels.attend(
            layer, _as_float(queries), tables.query_offsets, tables.blocks,
            tables.lengths, tables.regions, scale=scale)).to(queries.dtype)


class _Kernels:
    """CudaKernels whose calls make the pool's device PyTorch's current one.

    PyTorch hands out tensors of the current device alone.
    """

    def __init__(self, layout, kv):
        self._device = kv.device
        with torch.cuda.device(self._device):
            self._kernels = cuda.CudaKernels(layout, kv)

    def __getattr__(self, name):
        method = getattr(self._kernels, name)

        def call(*arguments, **fields):
            with torch.cuda.device(self._device):
                return method(*arguments, **fields)

        return call


class CudaBackend:
    """The CUDA kernels.

    The GPU computes scores and norms, and selects. Policies with a table of budgets or
    with random scores have no kernel for the selection: the host selects for them.
    """

    def __init__(self, layout, kv, num_threads=None):
        del num_threads  # only the CPU kernels have threads
        self._layout = layout
        self._kv = kv
        self.kernels = self._make_kernels()

    @staticmethod
    def require():
        reason = cuda.why_unavailable()
        if reason is not None:
            raise UnavailableError(reason)

    # Tests replace the next three.

    def _make_kernels(self):
        return _Kernels(self._layout, self._kv)

    @property
    def stream(self):
        return torch.cuda.current_stream(self._kv.device)

    def _upload(self, memory):
        """Copies uint8 [n] to the device. The copy may be made later, on the stream."""
        if len(memory) > _PINNED_BYTES:
            return memory.to(self._kv.device)
        return memory.pin_memory().to(self._kv.device, non_blocking=True)

    def check_policy(self, policy):
        if policy.scorer[0] in _UNSCORED:
            return
        plan = self.kernels.plan_entries([0] * (self._layout.num_heads + 1),
                                         [max(1, policy.query_window)])
        self.kernels.score_workspace_bytes(policy, plan)

    def send(self, *arrays):
        alignment = 16
        begins, size = [], 0
        for array in arrays:
            begins.append(size)
            size += -(-array.nbytes // alignment) * alignment
        packed = np.empty(size, np.uint8)
        for begin, array in zip(begins, arrays):
            packed[begin:begin + array.nbytes] = np.ascontiguousarray(
                array).reshape(-1).view(np.uint8)
        sent = self._upload(torch.from_numpy(packed))
        return [sent[begin:begin + array.nbytes].view(
            getattr(torch, array.dtype.name)).reshape(array.shape)
            for begin, array in zip(begins, arrays)]

    def fetch(self, tensor):
        return tensor.cpu().numpy()

    def empty(self, shape, dtype):
        return torch.empty(shape, dtype=dtype, device=self._kv.device)

    def load_regions(self, regions):
        if not any(regions):
            return {}
        layout = self._layout
        lengths = np.zeros((layout.num_layers, len(regions), layout.num_heads),
                           np.int32)
        offsets = np.zeros(lengths.shape, np.int64)
        pages, num_pages = [], 0
        for i, region in enumerate(regions):
            if region is None:
                continue
            lengths[:, i] = region.kept
            offsets[:, i] = num_pages + region.page_offsets[:-1].reshape(
                region.kept.shape)
            pages.append(region.pages)
            num_pages += len(region.pages)
        sent = self.send(lengths, offsets, np.concatenate(pages))
        return dict(zip(("region_lengths", "region_offsets", "region_pages"),
                        sent))

    def begin(self, tables):
        return _CudaPass(self, tables)

    def select(self, eviction):
        layout = self._layout
        slots, positions = self.send(eviction.entries.slots,
                                     eviction.entries.positions)
        scores, norms = self._compute(eviction, slots, positions)
        if eviction.table is not None or eviction.policy.scorer[0] == "random":
            keep = eviction.select(
                None if scores is None else self.fetch(scores),
                None if norms is None else self.fetch(norms), layout.page_size)
        else:
            listed = self._list(eviction.entries.offsets,
                                [eviction.length] * layout.num_layers, slots,
                                positions)
            keep = self._select(eviction, listed, scores, norms)
        self.kernels.check(stream=self.stream)
        return keep

    def _compute(self, eviction, slots, positions):
        """The scores and the norms of all entries, None for what is not read."""
        layout, offsets = self._layout, eviction.entries.offsets
        scores = norms = None
        if eviction.is_scored:
            scores = self.empty((len(eviction.entries), ), torch.float32)
        if eviction.needs_norms:
            norms = self.empty((len(eviction.entries), ), torch.float32)
        if scores is None and norms is None:
            return None, None
        # A workspace grows with the entries of a call, so each layer has its own.
        for layer in range(layout.num_layers):
            own = offsets[layer * layout.num_heads:
                          (layer + 1) * layout.num_heads + 1]
            part = slice(int(own[0]), int(own[-1]))
            listed = self._list(own - own[0], [eviction.length], slots[part],
                                positions[part])
            if scores is not None:
                self._score(eviction, layer, listed, scores[part])
            if norms is not None:
                self.kernels.value_norms(
                    eviction.policy, listed,
                    projection_of(eviction.modules[layer], layout,
                                  self._kv.dtype), norms[part],
                    stream=self.stream)
        return scores, norms

    def _list(self, offsets, lengths, slots, positions):
        """EntryLists of the entries of some layers."""
        plan = self.kernels.plan_entries(offsets, lengths)
        words, = self.send(plan.words)
        return self.kernels.entries(plan, words, slots, positions)

    def _score(self, eviction, layer, listed, scores):
        policy = eviction.policy
        if eviction.length < policy.query_window:
            # All tokens are in the observation window, which is never evicted.
            scores.fill_(torch.inf)
            return
        queries = eviction.queries[layer]
        if queries is not None:
            queries = queries.to(self._kv.dtype).contiguous().unsqueeze(0)
        more = {}
        if policy.scorer[1].get("norm") == "count":  # h2o
            more["num_queries"], = self.send(
                np.array([policy.query_window], np.int32))
        workspace = self.empty(
            (self.kernels.score_workspace_bytes(policy, listed.plan), ),
            torch.uint8)
        self.kernels.score(policy, listed, scores, workspace, queries=queries,
                           scale=eviction.scales[layer], stream=self.stream,
                           **more)

    def _select(self, eviction, listed, scores, norms):
        layout, kernels = self._layout, self.kernels
        plan = kernels.plan_selection(listed.plan, eviction.policy,
                                      eviction.target, eviction.length)
        words, = self.send(plan.words)
        shape = (layout.num_layers, layout.num_heads)
        survivors = self.empty((plan.num_survivor_words, ),
                               torch.int32).zero_()
        kernels.select(plan, words, listed, scores,
                       self.empty((plan.workspace_bytes, ), torch.uint8),
                       self.empty(shape, torch.int32), survivors,
                       self.empty((1, ), torch.int64), value_norms=norms,
                       stream=self.stream)
        return _survivor_sets(shape, eviction.entries.offsets,
                              self.fetch(survivors))

    def move(self, placed):
        moves, = self.send(placed.moves)
        if not placed.in_place:
            self.kernels.move(moves, stream=self.stream)
            return
        # One launch moves as many whole groups as the workspace has room for.
        row = (2, self._layout.head_dim)
        limit = _STAGED_BYTES // (2 * self._layout.head_dim *
                                  self._kv.element_size())
        begin = end = 0
        for group_end in [*placed.group_ends.tolist(), None]:
            if end > begin and (group_end is None or group_end - begin > limit):
                staged = self.empty((end - begin, *row), self._kv.dtype)
                self.kernels.move(moves[begin:end], staged, stream=self.stream)
                begin = end
            end = group_end


class _CudaPass:

    def __init__(self, backend, tables):
        self._backend = backend
        kernels = backend.kernels
        counts = np.diff(tables.query_offsets)
        self._decodes = bool((counts == 1).all())
        self._has_regions = bool(tables.regions)
        self._plan = kernels.plan_prefill(tables.query_offsets)
        # One copy to the device, whatever the number of layers.
        self._slots, blocks, lengths, self._words = backend.send(
            tables.slots, tables.blocks, tables.lengths, self._plan.words)
        self._lists = kernels.lists(blocks, lengths, **tables.regions)
        if self._decodes:
            self._workspace = backend.empty(
                (kernels.decode_workspace_bytes(len(counts), 0, balanced=True), ),
                torch.uint8)

    def append(self, layer, keys, values):
        self._backend.kernels.append(
            layer, self._slots, keys.contiguous(), values.contiguous(),
            stream=self._backend.stream)

    def attend(self, layer, queries, scale):
        backend = self._backend
        queries = queries.contiguous()
        output = torch.empty_like(queries)
        if self._decodes:
            # Without regions the lists of all layers are equally long.
            backend.kernels.decode(
                layer, self._lists, queries, output, self._workspace,
                scale=scale, balanced=True,
                planned=layer > 0 and not self._has_regions,
                stream=backend.stream)
        else:
            backend.kernels.prefill(layer, self._lists, self._plan, self._words,
                                    queries, output, scale=scale,
                                    stream=backend.stream)
        return output


BACKENDS = {"cpu": CpuBackend, "cuda": CudaBackend}


def backend_of(device):
    """Returns the backend's class for tensors on a torch.device."""
    if device.type not in BACKENDS:
        raise InvalidArgumentError(
            f"device: expected one of {', '.join(BACKENDS)}, got {device}")
    backend = BACKENDS[device.type]
    backend.require()
    return backend


def projection_of(module, layout, dtype):
    """W_O of an attention module: [num_q_heads, head_dim, model_dim] of dtype."""
    weight = getattr(getattr(module, "o_proj", None), "weight", None)
    if weight is None or weight.shape[1] != layout.num_q_heads * layout.head_dim:
        raise FailedPreconditionError(
            f"critical reads the weight of o_proj, [model_dim, query heads * "
            f"head_dim], which {type(module).__name__} does not have")
    return weight.detach().to(dtype).t().reshape(
        layout.num_q_heads, layout.head_dim, -1).contiguous()


def _as_float(queries):
    """What the CPU kernels read."""
    return None if queries is None else queries.to(torch.float32).contiguous()


def _survivor_sets(shape, offsets, survivors):
    """Returns the KeepSets of the bits that CudaKernels.select has set.

    Entry i of list l has bit i % 32 of word offsets[l] // 32 + l + i // 32.
    """
    marks = np.flatnonzero(np.unpackbits(survivors.view(np.uint8),
                                         bitorder="little"))
    begins = 32 * (offsets[:-1] // 32 + np.arange(len(offsets) - 1))
    lists = np.searchsorted(begins, marks, side="right") - 1
    ends = np.searchsorted(marks, begins[1:])
    return blockmgr.KeepSets(
        shape, np.concatenate([[0], ends, [len(marks)]]).astype(np.int64),
        (marks - begins[lists]).astype(np.int32))
