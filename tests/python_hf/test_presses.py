"""Presses of kvpress on a BlockmgrCache, against kvpress's own kept sets."""
import kvpress
import pytest
import torch
from transformers import DynamicCache

import blockmgr
from blockmgr.hf import BlockmgrCache, BlockmgrPress
from models import (GROUP, HEADS, LAYERS, dense_logits, kept_masks, make_model,
                    pool_for, prompt, run)

LENGTH = 200
RATIO = 0.75  # of the entries go


@pytest.fixture(scope="module")
def model():
    return make_model()


def presses():
    snapkv = dict(compression_ratio=RATIO, window_size=16)
    yield "snapkv", lambda: kvpress.SnapKVPress(**snapkv)
    yield "keydiff", lambda: kvpress.KeyDiffPress(RATIO)
    yield "knorm", lambda: kvpress.KnormPress(RATIO)
    yield "streaming", lambda: kvpress.StreamingLLMPress(RATIO)
    yield "expected_attention", lambda: kvpress.ExpectedAttentionPress(RATIO)
    yield "critical snapkv", lambda: kvpress.CriticalKVPress(
        kvpress.SnapKVPress(**snapkv))
    yield "adakv snapkv", lambda: kvpress.AdaKVPress(
        kvpress.SnapKVPress(**snapkv))
    yield "adakv keydiff", lambda: kvpress.AdaKVPress(kvpress.KeyDiffPress(RATIO))
    yield "adakv expected_attention", lambda: kvpress.AdaKVPress(
        kvpress.ExpectedAttentionPress(RATIO))
    yield "critical adakv", lambda: kvpress.CriticalAdaKVPress(
        kvpress.KnormPress(RATIO))


def kept_by_kvpress(model, press, tokens):
    """Runs the press on a DynamicCache. Returns {layer: bool [batch, heads, tokens]}.

    Rows are compared one by one with those of a cache without a press.
    """
    model.set_attn_implementation("sdpa")
    try:
        plain, pressed = DynamicCache(), DynamicCache()
        run(model, plain, [tokens])
        with press(model):
            run(model, pressed, [tokens])
    finally:
        model.set_attn_implementation("blockmgr")
    masks = {}
    for index, layer in enumerate(model.model.layers):
        full, kept = plain.layers[index].keys, pressed.layers[index].keys
        equal = (full.unsqueeze(3) == kept.unsqueeze(2)).all(dim=-1)
        masks[index] = equal.any(dim=-1)
        masked = layer.self_attn.__dict__.pop("masked_key_indices", None)
        if masked is not None:
            batch, head, token = masked
            assert kept.shape == full.shape
            masks[index][batch, head, token] = False
    return masks


def assert_same(cache, expected, batch):
    masks = kept_masks(cache, batch, LENGTH)
    for layer in range(LAYERS):
        assert torch.equal(masks[layer], expected[layer]), layer


@pytest.mark.parametrize("make", [make for _, make in presses()],
                         ids=[name for name, _ in presses()])
