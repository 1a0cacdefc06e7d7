"""BlockmgrCache on a device: what the CPU keeps, what dense attention computes."""
import contextlib
import copy
import dataclasses
import os

import kvpress
import numpy as np
import pytest
import torch
from kvpress.presses.base_press import BasePress

import blockmgr
from blockmgr.hf import BlockmgrCache, BlockmgrPress, BlockPool
from blockmgr.hf_backends import CpuBackend, CudaBackend
from models import (HEADS, LAYERS, dense_logits, kept_masks, make_model, pool_for,
                    prompt, run)

DEVICE = ("cpu" if os.environ.get("BLOCKMGR_TEST_DEVICE", "emulator") ==
          "emulator" else "cuda")
LENGTH = 150
ERRORS = {torch.float16: 0.02, torch.bfloat16: 0.15}


def device_model(dtype=torch.float16):
    return make_model(dtype, head_dim=64).to(DEVICE)


@pytest.fixture(scope="module", name="model")
def _model():
    return device_model()


def pool_of(model, **fields):
    """A pool whose rows are NaN until they are written."""
    pool = pool_for(model, **fields)
    assert isinstance(pool.backend, CudaBackend)
    pool.kv.fill_(torch.nan)
    return pool


def assert_close(got, expected):
    for mine, other in zip(got, expected, strict=True):
        scale = other.float().abs().max()
        assert (mine - other).float().abs().max() < ERRORS[other.dtype] * scale


def steps_after(batch, count=3):
    return list(prompt(batch, count, seed=9).split(1, dim=1))


def on_cpu(eviction):
    return dataclasses.replace(
        eviction, modules=[copy.deepcopy(module).cpu()
                           for module in eviction.modules],
        queries=[None if rows is None else rows.cpu()
                 for rows in eviction.queries])


def compare_selections(pool):
    """Has each selection compared with that of the CPU on the same rows. Returns
    the list of what was kept."""
    kept, select = [], pool.backend.select

    def both(eviction):
        keep = select(eviction)
        expected = CpuBackend(pool.layout, pool.kv.cpu(), 1).select(
            on_cpu(eviction))
        assert np.array_equal(keep.offsets, expected.offsets)
        assert np.array_equal(keep.ranks, expected.ranks)
        kept.append(keep)
        return keep

    pool.backend.select = both
    return kept


POLICIES = ("keydiff | adakv | topk", "keydiff | adakv | critical",
            "snapkv(window=8) | adakv | topk | round(token)",
            "tova | uniform | topk", "knorm | global | topk",
            "h2o(obs_window=16) | adakv", "h2o(norm=count, obs_window=16)",
            "keydiff | pyramid | topk | round(token)", "streaming",
            "random(seed=3) | adakv", "random(seed=3) | uniform | critical")


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_kept_is_what_the_cpu_keeps_and_attention_sees_it(model, policy):
    pool = pool_of(model)
    kept = compare_selections(pool)
    cache = BlockmgrCache(pool, policy=policy, keep_ratio=0.2)
    passes = [prompt(2, LENGTH), *steps_after(2)]
    got = run(model, cache, passes[:1])
    assert len(kept) == 2
    masks = kept_masks(cache, 2, LENGTH)
    # 10 blocks for each sequence before; the pages that are left fill blocks.
    assert pool.peak_blocks == 20 and pool.used_blocks <= 2 * 4
    assert cache.used_bytes <= 0.4 * cache.dense_bytes
    got += run(model, cache, passes[1:], seen=LENGTH)
    assert_close(got, dense_logits(model, passes, masks))


def test_layers_may_keep_different_numbers(model):
    """Decode divides its work by the lengths of lists, in tiles of 64 slots."""
    pool = pool_of(model)
    cache = BlockmgrCache(pool, policy="knorm | global | topk", keep_ratio=0.5)
    passes = [prompt(1, 240), *steps_after(1)]
    got = run(model, cache, passes[:1])
    masks = kept_masks(cache, 1, 240)
    longest = [int(mask.sum(dim=-1).max()) for mask in masks.values()]
    assert longest[0] < 128 <= longest[-1]
    got += run(model, cache, passes[1:], seen=240)
    assert_close(got, dense_logits(model, passes, masks))


def test_bfloat16():
    model = device_model(torch.bfloat16)
    pool = pool_of(model)
    kept = compare_selections(pool)
    cache = BlockmgrCache(pool, policy="keydiff | adakv | topk", keep_ratio=0.3)
    passes = [prompt(1, 90), *steps_after(1)]
    got = run(model, cache, passes[:1])
    masks = kept_masks(cache, 1, 90)
    got += run(model, cache, passes[1:], seen=90)
    assert len(kept) == 1
    assert_close(got, dense_logits(model, passes, masks))


def test_a_padded_batch(model):
    mask = torch.ones((3, 70), dtype=torch.int64)
    mask[1, :30] = 0
    mask[2, :61] = 0
    passes = [prompt(3, 70), *steps_after(3)]
    pool = pool_of(model)
    kept = compare_selections(pool)
    cache = BlockmgrCache(
        pool, policy="snapkv(window=16) | adakv | topk | round(token)",
        keep_ratio=0.5)
    got = run(model, cache, passes[:1], mask)
    assert len(kept) == 3  # one of a sequence that is shorter than the window
    assert cache.dense_bytes == (5 + 3 + 1) * pool.layout.block_bytes
    masks = kept_masks(cache, 3, 70, first=(0, 30, 61))
    got += run(model, cache, passes[1:], mask, seen=70)
    expected = dense_logits(model, passes, masks, mask)
    real = mask.bool()
    assert_close([got[0][real], *got[1:]], [expected[0][real], *expected[1:]])


