"""The index of entries against what page lists say, by numpy alone."""
import numpy as np
import pytest

import blockmgr
from blockmgr import cuda
from device_tensors import DeviceTensor
from model import (DIM, PAGE, STREAM, Batch, Listed, Model, close, ints,
                   layout_of, noise, tensor, zeros)

CUTS = [0, 48, 0]


class Index:
    """An index of a batch, on the device, and what is expected."""

    def __init__(self, model, num_tail=(35, 4, 41)):
        self.model, self.batch = model, Batch(model)
        region = self.batch.region
        # Entries may stand in any order. Dead places have any position.
        rng = np.random.default_rng(4)
        self.region_positions = np.full((len(region.pages), PAGE), 10**6)
        self.expected = []
        for layer, sequence, head in np.ndindex(2, 3, 2):
            found = []
            if sequence == 1:
                begin = region.page_offsets[2 * layer + head]
                kept = self.batch.kept[layer, head]
                places = self.region_positions[begin:].reshape(-1)
                places[:kept] = rng.permutation(48)[:kept]
                found = sorted(
                    (places[i], region.pages[begin + i // PAGE] * PAGE + i % PAGE)
                    for i in range(kept))
            for i in range(num_tail[sequence]):
                block = self.batch.tails[sequence][i // PAGE]
                page = model.layout.page_id(layer, block, head)
                found.append((CUTS[sequence] + i, page * PAGE + i % PAGE))
            self.expected.append(found)
        offsets = np.cumsum([0, *map(len, self.expected)])
        lengths = np.add(CUTS, self.batch.lengths)
        self.entries = model.kernels.plan_entries(offsets, [*lengths, *lengths])
        self.plan = model.kernels.plan_index(self.entries, CUTS)
        self.workspace = zeros(self.plan.workspace_bytes, np.uint8)
        self.slots = ints(np.full(offsets[-1], -1), np.int64)
        self.positions = ints(np.full(offsets[-1], -1))

    def launch(self):
        # What an index leaves in a workspace does not matter.
        self.workspace.array[...] = 255
        self.model.kernels.index_entries(
            self.plan, ints(self.plan.words), self.batch.lists, self.slots,
            self.positions, self.workspace,
            region_positions=ints(self.region_positions), stream=STREAM)

    def found(self):
        pairs = list(zip(self.positions.array.tolist(),
                         self.slots.array.tolist()))
        ends = np.cumsum([0, *map(len, self.expected)])
        return [pairs[begin:end] for begin, end in zip(ends, ends[1:])]


@pytest.mark.parametrize("num_tail", ((35, 4, 41), (17, 0, 3)))
def test_entries_of_regions_and_tails(num_tail):
    index = Index(Model.make(), num_tail)
    index.launch()
    index.model.kernels.check(stream=STREAM)
    assert index.found() == index.expected


def test_a_long_region_is_divided_among_blocks():
    length = 8200
    layout = layout_of(num_layers=1, num_heads=1, num_q_heads=1)
    kernels = cuda.CudaKernels(layout, DeviceTensor.of(np.zeros(
        (1, layout.num_blocks, 1, 2, PAGE, DIM), np.float16)))
    num_pages = -(-length // PAGE)
    # An index writes page ids and reads no page.
    pages = np.arange(num_pages) % layout.num_blocks
    positions = np.full(num_pages * PAGE, 10**6)
    positions[:length] = np.random.default_rng(4).permutation(length)
    lists = kernels.lists(ints([[0]]), ints([0]),
                          region_lengths=ints([[[length]]]),
                          region_offsets=ints([[[0]]], np.int64),
                          region_pages=ints(pages))
    plan = kernels.plan_index(kernels.plan_entries([0, length], [length]), [length])
    slots, found = ints(np.zeros(length), np.int64), ints(np.zeros(length))
    kernels.index_entries(plan, ints(plan.words), lists, slots, found,
                          zeros(plan.workspace_bytes, np.uint8),
                          region_positions=ints(positions.reshape(-1, PAGE)),
                          stream=STREAM)
    kernels.check(stream=STREAM)
    places = np.argsort(positions[:length])
    assert np.array_equal(found.array, np.arange(length))
    assert np.array_equal(slots.array, pages[places // PAGE] * PAGE + places % PAGE)


def test_entries_are_those_of_the_host():
    model = Model.make()
    index = Index(model)
    index.launch()
    model.kernels.check(stream=STREAM)
    batch = index.batch
    lists = index.found()
    for sequence in range(3):
        more = {}
        if sequence == 1:
            more = dict(region=batch.region, region_positions=np.concatenate(
                [np.sort(index.region_positions[
                    batch.region.page_offsets[i]:].reshape(-1)[:kept])
                 for i, kept in enumerate(batch.kept.reshape(-1))]).astype(
                     np.int32))
        host = blockmgr.index_entries(
            model.layout, batch.tails[sequence],
            CUTS[sequence] + batch.lengths[sequence], **more)
        own = [index.expected[6 * layer + 2 * sequence + head]
               for layer in range(2) for head in range(2)]
        assert [len(one) for one in own] == np.diff(host.offsets).tolist()
        got = [lists[6 * layer + 2 * sequence + head]
               for layer in range(2) for head in range(2)]
        assert [position for one in got for position, _ in one] == (
            host.positions.tolist())


def test_lists_without_regions_need_no_workspace():
    model = Model.make()
    lists = model.kernels.lists(ints([[3, 8, 5, 10, 2]]), ints([70]))
    host = blockmgr.index_entries(model.layout, [3, 8, 5, 10, 2], 64)
    plan = model.kernels.plan_entries(host.offsets, [70, 70])
    index = model.kernels.plan_index(plan, [0])
    assert index.workspace_bytes == 0
    slots, positions = zeros(len(host), np.int64), zeros(len(host), np.int32)
    model.kernels.index_entries(index, ints(index.words), lists, slots,
                                positions, stream=STREAM)
    model.kernels.check(stream=STREAM)
    assert np.array_equal(slots.array, host.slots)
    assert np.array_equal(positions.array, host.positions)
    # They serve as they are.
    entries = model.kernels.entries(plan, ints(plan.words), slots, positions)
    scores = [zeros(len(host)) for _ in range(2)]
    for each, out in zip((entries, Listed(model, host, [70, 70]).lists), scores):
        model.kernels.score("knorm", each, out, stream=STREAM)
    model.kernels.check(stream=STREAM)
    assert np.array_equal(scores[0].array, scores[1].array)
    assert scores[0].array.all()


def test_what_does_not_fit_is_refused():
    index = Index(Model.make())
    place = np.argwhere(index.region_positions < 48)[0]
    index.region_positions[tuple(place)] = 48
    index.launch()
    with pytest.raises(blockmgr.InvalidArgumentError, match="behind the cut"):
        index.model.kernels.check(stream=STREAM)
    index = Index(Model.make())
    index.batch.tail_lengths.array[0] = 30
    index.launch()
    with pytest.raises(blockmgr.InvalidArgumentError, match="more entries"):
        index.model.kernels.check(stream=STREAM)
    for list_index, found in enumerate(index.found()):
        # The first sequence has five entries less than planned.
        expected = index.expected[list_index]
        if list_index % 6 < 2:
            expected = expected[:30] + 5 * [(-1, -1)]
        assert found == expected


def test_pages_of_32_tokens():
    """Regions fill up their pages: the tail begins 32 slots later."""
    layout = layout_of(page_size=32)
    rows = noise(1, 2, 14, 2, 2, 32, DIM)
    kernels = cuda.CudaKernels(layout, tensor(rows, "float16"))
    region = [layout.page_id(layer, 9, head) for layer in range(2)
              for head in range(2)]
    lists = kernels.lists(ints([[3, 8]]), ints([40]),
                          region_lengths=ints(np.full((2, 1, 2), 5)),
                          region_offsets=ints(np.arange(4).reshape(2, 1, 2),
                                              np.int64),
                          region_pages=ints(region))
    plan = kernels.plan_entries(np.arange(5) * 45, [50, 50])
    index = kernels.plan_index(plan, [10])
    slots, positions = zeros(180, np.int64), zeros(180, np.int32)
    kernels.index_entries(
        index, ints(index.words), lists, slots, positions,
        zeros(index.workspace_bytes, np.uint8),
        region_positions=ints(np.tile(2 * np.arange(32), (4, 1))), stream=STREAM)
    values = noise(2, 1, 4, DIM)
    workspace = zeros(kernels.decode_workspace_bytes(1, 144), np.uint8)
    logits, lse = zeros((kernels.decode_logit_rows(1, 144), 2)), zeros((1, 4))
    sums = zeros(90)
    kernels.decode(1, lists, tensor(values, "float16"),
                   tensor(np.zeros((1, 4, DIM)), "float16"), workspace, lse=lse,
                   logits=logits, stream=STREAM)
    kernels.add_decode_attention(1, lists, workspace, logits, lse,
                                 ints([0, 45, 90], np.int64), sums, stream=STREAM)
    kernels.check(stream=STREAM)
    keys = rows[:, :, :, 0].reshape(-1, DIM).astype(np.float64)  # by slot
    expected = np.zeros(90)
    for i, (layer, head) in enumerate(np.ndindex(2, 2)):
        own = [region[i] * 32 + place for place in range(5)] + [
            layout.page_id(layer, (3, 8)[place // 32], head) * 32 + place % 32
            for place in range(40)]
        assert slots.array[45 * i:45 * i + 45].tolist() == own
        assert positions.array[45 * i:45 * i + 45].tolist() == [
            *range(0, 10, 2), *range(10, 50)]
        for q_head in (2 * head, 2 * head + 1):
            shares = np.exp(keys[own] @ values[0, q_head] / np.sqrt(DIM))
            if layer == 1:
                expected[45 * head:45 * head + 45] += shares / shares.sum()
    assert close(sums.array, expected, "float16")
