// Entries, keep sets, regions, and the pure functions between them.
#include "python/core/eviction.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_set.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/compaction.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/compaction_moves.h"
#include "blockmgr/eviction/random_scores.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/layout_checksum.h"
#include "python/core/arrays.h"
#include "python/core/core.h"

namespace blockmgr::python {
namespace {

using Shape = std::pair<int32_t, int32_t>;  // (num_layers, num_heads)

// Returns the number of heads of all layers.
int64_t CheckShape(const Shape& shape) {
  constexpr int64_t kMax = int64_t{1} << 24;
  if (shape.first < 1 || shape.second < 1 ||
      int64_t{shape.first} * shape.second > kMax) {
    ThrowInvalid(
        "shape: expected (num_layers, num_heads), each at least 1, "
        "got (",
        shape.first, ", ", shape.second, ")");
  }
  return int64_t{shape.first} * shape.second;
}

// Checks that `offsets` is CSR over rows of `size` elements in all.
void CheckOffsets(std::span<const int64_t> offsets, int64_t size) {
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (offsets[i] > offsets[i + 1] || offsets[0] != 0) {
      ThrowInvalid("offsets: expected 0 first and ascending values, got ",
                   offsets[i], ", ", offsets[i + 1], " at ", i);
    }
  }
  if (offsets.back() != size) {
    ThrowInvalid("offsets: expected ", size, " last, the number of elements, ",
                 "got ", offsets.back());
  }
}

// Checks that the values of each row are at least 0 and strictly ascending.
void CheckAscending(const char* name, std::span<const int64_t> offsets,
                    std::span<const int32_t> values) {
  for (size_t row = 0; row + 1 < offsets.size(); ++row) {
    int32_t last = -1;
    for (int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
      const int32_t value = values[static_cast<size_t>(i)];
      if (value <= last) {
        ThrowInvalid(name, "[", i, "]: expected above ", last,
                     ", as the values of a head ascend, got ", value);
      }
      last = value;
    }
  }
}

PyEntries MakeEntries(const Shape& shape, ArrayArgument offsets,
                      ArrayArgument positions, ArrayArgument slots) {
  const int64_t num_heads = CheckShape(shape);
  PyEntries entries = {.num_layers = shape.first, .num_heads = shape.second};
  entries.positions = In<int32_t>("positions", positions, {-1}).Copy();
  entries.offsets = In<int64_t>("offsets", offsets, {num_heads + 1}).Copy();
  const auto size = static_cast<int64_t>(entries.positions.size());
  CheckOffsets(entries.offsets, size);
  CheckAscending("positions", entries.offsets, entries.positions);
  if (!slots.is_none()) {
    entries.slots = In<int64_t>("slots", slots, {size}).Copy();
  }
  return entries;
}

// The positions 0 .. num_positions - 1 of every head.
PyEntries DenseEntries(const Shape& shape, int32_t num_positions) {
  const int64_t num_heads = CheckShape(shape);
  if (num_positions < 1) {
    ThrowInvalid("num_positions: expected at least 1, got ", num_positions);
  }
  PyEntries entries = {.num_layers = shape.first, .num_heads = shape.second};
  entries.positions.reserve(static_cast<size_t>(num_heads * num_positions));
  entries.offsets.push_back(0);
  for (int64_t head = 0; head < num_heads; ++head) {
    for (int32_t i = 0; i < num_positions; ++i) {
      entries.positions.push_back(i);
    }
    entries.offsets.push_back(std::ssize(entries.positions));
  }
  return entries;
}

PyKeepSets MakeKeepSets(const Shape& shape, ArrayArgument offsets,
                        ArrayArgument ranks) {
  const int64_t num_heads = CheckShape(shape);
  PyKeepSets keep = {.num_layers = shape.first, .num_heads = shape.second};
  keep.sets.ranks = In<int32_t>("ranks", ranks, {-1}).Copy();
  keep.sets.offsets = In<int64_t>("offsets", offsets, {num_heads + 1}).Copy();
  CheckOffsets(keep.sets.offsets, std::ssize(keep.sets.ranks));
  CheckAscending("ranks", keep.sets.offsets, keep.sets.ranks);
  return keep;
}

PyKeepSets KeepSetsOfMask(ArrayArgument mask) {
  const In<bool> kept("mask", mask, {-1, -1, -1});
  const Shape shape = {static_cast<int32_t>(kept.dimension(0)),
                       static_cast<int32_t>(kept.dimension(1))};
  const int64_t num_heads = CheckShape(shape);
  const int64_t size = kept.dimension(2);
  PyKeepSets keep = {.num_layers = shape.first, .num_heads = shape.second};
  keep.sets.offsets.push_back(0);
  for (int64_t head = 0; head < num_heads; ++head) {
    for (int64_t i = 0; i < size; ++i) {
      if (kept.values()[static_cast<size_t>(head * size + i)]) {
        keep.sets.ranks.push_back(static_cast<int32_t>(i));
      }
    }
    keep.sets.offsets.push_back(std::ssize(keep.sets.ranks));
  }
  return keep;
}

// Checks the blocks from `first` on.
void CheckBlocks(const char* name, const ModelLayout& layout,
                 std::span<const BlockId> blocks, size_t first,
                 absl::flat_hash_set<BlockId>* seen) {
  for (size_t i = first; i < blocks.size(); ++i) {
    if (Index(blocks[i]) < 1 || Index(blocks[i]) >= layout.num_blocks) {
      ThrowInvalid(name, "[", i, "]: expected a block from 1 to ",
                   layout.num_blocks - 1, ", got ", Index(blocks[i]));
    }
    if (!seen->insert(blocks[i]).second) {
      ThrowInvalid(name, "[", i, "]: block ", Index(blocks[i]),
                   " is named twice");
    }
  }
}

void CheckSameLayout(const ModelLayout& layout, const PyRegion* region) {
  if (region != nullptr && region->layout != layout) {
    ThrowInvalid("region: expected one of the layout ", layout.ToString(),
                 ", got one of ", region->layout.ToString());
  }
}

PyRegion LayOut(const ModelLayout& layout, IntsArgument destinations,
                ArrayArgument kept, IntsArgument tail_blocks, int32_t cut,
                const PyRegion* region) {
  CheckSameLayout(layout, region);
  const auto blocks = CopyInts<BlockId>("destinations", destinations);
  const auto tail = CopyInts<BlockId>("tail_blocks", tail_blocks);
  absl::flat_hash_set<BlockId> seen;
  CheckBlocks("destinations", layout, blocks, 0, &seen);
  seen.clear();
  if (region != nullptr) {
    const std::span<const BlockId> own = region->region.blocks();
    seen.insert(own.begin(), own.end());
  }
  CheckBlocks("tail_blocks", layout, tail, 0, &seen);
  if (cut < 0) ThrowInvalid("cut: expected at least 0, got ", cut);
  const std::vector<int32_t> counts =
      In<int32_t>("kept", kept, {layout.num_layers, layout.num_heads}).Copy();
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0) {
      ThrowInvalid("kept: expected no negative value, got ", counts[i],
                   " at head index ", i);
    }
  }
  const int64_t room = std::ssize(blocks) * layout.shard_pages_per_block();
  for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
    const int64_t pages = CountShardPages(layout, shard, counts);
    if (pages > room) {
      ThrowInvalid("kept: expected at most the ", room, " pages of ",
                   blocks.size(), " destinations in shard ", shard, ", got ",
                   pages);
    }
  }
  const nb::gil_scoped_release release;
  const CacheView now = {
      .region = region == nullptr ? nullptr : &region->region,
      .tail_blocks = tail};
  return {layout, RaggedRegion::LayOut(layout, now, blocks, counts, cut)};
}

