"""A transformers Cache in which every KV head keeps another number of tokens.

    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="blockmgr")
    pool = BlockPool(model.config, num_tokens=8192)
    cache = BlockmgrCache(pool, policy="keydiff | adakv | topk", keep_ratio=0.2)
    model.generate(**inputs, past_key_values=cache)
    print(cache.used_bytes, cache.dense_bytes)

Importing this module makes the attention implementation "blockmgr" known to
transformers. It works on the CPU, and on a GPU with the CUDA kernels. The presses of
kvpress run on a BlockmgrCache without a policy. BlockmgrPress is a press that selects
with the policies of blockmgr, and needs kvpress. docs/huggingface.md has examples and
limits.
"""
import dataclasses
import typing
import weakref

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import (AttentionMaskInterface,
                                        causal_mask_function)

import blockmgr
from blockmgr.errors import FailedPreconditionError, InvalidArgumentError
from blockmgr.hf_backends import KEYS, VALUES, Eviction, Tables
from blockmgr.hf_pool import BlockPool, layout_of


def __getattr__(name):
    if name != "BlockmgrPress":
        raise AttributeError(f"module 'blockmgr.hf' has no attribute '{name}'")
    from blockmgr.hf_press import BlockmgrPress  # imports kvpress
    return BlockmgrPress


@dataclasses.dataclass
class _Sequence:
    tail: typing.List[int] = dataclasses.field(default_factory=list)
    tail_length: int = 0  # tokens
    length: int = 0  # tokens, without padding
    region: typing.Optional[blockmgr.Region] = None
    positions: typing.Optional[np.ndarray] = None  # of the region's entries

    def blocks(self):
        region = [] if self.region is None else self.region.blocks.tolist()
        return region + self.tail

    def entries(self, layout):
        """What the sequence holds."""
        return blockmgr.index_entries(layout, self.tail, self.length,
                                      region=self.region,
                                      region_positions=self.positions)


@dataclasses.dataclass
class _Step:
    """A forward pass."""
    num_tokens: int  # of a row of the batch, with padding
    # int64: the indices of the tokens that are no padding, in the batch row after
    # row. None if there is no padding.
    real: typing.Optional[torch.Tensor]
    tables: Tables
    kernels: typing.Any  # what the backend's begin() has returned


class _Windows:
    """The last queries of each sequence, which the scorer reads.

    A pass of few tokens keeps the tensors that the model has computed, so that a
    decode step copies nothing.
    """

    def __init__(self, count):
        self.count = count  # queries of a sequence
        self.sizes = []  # by sequence, queries
        # Both lists have an element for each pass, the oldest first. _spans has
        # (begin, end) of each sequence in the rows. _rows has the rows by layer,
        # [queries, num_q_heads, head_dim].
        self._spans = []
        self._rows = []
        # The indices of the queries of this pass that are kept. None: all of them.
        self._picked = None

    def begin(self, query_offsets, backend):
        """Begins a pass with queries query_offsets[i]:query_offsets[i + 1]."""
        if self.count == 0:
            return
        ends = query_offsets[1:]
        begins = np.maximum(query_offsets[:-1], ends - self.count)
        sizes = ends - begins
        self._picked = None
        if sizes.sum() < query_offsets[-1]:
            self._picked, = backend.send(np.concatenate(
                [np.arange(*span, dtype=np.int64)
                 for span in zip(begins, ends)]))
        ends = np.cumsum(sizes)
        self._spans.append(list(zip((ends - sizes).tolist(), ends.tolist())))
        self._rows.append({})
        self.sizes = [a + b for a, b in zip(
            self.sizes or [0] * len(sizes), sizes.tolist())]
        while all(size - (end - begin) >= self.count for size, (begin, end)
                  in zip(self.sizes, self._spans[0])):
            self._rows.pop(0)
            self.sizes = [size - (end - begin) for size, (begin, end)
                          in zip(self.sizes, self._spans.pop(0))]

    def add(self, layer, queries):
        """Takes a layer's queries of the pass."""
        if self.count > 0:
            self._rows[-1][layer] = (
                queries if self._picked is None else
                queries.index_select(0, self._picked))

    def last(self, layer, i):
        """The last queries of sequence i, [count, num_q_heads, head_dim]."""
        if self.count == 0:
            return None
        return torch.cat([rows[layer][slice(*spans[i])] for rows, spans in
                          zip(self._rows, self._spans)])[-self.count:]

    def crop(self, num_removed):
        """Forgets so many of the last queries of each sequence."""
        for i, size in enumerate(self.sizes):
            left = num_removed
            for spans in reversed(self._spans):
                begin, end = spans[i]
                spans[i] = begin, max(begin, end - left)
                left -= end - spans[i][1]
            self.sizes[i] = max(0, size - num_removed)


