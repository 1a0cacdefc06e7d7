"""Scores from attention against numpy, written from docs/algorithms.md."""
import numpy as np
import pytest

import blockmgr
from device_tensors import DeviceTensor
from model import (DIM, STREAM, Listed, Model, close, entries_of, ints, noise,
                   zeros)

LENGTHS = (72, 76)  # tokens, when layer 0 and layer 1 are scored
SCALE = 1 / np.sqrt(DIM)
Q_HEADS = ((0, 1), (2, 3))  # of each head


class Case:
    """A sequence that has lost entries in all lists but one."""

    def __init__(self, dtype="float16"):
        self.model = Model.make(dtype)
        whole = entries_of(self.model, max(LENGTHS))
        kept = np.random.default_rng(1).random(len(whole)) < 0.7
        kept[whole.offsets[1]:whole.offsets[2]] = True
        self.entries = thinned(whole, kept & below(whole, LENGTHS))
        self.listed = Listed(self.model, self.entries, LENGTHS)

    def lists(self):
        """Layer, head, place, keys, values and positions of each list."""
        rows = self.model.rows.transpose(0, 1, 2, 4, 3, 5).reshape(-1, 2, DIM)
        offsets = self.entries.offsets
        for index in range(4):
            own = slice(offsets[index], offsets[index + 1])
            mine = rows[self.entries.slots[own]].astype(np.float64)
            yield (index // 2, index % 2, own, mine[:, 0], mine[:, 1],
                   self.entries.positions[own])

    def score(self, policy, scores=None, **more):
        """Scores as the device computes them."""
        kernels, plan = self.model.kernels, self.listed.plan
        size = kernels.score_workspace_bytes(policy, plan)
        scores = scores or zeros(len(self.entries))
        kernels.score(policy, self.listed.lists, scores,
                      zeros(size, np.uint8) if size else None, stream=STREAM,
                      **more)
        kernels.check(stream=STREAM)
        return scores.array


def below(entries, lengths):
    """Which entries are below the length of their layer."""
    ends = np.repeat(lengths, np.diff(entries.offsets[::2]))
    return entries.positions < ends


def thinned(entries, kept):
    offsets = np.concatenate([[0], np.cumsum(kept)])[entries.offsets]
    return blockmgr.Entries(entries.shape, offsets, entries.positions[kept],
                            entries.slots[kept])


def weights(queries, first, keys, positions):
    """A[q, j] of queries at the positions from first on."""
    seen = positions <= first + np.arange(len(queries))[:, None]
    shares = np.where(seen, np.exp(queries @ keys.T * SCALE), 0)
    return shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)


def h2o(case, queries, is_count):
    """The scores of queries [layers, last queries, q_heads, DIM]."""
    scores = np.zeros(len(case.entries))
    for layer, head, own, keys, _, positions in case.lists():
        first = LENGTHS[layer] - queries.shape[1]
        for q_head in Q_HEADS[head]:
            scores[own] += weights(queries[layer, :, q_head], first, keys,
                                   positions).sum(axis=0) / 2
        if is_count:
            seers = first + np.arange(queries.shape[1])[:, None] >= positions
            scores[own] /= seers.sum(axis=0)
    return scores


@pytest.mark.parametrize("policy,dtype", (
    ("h2o(obs_window=5)", "float16"), ("h2o(obs_window=5)", "bfloat16"),
    ("h2o(obs_window=40,norm=count)", "float16")))
def test_h2o_of_the_last_queries(policy, dtype):
    case = Case(dtype)
    count = blockmgr.Policy(policy).query_window
    queries = noise(3, 2, count, 4, DIM, dtype=dtype)
    scores = DeviceTensor.of(np.full(len(case.entries), np.nan, np.float32))
    is_count = "norm=count" in policy
    case.score(policy, scores, queries=case.model.tensor(queries),
               num_queries=ints([count, count]) if is_count else None)
    assert close(scores.array, h2o(case, queries, is_count), dtype)


