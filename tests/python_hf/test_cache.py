"""BlockmgrCache: equal to masked dense attention, with memory that falls."""
import copy
import gc

import pytest
import torch
from transformers import DynamicCache, MistralConfig

import blockmgr
from blockmgr.hf import BlockmgrCache, BlockPool
from models import (DIM, HEADS, LAYERS, dense_logits, kept_masks, make_model,
                    pool_for, prompt, run)

BLOCK_BYTES = 16 * LAYERS * HEADS * 2 * DIM * 4


@pytest.fixture(scope="module")
def model():
    return make_model()


def steps_after(batch, count=4, seed=9):
    return list(prompt(batch, count, seed).split(1, dim=1))


def assert_close(got, expected, atol=2e-4):
    for mine, other in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, other, atol=atol, rtol=1e-3)


def test_without_policy_generates_what_a_dynamic_cache_generates(model):
    tokens = prompt(2, 37)
    pool = pool_for(model)
    got = model.generate(tokens, past_key_values=BlockmgrCache(pool),
                         attention_mask=torch.ones_like(tokens),
                         max_new_tokens=20, do_sample=False)
    model.set_attn_implementation("sdpa")
    expected = model.generate(tokens, past_key_values=DynamicCache(),
                              attention_mask=torch.ones_like(tokens),
                              max_new_tokens=20, do_sample=False)
    model.set_attn_implementation("blockmgr")
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("side", ("left", "right"))
def test_padding_is_neither_stored_nor_seen(model, side):
    tokens = prompt(3, 40)
    mask = torch.ones_like(tokens)
    for row, padding in enumerate((0, 7, 39)):
        if side == "left":
            mask[row, :padding] = 0
        else:
            mask[row, 40 - padding:] = 0
    passes = [tokens, *steps_after(3)]
    pool = pool_for(model)
    cache = BlockmgrCache(pool)
    got = run(model, cache, passes, mask)
    # 44, 37 and 5 tokens.
    assert pool.used_blocks == cache.used_blocks == 3 + 3 + 1
    expected = dense_logits(model, passes, mask=mask)
    assert_close([got[0][mask.bool()], *got[1:]],
                 [expected[0][mask.bool()], *expected[1:]])


POLICIES = ("keydiff | adakv | topk", "keydiff | adakv | critical",
            "snapkv(window=8) | adakv | topk | round(token)",
            "tova | uniform | topk", "knorm | global | topk",
            "keydiff | pyramid | topk | round(token)", "streaming",
            "random(seed=3) | adakv", "dropkv(window=4) | uniform")


