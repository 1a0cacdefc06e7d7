"""Every argument that may be a numpy array may be a tensor of torch (DLPack)."""
import gc

import numpy as np
import pytest
import torch

import blockmgr


def layout():
    return blockmgr.KvLayout(num_layers=2, num_heads=2, num_blocks=40, head_dim=8,
                             page_size=4)


def scores_like(rng, *shape):
    return torch.tensor(rng.random(shape, np.float32))


def same(a, b):
    return a.offsets.tolist() == b.offsets.tolist() and (
        a.ranks.tolist() == b.ranks.tolist())


def test_selection_takes_tensors():
    rng = np.random.default_rng(1)
    scores = scores_like(rng, 2, 2, 16)
    assert same(blockmgr.select("knorm", 0.5, scores, page_size=4),
                blockmgr.select("knorm", 0.5, scores.numpy(), page_size=4))
    entries = blockmgr.Entries((2, 2), torch.arange(5) * 16,
                               torch.arange(16, dtype=torch.int32).repeat(4),
                               torch.arange(64))
    assert entries.slots.tolist() == list(range(64))
    flat, norms = scores_like(rng, 64), scores_like(rng, 64)
    for policy, fields in (
            ("external | adakv | topk", {}),
            ("external | uniform | critical", dict(value_norms=norms)),
            ("snapkv(window=2) | uniform | critical(gqa_product=true)",
             dict(products=norms)),
            ("external | external | topk",
             dict(budgets=torch.full((2, 2), 3, dtype=torch.int32)))):
        arrays = {name: value.numpy() for name, value in fields.items()}
        assert same(
            blockmgr.select(policy, 0.4, flat, entries=entries, cut=16, **fields),
            blockmgr.select(policy, 0.4, flat.numpy(), entries=entries, cut=16,
                            **arrays))


def test_sets_layouts_and_entries_take_tensors():
    mask = torch.zeros(2, 2, 12, dtype=torch.bool)
    mask[..., 2:7] = True
    keep = blockmgr.KeepSets.of_mask(mask)
    assert keep.ranks.tolist() == list(range(2, 7)) * 4
    assert same(blockmgr.KeepSets((2, 2), torch.arange(5) * 5,
                                  torch.arange(2, 7, dtype=torch.int32).repeat(4)),
                keep)
    own = layout()
    for dtype in (torch.int16, torch.int32, torch.int64, torch.uint8):
        region = blockmgr.lay_out(
            own, torch.tensor([9, 3], dtype=dtype),
            torch.full((2, 2), 5, dtype=torch.int32), cut=12,
            tail_blocks=torch.tensor([3, 9, 4], dtype=dtype))
        expected = blockmgr.lay_out(own, [9, 3], np.full((2, 2), 5, np.int32),
                                    cut=12, tail_blocks=[3, 9, 4])
        assert region.pages.tolist() == expected.pages.tolist()
    entries = blockmgr.index_entries(own, torch.tensor([3, 9, 4]), 12)
    placed = blockmgr.place_survivors(own, entries, keep, region)
    again = blockmgr.index_entries(own, torch.tensor([7]), 16, region=region,
                                   region_positions=torch.tensor(placed.positions))
    assert again.positions[:9].tolist() == [2, 3, 4, 5, 6, 12, 13, 14, 15]


def test_a_whole_step_takes_tensors():
    own = layout()
    scheduler = blockmgr.Scheduler(own, blockmgr.SchedulerOptions(
        num_speculative_tokens=2, max_steps_in_flight=1))
    tables = blockmgr.EngineTables(own)
    request = scheduler.submit("a", torch.arange(30), 10,
                               stop_token_ids=torch.tensor([90]))
    first = torch.tensor([40], dtype=torch.int32)
    plan = scheduler.schedule()
    tables.apply(plan)
    tables.add_sampled(first)
    tables.set_drafts(0, torch.tensor([41, 42]))
    scheduler.update(blockmgr.StepResult(
        plan.step, first, num_drafts=torch.tensor([2], dtype=torch.int32)))
    plan = scheduler.schedule()
    tables.apply(plan)
    accepted = torch.tensor([1], dtype=torch.int32)
    sampled = torch.tensor([43], dtype=torch.int32)
    tables.add_sampled(sampled, accepted)
    effects = scheduler.update(blockmgr.StepResult(
        plan.step, sampled, num_accepted=accepted,
        accepted=torch.tensor([41], dtype=torch.int32),
        num_drafts=torch.tensor([0], dtype=torch.int32),
        lost_blocks=torch.tensor([], dtype=torch.int64)))
    assert effects.tokens.tolist() == [41, 43]
    scheduler.evict(request, "external", 0.5, 28, scores=torch.zeros(2, 2, 28))
    plan = scheduler.schedule()
    tables.apply(plan)
    tables.add_sampled(sampled)
    counts = torch.full((2, 2), 8, dtype=torch.int32)
    checksum = tables.commit(plan.evictions[0], counts)
    slots = torch.tensor([0])
    assert tables.block_tables(slots).shape[0] == 1
    assert tables.region_lists(slots).cuts.tolist() == [28]
    effects = scheduler.update(blockmgr.StepResult(
        plan.step, sampled, [blockmgr.EvictionOutcome(counts, checksum)]))
    assert effects.evictions[0].kept_entries.tolist() == [8] * 4
    budgets = torch.full((2, 2), 4, dtype=torch.int32)
    scheduler.evict(request, "knorm | external", budgets=budgets)
    rows = blockmgr.TokenLogProbs(torch.tensor([[1, 2]], dtype=torch.int32),
                                  torch.tensor([[-1.0, -2.0]]))
    assert rows.logprobs.tolist() == [[-1.0, -2.0]]