PyEntries EntriesOf(const ModelLayout& layout, IntsArgument tail_blocks,
                    int32_t limit, const PyRegion* region,
                    ArrayArgument region_positions, int32_t first,
                    int32_t tail_begin) {
  CheckSameLayout(layout, region);
  const auto tail = CopyInts<BlockId>("tail_blocks", tail_blocks);
  std::vector<int32_t> positions;
  if (region != nullptr) {
    positions = In<int32_t>("region_positions", region_positions,
                            {region->region.num_entries()})
                    .Copy();
    std::vector<int64_t> offsets = {0};
    for (const int32_t count : region->region.kept()) {
      offsets.push_back(offsets.back() + count);
    }
    CheckAscending("region_positions", offsets, positions);
    tail_begin = region->region.cut();
    // The entries of the tail follow, and ascend from the cut on.
    for (size_t i = 0; i < positions.size(); ++i) {
      if (positions[i] >= tail_begin) {
        ThrowInvalid("region_positions[", i, "]: expected below ", tail_begin,
                     ", the cut of the region, got ", positions[i]);
      }
    }
  }
  if (first < 0 || tail_begin < 0 || limit < 0) {
    ThrowInvalid("limit, first, tail_begin: expected at least 0, got ", limit,
                 ", ", first, " and ", tail_begin);
  }
  if (int64_t{limit} - tail_begin > std::ssize(tail) * layout.page_size) {
    ThrowInvalid("limit: expected at most ",
                 tail_begin + std::ssize(tail) * layout.page_size,
                 ", where the tail ends, got ", limit);
  }
  // A window group has null blocks for the positions before its window.
  const auto num_skipped =
      static_cast<size_t>(std::max(0, first - tail_begin) / layout.page_size);
  absl::flat_hash_set<BlockId> seen;
  CheckBlocks("tail_blocks", layout, tail, num_skipped, &seen);
  const nb::gil_scoped_release release;
  EntryIndex index =
      IndexEntries(layout,
                   {.region = region == nullptr ? nullptr : &region->region,
                    .tail_blocks = tail,
                    .tail_begin = tail_begin},
                   positions, limit, first);
  return {.num_layers = layout.num_layers,
          .num_heads = layout.num_heads,
          .offsets = std::move(index.offsets),
          .positions = std::move(index.positions),
          .slots = std::move(index.slots)};
}

