"""examples/python/nano_engine.py on random models, against a dense reference."""
import random

import numpy as np
import pytest
import torch

import blockmgr
import nano_engine
import tiny_llama

MARGIN = 1e-3  # of logits, float32 against float64


class Recorder(nano_engine.Engine):
    """Notes what the heads of every request have kept, and when."""

    def __init__(self, model, layout):
        super().__init__(model, layout)
        self.evictions = {}  # by request, by cut: (length, kept [layers][heads])
        self.regions = {}  # by the name of a kept region: (cut, kept)
        self.num_forks = self.num_shared_regions = 0

    def start(self, plan):
        super().start(plan)
        for start in plan.starts:
            own = self.evictions.setdefault(start.request, {})
            if start.region is not None:
                cut, kept = self.regions[start.region]
                own.setdefault(cut, (cut, kept))
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
                self.regions[order.region] = (order.cut, kept)
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
    for effects in nano_engine.steps(scheduler, engine):
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
    engine = nano_engine.Engine(model, nano_engine.layout_for(model, 16))
    logits = []
    model.logits, original = (
        lambda rows: logits.append(original(rows)) or logits[-1], model.logits)
    scheduler = nano_engine.scheduler_for(model, engine.layout,
                                          max_num_batched_tokens=16,
                                          max_num_seqs=4)
    scheduler.submit("a", tokens, 1)
    list(nano_engine.steps(scheduler, engine))
    model.logits = original
    expected, _ = tiny_llama.dense(weights, tokens)
    assert [len(rows) for rows in logits] == [0, 0, 0, 0, 1]
    assert torch.allclose(logits[-1][0].double(), expected[-1], atol=1e-4)


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
    engine = Recorder(model, nano_engine.layout_for(model, 22))
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
