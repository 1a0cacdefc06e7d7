"""Pure functions: layouts, selection, placement, policies; wrong arguments."""
import ctypes
import json
import keyword
import pathlib
import threading

import numpy as np
import pytest

import blockmgr
from blockmgr import policies as p
from device_tensors import CPU, DeviceTensor

ROOT = pathlib.Path(__file__).parents[2]
VECTORS = json.loads((ROOT / "docs/region_layout_vectors.json").read_text())


def layout(**fields):
    values = dict(num_layers=2, num_heads=2, num_blocks=40, head_dim=8,
                  page_size=4)
    return blockmgr.KvLayout(**{**values, **fields})


def test_regions_are_laid_out_as_the_vectors_say():
    num_cases = 0
    for model in VECTORS["models"]:
        own = layout(**{name: model[name] for name in
                        ("num_layers", "num_heads", "num_shards", "page_size",
                         "num_blocks")})
        shape = (model["num_layers"], model["num_heads"])
        for case in model["cases"]:
            region = None
            for step in case["evictions"]:
                kept = np.array(step["kept"], np.int32).reshape(shape)
                region = blockmgr.lay_out(
                    own, step["destinations"], kept, cut=step["cut"],
                    tail_blocks=np.array(step["tail_blocks"]), region=region)
                lists = [region.pages[a:b].tolist() for a, b in
                         zip(region.page_offsets, region.page_offsets[1:])]
                assert lists == step["pages"]
                assert region.held_pages.reshape(-1).tolist() == (
                    step["held_pages"])
                assert region.blocks.tolist() == step["blocks"]
                assert region.checksum == int(step["layout_checksum"], 16)
                assert np.array_equal(region.kept, kept)
                assert region.cut == step["cut"]
                assert region.num_entries == kept.sum()
            num_cases += 1
    assert num_cases >= 20


def test_layouts_are_checked():
    own = layout()
    kept = np.full((2, 2), 4, np.int32)
    region = blockmgr.lay_out(own, [5], kept, cut=8, tail_blocks=[1, 2])
    for destinations, text in (([5, 5], r"destinations\[1\]: block 5 is named"),
                               ([0], r"destinations\[0\]: expected a block"),
                               ([40], "from 1 to 39, got 40"),
                               ([], "kept: expected at most the 0 pages")):
        with pytest.raises(blockmgr.InvalidArgumentError, match=text):
            blockmgr.lay_out(own, destinations, kept)
    for fields in (dict(tail_blocks=[3, 3]), dict(tail_blocks=[-1]),
                   dict(tail_blocks=[5], region=region), dict(cut=-1)):
        with pytest.raises(blockmgr.InvalidArgumentError):
            blockmgr.lay_out(own, [6], kept, **fields)
    with pytest.raises(blockmgr.InvalidArgumentError, match="region: expected"):
        blockmgr.lay_out(layout(num_blocks=41), [6], kept, region=region)
    with pytest.raises(blockmgr.InvalidArgumentError, match="negative"):
        blockmgr.lay_out(own, [6], kept - 5)
    with pytest.raises(TypeError):
        blockmgr.lay_out(own, [6], kept, region=own)
    with pytest.raises(blockmgr.InvalidArgumentError, match="head_dim"):
        layout(head_dim=-1)
    with pytest.raises(blockmgr.InvalidArgumentError, match="dtype"):
        layout(dtype="int4")
    with pytest.raises(blockmgr.InvalidArgumentError, match="layer: expected 0"):
        own.page_id(2, 1, 1)
    assert own.page_id(1, 7, 1) == (1 * 40 + 7) * 2 + 1
    assert own.block_bytes == 2 * 2 * 2 * 4 * 8 * 2
    assert own.strides("hnd")["head"] == 4 * 8 * 2
    assert own == layout() and own != layout(page_size=8) and own != 3