// What `select` is asked, checked, without objects of Python.
struct Problem {
  EvictionPolicy policy;
  EvictionTarget target = {};
  HeadShape shape = {};
  EvictionRange range = {};
  std::vector<int32_t> external = {};
};

// Adds the budgets of a caller or of a table.
void AddBudgets(ArrayArgument budgets, const PyBudgetTable* table,
                Problem* problem) {
  const HeadShape& shape = problem->shape;
  const EvictionPolicy& policy = problem->policy;
  if (policy.budget.kind == BudgetKind::kExternal) {
    problem->external =
        In<int32_t>("budgets", budgets, {shape.num_layers, shape.num_heads})
            .Copy();
  } else if (policy.needs_table()) {
    if (table == nullptr) {
      ThrowInvalid("table: expected a BudgetTable for ", FormatPolicy(policy),
                   ", got None");
    }
    ThrowIfError(CheckTable(policy, shape, *table->table));
    problem->external = TableBudgets(policy, problem->target, shape,
                                     problem->range, *table->table);
  }
}

void CheckRange(const EvictionRange& range, const PyEntries& entries,
                int32_t page_size) {
  if (page_size < 1) {
    ThrowInvalid("page_size: expected at least 1, got ", page_size);
  }
  if (range.cut < 1 || range.length < range.cut) {
    ThrowInvalid("cut, length: expected 1 <= cut <= length, got ", range.cut,
                 " and ", range.length);
  }
  for (size_t head = 0; head + 1 < entries.offsets.size(); ++head) {
    const int64_t end = entries.offsets[head + 1];
    if (entries.offsets[head] == end) continue;
    const int32_t last = entries.positions[static_cast<size_t>(end - 1)];
    if (last >= range.cut) {
      ThrowInvalid("entries: expected positions below the cut ", range.cut,
                   ", got ", last);
    }
  }
}

