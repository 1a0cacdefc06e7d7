"""Whatever is passed, the worst is an exception."""
import random

import numpy as np
import pytest

import blockmgr
from blockmgr import policies

FINE = (blockmgr.Error, TypeError, ValueError, LookupError, OverflowError,
        MemoryError)


def layout():
    return blockmgr.KvLayout(num_layers=2, num_heads=2, num_blocks=40,
                             head_dim=8, page_size=4)


def values(rng):
    """Arguments, of which few fit where they are used."""
    big = rng.choice([-(2**63), 2**31, 2**40, -1, 2**31 - 1])
    arrays = [np.zeros(shape, dtype) for shape in
              ((0, ), (4, ), (2, 2), (2, 2, 12), (0, 0, 0), (5, ))
              for dtype in (np.int32, np.int64, np.float32, np.uint8, bool)]
    own = layout()
    entries = blockmgr.index_entries(own, [1, 2, 3], 12)
    keep = blockmgr.select("knorm", 0.5, np.zeros((2, 2, 12), np.float32),
                           page_size=4)
    return arrays + [
        big, 0, 1, 2, 3, 12, 16, 0.5, -0.5, float("nan"), float("inf"), None,
        "", "a", "knorm", "external | external", "snapkv | adakv", b"\0", [],
        [1, 2], [-1], [2**40], (2, 2), ["x"], {}, object(), np.arange(5) * 4,
        np.full((2, 2), 4, np.int32), np.full((2, 2), -4, np.int32),
        np.full((2, 2), 2**31 - 1, np.int32), own, entries, keep,
        blockmgr.lay_out(own, [5, 6], keep.counts, cut=12), True,
        blockmgr.Target(0.5), blockmgr.Policy("knorm"),
        blockmgr.Eviction("keydiff", 0.5), blockmgr.SamplingParams(seed=3),
        [blockmgr.MediaItem(0, 1, b"h")], [blockmgr.RetentionWish(0, 9)],
        [blockmgr.EvictionOutcome(np.zeros((2, 2), np.int32), 7)],
        blockmgr.EvictionOutcome(error="e"), policies.tova(),
        blockmgr.TokenLogProbs(np.zeros((1, 3), np.int32),
                               np.zeros((1, 3), np.float32)),
        [blockmgr.RunLogProbs(-1)], blockmgr.StepResult(1, np.zeros(
            1, np.int32)), blockmgr.SchedulerOptions(max_num_seqs=2)]


def good_calls():
    """Calls that are fine as they are: function, arguments, keywords."""
    own = layout()
    tail = [1, 2, 3]
    entries = blockmgr.index_entries(own, tail, 12)
    scores = np.zeros(48, np.float32)
    dense = scores.reshape(2, 2, 12)
    keep = blockmgr.select("knorm", 0.5, dense, page_size=4)
    region = blockmgr.lay_out(own, [5, 6], keep.counts, cut=12,
                              tail_blocks=tail)
    placed = blockmgr.place_survivors(own, entries, keep, region)
    budgets = np.full((2, 2), 4, np.int32)
    offsets = np.arange(5) * 12
    rows = np.zeros((1, 3), np.int32)
    floats = blockmgr.KvLayout(num_layers=2, num_heads=2, num_blocks=40,
                               head_dim=8, page_size=4, dtype="float32")
    pool = np.ones((2, 40, 2, 2, 4, 8), np.float32)
    kernels = blockmgr.CpuKernels(floats, pool)
    own_region = blockmgr.lay_out(floats, [5, 6], keep.counts, cut=12)
    return [
        (blockmgr.CpuKernels, (floats, pool), dict(num_threads=2)),
        (kernels.attend, (1, np.ones((2, 2, 8), np.float32), np.array([0, 1, 2], np.int32),
                          np.array([[1, 2], [3, 0]], np.int32),
                          np.array([5, 1], np.int32)),
         dict(regions=[own_region, None], scale=0.3,
              sinks=np.ones(2, np.float32))),
        (kernels.score, ("tova", 1, entries, 12),
         dict(queries=np.ones((1, 2, 8), np.float32), scale=None)),
        (kernels.score, ("keydiff", 0, entries, 12), {}),
        (kernels.value_norms, ("knorm | critical", 1, entries,
                               np.ones((2, 8, 3), np.float32)), {}),
        (blockmgr.select, ("knorm | adakv", 0.5, dense), dict(page_size=4)),
        (blockmgr.select, ("snapkv | global | critical", 4, scores),
         dict(entries=entries, cut=12, length=13, value_norms=scores)),
        (blockmgr.select, ("external | external", None, dense),
         dict(budgets=budgets, table=None)),
        (blockmgr.lay_out, (own, [5, 6], keep.counts),
         dict(tail_blocks=tail, cut=12, region=None)),
        (blockmgr.lay_out, (own, [5, 7, 8], budgets),
         dict(tail_blocks=tail, cut=24, region=region)),
        (blockmgr.index_entries, (own, [7, 8], 20),
         dict(region=region, region_positions=placed.positions, first=1)),
        (blockmgr.place_survivors, (own, entries, keep, region), {}),
        (blockmgr.Entries, ((2, 2), offsets, entries.positions),
         dict(slots=entries.slots)),
        (blockmgr.KeepSets, ((2, 2), keep.offsets, keep.ranks), {}),
        (blockmgr.KeepSets.of_mask, (dense > 0, ), {}),
        (blockmgr.StepResult, (1, np.zeros(1, np.int32)),
         dict(num_accepted=None, accepted=None, num_drafts=None, token_data=[],
              logprobs=[], lost_blocks=[3], lost_host_blocks=())),
        (blockmgr.EvictionOutcome, (budgets, 7), dict(error=None)),
        (blockmgr.TokenLogProbs, (rows, rows.astype(np.float32)), {}),
        (blockmgr.RunLogProbs, (0, None, None), {}),
        (blockmgr.Eviction, ("knorm", 0.5, "decode"),
         dict(compress_every=16, table=None, share_prefix=False)),
        (blockmgr.Target, (), dict(ratio=0.5, window_keep_ratio=0.5)),
        (blockmgr.SamplingParams, (),
         dict(temperature=0.5, logit_bias={1: 0.5}, seed=1, logprobs=2)),
        (blockmgr.Scheduler, (own, blockmgr.SchedulerOptions()), {}),
        (blockmgr.EngineTables, (own, 100), dict(num_host_blocks=3)),
        (own.page_id, (1, 2, 1), {}),
        (own.strides, ("hnd", ), {}),
    ]


