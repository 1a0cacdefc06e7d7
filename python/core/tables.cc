// EngineTables for Python.
#include "engine/tables/tables.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include "blockmgr/base/bits.h"
#include "python/core/arrays.h"
#include "python/core/core.h"
#include "python/core/errors.h"
#include "python/core/eviction.h"
#include "python/core/plan.h"

namespace blockmgr::python {
namespace {

// What a step computes, [total_tokens] and per run.
struct StepInputs {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> offsets;
  std::vector<int32_t> lengths;
};

// The page lists of the regions of some sequences.
struct RegionLists {
  size_t num_sequences = 0;
  size_t num_layers = 0;
  size_t num_heads = 0;
  std::vector<int32_t> lengths = {};  // [num_layers, num_sequences, num_heads]
  std::vector<int64_t> offsets = {};  // of the same shape
  std::vector<int32_t> pages = {};
  std::vector<int32_t> cuts = {};  // [num_sequences]
};

// EngineTables, with the checks of what it requires.
class PyTables {
 public:
  PyTables(const ModelLayout& layout, int32_t max_sequences,
           int32_t num_host_blocks)
      : tables_(Checked(layout, max_sequences, num_host_blocks), max_sequences,
                num_host_blocks) {}

  const ModelLayout& layout() const { return tables_.layout(); }

  void Apply(const PyPlan& plan) {
    const StepPlan& step = Fresh(*plan.stored);
    if (plan.stored->layout != layout()) {
      ThrowInvalid("plan: expected one for ", layout().ToString(),
                   ", got one for ", plan.stored->layout.ToString());
    }
    ThrowIfError(tables_.Apply(step));
    for (const SequenceStart& start : step.starts) {
      num_rows_ = std::max(num_rows_, Index(start.slot) + 1);
    }
    applied_ = plan.stored;
    is_sampled_ = false;
  }

  void AddSampled(ArrayArgument sampled, ArrayArgument num_accepted) {
    const std::shared_ptr<StoredPlan> applied = applied_;
    const StepPlan& plan = Applied();
    const auto num_runs = static_cast<int64_t>(plan.slots.size());
    const In<int32_t> tokens("sampled", sampled, {num_runs});
    In<int32_t> accepted;
    if (!plan.num_drafts.empty()) {
      accepted = In<int32_t>("num_accepted", num_accepted, {num_runs});
    }
    // The arrays may have run code of Python, and this code calls of ours.
    if (applied_ != applied) ThrowChanged();
    Applied();
    if (is_sampled_) {
      ThrowInvalid(
          "sampled: expected once after a plan was applied, got again");
    }
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      CheckSampled(plan, i, tokens.values(), accepted.values());
    }
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      if (!plan.num_drafts.empty() && plan.num_drafts[i] > 0) {
        tables_.RejectDrafts(plan.slots[i], plan.num_drafts[i],
                             accepted.values()[i]);
      }
      if (plan.samples[i] != 0) {
        tables_.AddSampled(plan.slots[i], tokens.values()[i]);
      }
    }
    is_sampled_ = true;
  }

  void SetDrafts(int32_t slot, IntsArgument drafts) {
    const auto tokens = CopyInts<int32_t>("drafts", drafts);
    Row(slot);  // only now, as the copy may have run code of Python
    tables_.SetDrafts(SequenceSlot{slot}, tokens);
  }

  std::tuple<std::optional<PyRegion>, int32_t, OwnArray<BlockId>> Covered(
      const PyOrder& order) {
    const EngineTables::CoveredTail tail = tables_.Covered(CheckedOrder(order));
    return {tail.region == nullptr ? std::nullopt : RegionOf(*tail.region),
            tail.begin,
            Own(std::vector<BlockId>(tail.blocks.begin(), tail.blocks.end()))};
  }

  OwnArray<int32_t, 2> HeldBelow(const PyOrder& order) {
    const EvictionOrder& checked = CheckedOrder(order);
    std::vector<int32_t> held;
    for (int32_t head = 0; head < layout().pages_per_block(); ++head) {
      held.push_back(tables_.CountHeldBelow(checked, head));
    }
    return Own<2>(std::move(held), HeadShapeOf());
  }

  std::optional<uint64_t> Commit(const PyOrder& order, ArrayArgument counts) {
    const std::vector<int32_t> copy =
        In<int32_t>("counts", counts, {layout().num_layers, layout().num_heads})
            .Copy();
    // Only now, as the copy may have run code of Python.
    const EvictionOrder& checked = CheckedOrder(order);
    ThrowIfError(tables_.CheckCounts(checked, copy));
    tables_.Commit(*AppliedPlan(), checked, copy);
    return tables_.ChecksumOf(checked);
  }

