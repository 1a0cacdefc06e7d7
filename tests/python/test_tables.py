"""EngineTables: arrays for a device, and calls at the wrong time."""
import numpy as np
import pytest

import blockmgr


def make(num_blocks=64, **options):
    layout = blockmgr.KvLayout(num_layers=2, num_heads=2, num_blocks=num_blocks,
                               head_dim=8, page_size=4)
    return (blockmgr.Scheduler(layout, blockmgr.SchedulerOptions(**options)),
            blockmgr.EngineTables(layout))


def test_block_tables_are_ready_for_a_device():
    scheduler, tables = make()
    scheduler.submit("a", list(range(10)), 4)
    scheduler.submit("b", list(range(20, 23)), 4)
    plan = scheduler.schedule()
    tables.apply(plan)
    rows = tables.block_tables(plan.slots)
    assert rows.dtype == np.int32 and rows.shape == (2, 3)
    assert rows[0].tolist() == plan.new_blocks(0).tolist()
    assert rows[1].tolist() == plan.new_blocks(1).tolist() + [0, 0]
    assert tables.block_tables([1], width=5).tolist() == [
        plan.new_blocks(1).tolist() + [0] * 4]
    assert tables.block_tables([]).shape == (0, 0)
    inputs = tables.inputs()
    assert inputs.tokens.tolist() == list(range(10)) + [20, 21, 22]
    assert inputs.positions.tolist() == list(range(10)) + [0, 1, 2]
    assert inputs.offsets.tolist() == [0, 10, 13]
    assert inputs.lengths.tolist() == [10, 3]
    mapping = tables.slot_mapping()
    assert mapping.dtype == np.int64
    expected = [block * 4 + i for row in rows.tolist() for block in row
                for i in range(4)]
    assert mapping.tolist() == expected[:10] + expected[12:15]
    tables.add_sampled(np.array([7, 8], np.int32))
    assert tables.tokens(0).tolist() == list(range(10)) + [7]
    assert tables.request(1) == 2 and tables.num_computed(1) == 3


