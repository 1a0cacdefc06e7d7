// Scheduler for Python.
#include "scheduler/scheduler.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/core/arrays.h"
#include "python/core/core.h"
#include "python/core/errors.h"
#include "python/core/plan.h"

namespace blockmgr::python {
namespace {

class PyScheduler {
 public:
  PyScheduler(const ModelLayout& layout, const SchedulerOptions* options) {
    ThrowIfError(layout.Validate());
    const nb::gil_scoped_release release;
    scheduler_ = ValueOrThrow(Scheduler::Create(
        layout, options == nullptr ? SchedulerOptions() : *options));
  }

  Scheduler& scheduler() { return *scheduler_; }
  const Scheduler& scheduler() const { return *scheduler_; }

  std::optional<PyPlan> Schedule() {
    std::shared_ptr<StoredPlan> stored = TakeUnused();
    if (!scheduler_->Schedule(&stored->plan)) {
      answered_.push_back(std::move(stored));
      return std::nullopt;
    }
    stored->is_stale = false;
    in_flight_.push_back(stored);
    return PyPlan{std::move(stored)};
  }

  Effects Update(const StepResult& result) {
    Effects effects;
    ThrowIfError(scheduler_->Update(result, &effects));
    Retire();
    return effects;
  }

  Effects LoseEngine() {
    Effects effects;
    scheduler_->LoseEngine(&effects);
    while (!in_flight_.empty()) Retire();
    return effects;
  }

 private:
  // Plans beyond this number are freed when Python drops them.
  static constexpr size_t kMaxAnswered = 8;

  // Returns a plan that nobody looks at any more, or a new one.
  std::shared_ptr<StoredPlan> TakeUnused() {
    const auto unused = std::ranges::find_if(
        answered_, [](const auto& stored) { return stored.use_count() == 1; });
    if (unused == answered_.end()) {
      return std::make_shared<StoredPlan>(
          StoredPlan{.layout = scheduler_->layout()});
    }
    std::shared_ptr<StoredPlan> stored = std::move(*unused);
    answered_.erase(unused);
    return stored;
  }

  // Takes the oldest plan out of flight.
  void Retire() {
    in_flight_.front()->is_stale = true;
    answered_.push_back(std::move(in_flight_.front()));
    in_flight_.pop_front();
    if (answered_.size() > kMaxAnswered) answered_.erase(answered_.begin());
  }