std::vector<float> NoiseOf(const EvictionPolicy& policy,
                           const PyEntries& entries) {
  std::vector<float> scores(entries.positions.size());
  for (size_t i = 0; i + 1 < entries.offsets.size(); ++i) {
    const auto begin = static_cast<size_t>(entries.offsets[i]);
    const auto size = static_cast<size_t>(entries.offsets[i + 1]) - begin;
    const auto head = static_cast<int32_t>(i);
    RandomScores(policy.scorer.seed, head / entries.num_heads,
                 head % entries.num_heads,
                 std::span(entries.positions).subspan(begin, size),
                 std::span(scores).subspan(begin, size));
  }
  return scores;
}

PyKeepSets Select(const PolicyArgument& policy, const TargetArgument& target,
                  ArrayArgument scores, const PyEntries* given,
                  std::optional<int32_t> cut, std::optional<int32_t> length,
                  int32_t page_size, ArrayArgument value_norms,
                  ArrayArgument products, ArrayArgument budgets,
                  const PyBudgetTable* table) {
  Problem problem = {.policy = PolicyOf(policy)};
  if (!target.value.is_none()) {
    problem.target = TargetOf(target);
  } else if (problem.policy.budget.kind != BudgetKind::kExternal ||
             problem.policy.protect.recent_percent > 0) {
    ThrowInvalid("target: expected a Target with ",
                 FormatPolicy(problem.policy), ", got None");
  }
  std::optional<PyEntries> dense;
  In<float> score;
  if (given == nullptr) {
    score = In<float>("scores", scores, {-1, -1, -1});
    dense = DenseEntries({static_cast<int32_t>(score.dimension(0)),
                          static_cast<int32_t>(score.dimension(1))},
                         static_cast<int32_t>(score.dimension(2)));
    if (!cut.has_value()) cut = static_cast<int32_t>(score.dimension(2));
  } else if (!cut.has_value()) {
    ThrowInvalid(
        "cut: expected the positions that the entries cover, got None");
  }
  const PyEntries& entries = given == nullptr ? *dense : *given;
  const auto size = static_cast<int64_t>(entries.positions.size());
  const ScoreSource source = problem.policy.score_source();
  const bool needs_scores =
      source == ScoreSource::kBackend || source == ScoreSource::kCaller;
  if (given != nullptr && needs_scores) {
    score = In<float>("scores", scores, {size});
  }
  problem.shape = {entries.num_layers, entries.num_heads, page_size};
  problem.range = {*cut, length.value_or(*cut)};
  CheckRange(problem.range, entries, page_size);
  ResolveRecent(problem.target, *cut, &problem.policy);
  AddBudgets(budgets, table, &problem);
  In<float> norms;
  In<float> product;
  if (problem.policy.selector.kind == SelectorKind::kCritical) {
    if (problem.policy.selector.gqa_product) {
      product = In<float>("products", products, {size});
    } else {
      norms = In<float>("value_norms", value_norms, {size});
    }
  }
  const nb::gil_scoped_release release;
  std::vector<float> noise;
  if (source == ScoreSource::kRandom) noise = NoiseOf(problem.policy, entries);
  const EntriesView view = {
      .offsets = entries.offsets,
      .positions = entries.positions,
      .scores = needs_scores ? score.values() : std::span<const float>(noise),
      .value_norms = norms.values(),
      .products = product.values()};
  return {.num_layers = entries.num_layers,
          .num_heads = entries.num_heads,
          .sets = SelectEntries(problem.policy, problem.target, problem.shape,
                                problem.range, view, problem.external)};
}