def call(good, rng, pool):
    """A call with some arguments replaced. Whether nothing was raised."""
    function, arguments, keywords = good
    share = rng.choice([0, 0.2, 0.5])

    def mutate(value):
        return rng.choice(pool) if rng.random() < share else value

    try:
        function(*map(mutate, arguments),
                 **{name: mutate(value) for name, value in keywords.items()})
    except FINE:
        return False
    return True


@pytest.mark.parametrize("seed", range(4))
def test_functions_refuse_nonsense(seed):
    rng = random.Random(seed)
    pool = values(rng)
    calls = good_calls()
    for function, arguments, keywords in calls:
        function(*arguments, **keywords)
    num_good = sum(call(rng.choice(calls), rng, pool) for _ in range(1500))
    assert 500 < num_good < 1400


@pytest.mark.parametrize("seed", range(4))
def test_objects_refuse_nonsense(seed):
    """Calls in any order, between steps that go well."""
    rng = random.Random(seed)
    pool = values(rng)
    scheduler = blockmgr.Scheduler(layout(), blockmgr.SchedulerOptions(
        max_steps_in_flight=2, num_speculative_tokens=2))
    tables = blockmgr.EngineTables(scheduler.layout)
    budgets = np.full((2, 2), 4, np.int32)
    calls = [
        (scheduler.submit, ("a", [1, 2, 3], 4),
         dict(eviction=None, sampling=None, media=[], retention=[],
              stop_token_ids=(), priority=0, tenant="", fork_of="")),
        (scheduler.evict, (1, "knorm", 0.5),
         dict(scores=None, budgets=None, table=None)),
        (scheduler.evict, (2, "external | external", None, 4),
         dict(scores=np.zeros((2, 2, 4), np.float32), budgets=budgets)),
        (scheduler.cancel, (3, ), {}), (scheduler.find, ("a", ), {}),
        (scheduler.withdraw_eviction, (1, 1), {}),
        (scheduler.update, (blockmgr.StepResult(1, np.ones(1, np.int32)), ),
         {}),
        (scheduler.set_time, (5, ), {}), (tables.apply, (None, ), {}),
        (tables.add_sampled, (np.ones(1, np.int32), ),
         dict(num_accepted=None)),
        (tables.inputs, (), {}), (tables.set_drafts, (0, [1, 2]), {}),
        (tables.slot_mapping, (), dict(group=0)),
        (tables.covered, (None, ), {}), (tables.held_below, (None, ), {}),
        (tables.commit, (None, budgets), {}), (tables.tokens, (0, ), {}),
        (tables.region, (0, ), dict(group=0)),
        (tables.tail_blocks, (0, ), dict(group=0)),
        (tables.block_tables, ([0], ), dict(group=0, width=20)),
        (tables.region_lists, ([0], ), dict(group=0))]
    for i in range(400):
        for _ in range(3):
            call(rng.choice(calls), rng, pool)
        if i % 7 == 0:
            try:
                scheduler.submit(f"r{i}", list(range(rng.randrange(1, 40))), 6,
                                 eviction=rng.choice([None, blockmgr.Eviction(
                                     "knorm", 0.5)]))
            except blockmgr.Error:
                pass
        plan = scheduler.schedule()
        if plan is None:
            scheduler.lose_engine()
            tables.reset()
            continue
        pool.extend(2 * [plan, *plan.evictions])
        if rng.random() < 0.8:
            try:
                tables.apply(plan)
            except blockmgr.Error:
                pass
        scheduler.check_invariants()
        result = blockmgr.StepResult(
            plan.step, np.where(plan.samples, 1, -1).astype(np.int32),
            [blockmgr.EvictionOutcome(error="no") for _ in plan.evictions])
        try:
            scheduler.update(result)
        except blockmgr.Error:
            scheduler.lose_engine()
            tables.reset()