def test_region_lists_are_those_of_the_regions():
    scheduler, tables = make()
    for name in "ab":
        scheduler.submit(name, list(range(ord(name), ord(name) + 30)), 4,
                         eviction=blockmgr.Eviction("knorm", 0.5))
    scheduler.submit("c", [1, 2], 4)
    plan = scheduler.schedule()
    tables.apply(plan)
    tables.add_sampled(np.ones(3, np.int32))
    for i, order in enumerate(plan.evictions):
        counts = np.array([[4 + i, 8], [3, 9]], np.int32)
        tables.commit(order, counts)
    lists = tables.region_lists([1, 2, 0])
    assert lists.lengths.shape == (2, 3, 2)
    assert lists.lengths[:, 1].tolist() == [[0, 0], [0, 0]]
    assert lists.cuts.tolist() == [28, 0, 28]
    for i, slot in ((0, 1), (2, 0)):
        region = tables.region(slot)
        assert np.array_equal(lists.lengths[:, i], region.kept)
        for head in range(4):
            first = lists.offsets[head // 2, i, head % 2]
            own = region.pages[region.page_offsets[head]:
                               region.page_offsets[head + 1]]
            assert lists.pages[first:first + len(own)].tolist() == own.tolist()
    assert tables.region(2) is None


def test_calls_at_the_wrong_time_are_exceptions():
    scheduler, tables = make()
    sampled = np.ones(1, np.int32)
    for call in (tables.inputs, tables.slot_mapping,
                 lambda: tables.add_sampled(sampled)):
        with pytest.raises(blockmgr.InvalidArgumentError, match="apply"):
            call()
    for call in (tables.tokens, tables.num_computed, tables.request,
                 tables.tail_blocks, tables.region):
        for slot in (0, -1, 1 << 30):
            with pytest.raises(blockmgr.InvalidArgumentError, match="slot"):
                call(slot)
    with pytest.raises(blockmgr.InvalidArgumentError):
        tables.block_tables([0])
    scheduler.submit("a", list(range(30)), 4,
                     eviction=blockmgr.Eviction("knorm", 0.5))
    plan = scheduler.schedule()
    order = plan.evictions[0]
    counts = np.full((2, 2), 4, np.int32)
    with pytest.raises(blockmgr.InvalidArgumentError, match="order"):
        tables.commit(order, counts)
    tables.apply(plan)
    with pytest.raises(blockmgr.InvalidArgumentError):
        tables.apply(plan)  # the slot is in use
    with pytest.raises(blockmgr.InvalidArgumentError, match="counts"):
        tables.commit(order, counts * 20)
    with pytest.raises(blockmgr.InvalidArgumentError, match="counts"):
        tables.commit(order, counts - 5)
    with pytest.raises(ValueError, match="counts: expected the shape"):
        tables.commit(order, counts.reshape(-1))
    with pytest.raises(ValueError, match="width"):
        tables.block_tables([0], width=1)
    with pytest.raises(ValueError, match="group"):
        tables.tail_blocks(0, 1)
    for wrong in (np.ones(2, np.int32), np.ones((1, 1), np.int32)):
        with pytest.raises(ValueError, match="sampled"):
            tables.add_sampled(wrong)
    with pytest.raises(TypeError, match="sampled"):
        tables.add_sampled(np.ones(1, np.int64))
    with pytest.raises(ValueError, match="sampled.0.: expected a token id of at "
                       "least 0, got -1"):
        tables.add_sampled(np.full(1, -1, np.int32))
    tables.commit(order, counts)
    with pytest.raises(blockmgr.InvalidArgumentError, match="second order"):
        tables.commit(order, counts)
    with pytest.raises(blockmgr.InvalidArgumentError):
        tables.slot_mapping()
    tables.add_sampled(sampled)
    with pytest.raises(blockmgr.InvalidArgumentError, match="again"):
        tables.add_sampled(sampled)
    scheduler.lose_engine()
    with pytest.raises(blockmgr.StalePlanError):
        tables.held_below(order)
    tables.reset()
    with pytest.raises(blockmgr.InvalidArgumentError, match="slot"):
        tables.tokens(0)


def test_plans_of_another_layout_are_refused():
    scheduler, _ = make()
    _, tables = make(num_blocks=65)
    scheduler.submit("a", [1], 1)
    with pytest.raises(blockmgr.InvalidArgumentError, match="plan: expected"):
        tables.apply(scheduler.schedule())
    with pytest.raises(TypeError):
        tables.apply(None)
    for fields in (dict(max_sequences=0), dict(max_sequences=1 << 30),
                   dict(num_host_blocks=-1)):
        with pytest.raises(blockmgr.InvalidArgumentError):
            blockmgr.EngineTables(scheduler.layout, **fields)


def test_drafts_are_accepted_and_rejected():
    scheduler, tables = make(num_speculative_tokens=3, max_steps_in_flight=1)
    scheduler.submit("a", [1, 2, 3], 10)
    plan = scheduler.schedule()
    tables.apply(plan)
    tables.add_sampled(np.array([4], np.int32))
    tables.set_drafts(0, [5, 6, 7])
    scheduler.update(blockmgr.StepResult(
        plan.step, np.array([4], np.int32),
        num_drafts=np.array([3], np.int32)))
    plan = scheduler.schedule()
    assert plan.num_drafts.tolist() == [3]
    tables.apply(plan)
    assert tables.inputs().tokens.tolist() == [4, 5, 6, 7]
    for wrong in ([4], [-1]):
        with pytest.raises(blockmgr.InvalidArgumentError, match="num_accepted"):
            tables.add_sampled(np.array([9], np.int32),
                               np.array(wrong, np.int32))
    tables.add_sampled(np.array([9], np.int32), np.array([1], np.int32))
    assert tables.tokens(0).tolist() == [1, 2, 3, 4, 5, 9]
    effects = scheduler.update(blockmgr.StepResult(
        plan.step, np.array([9], np.int32),
        num_accepted=np.array([1], np.int32),
        accepted=np.array([5], np.int32), num_drafts=np.array([0], np.int32)))
    assert effects.tokens.tolist() == [5, 9]


class Acts:
    """An array that runs code when it is read first."""

    def __init__(self, values, act):
        self.values = np.array(values, np.int32)
        self.acts = [act]

    def __dlpack__(self, **keywords):
        while self.acts:
            self.acts.pop()()
        return self.values.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class ActsAsSequence(list):
    """A sequence that runs code when it is read."""

    def __init__(self, values, act):
        super().__init__(values)
        self.act = act

    def __iter__(self):
        self.act()
        return super().__iter__()


def test_an_argument_may_change_the_tables():
    """While a call reads it. What it changed is what the call then checks."""
    counts = np.array([[4, 8], [3, 9]], np.int32)

    def applied():
        scheduler, tables = make(max_steps_in_flight=2, num_speculative_tokens=2)
        scheduler.submit("a", list(range(30)), 9,
                         eviction=blockmgr.Eviction("knorm", 0.5))
        plan = scheduler.schedule()
        tables.apply(plan)
        return scheduler, tables, plan

    for kind in (Acts, ActsAsSequence):
        scheduler, tables, plan = applied()
        with pytest.raises(blockmgr.InvalidArgumentError, match="slot"):
            tables.set_drafts(0, kind([1, 2], tables.reset))
    scheduler, tables, plan = applied()
    with pytest.raises(blockmgr.InvalidArgumentError, match="apply"):
        tables.add_sampled(Acts([7], tables.reset))
    scheduler, tables, plan = applied()
    with pytest.raises(blockmgr.InvalidArgumentError, match="again"):
        tables.add_sampled(Acts([7], lambda: tables.add_sampled(
            np.array([8], np.int32))))
    assert tables.tokens(0).tolist() == [*range(30), 8]
    scheduler, tables, plan = applied()

    def answer():
        scheduler.update(blockmgr.StepResult(
            plan.step, np.array([7], np.int32),
            [blockmgr.EvictionOutcome(error="no")]))

    with pytest.raises(blockmgr.StalePlanError):
        tables.add_sampled(Acts([7], answer))
    scheduler, tables, plan = applied()
    scheduler.submit("b", [1, 2], 4)

    def apply_another():
        tables.reset()
        scheduler.lose_engine()
        tables.apply(scheduler.schedule())

    with pytest.raises(blockmgr.InvalidArgumentError, match="change the tables"):
        tables.add_sampled(Acts([7], apply_another))
    scheduler, tables, plan = applied()
    tables.add_sampled(np.array([7], np.int32))
    with pytest.raises(blockmgr.InvalidArgumentError, match="order"):
        tables.commit(plan.evictions[0], Acts(counts, tables.reset))