  std::optional<PyRegion> Region(int32_t slot, int32_t group) const {
    const TableRegion* region = Group(slot, group).attended_region();
    return region == nullptr ? std::nullopt : RegionOf(*region);
  }

  OwnArray<int32_t> Tokens(int32_t slot) const {
    return Own(std::vector<int32_t>(Row(slot).tokens));
  }
  OwnArray<BlockId> TailBlocks(int32_t slot, int32_t group) const {
    return Own(std::vector<BlockId>(Group(slot, group).blocks));
  }
  int32_t num_computed(int32_t slot) const { return Row(slot).num_computed; }
  uint64_t Request(int32_t slot) const { return Index(Row(slot).request); }

  OwnArray<int32_t, 2> BlockTables(IntsArgument slots, int32_t group,
                                   std::optional<int32_t> width) const {
    const auto ids = CopyInts<int32_t>("slots", slots);
    size_t columns = 0;
    for (const int32_t slot : ids) {
      columns = std::max(columns, Group(slot, group).blocks.size());
    }
    if (width.has_value()) {
      if (*width < static_cast<int64_t>(columns)) {
        ThrowInvalid("width: expected at least ", columns, " blocks, got ",
                     *width);
      }
      columns = static_cast<size_t>(*width);
    }
    std::vector<int32_t> rows(ids.size() * columns, 0);
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::vector<BlockId>& blocks = Group(ids[i], group).blocks;
      std::ranges::transform(
          blocks,
          rows.begin() + std::ssize(rows) /
                             std::max<int64_t>(1, std::ssize(ids)) *
                             static_cast<int64_t>(i),
          [](BlockId block) { return Index(block); });
    }
    return Own<2>(std::move(rows), {ids.size(), columns});
  }

  StepInputs Inputs() const {
    const StepPlan& plan = Applied();
    StepInputs inputs;
    inputs.offsets.push_back(0);
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      const SequenceTable& row = Row(Index(plan.slots[i]));
      const int32_t end = plan.positions[i] + plan.num_tokens[i];
      CheckUnchanged(row, end);
      for (int32_t position = plan.positions[i]; position < end; ++position) {
        inputs.tokens.push_back(row.tokens[static_cast<size_t>(position)]);
        inputs.positions.push_back(position);
      }
      inputs.offsets.push_back(static_cast<int32_t>(inputs.tokens.size()));
      inputs.lengths.push_back(end);
    }
    return inputs;
  }

  OwnArray<int64_t> SlotMapping(int32_t group) const {
    const StepPlan& plan = Applied();
    std::vector<int64_t> slots;
    const int32_t page_size = layout().page_size;
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      const GroupTable& table = Group(Index(plan.slots[i]), group);
      const int32_t end = plan.positions[i] + plan.num_tokens[i];
      CheckUnchanged(Row(Index(plan.slots[i])), end);
      for (int32_t position = plan.positions[i]; position < end; ++position) {
        const int32_t page = (position - table.region.cut) / page_size;
        if (position < table.region.cut || page >= std::ssize(table.blocks)) {
          ThrowChanged();
        }
        const int64_t block = Index(table.blocks[static_cast<size_t>(page)]);
        slots.push_back(block * page_size + position % page_size);
      }
    }
    return Own(std::move(slots));
  }

  RegionLists Regions(IntsArgument slots, int32_t group) const {
    const auto ids = CopyInts<int32_t>("slots", slots);
    RegionLists lists = {.num_sequences = ids.size(),
                         .num_layers = static_cast<size_t>(layout().num_layers),
                         .num_heads = static_cast<size_t>(layout().num_heads)};
    const size_t num_lists =
        lists.num_sequences * lists.num_layers * lists.num_heads;
    lists.lengths.assign(num_lists, 0);
    lists.offsets.assign(num_lists, 0);
    for (size_t i = 0; i < ids.size(); ++i) {
      const TableRegion* region = Group(ids[i], group).attended_region();
      lists.cuts.push_back(Group(ids[i], group).region.cut);
      if (region != nullptr) AddLists(*RegionOf(*region), i, &lists);
    }
    return lists;
  }

  void Reset() {
    tables_.Reset();
    num_rows_ = 0;
    applied_ = nullptr;
  }

 private:
  static const ModelLayout& Checked(const ModelLayout& layout,
                                    int32_t max_sequences,
                                    int32_t num_host_blocks) {
    ThrowIfError(layout.Validate());
    if (max_sequences < 1 || max_sequences > kMaxSequenceSlots) {
      ThrowInvalid("max_sequences: expected 1 to ", kMaxSequenceSlots, ", got ",
                   max_sequences);
    }
    if (num_host_blocks < 0) {
      ThrowInvalid("num_host_blocks: expected at least 0, got ",
                   num_host_blocks);
    }
    return layout;
  }

  [[noreturn]] static void ThrowChanged() {
    ThrowInvalid(
        "expected a call between apply() and add_sampled() or "
        "commit(), which change the tables");
  }

  void CheckUnchanged(const SequenceTable& row, int32_t end) const {
    if (is_sampled_ || row.num_computed != end ||
        end > std::ssize(row.tokens)) {
      ThrowChanged();
    }
  }

  const StepPlan* AppliedPlan() const {
    return applied_ == nullptr ? nullptr : &applied_->plan;
  }
  const StepPlan& Applied() const {
    if (applied_ == nullptr) ThrowInvalid("expected a call of apply() before");
    return Fresh(*applied_);
  }

  const SequenceTable& Row(int32_t slot) const {
    if (slot < 0 || slot >= num_rows_ ||
        !tables_.row(SequenceSlot{slot}).in_use) {
      ThrowInvalid("slot: expected one in use, got ", slot);
    }
    return tables_.row(SequenceSlot{slot});
  }
  const GroupTable& Group(int32_t slot, int32_t group) const {
    const SequenceTable& row = Row(slot);
    if (group < 0 || group >= layout().num_groups()) {
      ThrowInvalid("group: expected 0 to ", layout().num_groups() - 1, ", got ",
                   group);
    }
    return row.groups[static_cast<size_t>(group)];
  }

  void CheckSampled(const StepPlan& plan, size_t i,
                    std::span<const int32_t> sampled,
                    std::span<const int32_t> accepted) const {
    const SequenceTable& row = Row(Index(plan.slots[i]));
    if (!plan.num_drafts.empty() &&
        (accepted[i] < 0 || accepted[i] > plan.num_drafts[i])) {
      ThrowInvalid("num_accepted[", i, "]: expected 0 to ", plan.num_drafts[i],
                   ", got ", accepted[i]);
    }
    if (plan.samples[i] != 0 && sampled[i] < 0) {
      ThrowInvalid("sampled[", i, "]: expected a token id of at least 0, got ",
                   sampled[i]);
    }
    if (plan.samples[i] != 0 &&
        row.num_computed != static_cast<int64_t>(row.tokens.size())) {
      ThrowInvalid("sampled[", i, "]: expected all tokens of slot ",
                   Index(plan.slots[i]), " to be computed");
    }
  }

  // Returns the order if it can be carried out.
  const EvictionOrder& CheckedOrder(const PyOrder& order) {
    if (order.stored != applied_) {
      ThrowInvalid("order: expected one of the plan that was applied last");
    }
    const EvictionOrder& checked = Fresh(order);
    ThrowIfError(tables_.CheckOrder(*AppliedPlan(), checked));
    return checked;
  }

  std::array<size_t, 2> HeadShapeOf() const {
    return {static_cast<size_t>(layout().num_layers),
            static_cast<size_t>(layout().num_heads)};
  }

  std::optional<PyRegion> RegionOf(const TableRegion& region) const {
    if (region.layout == nullptr) {
      ThrowInvalid(
          "the page lists of this region are not known, because it "
          "came back from the host on other blocks");
    }
    return PyRegion{layout(), RaggedRegion(layout(), *region.layout)};
  }

  // Adds the lists of sequence i.
  static void AddLists(const PyRegion& own, size_t i, RegionLists* lists) {
    const RaggedRegion& region = own.region;
    const auto begin = static_cast<int64_t>(lists->pages.size());
    for (const PageId page : region.page_list()) {
      lists->pages.push_back(Index(page));
    }
    for (size_t head = 0; head < region.kept().size(); ++head) {
      const size_t layer = head / lists->num_heads;
      const size_t to = (layer * lists->num_sequences + i) * lists->num_heads +
                        head % lists->num_heads;
      lists->lengths[to] = region.kept()[head];
      lists->offsets[to] = begin + region.page_offsets()[head];
    }
  }

  EngineTables tables_;
  int32_t num_rows_ = 0;  // slots that were ever started
  std::shared_ptr<StoredPlan> applied_;
  bool is_sampled_ = false;
};