@pytest.mark.parametrize("order", ["nhd_pairs", "hnd_pairs"])
def test_strides_are_those_of_a_tensor_that_vllm_makes(order):
    """vLLM from 0.29 on: a layer is [num_blocks, num_heads, page_size,
    2 * head_dim], stored token by token unless told otherwise."""
    own = blockmgr.KvLayout(num_layers=3, num_heads=4, head_dim=8, page_size=16,
                            num_blocks=5, dtype="float16")
    if order == "hnd_pairs":
        tensor = np.zeros((3, 5, 4, 16, 2 * 8), np.float16)
    else:
        stored = np.zeros((3, 5, 16, 4, 2 * 8), np.float16)
        tensor = stored.transpose(0, 1, 3, 2, 4)
    # What vLLM takes apart into K and V.
    keys, values = tensor[..., :8], tensor[..., 8:]
    rng = np.random.default_rng(3)
    tensor[...] = rng.standard_normal(tensor.shape)
    strides = own.strides(order)
    view = np.lib.stride_tricks.as_strided(
        tensor, (3, 5, 4, 2, 16, 8),
        [strides[name] for name in ("layer", "block", "head", "kv", "token")]
        + [2])
    assert np.array_equal(view[:, :, :, 0], keys)
    assert np.array_equal(view[:, :, :, 1], values)
    assert tensor.nbytes == own.pool_bytes


def bad_arrays():
    good = np.zeros((2, 2, 16), np.float32)
    unaligned = np.frombuffer(b"\0" * (good.nbytes + 1), np.uint8)[1:].view(
        np.float32).reshape(good.shape)
    yield "dtype", good.astype(np.float64)
    yield "half", good.astype(np.float16)
    yield "order", good.astype(">f4")
    yield "object", good.astype(object)
    yield "complex", good.astype(np.complex64)
    yield "list", good.tolist()
    yield "none", None
    yield "text", "scores"
    yield "dimensions", good[0]
    yield "scalar", np.float32(1)
    yield "stride", np.zeros((2, 2, 32), np.float32)[:, :, ::2]
    yield "negative stride", good[::-1]
    yield "fortran", np.asfortranarray(np.zeros((2, 3, 16), np.float32))
    yield "broadcast", np.broadcast_to(np.float32(1), (2, 2, 16))
    yield "unaligned", unaligned
    yield "empty", np.zeros((0, 0, 0), np.float32)
    yield "no positions", np.zeros((2, 2, 0), np.float32)
    yield "class", good.__class__
    yield "memory", ctypes.c_float(1)


@pytest.mark.parametrize("name,array", list(bad_arrays()),
                         ids=[name for name, _ in bad_arrays()])
def test_a_wrong_array_is_an_exception(name, array):
    del name
    with pytest.raises((TypeError, ValueError)):
        blockmgr.select("keydiff", 0.5, array)
    with pytest.raises((TypeError, ValueError)):
        blockmgr.lay_out(layout(), [1], array)
    with pytest.raises((TypeError, ValueError)):
        blockmgr.StepResult(1, array)
    with pytest.raises((TypeError, ValueError)):
        blockmgr.KeepSets.of_mask(array)
    with pytest.raises((TypeError, ValueError)):
        blockmgr.Entries((2, 2), array, array)


def on_cpu(array):
    """A tensor of another library."""
    return DeviceTensor(array, place=(CPU, 0))


def test_tensors_come_by_dlpack():
    scores = np.random.default_rng(1).random((2, 2, 16), np.float32)
    keep = blockmgr.select("knorm", 0.5, on_cpu(scores), page_size=4)
    expected = blockmgr.select("knorm", 0.5, scores, page_size=4)
    assert keep.ranks.tolist() == expected.ranks.tolist()
    with pytest.raises((TypeError, ValueError)):
        blockmgr.select("knorm", 0.5, on_cpu(scores.astype(np.float64)))
    kept = np.full((2, 2), 4, np.int32)
    region = blockmgr.lay_out(layout(), on_cpu(np.array([9, 3])), on_cpu(kept),
                              cut=12)
    assert region.pages.tolist() == blockmgr.lay_out(
        layout(), [9, 3], kept, cut=12).pages.tolist()


def test_a_tensor_on_a_device_is_refused():
    # Memory that nobody may read.
    tensor = DeviceTensor(np.zeros((2, 2, 16), np.float32))
    with pytest.raises(blockmgr.InvalidArgumentError,
                       match="scores: expected .* memory of the CPU"):
        blockmgr.select("knorm", 0.5, tensor)
    with pytest.raises(blockmgr.InvalidArgumentError, match="prompt"):
        blockmgr.Scheduler(layout()).submit("a", tensor)