def test_h2o_of_all_queries_chunk_by_chunk():
    case = Case()
    kernels = case.model.kernels
    num_queries = LENGTHS[0]
    queries = noise(3, 2, num_queries, 4, DIM)
    sums = np.zeros(len(case.entries), np.float32)
    for begin, end in ((0, 1), (1, 30), (30, 30), (30, num_queries)):
        # Layer 1 has tokens before its first query.
        lengths = (end, end + LENGTHS[1] - LENGTHS[0])
        kept = below(case.entries, lengths)
        part = thinned(case.entries, kept)
        listed = Listed(case.model, part, lengths)
        added = DeviceTensor.of(sums[kept])
        chunk = np.ascontiguousarray(queries[:, begin:end])
        workspace = None
        if end > begin:
            workspace = zeros(kernels.attention_workspace_bytes(
                listed.plan, end - begin), np.uint8)
        kernels.add_attention(listed.lists, case.model.tensor(chunk), added,
                              workspace, stream=STREAM)
        kernels.check(stream=STREAM)
        sums[kept] = added.array
    for policy in ("h2o", "h2o(norm=count)"):
        is_count = "norm=count" in policy
        scores = case.score(
            policy, DeviceTensor.of(sums),
            num_queries=ints(2 * [num_queries]) if is_count else None)
        assert close(scores, h2o(case, queries, is_count), "float16")


def test_the_scale_of_added_attention():
    case = Case()
    queries = noise(3, 2, 7, 4, DIM)
    size = case.model.kernels.attention_workspace_bytes(case.listed.plan, 7)
    sums = [zeros(len(case.entries)) for _ in range(2)]
    for scale, factor, out in ((None, 1, sums[0]), (2 * SCALE, 0.5, sums[1])):
        case.model.kernels.add_attention(
            case.listed.lists, case.model.tensor(factor * queries), out,
            zeros(size, np.uint8), scale=scale, stream=STREAM)
    case.model.kernels.check(stream=STREAM)
    assert np.allclose(sums[0].array, sums[1].array, rtol=1e-4)
    assert sums[0].array.sum() == pytest.approx(2 * 2 * 2 * 7, rel=1e-3)