void BindInputs(nb::module_& m) {
  nb::class_<StepInputs>(m, "StepInputs", "What a step computes.")
      .def_prop_ro(
          "tokens", &ViewMember<&StepInputs::tokens>,
          "int32 [total_tokens]: token ids, of one run after the other.")
      .def_prop_ro("positions", &ViewMember<&StepInputs::positions>,
                   "int32 [total_tokens]")
      .def_prop_ro("offsets", &ViewMember<&StepInputs::offsets>,
                   "int32 [runs + 1]: the tokens of run i are [offsets[i], "
                   "offsets[i + 1]).")
      .def_prop_ro("lengths", &ViewMember<&StepInputs::lengths>,
                   "int32 [runs]: tokens of each sequence after this step.");
}

template <auto kMember>
auto ViewLists(Self<RegionLists> self) {
  const RegionLists& lists = *self.p;
  return ViewOf(
      (lists.*kMember).data(),
      std::array{lists.num_layers, lists.num_sequences, lists.num_heads},
      self.h);
}

void BindRegionLists(nb::module_& m) {
  nb::class_<RegionLists>(
      m, "RegionLists",
      "The pages of regions, as attention kernels read them: sequence i, layer "
      "l, head h\nhas lengths[l, i, h] entries on pages[offsets[l, i, h]:].")
      .def_prop_ro("lengths", &ViewLists<&RegionLists::lengths>,
                   "int32 [num_layers, sequences, num_heads]: entries, 0 "
                   "without a region.")
      .def_prop_ro("offsets", &ViewLists<&RegionLists::offsets>,
                   "int64 [num_layers, sequences, num_heads]")
      .def_prop_ro("pages", &ViewMember<&RegionLists::pages>,
                   "int32 [pages]: page ids.")
      .def_prop_ro("cuts", &ViewMember<&RegionLists::cuts>,
                   "int32 [sequences]: the position at which the tail begins.");
}