  std::unique_ptr<Scheduler> scheduler_;
  std::deque<std::shared_ptr<StoredPlan>> in_flight_;
  std::vector<std::shared_ptr<StoredPlan>> answered_;
};

uint64_t Submit(PyScheduler& self, std::string id, IntsArgument prompt,
                int32_t max_tokens, IntsArgument stop_token_ids,
                const RequestEviction* eviction, std::string tenant,
                std::string lora, std::string cache_salt,
                std::vector<MediaItem> media, nb::bytes engine_data,
                const SamplingParams* sampling,
                std::vector<RetentionWish> retention, int32_t priority,
                std::string fork_of) {
  Request request;
  request.id = std::move(id);
  request.prompt = CopyInts<int32_t>("prompt", prompt);
  request.max_tokens = max_tokens;
  request.stop_token_ids = CopyInts<int32_t>("stop_token_ids", stop_token_ids);
  if (eviction != nullptr) request.eviction = *eviction;
  request.scope = {.tenant = std::move(tenant),
                   .lora = std::move(lora),
                   .cache_salt = std::move(cache_salt),
                   .media = std::move(media)};
  request.engine_data.assign(engine_data.c_str(), engine_data.size());
  if (sampling != nullptr) request.sampling = *sampling;
  request.retention = std::move(retention);
  request.priority = priority;
  request.fork_of = std::move(fork_of);
  return Index(ValueOrThrow(self.scheduler().Submit(std::move(request))));
}

uint64_t Evict(PyScheduler& self, uint64_t request,
               const PolicyArgument& policy, const TargetArgument& target,
               int32_t cut, ArrayArgument scores, ArrayArgument budgets,
               const PyBudgetTable* table) {
  const ModelLayout& layout = self.scheduler().layout();
  EvictionCommand command;
  command.policy = PolicyOf(policy);
  command.cut = cut;
  if (!target.value.is_none()) {
    command.target = TargetOf(target);
  } else if (command.policy.budget.kind != BudgetKind::kExternal) {
    ThrowInvalid("target: expected a Target with ",
                 FormatPolicy(command.policy), ", got None");
  }
  if (!scores.is_none()) {
    command.scores = std::make_shared<const std::vector<float>>(
        In<float>("scores", scores, {layout.num_layers, layout.num_heads, -1})
            .Copy());
  }
  if (!budgets.is_none()) {
    command.budgets = std::make_shared<const std::vector<int32_t>>(
        In<int32_t>("budgets", budgets, {layout.num_layers, layout.num_heads})
            .Copy());
  }
  command.table = TableOf(table);
  return ValueOrThrow(
      self.scheduler().Evict(RequestId{request}, std::move(command)));
}

void BindRequests(nb::class_<PyScheduler>& type) {
  type.def(
          "submit", &Submit, nb::arg("id"), nb::arg("prompt"),
          nb::arg("max_tokens") = 16, nb::kw_only(),
          nb::arg("stop_token_ids") = nb::tuple(),
          nb::arg("eviction").none() = nb::none(), nb::arg("tenant") = "",
          nb::arg("lora") = "", nb::arg("cache_salt") = "",
          nb::arg("media") = nb::list(), nb::arg("engine_data") = nb::bytes(""),
          nb::arg("sampling").none() = nb::none(),
          nb::arg("retention") = nb::list(), nb::arg("priority") = 0,
          nb::arg("fork_of") = "",
          "Queues a request and returns its number.\n\n"
          "prompt: token ids, a sequence or an array of integers. fork_of: the "
          "id of a live\nrequest whose tokens this prompt begins with.\n"
          "Raises InvalidArgumentError, AlreadyExistsError, NotFoundError "
          "(fork_of),\nResourceExhaustedError (the queue is full, or it can "
          "never fit) or\nFailedPreconditionError (the engine cannot do it).")
      .def(
          "cancel",
          [](PyScheduler& self, uint64_t request) {
            Effects effects;
            ThrowIfError(self.scheduler().Cancel(RequestId{request}, &effects));
            return effects;
          },
          nb::arg("request"), "Ends a request at once.")
      .def(
          "find",
          [](const PyScheduler& self, const std::string& id) {
            return Index(ValueOrThrow(self.scheduler().Find(id)));
          },
          nb::arg("id"), "The number of the live request with this id.")
      .def("evict", &Evict, nb::arg("request"), nb::arg("policy"),
           nb::arg("target").none() = nb::none(), nb::arg("cut") = 0,
           nb::kw_only(), nb::arg("scores") = nb::none(),
           nb::arg("budgets") = nb::none(),
           nb::arg("table").none() = nb::none(),
           "Orders an eviction of a live request that has computed its "
           "prompt.\n\n"
           "It covers positions [0, cut); 0 means as many as possible. scores: "
           "float32\n[num_layers, num_heads, cut] for an external scorer. "
           "budgets: "
           "int32 [num_layers,\nnum_heads] for an external budget. Returns a "
           "number that an EvictionEffect repeats.")
      .def(
          "withdraw_eviction",
          [](PyScheduler& self, uint64_t request, uint64_t command) {
            return self.scheduler().WithdrawEviction(RequestId{request},
                                                     command);
          },
          nb::arg("request"), nb::arg("command"),
          "Withdraws an eviction that no step has carried yet. False if none "
          "waits.");
}

void BindSteps(nb::class_<PyScheduler>& type) {
  type.def("schedule", &PyScheduler::Schedule,
           "The next step, or None if there is nothing to run or "
           "max_steps_in_flight plans\nare unanswered.")
      .def("update", &PyScheduler::Update, nb::arg("result"),
           "Settles the answer to the oldest plan in flight, which is stale "
           "from now on.\nInvalidArgumentError, with nothing changed, if the "
           "answer is wrong.")
      .def(
          "lose_engine", &PyScheduler::LoseEngine,
          "Forgets all KV and all steps in flight, because the engine is gone. "
          "Running\nrequests will be computed again.")
      .def(
          "reset_prefix_cache",
          [](PyScheduler& self) {
            const CacheReset reset = self.scheduler().ResetPrefixCache();
            return std::pair(reset.num_dropped, reset.num_in_use);
          },
          "Drops all cached prefixes that no request uses. Returns the blocks "
          "(dropped,\nkept because they are in use).")
      .def(
          "set_time",
          [](PyScheduler& self, int64_t now_ms) {
            self.scheduler().SetTime(now_ms);
          },
          nb::arg("now_ms"),
          "Sets the time that retention wishes count in, in milliseconds of "
          "any clock.")
      .def(
          "check_invariants",
          [](const PyScheduler& self) { self.scheduler().CheckInvariants(); },
          "Audits everything in O(pool), and aborts the process if something "
          "is wrong. For tests.");
}

template <auto kGauge>
auto Gauge(const PyScheduler& self) {
  return (self.scheduler().*kGauge)();
}

void BindGauges(nb::class_<PyScheduler>& type) {
  type.def_prop_ro("has_unfinished_requests",
                   &Gauge<&Scheduler::has_unfinished_requests>)
      .def_prop_ro("num_steps_in_flight",
                   &Gauge<&Scheduler::num_steps_in_flight>)
      .def_prop_ro("num_running", &Gauge<&Scheduler::num_running>)
      .def_prop_ro("num_used_blocks", &Gauge<&Scheduler::num_used_blocks>)
      .def_prop_ro("layout", &Gauge<&Scheduler::layout>)
      .def_prop_ro("options", &Gauge<&Scheduler::options>)
      .def(
          "stats",
          [](const PyScheduler& self) {
            SchedulerStats stats = self.scheduler().stats();
            stats.metadata_bytes = self.scheduler().metadata_bytes();
            return stats;
          },
          "All counters and gauges. O(sequences), for occasional reports.");
}

}  // namespace

void BindScheduler(nb::module_& m) {
  nb::class_<PyScheduler> type(m, "Scheduler",
                               "Continuous batching over a paged KV cache.\n\n"
                               "submit, cancel and evict are calls of "
                               "frontends; schedule returns the next "
                               "step for\nthe engine, and update takes its "
                               "answer, in step order. No clock, "
                               "no randomness: the\nsame calls give the same "
                               "answers. A call that raises has "
                               "changed nothing.");
  type.def(nb::init<const ModelLayout&, const SchedulerOptions*>(),
           nb::arg("layout"), nb::arg("options").none() = nb::none());
  BindRequests(type);
  BindSteps(type);
  BindGauges(type);
}

}  // namespace blockmgr::python