class _Prefix:
    """Keys or values of a layer as kvpress's pipeline cuts them: [:, :, :n]."""

    def __init__(self, length=None):
        self.length = length

    def __getitem__(self, index):
        if (isinstance(index, tuple) and len(index) == 3 and
                index[:2] == (slice(None), slice(None)) and
                isinstance(index[2], slice) and index[2].start is None and
                index[2].step is None and isinstance(index[2].stop, int)):
            return _Prefix(index[2].stop)
        raise self._error(f"[{index}]")

    def __getattr__(self, name):
        raise self._error(f".{name}")

    @staticmethod
    def _error(what):
        return FailedPreconditionError(
            f"keys, values{what}: a press may read the keys and values of a "
            "BlockmgrCache during its first forward pass alone (presses that "
            "compress during decoding are not supported)")


class _State:
    """What a BlockmgrCache knows. Layers and the cache share it."""

    def __init__(self, pool, policy, target, table, every_chunk):
        self.pool = pool
        self.layout = pool.layout
        self.policy = policy
        self.target = target
        self.table = table
        self.every_chunk = every_chunk
        self.sequences = []
        self.reset()

    def reset(self):
        self.free()
        self.num_seen = 0  # tokens of a row, with padding
        self.num_passes = 0  # forward passes that have begun
        self.next_layer = 0
        self.is_pending = False  # between update() and attend()
        self.was_evicted = False
        self.step = None
        self.modules = [None] * self.layout.num_layers
        self.scales = [None] * self.layout.num_layers
        self.region_lists = None  # of load_regions, None after an eviction
        self.windows = _Windows(self.policy.query_window if self.policy else 0)
        self.pressed_keys = {}  # by layer
        self.masks = {}  # by layer: bool [batch, heads, tokens], what stays

    def free(self):
        for sequence in self.sequences:
            self.pool.give(sequence.blocks())
        self.sequences.clear()

    # A forward pass.

    def update(self, layer, keys, values):
        """Checks the K and V of new tokens. attend() writes them."""
        if layer != self.next_layer or self.is_pending:
            raise FailedPreconditionError(
                f"layer {layer}: expected layer {self.next_layer}"
                f"{', and its attention first' if self.is_pending else ''}. Either "
                "the model does not attend with blockmgr (call "
                "model.set_attn_implementation('blockmgr')), or a forward pass "
                "ended early (call reset() of the cache)")
        layout = self.layout
        batch = len(self.sequences) or keys.shape[0]
        for name, rows in (("key", keys), ("value", values)):
            if rows.device != self.pool.kv.device:
                raise InvalidArgumentError(
                    f"{name}_states: expected a tensor on {self.pool.kv.device}, "
                    f"where the pool is, got one on {rows.device}")
            if rows.dtype != self.pool.kv.dtype:
                raise TypeError(
                    f"{name}_states: expected {self.pool.kv.dtype}, the dtype of "
                    f"the pool, got {rows.dtype}")
            if rows.shape != (batch, layout.num_heads, keys.shape[2],
                              layout.head_dim):
                raise InvalidArgumentError(
                    f"{name}_states: expected the shape [{batch}, "
                    f"{layout.num_heads}, tokens, {layout.head_dim}], got "
                    f"{list(rows.shape)}")
        if torch.is_grad_enabled() and keys.requires_grad:
            raise InvalidArgumentError(
                "key_states: a BlockmgrCache has no gradients; run the model "
                "under torch.no_grad()")
        self.is_pending = True

    def attend(self, layer, module, query, key, value, mask, scale):
        """Writes the rows and returns [batch, tokens, query heads, head_dim]."""
        if layer != self.next_layer or not self.is_pending:
            raise FailedPreconditionError(
                f"layer {layer}: attention of keys that were passed before")
        if layer == 0:
            self.commit_masks()
            self.step = self._begin(key, mask)
        step = self.step
        self.modules[layer] = module
        self.scales[layer] = scale
        if hasattr(module, "masked_key_indices"):
            module.masked_key_indices = None  # of another cache
        step.kernels.append(layer, self._real(key), self._real(value))
        queries = self._real(query)
        output = step.kernels.attend(layer, queries, scale)
        self.windows.add(layer, queries)
        self.is_pending = False
        self.next_layer = (layer + 1) % self.layout.num_layers
        if self.next_layer == 0 and step.num_tokens > 1:
            self._evict_all()
        batch, num_q_heads, num_tokens, head_dim = query.shape
        shape = (batch, num_tokens, num_q_heads, head_dim)
        if step.real is None:
            return output.reshape(shape)
        result = query.new_zeros(shape)
        result.flatten(0, 1).index_copy_(0, step.real, output)
        return result

    def _begin(self, key, mask):
        """Gives the sequences blocks for the tokens of a forward pass."""
        batch, _, num_tokens, _ = key.shape
        backend = self.pool.backend
        sequences = self.sequences or [_Sequence() for _ in range(batch)]
        size = self.layout.page_size
        try:
            real = self._real_tokens(batch, num_tokens, mask)
            counts = ([num_tokens] * batch if real is None else
                      real.sum(axis=1).tolist())
            needed = [-(-(sequence.tail_length + count) // size) -
                      len(sequence.tail)
                      for sequence, count in zip(sequences, counts)]
            taken = self.pool.take(sum(needed))
        except blockmgr.Error:
            self.is_pending = False  # nothing has changed: it can be called again
            raise
        self.sequences[:] = sequences
        slots = []
        for sequence, count, more in zip(sequences, counts, needed):
            sequence.tail += taken[:more]
            del taken[:more]
            first = sequence.tail_length // size
            tokens = np.arange(sequence.tail_length,
                               sequence.tail_length + count)
            slots.append(tokens % size + size * np.asarray(
                sequence.tail[first:], np.int64)[tokens // size - first])
            sequence.tail_length += count
            sequence.length += count
        self.num_seen += num_tokens
        self.num_passes += 1
        tables = self._tables(counts, np.concatenate(slots))
        self.windows.begin(tables.query_offsets, backend)
        return _Step(num_tokens=num_tokens, tables=tables,
                     real=None if real is None else
                     backend.send(np.flatnonzero(real))[0],
                     kernels=backend.begin(tables))

    def _tables(self, counts, slots):
        if self.region_lists is None:
            self.region_lists = self.pool.backend.load_regions(
                [sequence.region for sequence in self.sequences])
        blocks = np.zeros((len(counts), max(len(sequence.tail)
                                            for sequence in self.sequences)),
                          np.int32)
        for row, sequence in zip(blocks, self.sequences):
            row[:len(sequence.tail)] = sequence.tail
        return Tables(
            slots=slots, blocks=blocks, regions=self.region_lists,
            query_offsets=np.cumsum([0, *counts], dtype=np.int32),
            lengths=np.array([s.tail_length for s in self.sequences], np.int32))

    def _real_tokens(self, batch, num_tokens, mask):
        """Which tokens of the pass are no padding. None: all of them."""
        if mask is None:
            return None
        expected = (batch, self.num_seen + num_tokens)
        if mask.shape != expected:
            raise InvalidArgumentError(
                f"attention_mask: expected the shape {list(expected)}, a row for "
                f"every sequence over all its tokens, got {list(mask.shape)}")
        real = self.pool.backend.fetch(mask[:, self.num_seen:].to(torch.bool))
        return None if real.all() else real

    def _real(self, rows):
        """[batch, heads, tokens, dim] as [real tokens, heads, dim]."""
        rows = rows.detach().transpose(1, 2).flatten(0, 1)
        if self.step.real is None:
            return rows
        return rows.index_select(0, self.step.real)

    # Evictions by a policy.

    def _evict_all(self):
        if self.policy is None or (self.was_evicted and not self.every_chunk):
            return
        # After a crop, a later pass brings the queries that the scorer reads.
        if not all(self._has_queries(i, sequence)
                   for i, sequence in enumerate(self.sequences)):
            return
        self.was_evicted = True
        for i, sequence in enumerate(self.sequences):
            if sequence.length > 0:
                self._evict(i, sequence)
        if not self.every_chunk:
            self.windows = _Windows(0)  # this was the only eviction

    def _has_queries(self, i, sequence):
        count = min(self.windows.count, sequence.length)
        return count == 0 or self.windows.sizes[i] >= count

    def _evict(self, i, sequence):
        entries = sequence.entries(self.layout)
        self._keep(sequence, entries, self.pool.backend.select(Eviction(
            policy=self.policy, target=self.target, table=self.table,
            entries=entries, length=sequence.length,
            queries=[self.windows.last(layer, i)
                     for layer in range(self.layout.num_layers)],
            scales=self.scales, modules=self.modules)))

    def _keep(self, sequence, entries, keep):
        """Makes a region of what is kept, and gives all other blocks back."""
        if keep.counts.sum() == len(entries):
            return
        layout = self.layout
        held = sequence.blocks()
        num_pages = int((-(-keep.counts // layout.page_size)).sum())
        num_blocks = -(-num_pages // layout.pages_per_block)
        region = blockmgr.lay_out(
            layout, held[:num_blocks], keep.counts, tail_blocks=sequence.tail,
            cut=sequence.length, region=sequence.region)
        placed = blockmgr.place_survivors(layout, entries, keep, region)
        self.pool.backend.move(placed)
        self.region_lists = None
        kept = set(region.blocks.tolist())
        self.pool.give(block for block in held if block not in kept)
        sequence.region = region
        sequence.positions = placed.positions
        sequence.tail = []
        sequence.tail_length = 0

    # Presses of kvpress: they read a layer, and set what they have selected.

    def dense(self, layer, kind):
        """K or V of a layer in the first pass: [batch, heads, tokens, dim]."""
        if self.num_passes == 0:
            return None
        if self.num_passes > 1 or any(s.region for s in self.sequences):
            return _Prefix()
        if self.step.real is not None:
            raise FailedPreconditionError(
                "keys, values: a press needs a batch without padding")
        blocks, = self.pool.backend.send(self.step.tables.blocks)
        rows = self.pool.kv[layer, :, :, kind][blocks.long()]
        # From [batch, blocks, heads, page_size, dim].
        return rows.transpose(1, 2).flatten(2, 3)[:, :, :self.num_seen]

    def press(self, layer, kind, rows):
        """Takes what a press has set as keys and then as values of a layer."""
        if isinstance(rows, _Prefix):
            self.crop(self.num_seen if rows.length is None else rows.length)
        elif self.policy is not None:
            raise FailedPreconditionError(
                "a BlockmgrCache with a policy evicts by itself: make it without "
                "one to use a press")
        elif not isinstance(self.dense(layer, kind), torch.Tensor):
            raise FailedPreconditionError(
                "keys, values: set without a forward pass, or after the first")
        elif not isinstance(rows, torch.Tensor):
            raise TypeError(f"keys, values: expected a tensor, got {type(rows)}")
        elif kind == KEYS:
            self.pressed_keys[layer] = rows
        else:
            self._select(layer, self.pressed_keys.pop(layer, None), rows)

    def _select(self, layer, keys, values):
        if keys is None:
            raise FailedPreconditionError("values: expected keys first")
        full = torch.cat([self.dense(layer, KEYS), self.dense(layer, VALUES)],
                         dim=-1)
        if (keys.shape[:3] != values.shape[:3] or
                keys.shape[:2] != full.shape[:2] or
                keys.shape[3] + values.shape[3] != full.shape[3]):
            raise InvalidArgumentError(
                "keys, values: expected the shape [batch, heads, tokens, "
                f"{self.layout.head_dim}], got {list(keys.shape)} and "
                f"{list(values.shape)}")
        ranks = find_rows(full, torch.cat([keys, values], dim=-1))
        mask = torch.zeros(full.shape[:3], dtype=torch.bool, device=full.device)
        mask.scatter_(2, ranks, True)
        module = self.modules[layer]
        masked = getattr(module, "masked_key_indices", None)
        if masked is not None:
            batch, heads, given = (torch.as_tensor(i, device=mask.device)
                                   for i in masked)
            mask[batch, heads, ranks[batch, heads, given]] = False
            module.masked_key_indices = None
        self.masks[layer] = mask
        if layer == self.layout.num_layers - 1:
            self.commit_masks()

    def commit_masks(self):
        """Evicts what presses have not selected."""
        if not self.masks:
            return
        masks, self.masks = self.masks, {}
        everything = torch.ones_like(next(iter(masks.values())))
        stays = self.pool.backend.fetch(torch.stack(
            [masks.get(layer, everything)
             for layer in range(self.layout.num_layers)], dim=1))
        for sequence, mask in zip(self.sequences, stays):
            self._keep(sequence, sequence.entries(self.layout),
                       blockmgr.KeepSets.of_mask(mask))

    def crop(self, length):
        """Forgets the tokens from `length` on."""
        self.commit_masks()
        num_removed = self.num_seen - length
        if num_removed <= 0:
            return
        lengths = {sequence.length for sequence in self.sequences}
        if lengths != {self.num_seen} or self.next_layer != 0:
            raise FailedPreconditionError(
                "crop: expected a batch without padding, between forward passes")
        if length < 0 or any(sequence.tail_length < num_removed
                             for sequence in self.sequences):
            raise InvalidArgumentError(
                f"crop: expected at least the {self.num_seen} tokens less those "
                f"since the last eviction, got {length}")
        self.num_seen = length
        for sequence in self.sequences:
            sequence.length -= num_removed
            sequence.tail_length -= num_removed
            held = -(-sequence.tail_length // self.layout.page_size)
            self.pool.give(sequence.tail[held:])
            del sequence.tail[held:]
        self.windows.crop(num_removed)


def find_rows(full, rows):
    """Returns the rank in `full` of each row of `rows`: int64 [batch, heads, rows].

    Both are [batch, heads, rows, dim].
    """
    bits = {2: torch.int16, 4: torch.int32}[full.element_size()]
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (full.shape[3], ), dtype=torch.int64,
                            generator=generator, device="cpu") | 1
    if rows.dtype != full.dtype:
        raise TypeError(f"keys, values: expected {full.dtype}, got {rows.dtype}")

    def hashes(values):
        # One column after another, as their products need 64 bits each.
        values = values.contiguous().view(bits)
        total = torch.zeros(values.shape[:3], dtype=torch.int64,
                            device=values.device)
        for column, factor in enumerate(factors.tolist()):
            total += values[..., column].long() * factor
        return total

    in_order, order = hashes(full).sort(dim=-1)
    found = torch.searchsorted(in_order, hashes(rows))
    ranks = order.gather(-1, found.clamp(max=full.shape[2] - 1))
    there = torch.take_along_dim(full, ranks.unsqueeze(-1), dim=2)
    if not torch.equal(there, rows):
        raise InvalidArgumentError(
            "keys, values: a press has changed rows, or added some; a "
            "BlockmgrCache takes presses that select rows")
    in_order = ranks.sort(dim=-1).values
    if (in_order[..., 1:] == in_order[..., :-1]).any():
        raise InvalidArgumentError(
            "keys, values: a press has selected a row twice, or two of equal "
            "content")
    return ranks


class _Layer(CacheLayerMixin):
    """A layer as transformers and kvpress see it."""

    is_sliding = False
    is_initialized = True

    def __init__(self, state, index):  # pylint: disable=super-init-not-called
        self._state = state
        self._index = index

    @property
    def keys(self):
        return self._state.dense(self._index, KEYS)

    @keys.setter
    def keys(self, rows):
        self._state.press(self._index, KEYS, rows)

    @property
    def values(self):
        return self._state.dense(self._index, VALUES)

    @values.setter
    def values(self, rows):
        self._state.press(self._index, VALUES, rows)

    def lazy_initialization(self, key_states, value_states):
        pass

    def update(self, key_states, value_states, *_, **__):
        self._state.update(self._index, key_states, value_states)
        key_states = key_states.view_as(key_states)
        key_states.blockmgr_layer = (self._state, self._index)
        return key_states, value_states

    def get_seq_length(self):
        return self._state.num_seen

    def get_max_cache_shape(self):
        return -1

    def get_mask_sizes(self, cache_position):
        # transformers passes the positions, and later versions their number.
        length = getattr(cache_position, "shape", [cache_position])[0]
        return self._state.num_seen + length, 0

    def crop(self, max_length):
        if max_length < 0:
            max_length += self._state.num_seen
        self._state.crop(max_length)

    def reset(self):
        self._state.reset()

    def _refuse(self, what):
        raise FailedPreconditionError(f"a BlockmgrCache cannot {what}")

    def reorder_cache(self, beam_idx):
        self._refuse("reorder its sequences (beam search)")

    def batch_repeat_interleave(self, repeats):
        self._refuse("repeat its sequences")

    def batch_select_indices(self, indices):
        self._refuse("select of its sequences")

    def offload(self):
        self._refuse("be offloaded")

    def prefetch(self):
        self._refuse("be offloaded")


class BlockmgrCache(Cache):
    """K and V in blocks of a pool: a region with a page list per head, and a tail.

    With a policy, what it does not keep is evicted at the end of the first forward
    pass over more than one token, which is the prompt; with every_chunk, at the end
    of every such pass (generate's prefill_chunk_size). keep_ratio is the share of the
    tokens that a head keeps on average, or a Target. table is a BudgetTable, for
    policies that need one. Without a policy, the presses of kvpress may select.

    The blocks go back to the pool with reset(), or when the cache is dropped.
    """

    def __init__(self, pool, policy=None, keep_ratio=None, *, table=None,
                 every_chunk=False):
        if not isinstance(pool, BlockPool):
            raise TypeError(f"pool: expected a BlockPool, got {type(pool)}")
        if (policy is None) != (keep_ratio is None):
            raise InvalidArgumentError(
                "policy, keep_ratio: expected both or none of them")
        if policy is not None:
            policy = checked_policy(policy)
            pool.backend.check_policy(policy)
            if not isinstance(keep_ratio, blockmgr.Target):
                keep_ratio = blockmgr.Target(ratio=keep_ratio)
            if policy.needs_table != (table is not None):
                raise InvalidArgumentError(
                    f"table: expected {'a' if policy.needs_table else 'no'} "
                    f"BudgetTable for {policy}")
        self._state = _State(pool, policy, keep_ratio, table, every_chunk)
        super().__init__(layers=[_Layer(self._state, i)
                                 for i in range(pool.layout.num_layers)])
        weakref.finalize(self, self._state.free)

    def reset(self):
        """Forgets everything and gives the blocks back."""
        self._state.reset()

    def crop(self, max_length):
        """Forgets the tokens from max_length on, which no eviction has covered."""
        self.layers[0].crop(max_length)

    def __copy__(self):
        raise TypeError("a BlockmgrCache owns blocks and cannot be copied")

    def __deepcopy__(self, memo):
        return self.__copy__()

    def __reduce__(self):
        return self.__copy__()

    @property
    def used_blocks(self):
        """The number of blocks that this cache holds."""
        self._state.commit_masks()
        return sum(len(s.blocks()) for s in self._state.sequences)

    @property
    def used_bytes(self):
        """The bytes of these blocks."""
        return self.used_blocks * self._state.layout.block_bytes

    @property
    def dense_bytes(self):
        """The bytes of blocks for the same tokens if nothing were evicted."""
        layout = self._state.layout
        return layout.block_bytes * sum(-(-s.length // layout.page_size)
                                        for s in self._state.sequences)

    def kept_positions(self, sequence=0):
        """[num_layers][num_heads] arrays: the tokens that each head holds.

        Tokens are counted without padding.
        """
        self._state.commit_masks()
        layout = self._state.layout
        if not 0 <= sequence < len(self._state.sequences):
            raise InvalidArgumentError(
                f"sequence: expected 0 to {len(self._state.sequences) - 1}, got "
                f"{sequence}")
        entries = self._state.sequences[sequence].entries(layout)
        ends = entries.offsets[1:-1]
        heads = np.split(entries.positions, ends)
        return [heads[i:i + layout.num_heads]
                for i in range(0, len(heads), layout.num_heads)]


def checked_policy(policy):
    """The Policy, if its scores can be computed from keys and last queries."""
    if not isinstance(policy, blockmgr.Policy):
        policy = blockmgr.Policy(policy)
    name, fields = policy.scorer
    if name in ("external", "expected_attention") or (
            name == "h2o" and not fields["obs_window"]):
        raise InvalidArgumentError(
            f"policy: {name} reads what an attention function does not see; use a "
            "press of kvpress, or another scorer")
    if policy.selector[1].get("gqa_product"):
        raise InvalidArgumentError(
            "policy: critical(gqa_product=true) is not supported here")
    if policy.budget[0] == "external":
        raise InvalidArgumentError("policy: external budgets are not supported")
    return policy


def attention_forward(module, query, key, value, attention_mask, dropout=0.0,
                      scaling=None, **kwargs):
    """The attention function "blockmgr" of transformers."""
    state, layer = getattr(key, "blockmgr_layer", (None, None))
    if state is None:
        raise FailedPreconditionError(
            "attn_implementation='blockmgr' needs past_key_values=BlockmgrCache(..)")
    for name in ("sliding_window", "softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise InvalidArgumentError(
                f"{name}: attention with it is not supported, got {kwargs[name]}")
    if dropout:
        raise InvalidArgumentError(f"dropout: expected 0, got {dropout}")
    layout = state.layout
    expected = (key.shape[0], layout.num_q_heads, key.shape[2], layout.head_dim)
    if query.shape != expected:
        raise InvalidArgumentError(
            f"query: expected the shape {list(expected)}, got "
            f"{list(query.shape)}")
    return state.attend(layer, module, query, key, value, attention_mask,
                        scaling), None


def _padding_mask(*_, attention_mask=None, mask_function=causal_mask_function,
                  **__):
    """The mask that attention_forward gets: the padding, [batch, tokens]."""
    if mask_function is not causal_mask_function:
        raise InvalidArgumentError(
            "attention_mask: expected a causal model without packed sequences")
    return attention_mask


AttentionInterface.register("blockmgr", attention_forward)
AttentionMaskInterface.register("blockmgr", _padding_mask)
