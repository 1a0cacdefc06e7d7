"""Graphs that are captured from launches, on devices that have them."""
import numpy as np

import blockmgr
from model import DIM, PAGE, Model, close, ints, noise, softmax_attention, zeros


def _now(model, stream):
    model.kernels.check(stream=stream)
    return model.pool.array.astype(np.float32)


def test_a_step_is_captured_once_and_replayed(runtime):
    """Rows are appended, and attended to by lists that have grown since."""
    model = Model.make()
    stream = runtime.make_stream()
    tables = ints([[0, 0, 0], [0, 0, 0]])
    lengths = ints([1, 1])
    slots = ints([-1, -1], np.int64)
    rows = model.tensor(np.zeros((2, 2, DIM)))
    queries = model.tensor(np.zeros((2, 4, DIM)))
    outputs = [model.tensor(np.zeros((2, 4, DIM))) for _ in range(2)]
    lists = model.kernels.lists(tables, lengths)
    workspace = zeros(model.kernels.decode_workspace_bytes(2, 2 * 2 * 48),
                      np.uint8)
    runtime.begin_capture(stream)
    for layer, output in enumerate(outputs):
        model.kernels.append(layer, slots, rows, rows, stream=stream)
        model.kernels.decode(layer, lists, queries, output, workspace,
                             planned=layer > 0, stream=stream)
    graph = runtime.end_capture(stream)
    model.kernels.check(stream=stream)
    assert not outputs[0].array.any()
    for seed, (blocks, sizes) in enumerate((
            ([[3, 4, 0], [7, 0, 0]], [20, 3]),
            ([[3, 4, 9], [7, 5, 0]], [40, 17]))):
        values = noise(seed, 2, 4, DIM)
        fresh = noise(10 + seed, 2, 2, DIM)
        tables.array[...], lengths.array[...] = blocks, sizes
        slots.array[...] = [blocks[i][(sizes[i] - 1) // PAGE] * PAGE +
                            (sizes[i] - 1) % PAGE for i in range(2)]
        queries.array[...], rows.array[...] = values, fresh
        runtime.launch(graph, stream)
        model.rows = _now(model, stream)
        for layer in range(2):
            expected = []
            for i in range(2):
                block, offset = divmod(int(slots.array[i]), PAGE)
                assert np.array_equal(model.rows[layer, block, :, 0, offset],
                                      fresh[i])
                for q_head in range(4):
                    pages = [model.layout.page_id(layer, b, q_head // 2)
                             for b in blocks[i]]
                    expected.append(softmax_attention(
                        values[i, q_head], model.of_list(pages, sizes[i]))[0])
            assert close(outputs[layer].array.reshape(8, DIM),
                         np.array(expected), "float16")


def test_an_eviction_is_captured(runtime):
    """Scores, selection and moves; the region is laid out before."""
    model = Model.make()
    stream = runtime.make_stream()
    entries = blockmgr.index_entries(model.layout, [3, 8, 5, 10, 2], 64)
    plan = model.kernels.plan_entries(entries.offsets, [70, 70])
    lists = model.kernels.entries(plan, ints(plan.words),
                                  ints(entries.slots, np.int64),
                                  ints(entries.positions))
    policy = "keydiff | external | topk | round(token)"
    budgets = np.array([[3, 20], [0, 40]], np.int32)
    selection = model.kernels.plan_selection(plan, policy, None, 64)
    region = blockmgr.lay_out(model.layout, [1, 4, 6, 7], budgets, cut=64)
    begins = np.cumsum([0, *budgets.reshape(-1)])
    scores, counts = zeros(len(entries)), zeros((2, 2), np.int32)
    survivors = zeros(selection.num_survivor_words, np.int32)
    moves = ints(np.zeros((begins[-1], 2)), np.int64)
    arguments = dict(
        score=zeros(model.kernels.score_workspace_bytes(policy, plan), np.uint8),
        select=zeros(selection.workspace_bytes, np.uint8),
        words=ints(selection.words), nan=ints([0], np.int64),
        budgets=ints(budgets), offsets=ints(region.page_offsets),
        pages=ints(region.pages), begins=ints(begins[:-1], np.int64))
    runtime.begin_capture(stream)
    model.kernels.score(policy, lists, scores, arguments["score"], stream=stream)
    model.kernels.select(selection, arguments["words"], lists, scores,
                         arguments["select"], counts, survivors,
                         arguments["nan"], budgets=arguments["budgets"],
                         stream=stream)
    model.kernels.plan_moves(lists, survivors, arguments["offsets"],
                             arguments["pages"], counts, arguments["begins"],
                             moves, stream=stream)
    model.kernels.move(moves, stream=stream)
    graph = runtime.end_capture(stream)
    for seed in (5, 6):
        model.rows = noise(seed, *model.rows.shape)
        model.pool.array[...] = model.rows
        runtime.launch(graph, stream)
        now = _now(model, stream)
        keep = blockmgr.select(policy, None, scores.array.copy(),
                               entries=entries, cut=64, length=70,
                               page_size=PAGE, budgets=budgets)
        assert np.array_equal(counts.array, budgets)
        placed = blockmgr.place_survivors(model.layout, entries, keep, region)
        expected = model.rows.transpose(0, 1, 2, 4, 3, 5).reshape(-1, 2, DIM)
        expected = expected.copy()
        expected[placed.moves[:, 1]] = expected[placed.moves[:, 0]]
        assert np.array_equal(
            now.transpose(0, 1, 2, 4, 3, 5).reshape(-1, 2, DIM), expected)
        assert scores.array.any()


def test_an_index_and_its_scores_are_captured(runtime):
    """Tables and queries change. Lengths are those of the plan."""
    model = Model.make()
    stream = runtime.make_stream()
    tables = ints([[0, 0, 0, 0, 0]])
    lists = model.kernels.lists(tables, ints([70]))
    plan = model.kernels.plan_entries(np.arange(5) * 64, [70, 70])
    index = model.kernels.plan_index(plan, [0])
    words, index_words = ints(plan.words), ints(index.words)
    slots, positions = zeros(256, np.int64), zeros(256, np.int32)
    entries = model.kernels.entries(plan, words, slots, positions)
    policy = "h2o(obs_window=6)"
    queries = model.tensor(np.zeros((2, 6, 4, DIM)))
    scores = zeros(256)
    workspace = zeros(model.kernels.score_workspace_bytes(policy, plan), np.uint8)
    runtime.begin_capture(stream)
    model.kernels.index_entries(index, index_words, lists, slots, positions,
                                stream=stream)
    model.kernels.score(policy, entries, scores, workspace, queries=queries,
                        stream=stream)
    graph = runtime.end_capture(stream)
    for seed, blocks in enumerate(([3, 8, 5, 10, 2], [1, 2, 12, 7, 6])):
        values = noise(seed, 2, 6, 4, DIM)
        tables.array[...], queries.array[...] = [blocks], values
        runtime.launch(graph, stream)
        model.kernels.check(stream=stream)
        host = blockmgr.index_entries(model.layout, blocks, 64)
        assert np.array_equal(slots.array, host.slots)
        assert np.array_equal(positions.array, host.positions)
        expected = np.zeros((2, 2, 64))
        for layer, q_head in np.ndindex(2, 4):
            pages = [model.layout.page_id(layer, block, q_head // 2)
                     for block in blocks]
            keys = model.of_list(pages, 64)[:, 0].astype(np.float64)
            shares = np.exp(values[layer, :, q_head] @ keys.T / np.sqrt(DIM))
            shares /= shares.sum(axis=1, keepdims=True)
            expected[layer, q_head // 2] += shares.sum(axis=0) / 2
        assert close(scores.array.reshape(2, 2, 64), expected, "float16")


def test_attention_of_captured_decodes_is_added_up(runtime):
    """A tail grows from replay to replay, and its sums with it."""
    model = Model.make()
    stream = runtime.make_stream()
    blocks = [3, 8, 5, 10, 2]
    lengths = ints([1])
    lists = model.kernels.lists(ints([blocks]), lengths)
    queries = model.tensor(np.zeros((1, 4, DIM)))
    output, lse = model.tensor(np.zeros((1, 4, DIM))), zeros((1, 4))
    workspace = zeros(model.kernels.decode_workspace_bytes(1, 160), np.uint8)
    logits = zeros((model.kernels.decode_logit_rows(1, 160), 2))
    sums, offsets = zeros(160), ints([0, 80, 160], np.int64)
    runtime.begin_capture(stream)
    model.kernels.decode(1, lists, queries, output, workspace, lse=lse,
                         logits=logits, stream=stream)
    model.kernels.add_decode_attention(1, lists, workspace, logits, lse, offsets,
                                       sums, stream=stream)
    graph = runtime.end_capture(stream)
    expected = np.zeros((2, 80))
    for seed, length in enumerate((1, 64, 65, 80)):
        values = noise(seed, 1, 4, DIM)
        lengths.array[0], queries.array[...] = length, values
        runtime.launch(graph, stream)
        model.kernels.check(stream=stream)
        for q_head in range(4):
            pages = [model.layout.page_id(1, block, q_head // 2)
                     for block in blocks]
            keys = model.of_list(pages, length)[:, 0].astype(np.float64)
            shares = np.exp(keys @ values[0, q_head] / np.sqrt(DIM))
            expected[q_head // 2, :length] += shares / shares.sum()
    assert close(sums.array.reshape(2, 80), expected, "float16")
