// StepResult and Effects for Python.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "blockmgr/sampling_params.h"
#include "blockmgr/step_plan.h"
#include "python/core/arrays.h"
#include "python/core/core.h"
#include "python/core/errors.h"
#include "scheduler/request.h"

namespace blockmgr::python {
namespace {

TokenLogProbs MakeLogProbs(ArrayArgument tokens, ArrayArgument logprobs) {
  const In<int32_t> ids("tokens", tokens, {-1, -1});
  const int64_t columns = ids.dimension(1);
  if (columns < 1 || columns > 1 + kMaxLogprobs) {
    ThrowInvalid("tokens: expected the token and at most ", kMaxLogprobs,
                 " others in a row, got ", columns, " columns");
  }
  const In<float> values("logprobs", logprobs, {ids.dimension(0), columns});
  return {.num_top = static_cast<int32_t>(columns) - 1,
          .tokens = ids.Copy(),
          .logprobs = values.Copy()};
}

// A copy per row: [num_rows(), 1 + num_top].
template <typename T>
ConstArray<T, 2> RowsOf(const std::vector<T>& values, const TokenLogProbs& rows,
                        nb::handle owner) {
  return ViewOf<T, 2>(values.data(),
                      {static_cast<size_t>(rows.num_rows()),
                       static_cast<size_t>(1 + rows.num_top)},
                      owner);
}

void BindLogProbs(nb::module_& m) {
  using Rows = Self<TokenLogProbs>;
  nb::class_<TokenLogProbs>(m, "TokenLogProbs",
                            "Log-probabilities of consecutive tokens.")
      .def("__init__", InitBy(&MakeLogProbs), nb::arg("tokens"),
           nb::arg("logprobs"),
           "int32 and float32 [rows, 1 + num_top]: the token itself, then the "
           "most likely ones.")
      .def_ro("first_index", &TokenLogProbs::first_index,
              "The index of the first token in the prompt or the outputs.")
      .def_prop_ro(
          "tokens",
          [](Rows self) { return RowsOf(self.p->tokens, *self.p, self.h); },
          "int32 [rows, 1 + num_top]")
      .def_prop_ro(
          "logprobs",
          [](Rows self) { return RowsOf(self.p->logprobs, *self.p, self.h); },
          "float32 [rows, 1 + num_top]");
  nb::class_<RunLogProbs>(m, "RunLogProbs",
                          "The log-probabilities that one run brought.")
      .def(
          "__init__",
          [](RunLogProbs* self, int32_t run, const TokenLogProbs* prompt,
             const TokenLogProbs* outputs) {
            new (self) RunLogProbs{
                .run = run,
                .prompt = prompt == nullptr ? TokenLogProbs() : *prompt,
                .outputs = outputs == nullptr ? TokenLogProbs() : *outputs};
          },
          nb::arg("run"), nb::arg("prompt").none() = nb::none(),
          nb::arg("outputs").none() = nb::none(),
          "run is an index into plan.slots. prompt: a row for every token of "
          "the prompt\nbehind the run's first position. outputs: a row for "
          "each "
          "accepted draft and the\nsampled token.")
      .def_ro("run", &RunLogProbs::run);
}

EvictionOutcome MakeOutcome(ArrayArgument counts,
                            std::optional<uint64_t> layout_checksum,
                            std::optional<std::string> error) {
  EvictionOutcome outcome;
  outcome.ok = !error.has_value();
  if (error.has_value()) {
    outcome.error = *std::move(error);
    return outcome;
  }
  outcome.counts = In<int32_t>("counts", counts, {-1, -1}).Copy();
  outcome.layout_checksum = layout_checksum;
  return outcome;
}

StepResult MakeResult(uint64_t step, ArrayArgument sampled,
                      std::vector<EvictionOutcome> evictions,
                      ArrayArgument num_accepted, ArrayArgument accepted,
                      ArrayArgument num_drafts,
                      const std::vector<nb::bytes>& token_data,
                      std::vector<RunLogProbs> logprobs,
                      const std::vector<std::pair<int32_t, int32_t>>& stops,
                      IntsArgument lost_blocks, IntsArgument lost_host_blocks) {
  StepResult result;
  result.id = StepId{step};
  result.sampled = In<int32_t>("sampled", sampled, {-1}).Copy();
  const auto copy = [](const char* name, ArrayArgument array) {
    return array.is_none() ? std::vector<int32_t>()
                           : In<int32_t>(name, array, {-1}).Copy();
  };
  result.num_accepted = copy("num_accepted", num_accepted);
  result.accepted = copy("accepted", accepted);
  result.num_drafts = copy("num_drafts", num_drafts);
  for (const nb::bytes& data : token_data) {
    result.token_data.emplace_back(data.c_str(), data.size());
  }
  result.logprobs = std::move(logprobs);
  for (const auto& [run, stop] : stops) {
    result.stop_matches.push_back({.run = run, .stop = stop});
  }
  result.evictions = std::move(evictions);
  result.lost_blocks = CopyInts<BlockId>("lost_blocks", lost_blocks);
  result.lost_host_blocks =
      CopyInts<HostBlockId>("lost_host_blocks", lost_host_blocks);
  return result;
}

void BindResultTypes(nb::module_& m) {
  nb::class_<EvictionOutcome>(
      m, "EvictionOutcome",
      "How an order ended. With an error nothing was moved, and the old table "
      "holds.")
      .def("__init__", InitBy(&MakeOutcome), nb::arg("counts") = nb::none(),
           nb::arg("layout_checksum") = nb::none(), nb::kw_only(),
           nb::arg("error") = nb::none(),
           "counts: int32 [num_layers, num_heads], kept entries. "
           "layout_checksum: what\nEngineTables.commit returned, or "
           "Region.checksum.")
      .def_ro("ok", &EvictionOutcome::ok)
      .def_ro("error", &EvictionOutcome::error)
      .def_ro("layout_checksum", &EvictionOutcome::layout_checksum);
  nb::class_<StepResult>(m, "StepResult", "The engine's answer to a plan.")
      .def("__init__", InitBy(&MakeResult), nb::arg("step"), nb::arg("sampled"),
           nb::arg("evictions") = nb::list(), nb::kw_only(),
           nb::arg("num_accepted") = nb::none(),
           nb::arg("accepted") = nb::none(), nb::arg("num_drafts") = nb::none(),
           nb::arg("token_data") = nb::list(), nb::arg("logprobs") = nb::list(),
           nb::arg("stop_matches") = nb::list(),
           nb::arg("lost_blocks") = nb::tuple(),
           nb::arg("lost_host_blocks") = nb::tuple(),
           "step: plan.step. sampled: int32 [runs], -1 where samples is 0. "
           "evictions: one\noutcome for each of plan.evictions. num_accepted, "
           "num_drafts: int32 [runs], and\naccepted: int32 [sum of "
           "num_accepted], with drafts. token_data: bytes for each run,\nor "
           "none. "
           "stop_matches: (run, index in sampling.stop) of runs whose last "
           "token ends a\nstop string. lost_blocks, lost_host_blocks: ids.")
      .def_prop_ro("step",
                   [](const StepResult& self) { return Index(self.id); })
      .def_prop_ro("sampled", &ViewMember<&StepResult::sampled>,
                   "int32 [runs]");
}

// A view of one field of all token effects.
template <typename T, auto kField>
ConstArray<T> TokenField(Self<Effects> self) {
  constexpr int64_t kStride = sizeof(TokenEffect) / sizeof(T);
  static_assert(sizeof(TokenEffect) % sizeof(T) == 0);
  const std::vector<TokenEffect>& tokens = self.p->tokens;
  const int64_t strides[] = {kStride};
  return ViewOf<Scalar<T>, 1>(
      tokens.empty()
          ? nullptr
          : reinterpret_cast<const Scalar<T>*>(&(tokens.front().*kField)),
      {tokens.size()}, self.h, strides);
}

const char* ReasonName(FinishReason reason) {
  constexpr std::array<const char*, kNumFinishReasons> kNames = {
      "length", "stop", "cancelled", "failed"};
  return kNames[static_cast<size_t>(reason)];
}

void BindEffectTypes(nb::module_& m) {
  nb::class_<FinishEffect>(m, "FinishEffect", "The end of a request.")
      .def_prop_ro("request",
                   [](const FinishEffect& self) { return Index(self.request); })
      .def_prop_ro(
          "reason",
          [](const FinishEffect& self) { return ReasonName(self.reason); },
          "length, stop, cancelled or failed")
      .def_prop_ro(
          "error",
          [](const FinishEffect& self) { return ErrorOf(self.status); },
          nb::sig("def error(self) -> blockmgr.errors.Error | None"),
          "The exception that says why it failed, or None.")
      .def_ro("stop", &FinishEffect::stop,
              "The index in sampling.stop of the string that ended it, or "
              "None.")
      .def_ro("num_output_tokens", &FinishEffect::num_output_tokens)
      .def_ro("num_cached_tokens", &FinishEffect::num_cached_tokens)
      .def_ro("num_preemptions", &FinishEffect::num_preemptions);
  nb::class_<EvictionEffect>(
      m, "EvictionEffect",
      "How an eviction ended, of the request's own or of a command.")
      .def_prop_ro(
          "request",
          [](const EvictionEffect& self) { return Index(self.request); })
      .def_ro("command", &EvictionEffect::command,
              "What Scheduler.evict returned; 0 for the request's own.")
      .def_prop_ro(
          "error",
          [](const EvictionEffect& self) { return ErrorOf(self.status); },
          nb::sig("def error(self) -> blockmgr.errors.Error | None"),
          "The exception that says why nothing was evicted, or None.")
      .def_ro("cut", &EvictionEffect::cut, "Tokens.")
      .def_ro("evicted_entries", &EvictionEffect::evicted_entries,
              "Summed over groups, layers and heads.")
      .def_ro("freed_blocks", &EvictionEffect::freed_blocks)
      .def_ro("freed_bytes", &EvictionEffect::freed_bytes)
      .def_prop_ro(
          "kept_entries", &ViewMember<&EvictionEffect::kept_entries>,
          "int32 [num_layers * num_heads]: entries below the cut, in group 0.");
  nb::class_<LogProbsEffect>(
      m, "LogProbsEffect",
      "Log-probabilities of a request's prompt or outputs.")
      .def_prop_ro(
          "request",
          [](const LogProbsEffect& self) { return Index(self.request); })
      .def_ro("of_prompt", &LogProbsEffect::of_prompt)
      .def_ro("logprobs", &LogProbsEffect::logprobs);
}

void BindEffects(nb::module_& m) {
  nb::class_<Effects>(m, "Effects",
                      "What frontends are to be told, in the order of "
                      "events.")
      .def_prop_ro("token_requests",
                   &TokenField<uint64_t, &TokenEffect::request>,
                   "uint64 [n]: the requests that got a token.")
      .def_prop_ro("tokens", &TokenField<int32_t, &TokenEffect::token>,
                   "int32 [n]: the token ids.")
      .def_prop_ro("token_indices", &TokenField<int32_t, &TokenEffect::index>,
                   "int32 [n]: their indices among the outputs, from 0.")
      .def_prop_ro(
          "token_data",
          [](const Effects& self) {
            nb::list list;
            for (const TokenDataEffect& data : self.token_data) {
              list.append(nb::make_tuple(
                  Index(data.request), data.index,
                  nb::bytes(data.data.data(), data.data.size())));
            }
            return list;
          },
          nb::sig("def token_data(self) -> list[tuple[int, int, bytes]]"),
          "(request, index of the first of these outputs, bytes)")
      .def_prop_ro("finished",
                   [](const Effects& self) { return self.finished; })
      .def_prop_ro("evictions",
                   [](const Effects& self) { return self.evictions; })
      .def_prop_ro("logprobs",
                   [](const Effects& self) { return self.logprobs; });
}

}  // namespace

void BindResult(nb::module_& m) {
  BindLogProbs(m);
  BindResultTypes(m);
  BindEffectTypes(m);
  BindEffects(m);
}

}  // namespace blockmgr::python
