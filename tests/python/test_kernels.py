"""CpuKernels against numpy, and what they refuse."""
import threading

import numpy as np
import pytest

import blockmgr

LAYOUT = blockmgr.KvLayout(num_layers=2, num_heads=2, num_q_heads=6, head_dim=8,
                           page_size=4, num_blocks=30, dtype="float32")
SCALE = 1 / np.sqrt(8)


def noise(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def pool_of(layout=LAYOUT, seed=1):
    return noise(seed, layout.num_layers, layout.num_blocks, layout.num_heads, 2,
                 layout.page_size, layout.head_dim)


def softmax_attention(query, keys, values, sink):
    """The sink is one more logit, of a value of zeros."""
    logits = keys.astype(np.float64) @ query * SCALE
    return np.exp(logits - np.logaddexp.reduce([*logits, sink])) @ values


def rows_of(pool, pages, count):
    """K and V of the first `count` slots of a page list, [count, 2, head_dim]."""
    flat = pool.reshape(-1, 2, LAYOUT.page_size, LAYOUT.head_dim)
    return flat[pages].transpose(0, 2, 1, 3).reshape(-1, 2, 8)[:count]


@pytest.mark.parametrize("num_threads", (1, 3))
def test_attention_over_regions_and_tails(num_threads):
    pool = pool_of()
    kernels = blockmgr.CpuKernels(LAYOUT, pool, num_threads)
    kept = np.array([[1, 9], [0, 5]], np.int32)
    region = blockmgr.lay_out(LAYOUT, [4, 9], kept, cut=20)
    tails = ([7, 2], [11], [12, 13, 14])
    lengths = np.array([6, 3, 9], np.int32)
    counts = [4, 1, 0]  # of queries
    tables = np.array([row + [0] * (3 - len(row)) for row in tails], np.int32)
    offsets = np.cumsum([0, *counts], dtype=np.int32)
    for layer, sinks in ((0, None), (1, None), (1, noise(9, 6))):
        queries = noise(layer, 5, 6, 8)
        output = kernels.attend(layer, queries, offsets, tables, lengths,
                                [None, region, None], sinks=sinks)
        assert output.shape == queries.shape and output.dtype == np.float32
        for i, count in enumerate(counts):
            for token, q_head in np.ndindex(count, 6):
                head = q_head // 3
                index = layer * 2 + head
                pages = [LAYOUT.page_id(layer, block, head) for block in tails[i]]
                seen = lengths[i] - count + token + 1
                rows = rows_of(pool, pages, seen)
                if i == 1:
                    own = region.pages[region.page_offsets[index]:
                                       region.page_offsets[index + 1]]
                    rows = np.concatenate(
                        [rows_of(pool, own, kept[layer, head]), rows])
                row = offsets[i] + token
                expected = softmax_attention(
                    queries[row, q_head], rows[:, 0], rows[:, 1],
                    -np.inf if sinks is None else sinks[q_head])
                assert np.allclose(output[row, q_head], expected, atol=1e-5)


def entries_of(tail=(3, 8, 5), limit=11):
    return blockmgr.index_entries(LAYOUT, tail, limit)


def dense_rows(pool, layer, head, tail=(3, 8, 5), limit=11):
    return rows_of(pool, [LAYOUT.page_id(layer, block, head) for block in tail],
                   limit)


def test_scores_of_keys_and_of_queries():
    pool = pool_of()
    kernels = blockmgr.CpuKernels(LAYOUT, pool)
    queries = noise(5, 1, 6, 8)
    for layer in range(2):
        norms = kernels.score("knorm", layer, entries_of(), 11).reshape(2, 11)
        tova = kernels.score("tova", layer, entries_of(), 11,
                             queries=queries).reshape(2, 11)
        weights = np.zeros(11)
        for head in range(2):
            keys = dense_rows(pool, layer, head)[:, 0]
            assert np.allclose(norms[head], -np.linalg.norm(keys, axis=1),
                               atol=1e-5)
            for q_head in range(3 * head, 3 * head + 3):
                weight = np.exp(keys @ queries[0, q_head] * SCALE)
                weights += weight / weight.sum() / 6
        for head in range(2):
            assert np.allclose(tova[head, :10], weights[:10], atol=1e-5)
            assert tova[head, 10] == np.inf


def test_norms_of_projected_values():
    pool = pool_of()
    kernels = blockmgr.CpuKernels(LAYOUT, pool)
    projection = noise(3, 6, 8, 5)
    norms = kernels.value_norms("keydiff | critical", 1, entries_of(),
                                projection).reshape(2, 11)
    for head in range(2):
        values = dense_rows(pool, 1, head)[:, 1]
        expected = np.mean([np.abs(values @ projection[q]).sum(axis=1)
                            for q in range(3 * head, 3 * head + 3)], axis=0)
        assert np.allclose(norms[head], expected, rtol=1e-4)


def test_the_pool_lives_as_long_as_its_kernels():
    expected = pool_of()
    kernels = blockmgr.CpuKernels(LAYOUT, expected.copy())
    scores = kernels.score("knorm", 0, entries_of(), 11).reshape(2, 11)
    keys = dense_rows(expected, 0, 1)[:, 0]
    assert np.allclose(scores[1], -np.linalg.norm(keys, axis=1), atol=1e-5)


def test_threads_take_turns():
    kernels = blockmgr.CpuKernels(LAYOUT, pool_of(), 2)
    expected = kernels.score("keydiff", 0, entries_of(), 11)
    results = []

    def work():
        for _ in range(50):
            results.append(kernels.score("keydiff", 0, entries_of(), 11))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 200
    assert all(np.array_equal(result, expected) for result in results)


def test_wrong_pools_are_refused():
    pool = pool_of()
    for wrong in (pool[0], pool[:, :, :, :, :, ::2], pool[:1],
                  np.asfortranarray(pool)):
        with pytest.raises(blockmgr.InvalidArgumentError, match="pool: expected"):
            blockmgr.CpuKernels(LAYOUT, wrong)
    for wrong in (pool.astype(np.float64), pool.astype(np.float16),
                  pool.tolist()):
        with pytest.raises(TypeError, match="pool: expected"):
            blockmgr.CpuKernels(LAYOUT, wrong)
    for threads in (0, -1, 1025):
        with pytest.raises(blockmgr.InvalidArgumentError, match="num_threads"):
            blockmgr.CpuKernels(LAYOUT, pool, threads)
    fields = dict(num_layers=2, num_heads=2, num_q_heads=6, head_dim=8,
                  page_size=4, num_blocks=30, dtype="float32")
    for more, text in ((dict(window=8), "sliding windows"),
                       (dict(group_windows=[8]), "sliding windows"),
                       (dict(num_shards=2), "num_shards")):
        layout = blockmgr.KvLayout(**fields, **more)
        with pytest.raises(blockmgr.InvalidArgumentError, match=text):
            blockmgr.CpuKernels(layout, pool)


def test_wrong_calls_are_refused():
    kernels = blockmgr.CpuKernels(LAYOUT, pool_of())
    other = blockmgr.KvLayout(num_layers=2, num_heads=2, num_q_heads=6,
                              head_dim=8, page_size=4, num_blocks=31,
                              dtype="float32")
    region = blockmgr.lay_out(other, [4], np.ones((2, 2), np.int32), cut=4)
    good = dict(layer=0, queries=noise(1, 2, 6, 8),
                query_offsets=np.array([0, 2], np.int32),
                block_tables=np.array([[3, 4]], np.int32),
                tail_lengths=np.array([7], np.int32))
    kernels.attend(**good)
    for name, value, text in (
            ("layer", 2, "layer: expected 0 to 1"),
            ("layer", -1, "layer"),
            ("queries", noise(1, 2, 6, 7), "queries: expected the shape"),
            ("queries", noise(1, 2, 12, 8)[:, ::2], "C-contiguous"),
            ("queries", noise(1, 3, 6, 8), "query_offsets: expected 0 first"),
            ("query_offsets", np.array([1, 2], np.int32), "query_offsets"),
            ("query_offsets", np.array([0, 1, 2], np.int32), "query_offsets"),
            ("block_tables", np.array([[3, 30]], np.int32), "from 0 to 29"),
            ("block_tables", np.array([[3, -1]], np.int32), "from 0 to 29"),
            ("block_tables", np.array([3, 4], np.int32), "block_tables"),
            ("tail_lengths", np.array([1], np.int32), "tail_lengths"),
            ("tail_lengths", np.array([9], np.int32), "tail_lengths"),
            ("tail_lengths", np.array([2**31 - 1], np.int32), "tail_lengths"),
            ("regions", [], "regions: expected 1"),
            ("regions", [region], "regions: expected regions of the layout"),
            ("sinks", noise(1, 5), "sinks: expected the shape"),
            ("sinks", noise(1, 6, 1), "sinks: expected the shape"),
            ("sinks", noise(1, 12)[::2], "sinks: .*C-contiguous"),
            ("scale", 0.0, "scale"),
            ("scale", float("nan"), "scale"),
            ("scale", float("inf"), "scale")):
        with pytest.raises(blockmgr.InvalidArgumentError, match=text):
            kernels.attend(**{**good, name: value})
    for name, value in (("queries", noise(1, 2, 6, 8).astype(np.float16)),
                        ("queries", None),
                        ("query_offsets", np.array([0, 2])),
                        ("tail_lengths", np.array([7.0])),
                        ("sinks", np.zeros(6)), ("sinks", 6 * [0.0]),
                        ("regions", [LAYOUT]), ("regions", 3)):
        with pytest.raises(TypeError):
            kernels.attend(**{**good, name: value})
    descending = np.array([0, 3, 2], np.int32)
    with pytest.raises(blockmgr.InvalidArgumentError, match="ascending"):
        kernels.attend(0, noise(1, 2, 6, 8), descending,
                       np.array([[3], [4]], np.int32), np.array([4, 4], np.int32))


def test_wrong_scores_are_refused():
    kernels = blockmgr.CpuKernels(LAYOUT, pool_of())
    entries = entries_of()
    slots = entries.slots.copy()
    slots[5] = 2 * 30 * 2 * 4
    outside = blockmgr.Entries((2, 2), entries.offsets, entries.positions, slots)
    unknown = blockmgr.Entries((2, 2), entries.offsets, entries.positions)
    transposed = blockmgr.Entries((4, 1), entries.offsets, entries.positions,
                                  entries.slots)
    for policy, given, length, text in (
            ("streaming", entries, 11, "expected a scorer that reads the pool"),
            ("external", entries, 11, "expected a scorer that reads the pool"),
            ("h2o", entries, 11, "sums over all queries"),
            ("expected_attention", entries, 11, "sums over all queries"),
            ("knorm", entries, 10, "length: expected more than 10"),
            ("knorm", outside, 11, "slots of the pool"),
            ("knorm", unknown, 11, "the slots of all entries"),
            ("knorm", transposed, 11, "entries: expected 2 layers")):
        with pytest.raises(blockmgr.InvalidArgumentError, match=text):
            kernels.score(policy, 0, given, length)
    for queries in (noise(1, 3, 6, 8), noise(1, 4, 3, 8)):
        with pytest.raises(blockmgr.InvalidArgumentError, match="queries"):
            kernels.score("snapkv(window=4)", 0, entries, 11, queries=queries)
    with pytest.raises(TypeError, match="queries"):
        kernels.score("snapkv", 0, entries, 11)
    nothing = blockmgr.Entries((2, 2), np.zeros(5, np.int64),
                               np.zeros(0, np.int32), np.zeros(0, np.int64))
    with pytest.raises(blockmgr.InvalidArgumentError,
                       match="length: expected at least 1, got 0"):
        kernels.score("snapkv", 0, nothing, 0,
                      queries=np.zeros((0, 6, 8), np.float32))
    for projection in (noise(1, 6, 8, 0), noise(1, 6, 7, 3), noise(1, 6, 8)):
        with pytest.raises(blockmgr.InvalidArgumentError, match="projection"):
            kernels.value_norms("knorm | critical", 0, entries, projection)
