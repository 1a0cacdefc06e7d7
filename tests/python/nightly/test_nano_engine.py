"""examples/python/nano_engine.py on random models, against a dense reference."""
import random
import types

import numpy as np
import pytest
import torch

import blockmgr
import nano_engine
import tiny_llama
from conftest import DTYPE, KERNELS, tolerance

MARGIN = tolerance(1e-3, 1e-1)  # of logits, against those of float64


def engine_for(model, num_blocks, kind=nano_engine.Engine):
    layout = nano_engine.layout_for(model, num_blocks, DTYPE)
    return kind(model, layout, KERNELS)


class Recorder(nano_engine.Engine):
    """Notes what the heads of every request have kept, and when."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.evictions = {}  # by request, by cut: (length, kept [layers][heads])
        self.regions = {}  # by the name of a kept region: (cut, eviction)
        self.num_forks = self.num_shared_regions = 0

    def start(self, plan):
        super().start(plan)
        for start in plan.starts:
            own = self.evictions.setdefault(start.request, {})
            if start.region is not None:
                cut, eviction = self.regions[start.region]
                own.setdefault(cut, eviction)
                self.num_shared_regions += 1
            elif start.source is not None:
                own.update(self.evictions[self.tables.request(start.source)])
                self.num_forks += 1

    def evict(self, order):
        outcome = super().evict(order)
        if outcome.ok:
            counts = self.tables.region(order.slot).kept.reshape(-1)
            positions = np.split(self.region_positions[order.slot],
                                 np.cumsum(counts)[:-1])
            kept = [p.tolist() for p in positions]
            own = self.evictions[self.tables.request(order.slot)]
            # A request that is computed again evicts the same again.
            assert own.get(order.cut, (order.length, kept))[1] == kept
            own.setdefault(order.cut, (order.length, kept))
            if order.region is not None:
                self.regions[order.region] = (order.cut, own[order.cut])
        return outcome


def visible(evictions, n):
    """What is left to each query after a request's evictions."""
    mask = torch.ones(tiny_llama.LAYERS * tiny_llama.KV_HEADS, n, n,
                      dtype=torch.bool)
    for cut, (length, kept) in sorted(evictions.items()):
        for head, positions in enumerate(kept):
            gone = torch.ones(cut, dtype=torch.bool)
            gone[positions] = False
            mask[head, length:, :cut] &= ~gone
    return mask.unflatten(0, (tiny_llama.LAYERS, tiny_llama.KV_HEADS))


def check_answer(weights, prompt, answer, evictions):
    """Every token is the most likely one after those before it."""
    tokens = prompt + answer
    logits, _ = tiny_llama.dense(weights, tokens, visible(evictions, len(tokens)))
    for i, token in enumerate(answer):
        row = logits[len(prompt) + i - 1]
        assert row[token] > row.max() - MARGIN, (i, answer)


def answers_of(scheduler, engine, num_requests):
    answers = {request: [] for request in range(1, num_requests + 1)}
    while (plan := scheduler.schedule()) is not None:
        effects = scheduler.update(engine.run(plan))
        for request, token in zip(effects.token_requests.tolist(),
                                  effects.tokens.tolist()):
            answers[request].append(token)
        for effect in effects.evictions:
            assert effect.error is None
        for end in effects.finished:
            assert end.error is None
        scheduler.check_invariants()
    return answers


@pytest.fixture(name="tiny", scope="module")
def tiny_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    weights = tiny_llama.write(path, seed=1)
    return nano_engine.Llama(path), weights


def tokens_of(rng, n):
    return [rng.randrange(tiny_llama.END) for _ in range(n)]


def test_logits_are_those_of_the_dense_model(tiny):
    model, weights = tiny
    tokens = tokens_of(random.Random(1), 70)
    engine = engine_for(model, 16)
    logits = []
    model.logits, original = (
        lambda rows: logits.append(original(rows)) or logits[-1], model.logits)
    scheduler = nano_engine.scheduler_for(model, engine.layout,
                                          max_num_batched_tokens=16,
                                          max_num_seqs=4)
    scheduler.submit("a", tokens, 1)
    while (plan := scheduler.schedule()) is not None:
        scheduler.update(engine.run(plan))
    model.logits = original
    expected, _ = tiny_llama.dense(weights, tokens)
    assert [len(rows) for rows in logits] == [0, 0, 0, 0, 1]
    assert torch.allclose(logits[-1][0].double(), expected[-1],
                          atol=tolerance(1e-4, 5e-2))