PyPlacement Place(const ModelLayout& layout, const PyEntries& entries,
                  const PyKeepSets& keep, const PyRegion& region) {
  CheckSameLayout(layout, &region);
  if (entries.num_layers != layout.num_layers ||
      entries.num_heads != layout.num_heads ||
      keep.num_layers != layout.num_layers ||
      keep.num_heads != layout.num_heads) {
    ThrowInvalid("entries, keep: expected ", layout.num_layers, " layers of ",
                 layout.num_heads, " heads, got ", entries.num_layers, " of ",
                 entries.num_heads, " and ", keep.num_layers, " of ",
                 keep.num_heads);
  }
  if (entries.slots.size() != entries.positions.size()) {
    ThrowInvalid("entries: expected the slots of all entries, got none");
  }
  for (size_t head = 0; head + 1 < entries.offsets.size(); ++head) {
    const int64_t begin = keep.sets.offsets[head];
    const int64_t end = keep.sets.offsets[head + 1];
    if (end - begin != region.region.kept()[head]) {
      ThrowInvalid("keep: expected ", region.region.kept()[head],
                   " entries, as the region has of head index ", head, ", got ",
                   end - begin);
    }
    const int64_t held = entries.offsets[head + 1] - entries.offsets[head];
    if (begin < end && keep.sets.ranks[static_cast<size_t>(end - 1)] >= held) {
      ThrowInvalid("keep: expected ranks below ", held,
                   ", the entries of head ", "index ", head, ", got ",
                   keep.sets.ranks[static_cast<size_t>(end - 1)]);
    }
  }
  for (const int64_t slot : entries.slots) {
    if (slot < 0 || slot >= layout.num_pages() * layout.page_size) {
      ThrowInvalid("entries: expected slots of the pool, below ",
                   layout.num_pages() * layout.page_size, ", got ", slot);
    }
  }
  const nb::gil_scoped_release release;
  PyPlacement placement;
  placement.positions =
      PlaceSurvivors(layout,
                     {.offsets = entries.offsets,
                      .slots = entries.slots,
                      .positions = entries.positions,
                      .keep = &keep.sets,
                      .page_offsets = region.region.page_offsets(),
                      .pages = region.region.page_list(),
                      .held_pages = region.region.held_pages()},
                     &placement.moves);
  return placement;
}

ConstArray<int32_t, 2> PerHead(const ModelLayout& layout,
                               std::span<const int32_t> values,
                               nb::handle owner) {
  return ViewOf<int32_t, 2>(values.data(),
                            {static_cast<size_t>(layout.num_layers),
                             static_cast<size_t>(layout.num_heads)},
                            owner);
}

OwnArray<int32_t, 2> CountsOf(const PyKeepSets& keep) {
  std::vector<int32_t> counts;
  for (size_t i = 0; i + 1 < keep.sets.offsets.size(); ++i) {
    counts.push_back(
        static_cast<int32_t>(keep.sets.offsets[i + 1] - keep.sets.offsets[i]));
  }
  return Own<2>(std::move(counts), {static_cast<size_t>(keep.num_layers),
                                    static_cast<size_t>(keep.num_heads)});
}

void BindEntries(nb::module_& m) {
  nb::class_<PyEntries>(
      m, "Entries",
      "The entries of every (layer, head), in ascending position order, as CSR "
      "arrays.")
      .def("__init__", InitBy(&MakeEntries), nb::arg("shape"),
           nb::arg("offsets"), nb::arg("positions"),
           nb::arg("slots") = nb::none(),
           "shape is (num_layers, num_heads). offsets: int64 [num_layers * "
           "num_heads + 1];\npositions: int32 and slots: int64, [offsets[-1]]. "
           "The arrays are copied.")
      .def_static("dense", &DenseEntries, nb::arg("shape"),
                  nb::arg("num_positions"),
                  "The positions [0, num_positions) of every head.")
      .def_prop_ro(
          "shape",
          [](const PyEntries& self) {
            return Shape(self.num_layers, self.num_heads);
          },
          "(num_layers, num_heads)")
      .def_prop_ro("offsets", &ViewMember<&PyEntries::offsets>,
                   "int64 [num_layers * num_heads + 1]")
      .def_prop_ro("positions", &ViewMember<&PyEntries::positions>,
                   "int32 [offsets[-1]], tokens")
      .def_prop_ro("slots", &ViewMember<&PyEntries::slots>,
                   "int64 [offsets[-1]]: page * page_size + offset")
      .def("__len__",
           [](const PyEntries& self) { return self.positions.size(); });
}