@pytest.mark.parametrize("policy", POLICIES)
def test_outputs_equal_masked_dense_attention_and_memory_falls(model, policy):
    tokens = prompt(2, 500)
    pool = pool_for(model)
    cache = BlockmgrCache(pool, policy=policy, keep_ratio=0.2)
    passes = [tokens, *steps_after(2)]
    got = run(model, cache, passes[:1])
    masks = kept_masks(cache, 2, 500)
    for i in range(2):
        num_kept = sum(int(mask[i].sum()) for mask in masks.values())
        num_pages = sum(-(-int(count) // 16) for mask in masks.values()
                        for count in mask[i].sum(dim=-1))
        assert num_kept <= 0.2 * 500 * LAYERS * HEADS + 16 * LAYERS * HEADS
        assert num_pages <= 0.25 * 32 * LAYERS * HEADS
    # 32 blocks for each sequence before, at most 9 after: the pages fill blocks.
    assert cache.dense_bytes == 64 * BLOCK_BYTES
    assert pool.peak_blocks == 64
    assert pool.used_bytes == cache.used_bytes == (
        pool.used_blocks * BLOCK_BYTES)
    assert pool.used_blocks <= 2 * 9
    got += run(model, cache, passes[1:], seen=500)
    assert_close(got, dense_logits(model, passes, masks))
    del cache
    gc.collect()
    assert pool.used_blocks == 0


def test_generate_evicts_of_a_padded_batch(model):
    tokens = prompt(2, 200)
    mask = torch.ones_like(tokens)
    mask[1, :60] = 0
    pool = pool_for(model)
    cache = BlockmgrCache(pool, policy="keydiff | adakv | topk", keep_ratio=0.25)
    got = model.generate(tokens, attention_mask=mask, past_key_values=cache,
                         max_new_tokens=24, do_sample=False, output_logits=True,
                         return_dict_in_generate=True)
    # 23 of the new tokens have K and V.
    masks = kept_masks(cache, 2, 200, first=(0, 60))
    assert cache.dense_bytes == (14 + 11) * BLOCK_BYTES
    assert pool.used_blocks <= 4 + 2 + 3 + 2
    new = got.sequences[:, 200:]
    passes = [tokens, *new[:, :-1].split(1, dim=1)]
    expected = dense_logits(model, passes, masks, mask)
    assert_close(got.logits, [logits[:, -1] for logits in expected])


def test_every_chunk_evicts_again(model):
    chunks = list(prompt(1, 300).split(100, dim=1))
    pool = pool_for(model)
    cache = BlockmgrCache(pool, policy="keydiff | adakv | topk", keep_ratio=0.2,
                          every_chunk=True)
    got, evictions = [], {}
    for i, chunk in enumerate(chunks):
        got += run(model, cache, [chunk], seen=100 * i)
        end = 100 * (i + 1)
        evictions[i + 1] = kept_masks(cache, 1, end)
        kept = sum(int(mask.sum()) for mask in evictions[i + 1].values())
        assert kept <= (0.2 * end + 16) * LAYERS * HEADS
        for layer, mask in evictions[i].items() if i else ():
            # What was evicted does not come back.
            later = evictions[i + 1][layer][:, :, :end - 100]
            assert not (later & ~mask).any()
    # A chunk of 7 blocks lies beside at most 4 with the region of those before.
    assert pool.peak_blocks <= 7 + 4
    got += run(model, cache, steps_after(1), seen=300)
    assert_close(got, dense_logits(model, [*chunks, *steps_after(1)],
                                   evictions=evictions))


def test_a_later_pass_sees_what_the_prompt_has_left(model):
    passes = [*prompt(1, 160).split(80, dim=1), *steps_after(1)]
    cache = BlockmgrCache(pool_for(model), policy="knorm | adakv | topk",
                          keep_ratio=0.25)
    got = run(model, cache, passes[:1])
    masks = kept_masks(cache, 1, 80)
    got += run(model, cache, passes[1:], seen=80)
    assert kept_masks(cache, 1, 160)[0][:, :, 80:].all()  # nothing more went
    assert_close(got, dense_logits(model, passes, masks))


@pytest.mark.parametrize("dtype,atol", ((torch.bfloat16, 0.15),
                                        (torch.float16, 0.02)))
def test_half_precision_is_within_its_error(dtype, atol):
    model = make_model(dtype)
    cache = BlockmgrCache(pool_for(model), policy="keydiff | adakv | topk",
                          keep_ratio=0.3)
    passes = [prompt(1, 120), *steps_after(1)]
    got = run(model, cache, passes[:1])
    masks = kept_masks(cache, 1, 120)
    got += run(model, cache, passes[1:], seen=120)
    for mine, other in zip(got, dense_logits(model, passes, masks)):
        scale = other.float().abs().max()
        assert (mine - other).float().abs().max() < atol * scale


def test_a_pool_serves_caches_until_it_is_full(model):
    pool = pool_for(model, num_tokens=96)
    first, second = BlockmgrCache(pool), BlockmgrCache(pool)
    run(model, first, [prompt(1, 64)])
    with pytest.raises(blockmgr.ResourceExhaustedError,
                       match="3 more blocks of 16 tokens are needed, 2 of 6"):
        run(model, second, [prompt(1, 48)])
    # The pass was refused before anything had changed: it can be made again.
    run(model, second, [prompt(1, 32)])
    assert pool.used_blocks == 6
    first.reset()
    assert pool.used_blocks == 2
    # What is left is as it was.
    got = run(model, second, steps_after(1), seen=32)
    assert_close(got, dense_logits(model, [prompt(1, 32), *steps_after(1)])[1:])


def test_cropped_tokens_are_forgotten(model):
    pool = pool_for(model)
    cache = BlockmgrCache(pool, policy="knorm | adakv | topk", keep_ratio=0.25)
    passes = [prompt(1, 100), *steps_after(1)]
    run(model, cache, passes[:1])
    masks = kept_masks(cache, 1, 100)
    held = cache.used_blocks
    run(model, cache, [prompt(1, 40, seed=5)], seen=100)
    cache.crop(100)
    assert cache.get_seq_length() == 100 and cache.used_blocks == held
    got = run(model, cache, passes[1:], seen=100)
    assert_close(got, dense_logits(model, passes, masks)[1:])
    with pytest.raises(blockmgr.InvalidArgumentError, match="crop: expected"):
        cache.crop(99)
    cache.crop(-2)
    assert cache.get_seq_length() == 102


def test_a_crop_that_takes_queries_delays_the_eviction(model):
    """The scorer reads 32 queries, and a crop leaves 29 of them."""
    cache = BlockmgrCache(pool_for(model), policy="snapkv(window=32) | uniform",
                          keep_ratio=0.5, every_chunk=True)
    run(model, cache, [prompt(1, 100)])
    run(model, cache, steps_after(1, 40), seen=100)
    cache.crop(-3)
    held = cache.used_blocks
    run(model, cache, [prompt(1, 2, seed=3)], seen=137)
    assert cache.get_seq_length() == 139 and cache.used_blocks == held
    run(model, cache, [prompt(1, 40, seed=4)], seen=139)  # evicts
    assert cache.used_blocks < held + 3


def test_the_cache_needs_the_attention_and_the_attention_the_cache(model):
    pool = pool_for(model)
    with torch.no_grad(), pytest.raises(blockmgr.FailedPreconditionError,
                                        match="needs past_key_values"):
        model(prompt(1, 4))
    model.set_attn_implementation("sdpa")
    with pytest.raises(blockmgr.FailedPreconditionError,
                       match=r"set_attn_implementation\('blockmgr'\)"):
        run(model, BlockmgrCache(pool), [prompt(1, 4)])
    model.set_attn_implementation("blockmgr")


def test_an_interrupted_pass_is_noticed(model):
    cache = BlockmgrCache(pool_for(model))

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = model.model.layers[1].self_attn.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(model, cache, [prompt(1, 20)])
    hook.remove()
    with pytest.raises(blockmgr.FailedPreconditionError, match="ended early"):
        run(model, cache, [prompt(1, 20)])
    cache.reset()
    run(model, cache, [prompt(1, 20)])


def test_wrong_tensors_are_refused(model):
    pool = pool_for(model)
    good = torch.zeros(1, HEADS, 3, DIM)
    for wrong, error, text in (
            (good.bfloat16(), TypeError, "expected torch.float32"),
            (good.double(), TypeError, "expected torch.float32"),
            (good[:, :1], ValueError, "expected the shape"),
            (good[..., :8], ValueError, "expected the shape"),
            (good.to("meta"), ValueError, "on cpu"),
            (good.clone().requires_grad_(), ValueError, "no gradients")):
        with pytest.raises(error, match=text):
            BlockmgrCache(pool).update(wrong, good, 0)
        if not wrong.requires_grad:
            with pytest.raises(error, match=text):
                BlockmgrCache(pool).update(good, wrong, 0)
    with pytest.raises(blockmgr.FailedPreconditionError, match="expected layer 0"):
        BlockmgrCache(pool).update(good, good, 1)
    cache = BlockmgrCache(pool)
    run(model, cache, [prompt(2, 5)])
    with pytest.raises(blockmgr.InvalidArgumentError, match=r"\[2, 2, tokens"):
        run(model, cache, steps_after(1), seen=5)
    cache = BlockmgrCache(pool)
    run(model, cache, [prompt(1, 5)])
    with torch.no_grad(), pytest.raises(blockmgr.InvalidArgumentError,
                                        match="attention_mask"):
        model(prompt(1, 1), past_key_values=cache, cache_position=torch.tensor(
            [5]), attention_mask=torch.ones(1, 3))


def test_wrong_arguments_are_refused(model):
    pool = pool_for(model)
    for fields, text in ((dict(policy="keydiff"), "both or none"),
                         (dict(keep_ratio=0.5), "both or none"),
                         (dict(policy="keydiff", keep_ratio=0), "ratio"),
                         (dict(policy="keydif", keep_ratio=0.5), "keydif"),
                         (dict(policy="h2o", keep_ratio=0.5), "does not see"),
                         (dict(policy="external", keep_ratio=0.5), "does not see"),
                         (dict(policy="keydiff | lukv(profile=a)", keep_ratio=0.5),
                          "table: expected a BudgetTable"),
                         (dict(policy="snapkv | critical(gqa_product=true)",
                               keep_ratio=0.5), "gqa_product")):
        with pytest.raises(blockmgr.InvalidArgumentError, match=text):
            BlockmgrCache(pool, **fields)
    with pytest.raises(TypeError, match="pool: expected"):
        BlockmgrCache(model.config)
    for call in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied"):
            call(BlockmgrCache(pool))
    cache = BlockmgrCache(pool)
    for call in (lambda: cache.reorder_cache(torch.tensor([0])),
                 lambda: cache.batch_repeat_interleave(2),
                 lambda: cache.batch_select_indices(torch.tensor([0]))):
        with pytest.raises(blockmgr.FailedPreconditionError, match="cannot"):
            call()
    with pytest.raises(blockmgr.InvalidArgumentError, match="sequence"):
        cache.kept_positions(0)
    for fields in (dict(num_tokens=0), dict(page_size=0), dict(dtype=torch.int8),
                   dict(device="meta")):
        with pytest.raises(blockmgr.InvalidArgumentError):
            BlockPool(model.config, **{"num_tokens": 64, **fields})
    # There is no GPU, or no kernel on it for these heads.
    with pytest.raises((blockmgr.UnavailableError,
                        blockmgr.InvalidArgumentError)):
        BlockPool(model.config, 64, device="cuda")
    sliding = MistralConfig(num_hidden_layers=2, sliding_window=8)
    sliding.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(blockmgr.InvalidArgumentError, match="full attention"):
        BlockPool(sliding, 64)