@pytest.mark.parametrize("policy", ("keydiff | adakv | topk",
                                    "snapkv(window=24) | uniform"))
def test_every_chunk_evicts_again(model, policy):
    """A chunk is shorter than the window of queries, which decode steps extend."""
    sizes = (60, 1, 20, 1, 1, 40)
    passes = list(prompt(2, sum(sizes)).split(sizes, dim=1))
    pool = pool_of(model)
    kept = compare_selections(pool)
    cache = BlockmgrCache(pool, policy=policy, keep_ratio=0.5, every_chunk=True)
    got, evictions, seen = [], {}, 0
    for i, tokens in enumerate(passes):
        got += run(model, cache, [tokens], seen=seen)
        seen += tokens.shape[1]
        evictions[i + 1] = kept_masks(cache, 2, seen)
    assert len(kept) == 3 * 2
    # 16 blocks without evictions.
    assert pool.used_blocks <= 2 * 6 and pool.peak_blocks <= 12
    assert_close(got, dense_logits(model, passes, evictions=evictions))


@contextlib.contextmanager
def no_waits():
    """Within it, PyTorch raises when the host would wait for a GPU."""
    if DEVICE == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if DEVICE == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def count_copies(backend):
    """Counts the calls of send and fetch."""
    counts = {"send": 0, "fetch": 0}
    for name in counts:

        def counted(*arguments, name=name, method=getattr(backend, name)):
            counts[name] += 1
            return method(*arguments)

        setattr(backend, name, counted)
    return counts


@pytest.mark.parametrize("every_chunk", (False, True))
def test_a_decode_step_sends_its_tables_and_waits_for_nothing(model, every_chunk):
    pool = pool_of(model)
    cache = BlockmgrCache(pool, policy="snapkv(window=8) | adakv | topk",
                          keep_ratio=0.5, every_chunk=every_chunk)
    run(model, cache, [prompt(2, 40), *steps_after(2, 1)])
    counts = count_copies(pool.backend)
    steps = [(tokens.to(DEVICE), torch.tensor([41 + i], device=DEVICE))
             for i, tokens in enumerate(steps_after(2, 3))]
    for tokens, position in steps:
        with torch.no_grad(), no_waits():
            model(tokens, past_key_values=cache, position_ids=position[None],
                  cache_position=position)
    assert counts == {"send": 3, "fetch": 0}
    # A mask is read once.
    with torch.no_grad():
        model(tokens, past_key_values=cache, position_ids=position[None] + 1,
              cache_position=position + 1,
              attention_mask=torch.ones((2, 45), device=DEVICE))
    assert counts == {"send": 4, "fetch": 1}


class Recorder(BasePress):
    """Does what a press does, and records what it selects, by layer."""

    def __init__(self, press):
        self.press = press
        self.masks = {}

    def post_init_from_model(self, model):
        self.press.post_init_from_model(model)

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        pressed = self.press.compress(module, hidden_states, keys, values,
                                      attentions, kwargs)
        mask = (keys.unsqueeze(3) == pressed[0].unsqueeze(2)).all(-1).any(-1)
        masked = getattr(module, "masked_key_indices", None)
        if masked is not None:
            mask[tuple(index.to(mask.device) for index in masked)] = False
        self.masks[module.layer_idx] = mask.cpu()
        return pressed


RATIO = 0.75  # of the entries go
PRESSES = {
    "snapkv": lambda: kvpress.SnapKVPress(RATIO, window_size=16),
    "keydiff": lambda: kvpress.KeyDiffPress(RATIO),
    "expected_attention": lambda: kvpress.ExpectedAttentionPress(RATIO),
    "adakv knorm": lambda: kvpress.AdaKVPress(kvpress.KnormPress(RATIO)),
    "critical adakv": lambda: kvpress.CriticalAdaKVPress(
        kvpress.KnormPress(RATIO)),
    "blockmgr": lambda: BlockmgrPress(policy="keydiff | adakv | critical",
                                      keep_ratio=1 - RATIO)}


@pytest.mark.parametrize("make", PRESSES.values(), ids=PRESSES)
def test_what_a_press_selects_becomes_a_region(model, make):
    passes = [prompt(2, LENGTH), *steps_after(2)]
    pool = pool_of(model)
    cache = BlockmgrCache(pool)
    press = Recorder(make())
    with press(model):
        got = run(model, cache, passes[:1])
    masks = kept_masks(cache, 2, LENGTH)
    for layer in range(LAYERS):
        assert torch.equal(masks[layer], press.masks[layer]), layer
        assert masks[layer].sum() <= 0.3 * 2 * HEADS * LENGTH
    assert pool.peak_blocks == 20 and pool.used_blocks <= 2 * 5
    got += run(model, cache, passes[1:], seen=LENGTH)
    assert_close(got, dense_logits(model, passes, masks))


def test_what_has_no_kernel_is_refused():
    model = device_model()
    pool = pool_of(model)
    with pytest.raises(blockmgr.InvalidArgumentError,
                       match="policy: expected .*, got dropkv"):
        BlockmgrCache(pool, policy="dropkv(window=4) | uniform", keep_ratio=0.5)
    for dtype, dim, text in ((torch.float32, 64, "dtype: expected bfloat16"),
                             (torch.float16, 16, "head_dim: expected 64, 128")):
        with pytest.raises(blockmgr.InvalidArgumentError, match=text):
            BlockPool(make_model(dtype, head_dim=dim).config, 64, device=DEVICE)
    tokens = prompt(1, 40)
    with pytest.raises(blockmgr.InvalidArgumentError, match="dropkv"):
        with BlockmgrPress(policy="dropkv(window=4)")(model):
            run(model, BlockmgrCache(pool_of(model)), [tokens])
