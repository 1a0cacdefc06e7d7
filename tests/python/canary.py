"""An engine whose "KV" tells where it comes from, and a model of its answers.

A row of K and V is one number: a hash of all tokens up to its position, of the layer
and of the head. Before every step the engine looks at each row that the step attends
to. So a block that two sequences share by mistake, a page of another head, or a row
that an eviction moved to the wrong place is found at once, with no code of blockmgr.
"""
import numpy as np

import blockmgr

_MASK = (1 << 62) - 1


def prefix_hashes(tokens):
    """One number for each prefix."""
    hashes, last = [], 17
    for token in tokens:
        last = (last * 1000003 + token * 7919 + 12345) & _MASK
        hashes.append(last)
    return hashes


def row(prefix, layer, head):
    return (prefix * 31 + layer * 1009 + head * 97 + 1) & _MASK


def next_token(prefix):
    return (prefix >> 7) % 50


def answer(prompt, num_tokens):
    """What a request is answered, whatever runs beside it."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(prefix_hashes(tokens)[-1]))
    return tokens[len(prompt):]


class Engine:
    """Runs plans, and checks every row that it reads."""

    def __init__(self, layout):
        self.layout = layout
        self.tables = blockmgr.EngineTables(layout)
        num_pages = layout.num_layers * layout.num_blocks * layout.num_heads
        self.pool = np.zeros(num_pages * layout.page_size, np.int64)
        self.region_positions = {}  # by slot: of the rows of its region
        self.num_evictions = 0

    def run(self, plan):
        """The answer to a plan."""
        before = dict(self.region_positions)
        self.tables.apply(plan)
        for slot in plan.released:
            self.region_positions.pop(int(slot), None)
        for start in plan.starts:
            assert start.region is None and start.swap is None
            self.region_positions.pop(start.slot, None)
            if start.source is not None and start.source in before:
                self.region_positions[start.slot] = before[start.source]
        for _, source, destination, num_tokens, _ in plan.copies.tolist():
            for layer, head in self._heads():
                to = self._slots(destination, layer, head)[:num_tokens]
                self.pool[to] = self.pool[
                    self._slots(source, layer, head)[:num_tokens]]
        sampled = np.full(len(plan.slots), -1, np.int32)
        inputs = self.tables.inputs()
        mapping = self.tables.slot_mapping()
        for i, slot in enumerate(plan.slots.tolist()):
            tokens = self.tables.tokens(slot)
            hashes = prefix_hashes(tokens.tolist())
            begin, end = inputs.offsets[i], inputs.offsets[i + 1]
            assert inputs.positions[begin] == plan.positions[i]
            assert np.array_equal(
                inputs.tokens[begin:end],
                tokens[plan.positions[i]:plan.positions[i] + end - begin])
            for position, place in zip(inputs.positions[begin:end],
                                       mapping[begin:end]):
                block, offset = divmod(int(place), self.layout.page_size)
                for layer, head in self._heads():
                    self.pool[self._slots(block, layer, head)[offset]] = row(
                        hashes[position], layer, head)
            self._check(slot, hashes, int(inputs.lengths[i]))
            if plan.samples[i]:
                sampled[i] = next_token(hashes[inputs.lengths[i] - 1])
        outcomes = [self._evict(order) for order in plan.evictions]
        self.tables.add_sampled(sampled)
        return blockmgr.StepResult(plan.step, sampled, outcomes)

    def _heads(self):
        return [(layer, head) for layer in range(self.layout.num_layers)
                for head in range(self.layout.num_heads)]

    def _slots(self, block, layer, head):
        """The slots of a page, by the formula that the documentation gives."""
        layout = self.layout
        page = (layer * layout.num_blocks + block) * layout.num_heads + head
        return page * layout.page_size + np.arange(layout.page_size)

    def _check(self, slot, hashes, length):
        """Looks at everything that the sequence attends to."""
        layout = self.layout
        region = self.tables.region(slot)
        cut = 0 if region is None else region.cut
        tail = self.tables.tail_blocks(slot).tolist()
        for layer, head in self._heads():
            for position in range(cut, length):
                block = tail[(position - cut) // layout.page_size]
                place = self._slots(block, layer, head)[position %
                                                        layout.page_size]
                assert self.pool[place] == row(hashes[position], layer, head)
        if region is None:
            return
        positions = iter(self.region_positions[slot].tolist())
        for index, (layer, head) in enumerate(self._heads()):
            first = region.page_offsets[index]
            for i in range(region.kept[layer, head]):
                page = region.pages[first + i // layout.page_size]
                place = page * layout.page_size + i % layout.page_size
                assert self.pool[place] == row(hashes[next(positions)], layer,
                                               head)

    def _evict(self, order):
        region, begin, tail = self.tables.covered(order)
        entries = blockmgr.index_entries(
            self.layout, tail, order.cut, region=region, tail_begin=begin,
            region_positions=self.region_positions.get(order.slot))
        held = self.tables.held_below(order)
        assert np.array_equal(np.diff(entries.offsets), held.reshape(-1))
        # Any scores will do: the rows themselves.
        scores = (self.pool[entries.slots] % 1000003).astype(np.float32)
        keep = blockmgr.select(order.policy, order.target, scores,
                               entries=entries, cut=order.cut,
                               length=order.length,
                               page_size=self.layout.page_size)
        checksum = self.tables.commit(order, keep.counts)
        region = self.tables.region(order.slot)
        assert checksum == region.checksum
        placed = blockmgr.place_survivors(self.layout, entries, keep, region)
        begin = 0
        for end in placed.group_ends.tolist():
            moves = placed.moves[begin:end]
            self.pool[moves[:, 1]] = self.pool[moves[:, 0]]
            begin = end
        self.region_positions[order.slot] = placed.positions
        self.num_evictions += 1
        return blockmgr.EvictionOutcome(keep.counts, checksum)