EVICTIONS = [
    None,
    dict(policy="keydiff | adakv | topk", target=0.3),
    dict(policy="keydiff | uniform | topk", target=0.2, mode="every-chunk",
         compress_every=48),
    dict(policy="knorm | adakv(alpha=0.1) | topk", target=24, mode="decode",
         compress_every=16),
    dict(policy="keydiff | adakv | topk", target=0.4, mode="pressure"),
    dict(policy="keydiff | adakv | topk", target=0.3, share_prefix=True),
]


@pytest.mark.parametrize("seed", range(6))
def test_answers_are_those_of_dense_attention_to_what_was_kept(tiny, seed):
    """Batches with prefix hits, forks, chunks, preemptions and evictions."""
    model, weights = tiny
    rng = random.Random(seed)
    engine = engine_for(model, 22, Recorder)
    scheduler = nano_engine.scheduler_for(
        model, engine.layout, max_num_batched_tokens=64, max_num_seqs=6)
    shared = tokens_of(rng, 100)
    prompts = []
    for i in range(12):
        prompt = shared[:rng.randrange(0, 100)] + tokens_of(rng, rng.randrange(
            1, 100))
        kinds = EVICTIONS[rng.randrange(len(EVICTIONS))]
        scheduler.submit(f"{i}", prompt, rng.randrange(10, 90),
                         eviction=kinds and blockmgr.Eviction(**kinds))
        prompts.append(prompt)
    answers = answers_of(scheduler, engine, len(prompts))
    for request, prompt in enumerate(prompts, start=1):
        assert answers[request]
        check_answer(weights, prompt, answers[request],
                     engine.evictions[request])
    stats = scheduler.stats()
    assert stats.num_evictions > 0
    assert stats.num_preemptions > 0


def test_forks_and_shared_compressed_prefixes_start_with_a_region(tiny):
    model, weights = tiny
    rng = random.Random(3)
    prefix = tokens_of(rng, 160)
    engine = engine_for(model, 80, Recorder)
    scheduler = nano_engine.scheduler_for(model, engine.layout)
    share = blockmgr.Eviction("keydiff | adakv | topk", 0.3, share_prefix=True)
    prompts = [prefix, prefix + tokens_of(rng, 20)]
    scheduler.submit("first", prompts[0], 40, eviction=share)
    answers = answers_of(scheduler, engine, 1)
    scheduler.submit("second", prompts[1], 60, eviction=share)
    answers[2] = []
    while (plan := scheduler.schedule()) is not None:
        effects = scheduler.update(engine.run(plan))
        for request, token in zip(effects.token_requests.tolist(),
                                  effects.tokens.tolist()):
            answers.setdefault(request, []).append(token)
        if len(answers[2]) == 10 and len(prompts) == 2:
            prompts.append(prompts[1] + answers[2] + tokens_of(rng, 5))
            scheduler.submit("third", prompts[2], 20, fork_of="second")
    assert engine.num_shared_regions > 0 and engine.num_forks > 0
    for request, prompt in enumerate(prompts, start=1):
        assert answers[request]
        assert engine.evictions[request]
        check_answer(weights, prompt, answers[request],
                     engine.evictions[request])


def test_a_sequence_that_starts_again_in_its_slot_keeps_its_region(tiny):
    """After a loss of blocks, its slot is the source of its start."""
    engine = engine_for(tiny[0], 8)
    engine.region_positions = {2: "of 2", 3: "of 3"}
    none = np.zeros((0, 5), np.int32)

    def start(slot, source):
        engine.start(types.SimpleNamespace(
            starts=[types.SimpleNamespace(slot=slot, source=source, region=None,
                                          info=None)],
            dropped_regions=none, copies=none))

    start(2, 2)
    start(4, 3)
    start(3, None)
    assert engine.region_positions == {2: "of 2", 4: "of 3", 3: None}


def test_the_keys_most_unlike_the_mean_are_kept(tiny):
    model, weights = tiny
    prompt = tokens_of(random.Random(4), 200)
    engine = engine_for(model, 40, Recorder)
    scheduler = nano_engine.scheduler_for(model, engine.layout)
    scheduler.submit("a", prompt, 1, eviction=blockmgr.Eviction(
        "keydiff | uniform | topk", 0.25))
    answers_of(scheduler, engine, 1)
    ((cut, (length, kept)), ) = engine.evictions[1].items()
    assert (cut, length) == (192, 200)
    _, keys = tiny_llama.dense(weights, prompt)
    for head, own in enumerate(keys.flatten(0, 1)):
        units = own / own.norm(dim=-1, keepdim=True)
        mean = units.mean(0)
        scores = -(units @ mean) / mean.norm()
        dropped = sorted(set(range(cut)) - set(kept[head]))
        assert len(kept[head]) == 48
        assert scores[kept[head]].min() > scores[dropped].max() - tolerance(
            1e-6, 1e-2)