void BindSequences(nb::class_<PyTables>& type) {
  type.def("tokens", &PyTables::Tokens, nb::arg("slot"),
           "int32 [n]: the prompt and the outputs, by position.")
      .def("num_computed", &PyTables::num_computed, nb::arg("slot"),
           "Tokens whose KV is in the pool, except for what was evicted.")
      .def("request", &PyTables::Request, nb::arg("slot"),
           "The number of the request in the slot.")
      .def("tail_blocks", &PyTables::TailBlocks, nb::arg("slot"),
           nb::arg("group") = 0,
           "int32 [n]: the blocks of the positions from the region's cut on.")
      .def("region", &PyTables::Region, nb::arg("slot"), nb::arg("group") = 0,
           "The region that the sequence attends to, or None.")
      .def(
          "block_tables", &PyTables::BlockTables, nb::arg("slots"),
          nb::arg("group") = 0, nb::arg("width") = nb::none(),
          "int32 [len(slots), width]: tail_blocks of each slot, filled up with "
          "0, the null\nblock. width: columns (default: the longest).")
      .def("region_lists", &PyTables::Regions, nb::arg("slots"),
           nb::arg("group") = 0, "The page lists of the regions of the slots.");
}

void BindStep(nb::class_<PyTables>& type) {
  type.def("apply", &PyTables::Apply, nb::arg("plan"),
           "Applies everything of a plan but the evictions. Copying bytes is "
           "the engine's work.\nInvalidArgumentError, with nothing changed, if "
           "the plan contradicts the tables.")
      .def("inputs", &PyTables::Inputs,
           "What the plan that was applied last computes.")
      .def("slot_mapping", &PyTables::SlotMapping, nb::arg("group") = 0,
           "int64 [total_tokens]: block * page_size + position % page_size, "
           "where the K and V\nof each token of the step belong, in every "
           "layer of the group.")
      .def("add_sampled", &PyTables::AddSampled, nb::arg("sampled"),
           nb::arg("num_accepted") = nb::none(),
           "Adds the tokens that the step sampled: int32 [runs]. num_accepted: "
           "int32 [runs],\nof plans with drafts.")
      .def("set_drafts", &PyTables::SetDrafts, nb::arg("slot"),
           nb::arg("drafts"), "Announces drafts for the next run of the slot.")
      .def("covered", &PyTables::Covered, nb::arg("order"),
           "What an order covers: the region or None, the position where the "
           "covered tail\nbegins, and its blocks, int32 [n].")
      .def("held_below", &PyTables::HeldBelow, nb::arg("order"),
           "int32 [num_layers, num_heads]: entries below an order's cut.")
      .def("commit", &PyTables::Commit, nb::arg("order"), nb::arg("counts"),
           "Replaces positions [0, cut) by a region with counts entries, int32 "
           "[num_layers,\nnum_heads]. Returns the checksum to answer, or None "
           "if the page lists are not known.")
      .def("reset", &PyTables::Reset, "Forgets every sequence and region.");
}

}  // namespace

void BindTables(nb::module_& m) {
  BindInputs(m);
  BindRegionLists(m);
  nb::class_<PyTables> type(
      m, "EngineTables",
      "The tables that an engine keeps of its sequences: tokens, block tables, "
      "regions.\n\nFor every plan: apply, compute, add_sampled, commit each "
      "eviction.");
  type.def(nb::init<const ModelLayout&, int32_t, int32_t>(), nb::arg("layout"),
           nb::arg("max_sequences") = kMaxSequenceSlots,
           nb::arg("num_host_blocks") = 0)
      .def_prop_ro("layout", &PyTables::layout);
  BindSequences(type);
  BindStep(type);
}

}  // namespace blockmgr::python
