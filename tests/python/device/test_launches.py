"""CudaKernels on a device: results against numpy, CpuKernels and the host's selection."""
import numpy as np
import pytest

import blockmgr
from blockmgr import cuda
from device_tensors import DeviceTensor, num_exported
from model import (DIM, PAGE, STREAM, Batch, Listed, Model, close, entries_of,
                   floats, ints, layout_of, noise, softmax_attention, tensor,
                   zeros)

DTYPES = ("float16", "bfloat16")
SINKS = (None, 3 * noise(8, 4))  # by layer


def test_there_is_a_device():
    assert cuda.is_available() and cuda.why_unavailable() is None
    model = Model.make()
    assert model.kernels.device == 0 and model.kernels.layout == model.layout


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_appended_and_gathered(dtype):
    model = Model.make(dtype)
    fused = noise(2, 3, 2 + 2 + 2, DIM, dtype=dtype)  # q, k and v of 3 tokens
    qkv = model.tensor(fused)
    mapping = ints([5 * PAGE + 3, -1, 7 * PAGE], np.int64)
    model.kernels.append(1, mapping, qkv[:, 2:4], qkv[:, 4:], stream=STREAM)
    expected = model.rows.copy()
    for token, (block, offset) in ((0, (5, 3)), (2, (7, 0))):
        expected[1, block, :, 0, offset] = fused[token, 2:4]
        expected[1, block, :, 1, offset] = fused[token, 4:]
    assert np.array_equal(model.now(), expected)
    # float32 is rounded.
    rough = np.random.default_rng(3).standard_normal((1, 2, DIM), np.float32)
    model.kernels.append(0, ints([9 * PAGE], np.int64), DeviceTensor.of(rough),
                         DeviceTensor.of(-rough), stream=STREAM)
    rounded = floats(tensor(rough, dtype).array, dtype)[0]
    assert np.array_equal(model.now()[0, 9, :, 0, 0], rounded)
    slots = [model.layout.page_id(1, 7, 1) * PAGE,
             model.layout.page_id(0, 9, 0) * PAGE]
    for out in (zeros((2, 2, DIM)), model.tensor(np.zeros((2, 2, DIM)))):
        model.kernels.gather(ints(slots, np.int64), out, stream=STREAM)
        model.kernels.check(stream=STREAM)
        got = out.array if out.array.dtype == np.float32 else floats(out.array,
                                                                     dtype)
        assert np.array_equal(got[0], [fused[2, 3], fused[2, 5]])
        assert np.array_equal(got[1], [rounded[0], -rounded[0]])


def test_what_kernels_refuse_is_raised_once():
    model = Model.make()
    outside = ints([14 * PAGE], np.int64)
    row = model.tensor(np.ones((1, 2, DIM)))
    model.kernels.append(0, outside, row, row, stream=STREAM)
    with pytest.raises(blockmgr.InvalidArgumentError, match="slots outside"):
        model.kernels.check(stream=STREAM)
    assert np.array_equal(model.now(), model.rows)


def test_rows_blocks_and_pages_move():
    model = Model.make()
    flat = model.rows.transpose(0, 1, 2, 4, 3, 5).reshape(-1, 2, DIM).copy()
    # A circle needs staging.
    moves = np.array([[40, 890], [890, 41], [41, 40]], np.int64)
    flat[moves[:, 1]] = flat[moves[:, 0]]
    staged = model.tensor(np.zeros((5, 2, DIM)))
    model.kernels.move(DeviceTensor.of(moves), staged, stream=STREAM)
    expected = flat.reshape(2, 14, 2, PAGE, 2, DIM).transpose(0, 1, 2, 4, 3, 5)
    assert np.array_equal(model.now(), expected)
    model.kernels.move(ints([[3, 700]], np.int64), stream=STREAM)
    flat[700] = flat[3]
    model.kernels.copy_blocks(ints([[2, 9], [3, 10]]), stream=STREAM)
    expected = flat.reshape(2, 14, 2, PAGE, 2, DIM).transpose(
        0, 1, 2, 4, 3, 5).copy()
    expected[:, [9, 10]] = expected[:, [2, 3]]
    assert np.array_equal(model.now(), expected)
    pages = [model.layout.page_id(1, 9, 0), model.layout.page_id(0, 4, 1)]
    packed = model.tensor(np.zeros((2, 2, PAGE, DIM)))
    model.kernels.pack_pages(ints(pages), packed, stream=STREAM)
    model.kernels.check(stream=STREAM)
    assert np.array_equal(floats(packed.array, "float16"),
                          [expected[1, 9, 0], expected[0, 4, 1]])
    model.kernels.unpack_pages(ints(pages[::-1]), packed, stream=STREAM)
    swapped = expected.copy()
    swapped[1, 9, 0], swapped[0, 4, 1] = expected[0, 4, 1], expected[1, 9, 0]
    assert np.array_equal(model.now(), swapped)