def test_top_scores_are_kept():
    rng = np.random.default_rng(2)
    scores = rng.random((2, 3, 64), np.float32)
    keep = blockmgr.select("external | uniform", 0.25, scores, page_size=16)
    assert keep.counts.tolist() == [[16] * 3] * 2
    for i, ranks in enumerate(np.split(keep.ranks, keep.offsets[1:-1])):
        best = np.sort(np.argsort(-scores.reshape(6, 64)[i])[:16])
        assert ranks.tolist() == best.tolist()
    mask = np.zeros((6, 64), bool)
    for i, ranks in enumerate(np.split(keep.ranks, keep.offsets[1:-1])):
        mask[i, ranks] = True
    again = blockmgr.KeepSets.of_mask(mask.reshape(2, 3, 64))
    assert again.ranks.tolist() == keep.ranks.tolist()
    assert again.offsets.tolist() == keep.offsets.tolist()


def test_heads_get_budgets_by_their_scores():
    scores = np.zeros((1, 2, 64), np.float32)
    scores[0, 1] = np.arange(64)
    keep = blockmgr.select("external | adakv(alpha=0)", 32, scores,
                           page_size=1)
    assert keep.counts.tolist() == [[1, 63]]
    budgets = np.array([[3, 5]], np.int32)
    keep = blockmgr.select("external | external | round(token)", None, scores,
                           budgets=budgets)
    assert keep.counts.tolist() == budgets.tolist()
    scores[0, 0, 3] = np.nan
    assert blockmgr.select("external", 0.5, scores).num_nan == 1


def test_a_share_of_the_kept_entries_is_protected():
    """recent=25% of the 16 entries that the target keeps are 4."""
    scores = np.random.default_rng(5).random((1, 2, 64), np.float32)
    policy = "external | uniform | topk | protect(sinks=0,recent={})"
    share, number, none = (
        blockmgr.select(policy.format(recent), 0.25, scores, page_size=1)
        for recent in ("25%", 4, 0))
    assert share.ranks.tolist() == number.ranks.tolist() != none.ranks.tolist()
    for ranks in np.split(share.ranks, share.offsets[1:-1]):
        assert ranks.tolist()[-4:] == [60, 61, 62, 63]
    with pytest.raises(ValueError, match="target"):
        blockmgr.select("external | external | protect(recent=25%)", None, scores,
                        budgets=np.array([[3, 5]], np.int32))


def test_selection_is_checked():
    scores = np.zeros((2, 2, 16), np.float32)
    entries = blockmgr.Entries.dense((2, 2), 16)
    select = blockmgr.select
    for arguments, fields in (
        (("nobody", 0.5, scores), {}),
        (("knorm", 0.0, scores), {}),
        (("knorm", 1.5, scores), {}),
        (("knorm", "half", scores), {}),
        (("knorm", None, scores), {}),
        (("knorm", 0.5, scores), dict(length=8)),
        (("knorm", 0.5, scores), dict(cut=8)),
        (("knorm", 0.5, scores), dict(page_size=0)),
        (("knorm", 0.5, scores.reshape(-1)), dict(entries=entries)),
        (("knorm", 0.5, scores.reshape(-1)[:9]), dict(entries=entries, cut=16)),
        (("knorm", 0.5, scores.reshape(-1)), dict(entries=entries, cut=15)),
        (("knorm | uniform | critical", 0.5, scores),
         dict(value_norms=scores.reshape(-1)[:8])),
        (("external | external", None, scores),
         dict(budgets=np.zeros((2, 1), np.int32))),
        (("knorm | headkv(profile=t)", 0.5, scores), {}),
    ):
        with pytest.raises(ValueError):
            select(*arguments, **fields)
    for arguments, fields in (
        (("knorm | uniform | critical", 0.5, scores), {}),
        (("external | external", None, scores), {}),
        (("knorm", 0.5), dict(entries=entries, cut=16)),
        (("knorm", [1], scores), {}),
        (("knorm", 0.5, scores), dict(table=3)),
    ):
        with pytest.raises(TypeError):
            select(*arguments, **fields)
    keep = select("streaming(sinks=1)", 4, entries=entries, cut=16, page_size=1)
    assert keep.ranks.tolist() == [0, 13, 14, 15] * 4
    noise = select("random(seed=3)", 4, entries=entries, cut=16, page_size=1)
    assert noise.counts.tolist() == [[4, 4], [4, 4]]