class Queries:
    """Queries before rotation: correlated, and not around zero."""

    def __init__(self, dtype):
        rng = np.random.default_rng(8)
        raw = rng.standard_normal((2, 4, 60, DIM)) @ (
            rng.standard_normal((2, 4, DIM, DIM)) / np.sqrt(DIM))
        raw += rng.standard_normal((2, 4, 1, DIM))
        self.means = raw.mean(axis=2).astype(np.float32)
        self.covariances = np.array(
            [[np.cov(one, rowvar=False, bias=True) for one in layer]
             for layer in raw], np.float32)
        self.frequencies = 10000.0 ** -(np.arange(DIM // 2) / (DIM // 2))
        self.dtype = dtype

    def rotation(self, first, count):
        """R, the mean of the rotations of positions from first on."""
        half = np.arange(DIM // 2)
        total = np.zeros((DIM, DIM))
        for position in range(first, first + count):
            cosine = np.cos(position * self.frequencies)
            sine = np.sin(position * self.frequencies)
            total[half, half] += cosine
            total[half, half + DIM // 2] -= sine
            total[half + DIM // 2, half + DIM // 2] += cosine
            total[half + DIM // 2, half] += sine
        return total / count

    def predict(self, case, policy, has_covariances=True):
        return case.model.kernels.predict_queries(
            policy, case.listed.plan, self.means,
            self.covariances if has_covariances else None, self.frequencies)

    def parts(self, future):
        """Covariances on the device."""
        if self.dtype == "bfloat16":
            return DeviceTensor.of(future.covariances.view(np.uint16),
                                   bfloat=True)
        return DeviceTensor.of(future.covariances.view(np.float16))

    def scores(self, case, n_future=512, n_sink=4, cov=True, vnorm=True,
               eps=0.02):
        scores = np.zeros(len(case.entries))
        for layer, head, own, keys, values, positions in case.lists():
            turn = self.rotation(LENGTHS[layer], n_future)
            is_sink = positions < n_sink
            for q_head in Q_HEADS[head]:
                z = SCALE * keys @ (turn @ self.means[layer, q_head])
                if cov:
                    spread = turn @ self.covariances[layer, q_head] @ turn.T
                    z += SCALE**2 / 2 * np.einsum("ji,ik,jk->j", keys, spread,
                                                  keys)
                shares = np.where(is_sink, 0, np.exp(z - z.max()))
                scores[own] += shares / shares.sum() / 2
            if vnorm:
                scores[own] = (scores[own] + eps) * np.linalg.norm(values,
                                                                   axis=1)
            scores[own][is_sink] = np.inf
        return scores


@pytest.mark.parametrize("fields,dtype", (
    ({}, "float16"), ({}, "bfloat16"), ({"n_future": 40, "vnorm": False}, "float16"),
    ({"cov": False, "n_sink": 0}, "float16"),
    ({"n_sink": 11, "eps": 0.5, "stats": "chat"}, "float16")))
def test_attention_that_is_expected(fields, dtype):
    case = Case(dtype)
    queries = Queries(dtype)
    policy = "expected_attention({})".format(
        ",".join(f"{key}={str(value).lower()}" for key, value in fields.items()))
    has_covariances = fields.get("cov", True)
    future = queries.predict(case, policy, has_covariances)
    more = {}
    if has_covariances:
        more = dict(covariances=queries.parts(future),
                    units=DeviceTensor.of(future.units))
    scores = case.score(policy, means=DeviceTensor.of(future.means), **more)
    fields = {key: fields[key] for key in fields if key != "stats"}
    expected = queries.scores(case, **fields)
    sinks = np.isposinf(expected)
    assert sinks.any() == (fields.get("n_sink", 4) > 0)
    assert np.array_equal(np.isposinf(scores), sinks)
    assert close(scores[~sinks], expected[~sinks], dtype)


def test_queries_are_predicted_on_the_host():
    case = Case()
    queries = Queries("float16")
    future = queries.predict(case, "expected_attention(n_future=9)")
    parts = future.covariances.view(np.float16).astype(np.float64)
    got = parts.sum(axis=3) * future.units[:, :, None, None]
    for layer in range(2):
        turn = queries.rotation(LENGTHS[layer], 9)
        assert np.allclose(future.means[layer], queries.means[layer] @ turn.T,
                           atol=1e-5)
        expected = turn @ queries.covariances[layer] @ turn.T
        assert np.abs(got[layer] - expected).max() <= (
            1e-5 * np.abs(expected).max())
    without = queries.predict(case, "expected_attention(cov=false)", False)
    assert without.covariances.shape == (2, 4, 0, 2, DIM)
    for array in (future.means, future.units, future.covariances):
        assert not array.flags.writeable


def pooled(rows, size):
    """The maximum over `size` neighbours, as far as there are any."""
    reach = size // 2
    return np.stack([rows[:, max(0, i - reach):i + reach + 1].max(axis=1)
                     for i in range(rows.shape[1])], axis=1)


@pytest.mark.parametrize("scorer,window,kernel,eps", (
    ("snapkv(window=5,kernel=3)", 5, 3, 1e-4), ("tova", 1, 1, 0.25)))
@pytest.mark.parametrize("norm", ("l1", "l2"))
def test_products_of_each_query_head(scorer, window, kernel, eps, norm):
    case = Case()
    model = case.model
    policy = f"{scorer} | adakv | critical(gqa_product=true,eps={eps},norm={norm})"
    projection = noise(7, 4, DIM, 24)
    norms = zeros(2 * len(case.entries))
    model.kernels.value_norms(policy, case.listed.lists,
                              model.tensor(projection), norms, stream=STREAM)
    queries = noise(3, 2, window, 4, DIM)
    products = zeros(len(case.entries))
    scores = case.score(policy, queries=model.tensor(queries),
                        value_norms=norms, products=products)
    plain = case.score(scorer, queries=model.tensor(queries))
    assert np.array_equal(scores, plain)
    expected = np.full(len(case.entries), np.inf)
    for layer, head, own, keys, values, positions in case.lists():
        begin, size = own.start, own.stop - own.start
        sizes = np.stack([np.linalg.norm(values @ projection[q_head],
                                         ord=1 if norm == "l1" else 2, axis=1)
                          for q_head in Q_HEADS[head]])
        got = norms.array[2 * begin:2 * own.stop].reshape(2, size)
        assert close(got, sizes, "float16")
        first = LENGTHS[layer] - window
        past = (positions < first).sum()
        shares = pooled(np.stack([
            weights(queries[layer, :, q_head], first, keys,
                    positions).mean(axis=0)[:past]
            for q_head in Q_HEADS[head]]), kernel)
        expected[begin:begin + past] = np.mean(
            (shares + eps) * sizes[:, :past], axis=0)
    protected = np.isposinf(expected)
    assert np.array_equal(np.isposinf(products.array), protected)
    assert close(products.array[~protected], expected[~protected], "float16")