def sinks_of(layer):
    return None if SINKS[layer] is None else DeviceTensor.of(SINKS[layer])


def sink_of(layer, q_head):
    return -np.inf if SINKS[layer] is None else SINKS[layer][q_head]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("balanced", (False, True))
def test_decode_attends_to_regions_and_tails(dtype, balanced):
    model = Model.make(dtype)
    batch = Batch(model)
    size = model.kernels.decode_workspace_bytes(3, batch.num_slots(),
                                                balanced=balanced)
    workspace = zeros(size, np.uint8)
    for layer in range(2):
        values = noise(layer, 3, 4, DIM, dtype=dtype)
        output = model.tensor(np.zeros((3, 4, DIM)))
        lse = zeros((3, 4))
        model.kernels.decode(layer, batch.lists, model.tensor(values), output,
                             workspace, lse=lse, sinks=sinks_of(layer),
                             balanced=balanced, stream=STREAM)
        model.kernels.check(stream=STREAM)
        expected = [[softmax_attention(values[i, q], batch.rows(
            model, layer, i, q // 2, batch.lengths[i]), sink_of(layer, q))
            for q in range(4)] for i in range(3)]
        assert close(floats(output.array, dtype),
                     [[row for row, _ in rows] for rows in expected], dtype)
        assert np.allclose(lse.array, [[one for _, one in rows]
                                       for rows in expected], atol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("balanced", (False, True))
def test_the_attention_of_decodes_is_added_up(dtype, balanced):
    model = Model.make(dtype)
    batch = Batch(model)
    size = model.kernels.decode_workspace_bytes(3, batch.num_slots(),
                                                balanced=balanced)
    workspace = zeros(size, np.uint8)
    logits = zeros((model.kernels.decode_logit_rows(3, batch.num_slots()), 2))
    lse = zeros((3, 4))
    output = model.tensor(np.zeros((3, 4, DIM)))
    for layer in range(2):
        rows = [batch.rows(model, layer, i // 2, i % 2, batch.lengths[i // 2])
                for i in range(6)]
        # Each list has room for two more.
        offsets = np.cumsum([0, *[len(own) + 2 for own in rows]])
        expected = np.full(offsets[-1], 0.5)
        sums = DeviceTensor.of(expected.astype(np.float32))
        for step in range(2):
            values = noise(10 * layer + step, 3, 4, DIM, dtype=dtype)
            model.kernels.decode(layer, batch.lists, model.tensor(values),
                                 output, workspace, lse=lse, logits=logits,
                                 sinks=sinks_of(layer), balanced=balanced,
                                 stream=STREAM)
            model.kernels.add_decode_attention(
                layer, batch.lists, workspace, logits, lse,
                ints(offsets, np.int64), sums, stream=STREAM)
            for i, own in enumerate(rows):
                for q_head in (2 * (i % 2), 2 * (i % 2) + 1):
                    query = values[i // 2, q_head]
                    _, total = softmax_attention(query, own,
                                                 sink_of(layer, q_head))
                    expected[offsets[i]:offsets[i] + len(own)] += np.exp(
                        own[:, 0].astype(np.float64) @ query / np.sqrt(DIM) - total)
        model.kernels.check(stream=STREAM)
        assert close(sums.array, expected, dtype)


def test_sums_and_logits_have_the_room_that_they_have():
    model = Model.make()
    batch = Batch(model)
    lists = model.kernels.lists(ints(batch.table), ints(batch.lengths))
    workspace = zeros(model.kernels.decode_workspace_bytes(3, 200), np.uint8)
    queries = model.tensor(noise(4, 3, 4, DIM))
    output, lse = model.tensor(np.zeros((3, 4, DIM))), zeros((3, 4))
    logits = zeros((6 * 64, 2))
    decode = dict(layer=0, lists=lists, queries=queries, output=output,
                  workspace=workspace, lse=lse, stream=STREAM)
    add = dict(layer=0, lists=lists, workspace=workspace, lse=lse,
               logits=logits, stream=STREAM)
    model.kernels.decode(**decode, logits=logits)
    # The third list has room for 3 of its 4 entries.
    offsets = np.cumsum([0, 35, 35, 3, 4, 41, 41])
    sums = zeros(offsets[-1])
    model.kernels.add_decode_attention(
        **add, sum_offsets=ints(offsets, np.int64), sums=sums)
    with pytest.raises(blockmgr.InvalidArgumentError, match="more entries"):
        model.kernels.check(stream=STREAM)
    totals = np.add.reduceat(sums.array, offsets[:-1])
    assert np.allclose(totals[[0, 1, 3, 4, 5]], 2, atol=1e-2) and totals[2] < 2
    # All lists have their room. Then the tensor has room for 3 of the last
    # list's 41 entries. The memory behind it must stay as it is.
    offsets = np.cumsum([0, 35, 35, 4, 4, 41, 41])
    end = int(offsets[-2]) + 3
    add["sum_offsets"] = ints(offsets, np.int64)
    sums = zeros(offsets[-1])
    model.kernels.add_decode_attention(**add, sums=sums)
    model.kernels.check(stream=STREAM)
    before = np.array(sums.array)
    model.kernels.add_decode_attention(**add, sums=sums[:end])
    with pytest.raises(blockmgr.InvalidArgumentError, match="more entries"):
        model.kernels.check(stream=STREAM)
    totals = np.add.reduceat(sums.array, offsets[:-1])
    assert np.allclose(totals[:5], 4, atol=1e-2)
    assert (sums.array[end - 3:end] > before[end - 3:end]).all()
    assert np.array_equal(sums.array[end:], before[end:])
    # One tile of logits less than lists.
    model.kernels.decode(**decode, logits=logits[:5 * 64 + 63])
    with pytest.raises(blockmgr.InvalidArgumentError, match="more tiles"):
        model.kernels.check(stream=STREAM)


def test_a_plan_serves_layers_without_regions():
    model = Model.make()
    batch = Batch(model)
    lists = model.kernels.lists(ints(batch.table), ints(batch.lengths))
    workspace = zeros(model.kernels.decode_workspace_bytes(3, 200), np.uint8)
    queries = model.tensor(noise(4, 3, 4, DIM))
    outputs = [model.tensor(np.zeros((3, 4, DIM))) for _ in range(4)]
    for i, (layer, planned) in enumerate(((0, False), (1, True), (1, False))):
        model.kernels.decode(layer, lists, queries, outputs[i], workspace,
                             planned=planned, stream=STREAM)
    # Twice the scale is another result.
    model.kernels.decode(1, lists, queries, outputs[3], workspace, scale=0.25,
                         stream=STREAM)
    model.kernels.check(stream=STREAM)
    assert np.array_equal(outputs[1].array, outputs[2].array)
    assert not np.array_equal(outputs[0].array, outputs[1].array)
    assert not np.array_equal(outputs[3].array, outputs[1].array)


def test_lists_may_grow_as_far_as_the_workspace_has_room():
    model = Model.make()
    table = ints([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]])
    lengths = ints([3])
    lists = model.kernels.lists(table, lengths)
    # Room for seven tiles of 64 slots.
    workspace = zeros(model.kernels.decode_workspace_bytes(1, 0), np.uint8)
    queries = model.tensor(noise(4, 1, 4, DIM))
    output = model.tensor(np.zeros((1, 4, DIM)))
    lengths.array[0] = 192
    model.kernels.decode(0, lists, queries, output, workspace, stream=STREAM)
    model.kernels.check(stream=STREAM)
    few = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13] * 9, np.int32)
    long = model.kernels.lists(ints(few.reshape(1, -1)), ints([117 * PAGE]))
    output.array[...] = 7
    model.kernels.decode(0, long, queries, output, workspace, stream=STREAM)
    with pytest.raises(blockmgr.InvalidArgumentError, match="more tiles"):
        model.kernels.check(stream=STREAM)
    assert np.all(output.array == 7)


def test_prefill_is_what_the_cpu_computes():
    model = Model.make()
    batch = Batch(model)
    offsets = [0, 33, 37, 38]
    plan = model.kernels.plan_prefill(offsets)
    words = ints(plan.words)
    assert plan.num_tokens == 38
    cpu = blockmgr.CpuKernels(model.layout, model.pool.array)
    for layer in range(2):
        values = noise(layer, 38, 4, DIM)
        output = model.tensor(np.zeros((38, 4, DIM)))
        lse = zeros((38, 4))
        model.kernels.prefill(layer, batch.lists, plan, words,
                              model.tensor(values), output, lse=lse,
                              sinks=sinks_of(layer), stream=STREAM)
        model.kernels.check(stream=STREAM)
        expected = cpu.attend(layer, values, np.array(offsets, np.int32),
                              batch.table, np.array(batch.lengths, np.int32),
                              [None, batch.region, None], sinks=SINKS[layer])
        assert close(floats(output.array, "float16"), expected, "float16")
        _, last = softmax_attention(values[37, 3],
                                    batch.rows(model, layer, 2, 1, 41),
                                    sink_of(layer, 3))
        assert np.isclose(lse.array[37, 3], last, atol=1e-2)


def orders():
    """The memory of a pool, and the view of it that has our dimensions."""
    shape = (2, 14, 2, 2, PAGE, DIM)
    yield "pages", shape, (0, 1, 2, 3, 4, 5)
    # vLLM from 0.29: [blocks, tokens, heads, K and V]
    yield "nhd_pairs", (2, 14, PAGE, 2, 2, DIM), (0, 1, 3, 4, 2, 5)
    # FlashInfer: [blocks, K and V, tokens, heads]
    yield "nhd", (2, 14, 2, PAGE, 2, DIM), (0, 1, 4, 2, 3, 5)
    # vLLM to 0.28: [K and V, blocks, tokens, heads]
    yield "nhd_apart", (2, 2, 14, PAGE, 2, DIM), (0, 2, 4, 1, 3, 5)


@pytest.mark.parametrize("name,shape,axes", orders(),
                         ids=[order[0] for order in orders()])
@pytest.mark.parametrize("by_layer", (False, True))
def test_pools_of_other_engines(name, shape, axes, by_layer):
    model = Model.make()
    batch = Batch(model)
    memory = model.tensor(np.zeros(shape))
    pool = memory.view(memory.array.transpose(axes))
    strides = model.layout.strides(name)
    assert pool.array.strides == (
        *(strides[field] for field in ("layer", "block", "head", "kv", "token")),
        2)
    pool.array[...] = model.rows
    kernels = cuda.CudaKernels(model.layout,
                               [pool[0], pool[1]] if by_layer else pool)
    workspace = zeros(model.kernels.decode_workspace_bytes(3, batch.num_slots()),
                      np.uint8)
    queries = model.tensor(noise(3, 3, 4, DIM))
    row = model.tensor(noise(4, 1, 2, DIM))
    outputs = []
    for each in (model.kernels, kernels):
        each.append(1, ints([12 * PAGE + 5], np.int64), row, row, stream=STREAM)
        each.copy_blocks(ints([[12, 3]]), stream=STREAM)
        outputs.append(model.tensor(np.zeros((3, 4, DIM))))
        each.decode(1, batch.lists, queries, outputs[-1], workspace,
                    stream=STREAM)
        each.check(stream=STREAM)
    assert np.array_equal(outputs[0].array, outputs[1].array)
    assert np.array_equal(pool.array, model.pool.array)


def test_launches_read_the_lists_of_their_time():
    """What a captured graph relies on, and that pools and lists stay alive."""
    before = num_exported()
    model = Model.make()
    batch = Batch(model)
    assert num_exported() == before + 1 + 5
    batch.regions.clear()
    lists, batch.lists = batch.lists, None
    workspace = zeros(model.kernels.decode_workspace_bytes(3, 400), np.uint8)
    queries = model.tensor(noise(4, 3, 4, DIM))
    output = model.tensor(np.zeros((3, 4, DIM)))
    model.kernels.decode(0, lists, queries, output, workspace, stream=STREAM)
    model.kernels.check(stream=STREAM)
    assert num_exported() == before + 1 + 5
    del lists, model, batch
    assert num_exported() == before


SCORERS = ("knorm", "keydiff", "keydiff(anchor=median)",
           "keydiff(metric=euclidean)", "snapkv(window=5)",
           "snapkv(window=8, pool=avg, kernel=3, order=kvpress)", "tova")


@pytest.mark.parametrize("policy", SCORERS)
@pytest.mark.parametrize("dtype", ("float16",))
def test_scores_are_those_of_the_cpu(policy, dtype):
    model = Model.make(dtype)
    entries = entries_of(model)
    listed = Listed(model, entries, [72, 72])
    size = model.kernels.score_workspace_bytes(policy, listed.plan)
    workspace = zeros(size, np.uint8) if size else None
    window = blockmgr.Policy(policy).query_window
    values = noise(3, 2, window, 4, DIM, dtype=dtype)
    scores = zeros(len(entries))
    model.kernels.score(policy, listed.lists, scores, workspace,
                        queries=model.tensor(values) if window else None,
                        stream=STREAM)
    model.kernels.check(stream=STREAM)
    cpu = blockmgr.CpuKernels(model.layout, model.pool.array)
    expected = np.concatenate([
        cpu.score(policy, layer, entries, 72,
                  queries=values[layer] if window else None)
        for layer in range(2)])
    protected = np.isposinf(expected)
    assert np.array_equal(np.isposinf(scores.array), protected)
    assert close(scores.array[~protected], expected[~protected], dtype)


def test_norms_of_projected_values_are_those_of_the_cpu():
    model = Model.make()
    entries = entries_of(model)
    weights = noise(7, 4, DIM, 24)
    cpu = blockmgr.CpuKernels(model.layout, model.pool.array)
    for policy in ("knorm | critical", "knorm | critical(norm=l2)"):
        for layer in range(2):
            part = blockmgr.index_entries(model.layout, [3, 8, 5, 10, 2], 70)
            own = slice(part.offsets[2 * layer], part.offsets[2 * layer + 2])
            plan = model.kernels.plan_entries([0, 70, 140], [70])
            lists = model.kernels.entries(
                plan, ints(plan.words), ints(part.slots[own], np.int64),
                ints(part.positions[own]))
            norms = zeros(140)
            model.kernels.value_norms(policy, lists, model.tensor(weights), norms,
                                      stream=STREAM)
            model.kernels.check(stream=STREAM)
            expected = cpu.value_norms(policy, layer, entries, weights)
            assert close(norms.array, expected, "float16")


POLICIES = ("knorm", "knorm | adakv(alpha=0.1)", "knorm | adakv(mode=floor)",
            "knorm | global | round(token)", "external | external | round(token)",
            "streaming(sinks=2)", "knorm | adakv | critical",
            "tova | adakv | critical(gqa_product=true)",
            "knorm | uniform | topk | protect(recent=25%)")


def survivors_of(bits, offsets):
    """Ranks by list, as the docstring of select says."""
    ranks = []
    for index, (begin, end) in enumerate(zip(offsets, offsets[1:])):
        first = begin // 32 + index
        ranks.append([i for i in range(end - begin)
                      if bits[first + i // 32] >> (i % 32) & 1])
    return ranks


@pytest.mark.parametrize("policy", POLICIES)
def test_a_whole_eviction(policy):
    """Selects on the device, lays out on the host, moves on the device."""
    model = Model.make()
    cut, length = 64, 70
    entries = entries_of(model, cut)
    listed = Listed(model, entries, [length, length])
    values = np.random.default_rng(5).random(len(entries), np.float32)
    norms = np.random.default_rng(6).random(len(entries), np.float32)
    products = np.random.default_rng(7).random(len(entries), np.float32)
    budgets = np.array([[3, 20], [0, 40]], np.int32)
    scored = not policy.startswith("streaming")
    selection = model.kernels.plan_selection(
        listed.plan, policy, None if policy.startswith("external") else 0.4, cut)
    counts = zeros((2, 2), np.int32)
    survivors = zeros(selection.num_survivor_words, np.int32)
    num_nan = ints([9], np.int64)
    workspace = DeviceTensor.of(np.full(selection.workspace_bytes, 255, np.uint8))
    scores = DeviceTensor.of(values) if scored else None
    model.kernels.select(selection, ints(selection.words), listed.lists, scores,
                         workspace, counts, survivors, num_nan,
                         value_norms=DeviceTensor.of(norms),
                         products=DeviceTensor.of(products),
                         budgets=ints(budgets), stream=STREAM)
    model.kernels.check(stream=STREAM)
    keep = blockmgr.select(policy, None if policy.startswith("external") else 0.4,
                           values if scored else None, entries=entries, cut=cut,
                           length=length, page_size=PAGE, value_norms=norms,
                           products=products, budgets=budgets)
    assert np.array_equal(counts.array, keep.counts)
    assert 0 < keep.counts.sum() < len(entries)
    assert num_nan.array.tolist() == [0]
    assert survivors_of(survivors.array, entries.offsets) == [
        keep.ranks[begin:end].tolist()
        for begin, end in zip(keep.offsets, keep.offsets[1:])]
    region = blockmgr.lay_out(model.layout, [1, 4, 6, 7], keep.counts, cut=cut)
    placed = blockmgr.place_survivors(model.layout, entries, keep, region)
    begins = np.cumsum([0, *keep.counts.reshape(-1)])
    moves = ints(np.zeros((begins[-1], 2)), np.int64)
    positions = ints(np.full((len(region.pages), PAGE), -1))
    model.kernels.plan_moves(listed.lists, survivors, ints(region.page_offsets),
                             ints(region.pages), counts,
                             ints(begins[:-1], np.int64), moves,
                             region_positions=positions, stream=STREAM)
    # A tensor that is a move too short keeps what it has of the last head.
    short = ints(np.full((begins[-1], 2), -1), np.int64)
    model.kernels.plan_moves(listed.lists, survivors, ints(region.page_offsets),
                             ints(region.pages), counts,
                             ints(begins[:-1], np.int64),
                             short[:int(begins[-1]) - 1], stream=STREAM)
    with pytest.raises(blockmgr.InvalidArgumentError, match="more entries"):
        model.kernels.check(stream=STREAM)
    assert np.array_equal(short.array[:begins[-2]], moves.array[:begins[-2]])
    assert (short.array[begins[-2]:] == -1).all()
    model.kernels.move(moves, stream=STREAM)
    expected = model.rows.transpose(0, 1, 2, 4, 3, 5).reshape(-1, 2, DIM).copy()
    expected[placed.moves[:, 1]] = expected[placed.moves[:, 0]]
    assert np.array_equal(
        model.now().transpose(0, 1, 2, 4, 3, 5).reshape(-1, 2, DIM), expected)
    assert sorted(map(tuple, moves.array.tolist())) == sorted(
        map(tuple, placed.moves.tolist()))
    live = positions.array.reshape(-1) >= 0
    assert live.sum() == begins[-1]
    assert positions.array.reshape(-1)[live].tolist() == placed.positions.tolist()


@pytest.mark.parametrize("length", (8200, 49_200))
def test_long_lists_are_divided_among_blocks(length):
    layout = layout_of(num_layers=1, num_heads=1, num_q_heads=1,
                       num_blocks=length // PAGE + 2)
    kernels = cuda.CudaKernels(layout, DeviceTensor.of(np.zeros(
        (1, layout.num_blocks, 1, 2, PAGE, DIM), np.float16)))
    entries = blockmgr.index_entries(
        layout, list(range(layout.num_blocks - 1, 0, -1)), length)
    plan = kernels.plan_entries(entries.offsets, [length])
    lists = kernels.entries(plan, ints(plan.words), ints(entries.slots, np.int64),
                            ints(entries.positions))
    scores = np.random.default_rng(8).integers(0, 99, length).astype(np.float32)
    selection = kernels.plan_selection(plan, "knorm", 0.4, length)
    counts = zeros((1, 1), np.int32)
    survivors = zeros(selection.num_survivor_words, np.int32)
    kernels.select(selection, ints(selection.words), lists,
                   DeviceTensor.of(scores),
                   zeros(selection.workspace_bytes, np.uint8), counts, survivors,
                   ints([0], np.int64), stream=STREAM)
    kernels.check(stream=STREAM)
    keep = blockmgr.select("knorm", 0.4, scores, entries=entries, cut=length,
                           length=length, page_size=PAGE)
    assert survivors_of(survivors.array, entries.offsets) == [keep.ranks.tolist()]
    num_kept = len(keep.ranks)
    pages = np.arange(-(-num_kept // PAGE))
    moves = ints(np.zeros((num_kept, 2)), np.int64)
    kernels.plan_moves(lists, survivors, ints([0, len(pages)]), ints(pages),
                       counts, ints([0], np.int64), moves, stream=STREAM)
    kernels.check(stream=STREAM)
    assert np.array_equal(moves.array[:, 0], entries.slots[keep.ranks])
    assert np.array_equal(moves.array[:, 1], np.arange(num_kept))


def test_scores_that_are_no_numbers_are_counted():
    model = Model.make()
    entries = entries_of(model, 64)
    listed = Listed(model, entries, [70, 70])
    values = np.ones(len(entries), np.float32)
    values[[3, 100]] = np.nan
    selection = model.kernels.plan_selection(listed.plan, "knorm", 0.5, 64)
    num_nan = ints([0], np.int64)
    model.kernels.select(
        selection, ints(selection.words), listed.lists, DeviceTensor.of(values),
        zeros(selection.workspace_bytes, np.uint8), zeros((2, 2), np.int32),
        zeros(selection.num_survivor_words, np.int32), num_nan, stream=STREAM)
    model.kernels.check(stream=STREAM)
    assert num_nan.array.tolist() == [2]


def test_nothing_to_do_is_fine():
    model = Model.make()
    none = ints(np.zeros(0), np.int64)
    rows = model.tensor(np.zeros((0, 2, DIM)))
    model.kernels.append(0, none, rows, rows, stream=STREAM)
    model.kernels.gather(none, rows, stream=STREAM)
    model.kernels.move(ints(np.zeros((0, 2)), np.int64), stream=STREAM)
    model.kernels.copy_blocks(ints(np.zeros((0, 2))), stream=STREAM)
    lists = model.kernels.lists(ints(np.zeros((0, 4))), ints([]))
    queries = model.tensor(np.zeros((0, 4, DIM)))
    workspace = zeros(model.kernels.decode_workspace_bytes(0, 0), np.uint8)
    model.kernels.decode(0, lists, queries, queries, workspace, stream=STREAM)
    plan = model.kernels.plan_prefill([0])
    model.kernels.prefill(0, lists, plan, ints(plan.words), queries, queries,
                          stream=STREAM)
    assert np.array_equal(model.now(), model.rows)
    assert layout_of() == model.layout