void BindKeepSets(nb::module_& m) {
  using Keep = Self<PyKeepSets>;
  nb::class_<PyKeepSets>(
      m, "KeepSets",
      "The entries that survive an eviction: ascending ranks into the entries "
      "of each head.")
      .def(
          "__init__", InitBy(&MakeKeepSets), nb::arg("shape"),
          nb::arg("offsets"), nb::arg("ranks"),
          "shape is (num_layers, num_heads). offsets: int64 [num_layers * "
          "num_heads + 1];\nranks: int32 [offsets[-1]]. The arrays are copied.")
      .def_static("of_mask", &KeepSetsOfMask, nb::arg("mask"),
                  "From bool [num_layers, num_heads, entries]: True is kept.")
      .def_prop_ro(
          "offsets",
          [](Keep self) { return ViewOf(self.p->sets.offsets, self.h); },
          "int64 [num_layers * num_heads + 1]")
      .def_prop_ro(
          "ranks", [](Keep self) { return ViewOf(self.p->sets.ranks, self.h); },
          "int32 [offsets[-1]]")
      .def_prop_ro("counts", &CountsOf, nb::rv_policy::automatic,
                   "int32 [num_layers, num_heads]: the kept entries, as an "
                   "engine answers them.")
      .def_prop_ro(
          "num_nan", [](const PyKeepSets& self) { return self.sets.num_nan; },
          "Entries whose score was NaN.");
}

template <auto kArray>
auto ViewRegion(Self<PyRegion> self) {
  return ViewOf((self.p->region.*kArray)(), self.h);
}

void BindRegion(nb::module_& m) {
  using Region = Self<PyRegion>;
  nb::class_<PyRegion>(
      m, "Region",
      "The page lists of every (layer, head) after an eviction. It stands for "
      "positions\n[0, cut) of a sequence. Constant.")
      .def_prop_ro(
          "cut", [](const PyRegion& self) { return self.region.cut(); },
          "Tokens.")
      .def_prop_ro("blocks", &ViewRegion<&RaggedRegion::blocks>,
                   "int32 [blocks]: those with a page in some list.")
      .def_prop_ro(
          "kept",
          [](Region self) {
            return PerHead(self.p->layout, self.p->region.kept(), self.h);
          },
          "int32 [num_layers, num_heads]: entries.")
      .def_prop_ro(
          "held_pages",
          [](Region self) {
            return PerHead(self.p->layout, self.p->region.held_pages(), self.h);
          },
          "int32 [num_layers, num_heads]: the pages behind them are borrowed.")
      .def_prop_ro(
          "page_offsets", &ViewRegion<&RaggedRegion::page_offsets>,
          "int32 [num_layers * num_heads + 1]: the list of head index i is\n"
          "pages[page_offsets[i]:page_offsets[i + 1]].")
      .def_prop_ro("pages", &ViewRegion<&RaggedRegion::page_list>,
                   "int32 [page_offsets[-1]]: page ids.")
      .def_prop_ro(
          "num_entries",
          [](const PyRegion& self) { return self.region.num_entries(); },
          "The sum of kept.")
      .def_prop_ro(
          "checksum",
          [](const PyRegion& self) {
            return LayoutChecksum(self.layout, self.region.layout());
          },
          "What an engine answers as layout_checksum.");
}