def test_entries_and_keep_sets_are_checked():
    offsets = np.array([0, 2, 3], np.int64)
    positions = np.array([4, 6, 1], np.int32)
    entries = blockmgr.Entries((1, 2), offsets, positions)
    assert len(entries) == 3 and entries.shape == (1, 2)
    for bad_offsets, bad_positions in (
        ([0, 2, 2], [4, 6, 1]), ([1, 2, 3], [4, 6, 1]), ([0, 4, 3], [4, 6, 1]),
        ([0, 2, 3], [4, 4, 1]), ([0, 2, 3], [6, 4, 1]), ([0, 2, 3], [-1, 4, 1]),
        ([0, 3], [4, 6, 1]), ([0, -5, 3], [4, 6, 1])):
        for kind in (blockmgr.Entries, blockmgr.KeepSets):
            with pytest.raises(ValueError):
                kind((1, 2), np.array(bad_offsets, np.int64),
                     np.array(bad_positions, np.int32))
    for shape in ((0, 2), (-1, -2), (1 << 20, 1 << 20)):
        with pytest.raises(ValueError, match="shape"):
            blockmgr.Entries.dense(shape, 4)
    with pytest.raises(ValueError):
        blockmgr.Entries.dense((1, 1), 0)
    with pytest.raises(TypeError):
        blockmgr.Entries((1, 2), offsets.astype(np.int32), positions)


