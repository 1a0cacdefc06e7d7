"""One call of each method of CudaKernels, with arguments that are fine."""
import numpy as np

import blockmgr
from model import DIM, PAGE, ints, zeros


def score_calls(model, entries, plan):
    """A call of score for each kind of arguments that policies read."""

    def call(policy, **more):
        size = model.kernels.score_workspace_bytes(policy, plan)
        if size:
            more["workspace"] = zeros(size, np.uint8)
        return model.kernels.score, dict(policy=policy, entries=entries,
                                         scores=zeros(128), **more)

    def queries(count):
        return model.tensor(np.ones((2, count, 4, DIM)))

    products = "critical(gqa_product=true)"
    return {
        "score": call("snapkv(window=4)", queries=queries(4)),
        "score sums": call("h2o(norm=count)", num_queries=ints([40, 40])),
        "score window": call("h2o(obs_window=3)", queries=queries(3)),
        "score expected": call(
            "expected_attention", means=zeros((2, 4, DIM)),
            covariances=model.tensor(np.zeros((2, 4, DIM, 2, DIM))),
            units=zeros((2, 4))),
        "score products": call(
            f"tova | uniform | {products}", queries=queries(1),
            value_norms=zeros(256), products=zeros(128)),
    }


def good_calls(model):
    """Calls that are fine as they are: function, and arguments by name."""
    kernels = model.kernels
    rows = model.tensor(np.ones((2, 2, DIM)))
    queries = model.tensor(np.ones((2, 4, DIM)))
    output = model.tensor(np.zeros((2, 4, DIM)))
    slots = ints([17, 40], np.int64)
    tables = dict(block_tables=ints([[1, 2], [3, 4]]), tail_lengths=ints([20, 5]),
                  region_lengths=ints(np.ones((2, 2, 2))),
                  region_offsets=ints(np.arange(8).reshape(2, 2, 2), np.int64),
                  region_pages=ints(np.arange(8)))
    lists = kernels.lists(**tables)
    lse, logits = zeros((2, 4)), zeros((kernels.decode_logit_rows(2, 200), 2))
    workspace = zeros(kernels.decode_workspace_bytes(2, 200), np.uint8)
    prefill = kernels.plan_prefill([0, 1, 2])
    found = blockmgr.index_entries(model.layout, [5, 6], 32)
    plan = kernels.plan_entries(found.offsets, [40, 40])
    listed = dict(plan=plan, words=ints(plan.words),
                  slots=ints(found.slots, np.int64),
                  positions=ints(found.positions))
    entries = kernels.entries(**listed)
    selection = kernels.plan_selection(plan, "knorm | adakv | critical", 0.5, 32)
    product_selection = kernels.plan_selection(
        plan, "tova | adakv | critical(gqa_product=true)", 0.5, 32)
    index = kernels.plan_index(
        kernels.plan_entries([0, 2, 4, 6, 8, 10, 12, 14, 16], [33] * 4), [16, 32])
    one = dict(lists=lists, queries=queries, output=output)
    scores = zeros(128)
    pages = ints([9, 30])
    staged = model.tensor(np.zeros((2, 2, PAGE, DIM)))
    bits = zeros(selection.num_survivor_words, np.int32)
    region = blockmgr.lay_out(model.layout, [7, 8], np.full((2, 2), 3, np.int32),
                              cut=32)
    return {
        "append": (kernels.append, dict(layer=1, slot_mapping=slots, keys=rows,
                                        values=rows)),
        "gather": (kernels.gather, dict(slots=slots, out=rows)),
        "move": (kernels.move, dict(moves=ints([[3, 9], [9, 3]], np.int64),
                                    staged=rows)),
        "copy_blocks": (kernels.copy_blocks, dict(pairs=ints([[1, 2], [3, 4]]))),
        "pack_pages": (kernels.pack_pages, dict(pages=pages, staged=staged)),
        "unpack_pages": (kernels.unpack_pages, dict(pages=pages, staged=staged)),
        "lists": (kernels.lists, tables),
        "decode": (kernels.decode, dict(one, layer=0, lse=lse, logits=logits,
                                        sinks=zeros(4), workspace=workspace)),
        "add_decode_attention": (kernels.add_decode_attention, dict(
            layer=0, lists=lists, workspace=workspace, logits=logits, lse=lse,
            sum_offsets=ints([0, 21, 42, 48, 54], np.int64), sums=zeros(54))),
        "prefill": (kernels.prefill, dict(
            one, layer=0, plan=prefill, words=ints(prefill.words),
            lse=zeros((2, 4)), sinks=zeros(4))),
        "entries": (kernels.entries, listed),
        "index_entries": (kernels.index_entries, dict(
            plan=index, words=ints(index.words), lists=lists,
            slots=zeros(16, np.int64), positions=zeros(16, np.int32),
            workspace=zeros(index.workspace_bytes, np.uint8),
            region_positions=ints(np.zeros((8, PAGE))))),
        **score_calls(model, entries, plan),
        "add_attention": (kernels.add_attention, dict(
            entries=entries, queries=model.tensor(np.ones((2, 5, 4, DIM))),
            sums=scores, workspace=zeros(
                kernels.attention_workspace_bytes(plan, 5), np.uint8))),
        "value_norms": (kernels.value_norms, dict(
            policy="knorm | critical", entries=entries, norms=scores,
            projection=model.tensor(np.ones((4, DIM, 8))))),
        "value_norms of query heads": (kernels.value_norms, dict(
            policy="tova | uniform | critical(gqa_product=true)",
            entries=entries, norms=zeros(256),
            projection=model.tensor(np.ones((4, DIM, 8))))),
        "select": (kernels.select, dict(
            plan=selection, words=ints(selection.words), entries=entries,
            scores=scores, value_norms=scores, counts=zeros((2, 2), np.int32),
            survivors=bits, num_nan=ints([0], np.int64),
            workspace=zeros(selection.workspace_bytes, np.uint8))),
        "select products": (kernels.select, dict(
            plan=product_selection, words=ints(product_selection.words),
            entries=entries, scores=scores, products=scores,
            counts=zeros((2, 2), np.int32), survivors=bits,
            num_nan=ints([0], np.int64),
            workspace=zeros(product_selection.workspace_bytes, np.uint8))),
        "plan_moves": (kernels.plan_moves, dict(
            entries=entries, survivors=bits, kept=zeros((2, 2), np.int32),
            page_offsets=ints(region.page_offsets), pages=ints(region.pages),
            move_offsets=ints(np.zeros(4), np.int64),
            moves=ints(np.zeros((12, 2)), np.int64),
            region_positions=ints(np.zeros((4, PAGE))))),
    }


def launch(function, arguments):
    if function.__name__ in ("lists", "entries"):
        return function(**arguments)
    return function(**arguments, stream=0)