void BindPlacement(nb::module_& m) {
  using Placement = Self<PyPlacement>;
  nb::class_<PyPlacement>(m, "Placement",
                          "The rows to move, and what a region then contains.")
      .def_prop_ro("positions", &ViewMember<&PyPlacement::positions>,
                   "int32 [kept]: the token of every slot, head after head in "
                   "list order.")
      .def_prop_ro(
          "moves",
          [](Placement self) {
            const std::vector<SlotMove>& moves = self.p->moves.moves;
            return ViewOf<int64_t, 2>(
                reinterpret_cast<const int64_t*>(moves.data()),
                {moves.size(), 2}, self.h);
          },
          "int64 [moves, 2]: source and destination slot of a row of K and V.")
      .def_prop_ro(
          "group_ends",
          [](Placement self) {
            return ViewOf(self.p->moves.group_ends, self.h);
          },
          "int64 [groups]: read all rows of a group before you write any of "
          "them.")
      .def_prop_ro(
          "in_place",
          [](const PyPlacement& self) { return self.moves.in_place; },
          "Whether a slot may be both source and destination. If not, all "
          "moves may\nbe carried out at once.");
}

void BindFunctions(nb::module_& m) {
  m.def(
      "lay_out", &LayOut, nb::arg("layout"), nb::arg("destinations"),
      nb::arg("kept"), nb::kw_only(), nb::arg("tail_blocks") = nb::tuple(),
      nb::arg("cut") = 0, nb::arg("region").none() = nb::none(),
      "Lays a new region out (docs/engine.md, How a region is laid out).\n\n"
      "destinations and tail_blocks are block ids, kept is int32 [num_layers, "
      "num_heads].\nregion is the one that the sequence has now.");
  m.def("index_entries", &EntriesOf, nb::arg("layout"), nb::arg("tail_blocks"),
        nb::arg("limit"), nb::kw_only(), nb::arg("region").none() = nb::none(),
        nb::arg("region_positions") = nb::none(), nb::arg("first") = 0,
        nb::arg("tail_begin") = 0,
        "The entries with positions in [first, limit), and their slots.\n\n"
        "tail_blocks hold the positions from the region's cut on, or from "
        "tail_begin.\nregion_positions: int32 [region.num_entries], as "
        "Placement.positions has them.");
  m.def(
      "select", &Select, nb::arg("policy"), nb::arg("target").none(),
      nb::arg("scores") = nb::none(), nb::kw_only(),
      nb::arg("entries").none() = nb::none(), nb::arg("cut") = nb::none(),
      nb::arg("length") = nb::none(), nb::arg("page_size") = 16,
      nb::arg("value_norms") = nb::none(), nb::arg("products") = nb::none(),
      nb::arg("budgets") = nb::none(), nb::arg("table").none() = nb::none(),
      "Gives every head its budget and selects the entries that it keeps.\n\n"
      "scores: float32 [num_layers, num_heads, positions], higher is kept. Or "
      "entries, with\nscores [len(entries)], and the cut: the eviction covers "
      "positions [0, cut) of a\nsequence of length tokens (default: cut). The "
      "scorers streaming and random need\nno scores. critical needs "
      "value_norms (or products, with gqa_product), float32\n[entries]; "
      "external budgets are int32 [num_layers, num_heads]; headkv and lukv "
      "need\na table.");
  m.def("place_survivors", &Place, nb::arg("layout"), nb::arg("entries"),
        nb::arg("keep"), nb::arg("region"),
        "The moves that put the kept entries into the region, in position "
        "order.");
}

}  // namespace

void BindEviction(nb::module_& m) {
  BindEntries(m);
  BindKeepSets(m);
  BindRegion(m);
  BindPlacement(m);
  BindFunctions(m);
}

}  // namespace blockmgr::python
