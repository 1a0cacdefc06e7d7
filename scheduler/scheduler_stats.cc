#include "scheduler/scheduler_stats.h"

#include <cstddef>
#include <type_traits>
#include <vector>

#include <absl/strings/string_view.h>

namespace blockmgr {

void SubtractCounters(const SchedulerStats& before, SchedulerStats* stats) {
  std::vector<uint64_t> counters;  // of `before`, in order
  VisitSchedulerStats(before, [&](StatKind kind, absl::string_view /*name*/,
                                  const auto& value, auto&&... /*texts*/) {
    if (kind == StatKind::kCounter) {
      counters.push_back(static_cast<uint64_t>(value));
    }
  });
  size_t next = 0;
  VisitSchedulerStats(*stats, [&](StatKind kind, absl::string_view /*name*/,
                                  auto& value, auto&&... /*texts*/) {
    if (kind != StatKind::kCounter) return;
    value -=
        static_cast<std::remove_reference_t<decltype(value)>>(counters[next++]);
  });
}

}  // namespace blockmgr
