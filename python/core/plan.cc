// StepPlan and its parts for Python.
#include "python/core/plan.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <absl/strings/str_cat.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/core/arrays.h"
#include "python/core/core.h"

namespace blockmgr::python {
namespace {

using Plan = Self<PyPlan>;

// Adds a read-only property with the elements of a member of StepPlan.
template <auto kMember>
void BindArray(nb::class_<PyPlan>& type, const char* name, const char* help) {
  type.def_prop_ro(
      name,
      [](Plan self) {
        const auto& values = Fresh(*self.p->stored).*kMember;
        return ViewOf(std::span(values.data(), values.size()), self.h);
      },
      help);
}

// As BindArray, of a member whose elements are made of kColumns int32_t.
template <auto kMember, size_t kColumns>
void BindColumns(nb::class_<PyPlan>& type, const char* name, const char* help) {
  type.def_prop_ro(
      name,
      [](Plan self) {
        const auto& values = Fresh(*self.p->stored).*kMember;
        static_assert(sizeof(values[0]) == kColumns * sizeof(int32_t));
        return ViewOf<int32_t, 2>(
            reinterpret_cast<const int32_t*>(values.data()),
            {values.size(), kColumns}, self.h);
      },
      help);
}

template <typename Part>
std::vector<Part> PartsOf(const PyPlan& plan, size_t count) {
  std::vector<Part> parts;
  parts.reserve(count);
  for (size_t i = 0; i < count; ++i) parts.push_back({plan.stored, i});
  return parts;
}

const SequenceStart& Fresh(const PyStart& start) {
  return python::Fresh(*start.stored).starts[start.index];
}

// The getter of a property: a field of the order or start. An id is a number.
template <typename Part, auto kField>
auto FieldOf(const Part& self) {
  auto value = Fresh(self).*kField;
  if constexpr (std::is_enum_v<decltype(value)>) {
    return Index(value);
  } else {
    return value;
  }
}

// The getter of a property: an id as a number. The id `none`, which names
// nothing, is None.
template <typename Part, auto kField, auto none>
std::optional<int64_t> IdOf(const Part& self) {
  const auto id = Fresh(self).*kField;
  if (id == none) return std::nullopt;
  return static_cast<int64_t>(Index(id));
}

nb::list SwapOutsOf(const PyPlan& self) {
  nb::list outs;
  for (const SwapOut& out : Fresh(*self.stored).swap_outs) {
    outs.append(nb::make_tuple(Index(out.slot), Index(out.swap), out.num_tokens,
                               out.transfer_begin, out.num_transfers));
  }
  return outs;
}

ConstArray<BlockId> NewBlocks(Plan self, int64_t run, int32_t group) {
  const StoredPlan& stored = *self.p->stored;
  const StepPlan& plan = Fresh(stored);
  if (run < 0 || run >= std::ssize(plan.slots) || group < 0 ||
      group >= stored.layout.num_groups()) {
    ThrowInvalid("run, group: expected below ", plan.slots.size(), " and ",
                 stored.layout.num_groups(), ", got ", run, " and ", group);
  }
  return ViewOf(plan.NewBlocks(stored.layout, static_cast<size_t>(run), group),
                self.h);
}

void BindChanges(nb::class_<PyPlan>& type) {
  BindArray<&StepPlan::dropped_swaps>(
      type, "dropped_swaps",
      "uint64 [n]: swapped-out sequences that will not come back.");
  type.def_prop_ro("swap_outs", &SwapOutsOf,
                   "Sequences that are copied to the host while they leave: "
                   "(slot, swap,\nnum_tokens, transfer_begin, num_transfers), "
                   "the last two into transfers_out.");
  BindColumns<&StepPlan::transfers_out, 2>(
      type, "transfers_out", "int32 [n, 2]: block, and host block to copy to.");
  BindArray<&StepPlan::released>(type, "released",
                                 "int32 [n]: slots that are free.");
  BindColumns<&StepPlan::transfers_in, 2>(
      type, "transfers_in",
      "int32 [n, 2]: block, and host block it comes from.");
  BindArray<&StepPlan::start_tokens>(type, "start_tokens",
                                     "int32 [n]: token ids of all starts.");
  BindArray<&StepPlan::dropped_regions>(
      type, "dropped_regions",
      "uint64 [n]: kept regions that no sequence will start with any more.");
  BindColumns<&StepPlan::copies, 5>(type, "copies",
                                    "int32 [n, 5]: slot, source block, "
                                    "destination block, num_tokens (rows to "
                                    "copy),\ngroup. The destination replaces "
                                    "the source in the sequence's blocks:\n"
                                    "EngineTables.apply does so.");
}

void BindRuns(nb::class_<PyPlan>& type) {
  BindArray<&StepPlan::slots>(type, "slots",
                              "int32 [runs]: the sequences to compute.");
  BindArray<&StepPlan::positions>(
      type, "positions",
      "int32 [runs]: the first position of each, in tokens.");
  BindArray<&StepPlan::num_tokens>(
      type, "num_tokens", "int32 [runs]: how many positions to compute.");
  BindArray<&StepPlan::samples>(
      type, "samples", "uint8 [runs]: 1 if the engine samples a token.");
  BindArray<&StepPlan::num_drafts>(
      type, "num_drafts",
      "int32 [runs], or empty without drafts: the last positions that verify "
      "drafts.");
  BindArray<&StepPlan::block_offsets>(
      type, "block_offsets",
      "int64 [runs * num_groups + 1]: row run * num_groups + group is\n"
      "blocks[block_offsets[row]:block_offsets[row + 1]].");
  BindArray<&StepPlan::blocks>(
      type, "blocks", "int32 [n]: blocks appended to the block tables.");
  BindArray<&StepPlan::destinations>(
      type, "destinations", "int32 [n]: destination blocks of all evictions.");
}

void BindPlanType(nb::module_& m) {
  nb::class_<PyPlan> type(
      m, "StepPlan",
      "One step for the engine: changes to its tables, and what to compute.\n\n"
      "Arrays are read-only views of the scheduler's memory. A plan is valid "
      "until its step\nis answered (Scheduler.update); from then on its "
      "properties "
      "raise StalePlanError.\nArrays taken before keep their content. "
      "docs/engine.md "
      "says in which order an engine\napplies a plan.");
  type.def_prop_ro(
          "step",
          [](const PyPlan& self) { return Index(Fresh(*self.stored).id); },
          "The id that the answer repeats.")
      .def_prop_ro(
          "is_stale", [](const PyPlan& self) { return self.stored->is_stale; },
          "Whether the step was answered, or the engine lost.")
      .def_prop_ro(
          "starts",
          [](const PyPlan& self) {
            return PartsOf<PyStart>(self, Fresh(*self.stored).starts.size());
          },
          "Sequences that enter a slot.")
      .def_prop_ro(
          "evictions",
          [](const PyPlan& self) {
            return PartsOf<PyOrder>(self, Fresh(*self.stored).evictions.size());
          },
          "Orders to carry out after computing.")
      .def_prop_ro(
          "total_tokens",
          [](const PyPlan& self) { return Fresh(*self.stored).total_tokens(); },
          "The sum of num_tokens.")
      .def("new_blocks", &NewBlocks, nb::arg("run"), nb::arg("group") = 0,
           "int32 [n]: the blocks appended to the table of a run in a layer "
           "group.")
      .def("__len__",
           [](const PyPlan& self) { return Fresh(*self.stored).slots.size(); })
      .def("__repr__", [](const PyPlan& self) -> std::string {
        if (self.stored->is_stale) return "<StepPlan, stale>";
        const StepPlan& plan = self.stored->plan;
        return absl::StrCat("<StepPlan ", Index(plan.id), ": ",
                            plan.slots.size(), " runs, ", plan.total_tokens(),
                            " tokens, ", plan.evictions.size(), " evictions>");
      });
  BindChanges(type);
  BindRuns(type);
}

void BindStartIds(nb::class_<PyStart>& type) {
  using Start = SequenceStart;
  type.def_prop_ro("slot", &FieldOf<PyStart, &Start::slot>)
      .def_prop_ro("request", &FieldOf<PyStart, &Start::request>,
                   "The number that Scheduler.submit returned.")
      .def_prop_ro("num_cached_tokens",
                   &FieldOf<PyStart, &Start::num_cached_tokens>,
                   "The first tokens whose KV is in the pool already.")
      .def_prop_ro(
          "source", &IdOf<PyStart, &Start::source, kNoSequenceSlot>,
          "The slot that has computed the cached tokens (a fork), or None.")
      .def_prop_ro("region", &IdOf<PyStart, &Start::region, kNoRegion>,
                   "The name of kept regions to start with, or None.")
      .def_prop_ro("swap", &IdOf<PyStart, &Start::swap, kNoSwap>,
                   "The swapped-out sequence that comes back, or None.")
      .def_prop_ro("query_window", &FieldOf<PyStart, &Start::query_window>,
                   "Queries before the end of each step that the engine keeps.")
      .def_prop_ro(
          "scorer_state",
          [](const PyStart& self) {
            constexpr std::array<const char*, 3> kNames = {
                "none", "attention_sums", "query_statistics"};
            return kNames[static_cast<size_t>(Fresh(self).scorer_state)];
          },
          "What the engine accumulates: none, attention_sums or "
          "query_statistics.")
      .def_prop_ro("state_begin", &FieldOf<PyStart, &Start::state_begin>,
                   "The position from which on it accumulates.")
      .def_prop_ro("info", &FieldOf<PyStart, &Start::info>,
                   "What the frontend asked for.");
}

void BindStart(nb::module_& m) {
  nb::class_<PyStart> type(
      m, "SequenceStart",
      "A sequence that enters a slot. Its table begins empty, except for what "
      "region,\nsource and swap name.");
  BindStartIds(type);
  type.def_prop_ro(
          "tokens",
          [](Self<PyStart> self) {
            const SequenceStart& start = Fresh(*self.p);
            return ViewOf(std::span(self.p->stored->plan.start_tokens)
                              .subspan(static_cast<size_t>(start.token_begin),
                                       static_cast<size_t>(start.num_tokens)),
                          self.h);
          },
          "int32 [num_tokens]: the known tokens, outputs of a resumed request "
          "included.")
      .def_prop_ro(
          "transfers_in",
          [](Self<PyStart> self) {
            const SequenceStart& start = Fresh(*self.p);
            return ViewOf<int32_t, 2>(
                reinterpret_cast<const int32_t*>(
                    self.p->stored->plan.transfers_in.data() +
                    start.transfer_begin),
                {static_cast<size_t>(start.num_transfers), 2}, self.h);
          },
          "int32 [n, 2]: blocks, and the host blocks they come from.");
}

void BindInfo(nb::module_& m) {
  nb::class_<RequestInfo>(
      m, "RequestInfo", "What an engine may need of a request besides tokens.")
      .def_ro("id", &RequestInfo::id)
      .def_ro("num_prompt_tokens", &RequestInfo::num_prompt_tokens)
      .def_ro("lora", &RequestInfo::lora)
      .def_ro("media", &RequestInfo::media)
      .def_prop_ro("engine_data",
                   [](const RequestInfo& self) {
                     return nb::bytes(self.engine_data.data(),
                                      self.engine_data.size());
                   })
      .def_ro("sampling", &RequestInfo::sampling,
              "None: greedy. The seed is set.")
      .def_ro("stop_token_ids", &RequestInfo::stop_token_ids);
}

// The caller's scores or budgets of an order, or None.
template <typename T, size_t kDimensions>
nb::object SharedArray(const std::shared_ptr<const std::vector<T>>& values,
                       const std::array<size_t, kDimensions>& shape,
                       nb::handle owner) {
  if (values == nullptr) return nb::none();
  return nb::cast(ViewOf<T, kDimensions>(values->data(), shape, owner));
}

void BindOrderArrays(nb::class_<PyOrder>& type) {
  using Order = Self<PyOrder>;
  type.def_prop_ro(
          "destinations",
          [](Order self) {
            const EvictionOrder& order = Fresh(*self.p);
            return ViewOf(
                std::span(self.p->stored->plan.destinations)
                    .subspan(static_cast<size_t>(order.destination_begin),
                             static_cast<size_t>(order.num_destinations)),
                self.h);
          },
          "int32 [n]: the blocks of the new region.")
      .def_prop_ro(
          "shard_page_totals",
          [](Order self) {
            return ViewOf(std::span(Fresh(*self.p).shard_page_totals.data(),
                                    Fresh(*self.p).shard_page_totals.size()),
                          self.h);
          },
          "int64 [num_shards] where shards differ, else empty: pages.")
      .def_prop_ro(
          "scores",
          [](Order self) {
            const EvictionOrder& order = Fresh(*self.p);
            const ModelLayout& layout = self.p->stored->layout;
            return SharedArray<float, 3>(
                order.scores,
                {static_cast<size_t>(layout.num_layers),
                 static_cast<size_t>(layout.num_heads),
                 static_cast<size_t>(order.cut)},
                self.h);
          },
          nb::sig("def scores(self) -> numpy.typing.NDArray[numpy.float32] | "
                  "None"),
          "float32 [num_layers, num_heads, cut] of an external scorer.")
      .def_prop_ro(
          "budgets",
          [](Order self) {
            const ModelLayout& layout = self.p->stored->layout;
            return SharedArray<int32_t, 2>(
                Fresh(*self.p).budgets,
                {static_cast<size_t>(layout.num_layers),
                 static_cast<size_t>(layout.num_heads)},
                self.h);
          },
          nb::sig("def budgets(self) -> numpy.typing.NDArray[numpy.int32] | "
                  "None"),
          "int32 [num_layers, num_heads] of an external budget: entries.");
}

void BindOrder(nb::module_& m) {
  nb::class_<PyOrder> type(
      m, "EvictionOrder",
      "Replace positions [0, cut) of one layer group of a slot by a region, "
      "after this step\nis computed.");
  using Order = EvictionOrder;
  type.def_prop_ro("slot", &FieldOf<PyOrder, &Order::slot>)
      .def_prop_ro("group", &FieldOf<PyOrder, &Order::group>,
                   "The layer group.")
      .def_prop_ro("cut", &FieldOf<PyOrder, &Order::cut>,
                   "Tokens, a multiple of page_size.")
      .def_prop_ro("length", &FieldOf<PyOrder, &Order::length>,
                   "Tokens of the sequence after this step.")
      .def_prop_ro("policy", &FieldOf<PyOrder, &Order::policy>)
      .def_prop_ro("target", &FieldOf<PyOrder, &Order::target>)
      .def_prop_ro("page_total", &FieldOf<PyOrder, &Order::page_total>,
                   "The most pages of the region, in each shard.")
      .def_prop_ro(
          "region", &IdOf<PyOrder, &Order::region, kNoRegion>,
          "The name under which the engine keeps the regions for other "
          "sequences, or None.");
  BindOrderArrays(type);
}

}  // namespace

const StepPlan& Fresh(const StoredPlan& stored) {
  if (stored.is_stale) {
    const std::string text = absl::StrCat(
        "the plan of step ", Index(stored.plan.id),
        " is stale: its step was answered, or the engine was lost");
    PyErr_SetString(
        nb::module_::import_("blockmgr.errors").attr("StalePlanError").ptr(),
        text.c_str());
    throw nb::python_error();
  }
  return stored.plan;
}

void BindPlan(nb::module_& m) {
  BindInfo(m);
  BindStart(m);
  BindOrder(m);
  BindPlanType(m);
}

}  // namespace blockmgr::python
