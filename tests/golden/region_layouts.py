#!/usr/bin/env python3
"""Cases of region layouts, for the tests of engines in any language.

It follows docs/engine.md, "How a region is laid out", loop by loop, and has
nothing in common with the product's code.

  tests/golden/region_layouts.py > docs/region_layout_vectors.json
  tests/golden/region_layouts.py --check docs/region_layout_vectors.json
"""
import argparse
import json
import sys

MASK = (1 << 64) - 1
MULTIPLIER = 0x9E3779B97F4A7C15

# num_layers, num_heads, num_shards, page_size
MODELS = ((2, 2, 1, 4), (3, 4, 2, 2), (1, 3, 1, 16), (4, 2, 1, 8))
NUM_BLOCKS = 40
NUM_SEEDS = 3
NUM_EVICTIONS = 3


class Random:
    """Numbers that no version of Python changes: splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, limit):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        x = self.state
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
        return (x ^ (x >> 31)) % limit

    def shuffled(self, items):
        items = list(items)
        return [items.pop(self.below(len(items))) for _ in range(len(items))]


class Model:

    def __init__(self, num_layers, num_heads, num_shards, page_size):
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.num_shards = num_shards
        self.page_size = page_size
        self.heads = [(layer, head) for layer in range(num_layers)
                      for head in range(num_heads)]

    def shard_heads(self, shard):
        size = self.num_heads // self.num_shards
        return range(shard * size, (shard + 1) * size)

    def need(self, kept):
        return -(-kept // self.page_size)

    def page_id(self, page):
        layer, block, head = page
        return (layer * NUM_BLOCKS + block) * self.num_heads + head


def lay_out(model, region, tail_blocks, destinations, kept, loops="heads"):
    """The lists, the held pages and the blocks. `loops` is what is outside in
    step 2; all but "heads" are mistakes that others made."""
    lists, held = {}, {}
    for shard in range(model.num_shards):
        heads = model.shard_heads(shard)
        everyone = [(layer, head) for layer in range(model.num_layers)
                    for head in heads]
        used = set(tail_blocks)
        used.update(page[1] for x in everyone for page in region[x])
        fresh = [block for block in destinations if block not in used]
        for layer, head in everyone:
            own = [page for page in region[layer, head]
                   if page[1] in destinations]
            own += [(layer, block, head) for block in tail_blocks
                    if block in destinations]
            own += [(layer, block, head) for block in fresh]
            lists[layer, head] = own[:model.need(kept[layer, head])]
            held[layer, head] = len(lists[layer, head])

        def borrow(x, layers, by_block=False):
            order = [(layer, block, head) for layer in layers
                     for head in heads for block in destinations]
            if by_block:
                order.sort(key=lambda page:
                           (page[0], destinations.index(page[1]), page[2]))
            for page in order:
                if len(lists[x]) == model.need(kept[x]):
                    return
                if not any(page in lists[other] for other in everyone):
                    lists[x].append(page)

        all_layers = range(model.num_layers)
        if loops == "stages":
            for x in everyone:
                borrow(x, [x[0]])
            for x in everyone:
                borrow(x, all_layers)
            continue
        for x in everyone:
            borrow(x, [x[0]], loops == "blocks")
            borrow(x, all_layers, loops == "blocks")
    in_use = {page[1] for pages in lists.values() for page in pages}
    return lists, held, [block for block in destinations if block in in_use]


def checksum(model, lists, kept):
    total = 0
    for i, x in enumerate(model.heads):
        value = i
        for number in [kept[x]] + [model.page_id(page) for page in lists[x]]:
            value = (value * MULTIPLIER + number) & MASK
        value = (value ^ (value >> 32)) * MULTIPLIER & MASK
        total = (total + (value ^ (value >> 32))) & MASK
    return total


def choose_kept(model, random, room, held):
    """Entries per head, of at most `room` pages in every shard, and of at most
    the entries that are held: a few heads keep most."""
    kept = dict.fromkeys(model.heads, 0)
    for shard in range(model.num_shards):
        mine = [x for x in model.heads if x[1] in model.shard_heads(shard)]
        left = room - random.below(3)
        for x in random.shuffled(mine):
            most = min(left, model.need(held[x]))
            pages = random.below(most + 1) if random.below(2) else most
            if random.below(6) == 0:
                pages = 0
            kept[x] = min(held[x], max(0, pages * model.page_size -
                                       random.below(model.page_size)))
            left -= model.need(kept[x])
    return kept


def make_case(model, kind, seed):
    random = Random(seed)
    ids = random.shuffled(range(1, NUM_BLOCKS))  # fresh ones, from the end
    region = {x: [] for x in model.heads}
    before = dict.fromkeys(model.heads, 0)
    blocks, cut, evictions, differs = [], 0, [], set()
    for _ in range(NUM_EVICTIONS):
        tail = [ids.pop() for _ in range(3 + random.below(3))]
        cut += len(tail) * model.page_size
        mine = blocks + tail
        count = 2 + random.below(3)
        own = {"fresh": 0, "in place": count,
               "mixed": 1 + random.below(count - 1)}[kind]
        chosen = set(random.shuffled(mine)[:own])
        destinations = [block for block in mine if block in chosen]
        destinations += [ids.pop() for _ in range(count - len(destinations))]
        room = (count * model.num_layers * model.num_heads //
                model.num_shards)
        held_entries = {x: before[x] + len(tail) * model.page_size
                        for x in model.heads}
        kept = choose_kept(model, random, room, held_entries)
        lists, held, blocks = lay_out(model, region, tail, destinations, kept)
        for wrong in ("stages", "blocks"):
            other, _, _ = lay_out(model, region, tail, destinations, kept,
                                  wrong)
            if other != lists:
                differs.add(wrong)
                assert checksum(model, other, kept) != checksum(
                    model, lists, kept)
        evictions.append({
            "cut": cut,
            "tail_blocks": tail,
            "destinations": destinations,
            "kept": [kept[x] for x in model.heads],
            "pages": [[model.page_id(page) for page in lists[x]]
                      for x in model.heads],
            "held_pages": [held[x] for x in model.heads],
            "blocks": blocks,
            "layout_checksum": f"0x{checksum(model, lists, kept):016x}"})
        ids[:0] = [b for b in mine + destinations
                   if b not in blocks and b not in ids]
        region, before = lists, kept
    return {"name": f"{kind}, seed {seed}", "evictions": evictions}, differs


def make_vectors():
    models, num_differ = [], {"stages": 0, "blocks": 0}
    for shape in MODELS:
        model = Model(*shape)
        cases = []
        for kind in ("fresh", "in place", "mixed"):
            for seed in range(1, NUM_SEEDS + 1):
                case, differs = make_case(model, kind, seed)
                cases.append(case)
                for wrong in differs:
                    num_differ[wrong] += 1
        models.append({
            "num_layers": model.num_layers,
            "num_heads": model.num_heads,
            "num_shards": model.num_shards,
            "page_size": model.page_size,
            "num_blocks": NUM_BLOCKS,
            "cases": cases})
    # A wrong order of loops shows in more than a few of them.
    assert min(num_differ.values()) >= 8, num_differ
    return {
        "about": "docs/engine.md, How a region is laid out; made by "
                 "tests/golden/region_layouts.py",
        "models": models}


def to_text(vectors):
    """JSON with a line for every eviction."""
    lines = ["{", f'"about": {json.dumps(vectors["about"])},', '"models": [']
    for i, model in enumerate(vectors["models"]):
        head = {key: model[key] for key in model if key != "cases"}
        lines.append(json.dumps(head)[:-1] + ', "cases": [')
        for j, case in enumerate(model["cases"]):
            lines.append(f'  {{"name": {json.dumps(case["name"])}, '
                         '"evictions": [')
            for k, eviction in enumerate(case["evictions"]):
                comma = "," if k + 1 < len(case["evictions"]) else "]}"
                if comma == "]}" and j + 1 < len(model["cases"]):
                    comma += ","
                text = json.dumps(eviction, separators=(",", ":"))
                lines.append(f"    {text}{comma}")
        lines.append("]}" + ("," if i + 1 < len(vectors["models"]) else ""))
    return "\n".join(lines + ["]}", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", metavar="FILE",
                        help="compare with this file instead of printing")
    arguments = parser.parse_args()
    text = to_text(make_vectors())
    json.loads(text)
    if arguments.check is None:
        sys.stdout.write(text)
        return
    with open(arguments.check, encoding="utf-8") as file:
        if file.read() != text:
            sys.exit(f"{arguments.check} is not what this program makes")


if __name__ == "__main__":
    main()