@pytest.mark.parametrize("batch", (1, 2))
def test_what_a_press_selects_becomes_a_region(model, make, batch):
    tokens = prompt(batch, LENGTH)
    expected = kept_by_kvpress(model, make(), tokens)
    for mask in expected.values():
        assert int(mask.sum()) == batch * HEADS * (LENGTH // 4)
    pool = pool_for(model)
    cache = BlockmgrCache(pool)
    steps = list(prompt(batch, 4, seed=3).split(1, dim=1))
    with make()(model):
        got = run(model, cache, [tokens])
    assert_same(cache, expected, batch)
    # 13 blocks before. 50 entries a head are at most 5 pages of uneven heads.
    assert pool.peak_blocks == 13 * batch
    assert pool.used_blocks <= 5 * batch
    got += run(model, cache, steps, seen=LENGTH)
    for mine, other in zip(got, dense_logits(model, [tokens, *steps], expected)):
        torch.testing.assert_close(mine, other, atol=2e-4, rtol=1e-3)


def test_generate_under_a_press(model):
    tokens = prompt(2, LENGTH)
    press = kvpress.AdaKVPress(kvpress.KeyDiffPress(RATIO))
    cache = BlockmgrCache(pool_for(model))
    fields = dict(attention_mask=torch.ones_like(tokens), max_new_tokens=12,
                  do_sample=False, output_logits=True,
                  return_dict_in_generate=True)
    with press(model):
        got = model.generate(tokens, past_key_values=cache, **fields)
    model.set_attn_implementation("sdpa")
    with press(model):
        expected = model.generate(tokens, past_key_values=DynamicCache(), **fields)
    model.set_attn_implementation("blockmgr")
    assert got.sequences.tolist() == expected.sequences.tolist()
    for mine, other in zip(got.logits, expected.logits, strict=True):
        torch.testing.assert_close(mine, other, atol=5e-4, rtol=1e-3)


SAME = (("keydiff | uniform | topk | round(token)",
         lambda: kvpress.KeyDiffPress(RATIO)),
        ("snapkv(window=16,pool=avg,kernel=5,order=kvpress) | uniform | topk | "
         "round(token)", lambda: kvpress.SnapKVPress(RATIO, window_size=16)),
        ("keydiff | adakv(mode=floor) | topk | round(token)",
         lambda: kvpress.AdaKVPress(kvpress.KeyDiffPress(RATIO))),
        ("keydiff | uniform | critical | round(token)",
         lambda: kvpress.CriticalKVPress(kvpress.KeyDiffPress(RATIO))))


@pytest.mark.parametrize("policy,make", SAME, ids=[policy for policy, _ in SAME])
@pytest.mark.parametrize("on_pool", (True, False), ids=("pool", "masked"))
def test_our_press_selects_what_kvpress_selects(model, policy, make, on_pool):
    tokens = prompt(2, LENGTH)
    expected = kept_by_kvpress(model, make(), tokens)
    press = BlockmgrPress(policy=policy, keep_ratio=0.25)
    assert press.compression_ratio == RATIO
    if on_pool:
        cache = BlockmgrCache(pool_for(model))
        with press(model):
            run(model, cache, [tokens])
        assert_same(cache, expected, 2)
    else:
        found = kept_by_kvpress(model, press, tokens)
        for layer in range(LAYERS):
            assert torch.equal(found[layer], expected[layer])


def test_our_press_is_our_cache(model):
    """A press sees layer by layer what the policy of a cache sees at once."""
    policy = "keydiff | adakv | critical"
    tokens = prompt(2, LENGTH)
    cache = BlockmgrCache(pool_for(model), policy=policy, keep_ratio=0.25)
    run(model, cache, [tokens])
    expected = kept_masks(cache, 2, LENGTH)
    pressed = BlockmgrCache(pool_for(model))
    with BlockmgrPress(policy=policy, keep_ratio=0.25)(model):
        run(model, pressed, [tokens])
    assert_same(pressed, expected, 2)


def test_fields_of_a_press_may_change(model):
    press = BlockmgrPress(keep_ratio=0.5)
    press.policy, press.keep_ratio = "knorm | uniform", 0.25
    assert press.compression_ratio == 0.75
    made, changed = (BlockmgrCache(pool_for(model)) for _ in range(2))
    with BlockmgrPress(policy="knorm | uniform", keep_ratio=0.25)(model):
        run(model, made, [prompt(1, LENGTH)])
    with press(model):
        run(model, changed, [prompt(1, LENGTH)])
    assert_same(changed, kept_masks(made, 1, LENGTH), 1)
    press.policy = "knorm | pyramid"
    with pytest.raises(blockmgr.InvalidArgumentError, match="policy: expected"):
        with press(model):
            run(model, BlockmgrCache(pool_for(model)), [prompt(1, LENGTH)])


class Letters:
    """A tokenizer of 160 letters, as far as kvpress's pipeline asks for one."""

    bos_token = ""
    chat_template = None

    def encode(self, text, **_):
        return torch.tensor([[ord(letter) % 160 for letter in text]])

    def decode(self, ids, **_):
        return " ".join(map(str, ids.tolist()))


def test_the_pipeline_asks_several_questions_about_one_context(model):
    pipeline = kvpress.KVPressTextGenerationPipeline.__new__(
        kvpress.KVPressTextGenerationPipeline)
    pipeline.model, pipeline.tokenizer = model, Letters()
    inputs = {"context_ids": prompt(1, LENGTH),
              "questions_ids": [prompt(1, 9, seed=i) for i in range(3)]}
    press = BlockmgrPress(policy="keydiff | adakv | critical", keep_ratio=0.25)
    pool = pool_for(model)
    cache = BlockmgrCache(pool)
    with torch.no_grad():
        model.generation_config.eos_token_id = -1
        got = pipeline._forward(inputs, 10, press, cache)
        assert cache.get_seq_length() == LENGTH
        assert pool.used_blocks <= 5
        model.set_attn_implementation("sdpa")
        expected = pipeline._forward(inputs, 10, press, DynamicCache())
        model.set_attn_implementation("blockmgr")
    assert got == expected and len(set(got)) == 3


class Broken(kvpress.presses.base_press.BasePress):
    """Sets rows that are none of the cache's."""

    def __init__(self, change):
        self.change = change

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        return self.change(keys, values)


@pytest.mark.parametrize("change,error,text", (
    (lambda k, v: (k + 1, v), ValueError, "has changed rows"),
    (lambda k, v: (k[:, :, :9], v[:, :, 1:10]), ValueError, "has changed rows"),
    (lambda k, v: (k[:, :, [3, 3]], v[:, :, [3, 3]]), ValueError, "twice"),
    (lambda k, v: (k[:, :1], v[:, :1]), ValueError, "expected the shape"),
    (lambda k, v: (k[:, :, :5], v[:, :, :6]), ValueError, "expected the shape"),
    (lambda k, v: (k.double(), v.double()), TypeError, "torch.float32"),
    (lambda k, v: (None, v), TypeError, "expected a tensor")))
def test_rows_that_a_press_makes_up_are_refused(model, change, error, text):
    cache = BlockmgrCache(pool_for(model))
    with pytest.raises(error, match=text), Broken(change)(model):
        run(model, cache, [prompt(1, 40)])


def test_what_a_press_cannot_do_here_is_said(model):
    tokens = prompt(2, 40)
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0
    press = kvpress.KnormPress(0.5)
    with press(model), pytest.raises(blockmgr.FailedPreconditionError,
                                     match="without padding"):
        run(model, BlockmgrCache(pool_for(model)), [tokens], mask)
    with press(model), pytest.raises(blockmgr.FailedPreconditionError,
                                     match="evicts by itself"):
        run(model, BlockmgrCache(pool_for(model), policy="knorm",
                                 keep_ratio=0.5), [tokens])
    cache = BlockmgrCache(pool_for(model))
    run(model, cache, [tokens])
    run(model, cache, [prompt(2, 1)], seen=40)
    with pytest.raises(blockmgr.FailedPreconditionError, match="first forward"):
        cache.layers[0].keys.shape  # pylint: disable=expression-not-assigned
    for policy in ("keydiff | pyramid", "keydiff | global", "h2o", "external"):
        with pytest.raises(blockmgr.InvalidArgumentError, match="policy"):
            BlockmgrPress(policy=policy)
    assert GROUP > 1  # heads share keys, or nothing here would be about groups


def test_rows_are_found_whatever_the_default_device():
    full = torch.arange(24, dtype=torch.float32).reshape(1, 1, 6, 4)
    with torch.device("meta"):
        ranks = blockmgr.hf.find_rows(full, full[:, :, [4, 1]])
    assert ranks.tolist() == [[[4, 1]]]