def test_survivors_are_placed_in_position_order():
    own = layout()
    rng = np.random.default_rng(3)
    entries = blockmgr.index_entries(own, [3, 9, 4], 12)
    for index in range(4):
        layer, head = divmod(index, 2)
        begin = entries.offsets[index]
        assert entries.positions[begin:begin + 12].tolist() == list(range(12))
        assert entries.slots[begin + 5] == own.page_id(layer, 9, head) * 4 + 1
    scores = rng.random(48, np.float32)
    keep = blockmgr.select("external | adakv | round(token)", 5, scores,
                           entries=entries, cut=12, length=13, page_size=4)
    region = blockmgr.lay_out(own, [9, 3], keep.counts, cut=12,
                              tail_blocks=[3, 9, 4])
    placed = blockmgr.place_survivors(own, entries, keep, region)
    # By hand: the pool, row by row.
    pool = {int(slot): (i, int(position)) for i in range(4) for slot, position
            in zip(entries.slots[entries.offsets[i]:entries.offsets[i + 1]],
                   entries.positions[entries.offsets[i]:])}
    begin = 0
    for end in placed.group_ends:
        rows = [pool[source] for source in placed.moves[begin:end, 0].tolist()]
        pool.update(zip(placed.moves[begin:end, 1].tolist(), rows))
        begin = end
    expected = []
    for i in range(4):
        ranks = keep.ranks[keep.offsets[i]:keep.offsets[i + 1]].tolist()
        for place, position in enumerate(ranks):
            page = region.pages[region.page_offsets[i] + place // 4]
            assert pool[int(page) * 4 + place % 4] == (i, position)
            expected.append(position)
    assert placed.positions.tolist() == expected
    assert placed.in_place


def test_placement_is_checked():
    own = layout()
    entries = blockmgr.index_entries(own, [3, 9], 8)
    keep = blockmgr.KeepSets.of_mask(np.ones((2, 2, 4), bool))
    region = blockmgr.lay_out(own, [5], keep.counts, cut=8)
    blockmgr.place_survivors(own, entries, keep, region)
    offsets = np.arange(5) * 4
    far = np.arange(8, 12, dtype=np.int32)
    for bad in ((layout(num_blocks=41), entries, keep, region),
                (own, blockmgr.Entries.dense((2, 2), 8), keep, region),
                (own, blockmgr.Entries.dense((1, 4), 8), keep, region),
                (own, entries, blockmgr.KeepSets.of_mask(
                    np.ones((2, 2, 5), bool)), region),
                (own, entries, blockmgr.KeepSets((2, 2), offsets,
                                                 np.tile(far, 4)), region),
                (own, blockmgr.Entries((2, 2), entries.offsets,
                                       entries.positions, -entries.slots),
                 keep, region)):
        with pytest.raises(blockmgr.InvalidArgumentError):
            blockmgr.place_survivors(*bad)
    for fields in (dict(limit=9), dict(limit=-1), dict(limit=4, first=-1),
                   dict(limit=4, region=region, region_positions=np.arange(
                       8, dtype=np.int32)),
                   dict(limit=4, region=region,
                        region_positions=np.zeros(16, np.int32))):
        with pytest.raises(blockmgr.InvalidArgumentError):
            blockmgr.index_entries(own, [3, 9], **fields)
    with pytest.raises(TypeError):
        blockmgr.index_entries(own, [3, 9], 4, region=region)


def test_results_outlive_what_they_were_made_of():
    ranks = blockmgr.select("knorm", 0.5, np.zeros((2, 2, 64), np.float32)).ranks
    pages = blockmgr.lay_out(layout(), [5, 6], np.full((2, 2), 8,
                                                       np.int32)).pages
    other = [np.full(1000, i) for i in range(1000)]  # takes freed memory
    assert ranks.tolist() == list(range(32)) * 4
    assert sorted(pages.tolist()) == sorted(
        (layer * 40 + block) * 2 + head for layer in range(2)
        for head in range(2) for block in (5, 6))
    del other


def test_long_calls_let_other_threads_run():
    scores = np.random.default_rng(4).random((8, 8, 40000), np.float32)
    expected = blockmgr.select("knorm | adakv", 0.3, scores).ranks
    results = []
    threads = [threading.Thread(target=lambda: results.append(
        blockmgr.select("knorm | adakv", 0.3, scores).ranks)) for _ in range(3)]
    for thread in threads:
        thread.start()
    num_turns = 0
    while any(thread.is_alive() for thread in threads):
        num_turns += 1
    for thread in threads:
        thread.join()
    assert len(results) == 3 and num_turns > 1
    for ranks in results:
        assert np.array_equal(ranks, expected)


def test_policies_are_parsed_and_built():
    text = "snapkv(window=64) | adakv(alpha=0.3) | topk"
    policy = blockmgr.Policy(text)
    built = p.snapkv(window=64) | p.adakv(alpha=0.3) | p.topk()
    assert built.policy() == policy and blockmgr.Policy(str(built)) == policy
    assert str(policy) == text and hash(policy) == hash(built.policy())
    name, fields = policy.scorer
    assert name == "snapkv" and fields["window"] == 64 and fields["kernel"] == 7
    assert fields["pool"] == "max" and policy.budget[1]["alpha"] == 0.3
    assert policy.query_window == 64 and policy.protected_recent == 64
    options = p.knorm() | p.protect(sinks=4, recent=8) | p.round("token")
    assert options.policy().protected_sinks == 4
    assert options.policy().protected_recent == 8
    assert p.external().policy().has_external_scores
    for stage in ("h2o", "expected_attention", "headkv", "critical"):
        assert stage in dir(p)
    with pytest.raises(TypeError, match="no field 'windows'"):
        p.snapkv(windows=3)
    with pytest.raises(AttributeError, match="no stage 'nobody'"):
        p.nobody()
    for wrong in ("", "topk", "snapkv(window=0)", "snapkv(", "a | b", 5):
        with pytest.raises(blockmgr.InvalidArgumentError):
            blockmgr.Policy(wrong)


def test_a_region_has_no_entries_from_its_cut_on():
    """They would be those of the tail again."""
    own = layout()
    kept = np.full((2, 2), 6, np.int32)
    positions = np.tile(np.arange(6, dtype=np.int32), 4)
    entries = blockmgr.index_entries(
        own, [7, 8, 9], 12, region=blockmgr.lay_out(own, [5, 6], kept, cut=6),
        region_positions=positions)
    assert entries.positions.tolist() == 4 * list(range(12))
    for cut in (0, 5):
        region = blockmgr.lay_out(own, [5, 6], kept, cut=cut)
        with pytest.raises(ValueError, match=fr"region_positions\[{cut}\]: expected "
                           f"below {cut}, the cut"):
            blockmgr.index_entries(own, [7, 8, 9], 12, region=region,
                                   region_positions=positions)


def test_more_pages_than_any_pool_are_refused():
    """Counts of which a page more does not fit in 32 bits."""
    own = blockmgr.KvLayout(num_layers=4, num_heads=8, num_blocks=40, head_dim=8,
                            page_size=16)
    for count in (2**31 - 1, 2**31 - 16, 2**31 - 32):
        with pytest.raises(ValueError, match="kept: expected at most the 64 pages"):
            blockmgr.lay_out(own, [1, 2], np.full((4, 8), count, np.int32))


def test_blocks_that_no_entry_is_in_are_not_checked():
    """As those of a group with a window, which are null before it."""
    own = layout()
    entries = blockmgr.index_entries(own, [0, 0, 7, 8], 15, first=9)
    assert entries.positions.tolist() == 4 * list(range(9, 15))
    assert entries.slots[:6].tolist() == [
        own.page_id(0, 7 + place // 4, 0) * 4 + place % 4 for place in range(1, 7)]
    later = blockmgr.index_entries(own, [0, 7, 8], 15, first=9, tail_begin=4)
    assert later.slots.tolist() == entries.slots.tolist()
    assert later.positions.tolist() == entries.positions.tolist()
    assert len(blockmgr.index_entries(own, [0, 0], 8, first=2**31 - 1)) == 0
    for blocks, first in (([0, 0, 7, 8], 7), ([0, 0, 7, 7], 8), ([0, 7, 0, 8], 4),
                          ([0, 0, 7, 40], 8), ([0, 0, 7, 8], 0)):
        with pytest.raises(ValueError, match="tail_blocks"):
            blockmgr.index_entries(own, blocks, 15, first=first)


def test_every_name_can_be_written():
    """global is a keyword of Python."""
    for name in dir(p):
        assert name.isidentifier() and not keyword.iskeyword(name)
        assert getattr(p, name) is not None
    assert str(p.global_()) == "global"
    assert (p.knorm() | p.global_()).policy() == blockmgr.Policy("knorm | global")
    for stages in p.STAGES.values():
        assert set(stages) <= {name.removesuffix("_") for name in dir(p)}
        for fields in stages.values():
            assert not any(map(keyword.iskeyword, fields))


def test_every_stage_of_the_table_has_a_function():
    assert set(p.STAGES) == {"scorer", "budget", "selector"}
    for name, fields in p.STAGES["scorer"].items():
        values = {key: value for key, value in fields.items() if value != ""}
        assert getattr(p, name)(**values).policy() == blockmgr.Policy(name)


def test_targets():
    target = blockmgr.Target(ratio="0.29")
    assert target.tokens_per_head(100) == 29
    assert target == blockmgr.Target(0.29) != blockmgr.Target(tokens=29)
    assert blockmgr.Target(tokens=7).tokens_per_head(5) == 5
    for fields in ({}, dict(ratio=0.1, tokens=3), dict(ratio=0), dict(tokens=0),
                   dict(ratio=0.5, window_keep_ratio=2)):
        with pytest.raises(blockmgr.InvalidArgumentError):
            blockmgr.Target(**fields)
    for ratio in (0, "half"):
        with pytest.raises(blockmgr.InvalidArgumentError,
                           match="^ratio: expected a decimal"):
            blockmgr.Target(ratio=ratio)
    with pytest.raises(blockmgr.InvalidArgumentError,
                       match="window_keep_ratio: expected a decimal"):
        blockmgr.Target(ratio=0.5, window_keep_ratio=2)
    with pytest.raises(blockmgr.InvalidArgumentError):
        target.tokens_per_head(0)


def test_budget_tables_are_files(tmp_path):
    scores = {str(i): {} for i in range(1)}
    path = tmp_path / "scores.json"
    path.write_text(json.dumps(scores))
    with pytest.raises(blockmgr.InvalidArgumentError):
        blockmgr.BudgetTable.load(str(path))
    with pytest.raises(blockmgr.NotFoundError, match="nothing"):
        blockmgr.BudgetTable.load(str(tmp_path / "nothing"))
    with pytest.raises(blockmgr.InvalidArgumentError):
        blockmgr.BudgetTable.decode(b"")