def test_used_blocks_fall_and_others_use_them(tiny):
    model, _ = tiny
    rng = random.Random(5)
    peaks = {}
    for ratio in (None, 0.2):
        engine = engine_for(model, 200)
        scheduler = nano_engine.scheduler_for(
            model, engine.layout, max_num_batched_tokens=320, max_num_seqs=8,
            enable_prefix_caching=False)
        for i in range(8):
            scheduler.submit(f"{i}", tokens_of(rng, 300), 40, eviction=(
                ratio and blockmgr.Eviction("keydiff | adakv | topk", ratio)))
        peaks[ratio] = 0
        while (plan := scheduler.schedule()) is not None:
            result = engine.run(plan)
            before = scheduler.num_used_blocks
            peaks[ratio] = max(peaks[ratio], before)
            effects = scheduler.update(result)
            for effect in effects.evictions:
                # Of 18 covered blocks, a fifth and what rounding adds stays.
                assert 13 <= effect.freed_blocks <= 15
            # The blocks of a new region were in use beside the old ones.
            freed = sum(effect.freed_blocks for effect in effects.evictions)
            assert before - scheduler.num_used_blocks >= freed
        assert scheduler.num_used_blocks == 0
    # 8 sequences of 340 tokens, and of a fifth of 288, and what lies behind.
    assert peaks[None] >= 8 * 19
    assert peaks[0.2] <= 7 * 9 + 22


def test_an_unknown_policy_is_refused_and_the_request_goes_on(tiny):
    model, weights = tiny
    prompt = tokens_of(random.Random(6), 100)
    for policy in ("keydiff(metric=dot)", "tova | uniform",
                   "keydiff | uniform | critical"):
        engine = engine_for(model, 40)
        scheduler = nano_engine.scheduler_for(model, engine.layout)
        scheduler.submit("a", prompt, 8,
                         eviction=blockmgr.Eviction(policy, 0.25))
        answer, errors = [], []
        while (plan := scheduler.schedule()) is not None:
            effects = scheduler.update(engine.run(plan))
            answer += effects.tokens.tolist()
            errors += [str(effect.error) for effect in effects.evictions]
        check_answer(weights, prompt, answer, {})
        assert len(errors) == 1 and "policy: expected" in errors[0]


def test_tokens_are_drawn_by_their_probability():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -1.0])
    params = blockmgr.SamplingParams(temperature=0.7, top_p=0.9, seed=11)
    drawn = [nano_engine.sample(logits, params, i) for i in range(4000)]
    assert drawn == [nano_engine.sample(logits, params, i) for i in range(4000)]
    weights = np.exp(np.array([2.0, 1.0]) / 0.7)  # .76 and .18 of all
    expected = weights / weights.sum()
    assert set(drawn) == {0, 1}
    share = drawn.count(0) / len(drawn)
    deviation = (expected[0] * expected[1] / len(drawn))**0.5
    assert abs(share - expected[0]) < 4 * deviation
    other = blockmgr.SamplingParams(temperature=0.7, top_p=0.9, seed=12)
    assert drawn[:100] != [nano_engine.sample(logits, other, i)
                           for i in range(100)]
    greedy = blockmgr.SamplingParams(temperature=0)
    assert nano_engine.sample(logits, greedy, 3) == 0


def test_the_same_seed_draws_the_same_tokens_in_any_batch(tiny):
    model, _ = tiny
    rng = random.Random(8)
    prompt = tokens_of(rng, 40)
    sampling = blockmgr.SamplingParams(temperature=1.0, seed=5)
    answers = []
    for others in (0, 4):
        engine = engine_for(model, 100)
        scheduler = nano_engine.scheduler_for(model, engine.layout)
        scheduler.submit("a", prompt, 30, sampling=sampling)
        for i in range(others):
            scheduler.submit(f"other {i}", tokens_of(rng, 60), 30)
        answers.append(answers_of(scheduler, engine, 1 + others)[1])
    assert answers[0] == answers[1] and len(set(answers[0])) > 5


def test_files_of_other_models_are_refused(tmp_path):
    for change, text in (
            (dict(without="blk.1.ffn_up.weight"), "blk.1.ffn_up.weight"),
            (dict(add="blk.0.attn_q.bias"), "blk.0.attn_q.bias"),
            (dict(architecture="qwen2"), "architecture llama, got qwen2")):
        path = tmp_path / "model.gguf"
        tiny_llama.write(path, 1, **change)
        with pytest.raises(ValueError, match=text):
            nano_engine.Llama(path)
