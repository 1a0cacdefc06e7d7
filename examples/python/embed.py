#!/usr/bin/env python3
"""blockmgr in a process: a server's loop around an engine, in one file.

The "model" makes K and V of noise and samples token 7. A real engine computes where
the comments say so; everything else is real: block tables, the pool, evictions whose
blocks come back. Needs the wheel (docs/python.md).
"""
import numpy as np

import blockmgr

LAYOUT = blockmgr.KvLayout(num_layers=4, num_heads=2, num_q_heads=8,
                           head_dim=16, num_blocks=256, dtype="float32")


class Engine:
    """Tables, a pool of rows, and the execution of one plan after the other."""

    def __init__(self, layout):
        self.layout = layout
        self.tables = blockmgr.EngineTables(layout)
        num_slots = (layout.num_layers * layout.num_blocks * layout.num_heads *
                     layout.page_size)
        self.pool = np.zeros((num_slots, 2, layout.head_dim), np.float32)
        self.region_positions = {}  # by slot: of the rows of its region
        self.noise = np.random.default_rng(1)

    def rows(self, mapping):
        """Slots of the pool, [num_layers, num_heads, len(mapping)]."""
        layout = self.layout
        block, offset = np.divmod(mapping, layout.page_size)
        layer = np.arange(layout.num_layers)[:, None, None]
        head = np.arange(layout.num_heads)[None, :, None]
        page = (layer * layout.num_blocks + block) * layout.num_heads + head
        return page * layout.page_size + offset

    def run(self, plan):
        """The answer to a plan."""
        self.tables.apply(plan)
        for _, source, destination, count, _ in plan.copies.tolist():
            tokens = np.arange(count)
            first = self.layout.page_size
            self.pool[self.rows(destination * first + tokens)] = self.pool[
                self.rows(source * first + tokens)]
        # A model computes inputs.tokens at inputs.positions, writes their K and V,
        # and attends to tables.region(slot) and tables.block_tables(slots).
        rows = self.rows(self.tables.slot_mapping())
        self.pool[rows] = self.noise.standard_normal(
            (*rows.shape, 2, self.layout.head_dim), np.float32)
        sampled = np.where(plan.samples, 7, -1).astype(np.int32)
        outcomes = [self.evict(order) for order in plan.evictions]
        self.tables.add_sampled(sampled)
        return blockmgr.StepResult(plan.step, sampled, outcomes)

    def evict(self, order):
        """Scores the entries, selects, and moves the survivors."""
        region, begin, tail = self.tables.covered(order)
        entries = blockmgr.index_entries(
            self.layout, tail, order.cut, region=region, tail_begin=begin,
            region_positions=self.region_positions.get(order.slot))
        # Small keys are kept, as knorm says.
        scores = -np.linalg.norm(self.pool[entries.slots, 0], axis=1)
        keep = blockmgr.select(order.policy, order.target, scores,
                               entries=entries, cut=order.cut,
                               length=order.length,
                               page_size=self.layout.page_size)
        checksum = self.tables.commit(order, keep.counts)
        new_region = self.tables.region(order.slot)
        assert new_region is not None
        placed = blockmgr.place_survivors(self.layout, entries, keep,
                                          new_region)
        begin = 0
        for end in placed.group_ends.tolist():
            moves = placed.moves[begin:end]
            self.pool[moves[:, 1]] = self.pool[moves[:, 0]]
            begin = end
        self.region_positions[order.slot] = placed.positions
        return blockmgr.EvictionOutcome(keep.counts, checksum)


def main():
    scheduler = blockmgr.Scheduler(LAYOUT)
    engine = Engine(LAYOUT)
    eviction = blockmgr.Eviction("knorm | adakv | topk", 0.25)
    for i in range(3):
        scheduler.submit(f"request {i}", np.arange(i, i + 500), max_tokens=32,
                         eviction=eviction)
    while (plan := scheduler.schedule()) is not None:
        effects = scheduler.update(engine.run(plan))
        for effect in effects.evictions:
            print(f"request {effect.request}: {effect.evicted_entries} entries "
                  f"evicted, {effect.freed_blocks} blocks free again")
        for end in effects.finished:
            print(f"request {end.request}: {end.num_output_tokens} tokens, "
                  f"{end.reason}")
    stats = scheduler.stats()
    print(f"{stats.num_evictions} evictions gave {stats.evicted_bytes} bytes "
          f"back")


if __name__ == "__main__":
    main()