def wrong_tensors():
    good = torch.zeros(2, 2, 16)
    yield "float64", good.double()
    yield "float16", good.half()
    yield "bfloat16", good.bfloat16()
    yield "float8", good.to(torch.float8_e4m3fn)
    yield "complex", good.to(torch.complex64)
    yield "bits", good.view(torch.int32)
    yield "dimensions", good[0]
    yield "scalar", torch.tensor(1.0)
    yield "no positions", torch.zeros(2, 2, 0)
    yield "stride", torch.zeros(2, 2, 32)[..., ::2]
    yield "transposed", torch.zeros(2, 16, 2).transpose(1, 2)
    yield "broadcast", torch.zeros(1, 1, 16).expand(2, 2, 16)
    yield "unaligned", torch.frombuffer(
        bytearray(65 * 4), dtype=torch.float32, count=64, offset=1).view(2, 2, 16)
    yield "sparse", good.to_sparse()
    yield "meta", good.to("meta")
    yield "conjugate", torch.zeros(2, 2, 16, dtype=torch.complex64).conj()
    yield "negated", torch.zeros(2, 2, 16, dtype=torch.complex64).conj().imag


@pytest.mark.parametrize("tensor", [pytest.param(tensor, id=name)
                                    for name, tensor in wrong_tensors()])
def test_a_wrong_tensor_is_an_exception(tensor):
    for call in (lambda: blockmgr.select("keydiff", 0.5, tensor),
                 lambda: blockmgr.lay_out(layout(), [1], tensor),
                 lambda: blockmgr.StepResult(1, tensor),
                 lambda: blockmgr.KeepSets.of_mask(tensor),
                 lambda: blockmgr.Entries((2, 2), tensor, tensor),
                 lambda: blockmgr.EvictionOutcome(tensor),
                 lambda: blockmgr.Scheduler(layout()).submit("a", tensor)):
        with pytest.raises((TypeError, ValueError)) as error:
            call()
        assert "expected" in str(error.value)


def test_the_error_says_what_is_wrong():
    for tensor, text in (
            (torch.zeros(2, 2, 16).double(), "float32, got float64"),
            (torch.zeros(2, 2, 16).bfloat16(), "float32, got bfloat16"),
            (torch.zeros(2, 16), r"shape \[:, :, :\], got \[2, 16\]"),
            (torch.zeros(2, 2, 32)[..., ::2], "C-contiguous"),
            (torch.zeros(2, 2, 16, device="meta"), "expected an array of float32")):
        with pytest.raises((TypeError, ValueError), match=text):
            blockmgr.select("keydiff", 0.5, tensor)


def test_results_do_not_depend_on_the_tensor_they_were_made_of():
    offsets, positions = torch.arange(5) * 4, torch.arange(
        4, dtype=torch.int32).repeat(4)
    entries = blockmgr.Entries((2, 2), offsets, positions)
    sampled = torch.tensor([7], dtype=torch.int32)
    result = blockmgr.StepResult(1, sampled)
    scores = torch.tensor(np.random.default_rng(2).random((2, 2, 4), np.float32))
    keep = blockmgr.select("external | uniform | round(token)", 2, scores)
    ranks = keep.ranks.tolist()
    for tensor in (offsets, positions, sampled, scores):
        tensor.zero_()
    del offsets, positions, sampled, scores
    gc.collect()
    assert entries.offsets.tolist() == [0, 4, 8, 12, 16]
    assert entries.positions.tolist() == [0, 1, 2, 3] * 4
    assert result.sampled.tolist() == [7]
    assert keep.ranks.tolist() == ranks


def test_tensors_over_our_arrays_keep_them_alive():
    counts = blockmgr.select("external | uniform", 0.5,
                             torch.zeros(2, 2, 64)).counts
    tensor = torch.from_dlpack(counts)
    assert tensor.data_ptr() == counts.ctypes.data
    del counts
    gc.collect()
    others = [torch.full((4, ), i) for i in range(1000)]  # take freed memory
    assert tensor.tolist() == [[32, 32], [32, 32]]
    del others


def test_arrays_of_a_stale_plan_are_refused_and_old_ones_stay():
    scheduler = blockmgr.Scheduler(layout())
    scheduler.submit("a", list(range(30)), 4)
    plan = scheduler.schedule()
    tokens = plan.starts[0].tokens
    scheduler.update(blockmgr.StepResult(
        plan.step, torch.tensor([5], dtype=torch.int32)))
    with pytest.raises(blockmgr.StalePlanError):
        torch.tensor(plan.slots)
    del plan, scheduler
    gc.collect()
    assert torch.tensor(tokens).tolist() == list(range(30))


def test_a_tensor_is_given_back():
    freed = []

    class Memory(np.ndarray):
        def __del__(self):
            freed.append(True)

    memory = np.zeros(64, np.float32).view(Memory)
    scores = torch.from_numpy(memory).view(2, 2, 16)
    for _ in range(3):
        blockmgr.select("external", 0.5, scores)
        with pytest.raises(TypeError):
            blockmgr.select("external", 0.5, scores.view(torch.int32))
        with pytest.raises(ValueError):
            blockmgr.select("external", 0.5, scores[0])
    freed.clear()
    del memory, scores
    gc.collect()
    assert freed
