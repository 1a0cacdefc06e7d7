#include "tests/sim/report.h"

#include <algorithm>
#include <iterator>

namespace blockmgr::sim {
namespace {

struct Count {
  absl::string_view name;
  uint64_t RunCounts::*value;
};

constexpr Count kCounts[] = {
    {"events", &RunCounts::events},
    {"steps", &RunCounts::steps},
    {"deep_steps", &RunCounts::deep_steps},
    {"requests", &RunCounts::requests},
    {"finished", &RunCounts::finished},
    {"refused", &RunCounts::refused},
    {"cached_tokens", &RunCounts::cached_tokens},
    {"preemptions", &RunCounts::preemptions},
    {"passes", &RunCounts::passes},
    {"prefix_waits", &RunCounts::prefix_waits},
    {"max_preemptions", &RunCounts::max_preemptions},
    {"evictions", &RunCounts::evictions},
    {"scored_evictions", &RunCounts::scored_evictions},
    {"table_evictions", &RunCounts::table_evictions},
    {"orphan_evictions", &RunCounts::orphan_evictions},
    {"squeezes", &RunCounts::squeezes},
    {"evicted_again", &RunCounts::evicted_again},
    {"region_hits", &RunCounts::region_hits},
    {"table_hits", &RunCounts::table_hits},
    {"engine_losses", &RunCounts::engine_losses},
    {"cut_requests", &RunCounts::cut_requests},
    {"forks", &RunCounts::forks},
    {"region_forks", &RunCounts::region_forks},
    {"other_media", &RunCounts::other_media},
    {"media_hits", &RunCounts::media_hits},
    {"full_states", &RunCounts::full_states},
    {"parts", &RunCounts::parts},
    {"swap_outs", &RunCounts::swap_outs},
    {"swap_ins", &RunCounts::swap_ins},
    {"region_swap_ins", &RunCounts::region_swap_ins},
    {"accepted_drafts", &RunCounts::accepted_drafts},
    {"rejected_drafts", &RunCounts::rejected_drafts},
    {"left_behind", &RunCounts::left_behind},
    {"window_evictions", &RunCounts::window_evictions},
    {"window_region_forks", &RunCounts::window_region_forks},
    {"window_region_ins", &RunCounts::window_region_ins},
    {"left_regions", &RunCounts::left_regions},
    {"window_region_hits", &RunCounts::window_region_hits},
    {"window_squeezes", &RunCounts::window_squeezes},
    {"refused_evictions", &RunCounts::refused_evictions},
    {"refused_ends", &RunCounts::refused_ends},
    {"wrong_results", &RunCounts::wrong_results},
    {"wire_faults", &RunCounts::wire_faults},
    {"broken_streams", &RunCounts::broken_streams},
    {"held_streams", &RunCounts::held_streams},
    {"lost_plans", &RunCounts::lost_plans},
};
static_assert(sizeof(RunCounts) == sizeof(uint64_t) * std::size(kCounts));

}  // namespace

void RunCounts::Add(const RunCounts& other) {
  const uint64_t most = std::max(max_preemptions, other.max_preemptions);
  for (const Count& count : kCounts) this->*count.value += other.*count.value;
  max_preemptions = most;
}

std::string RunCounts::ToString() const {
  std::string text;
  for (const Count& count : kCounts) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", count.name, " ",
                    this->*count.value);
  }
  return text;
}

std::optional<uint64_t> RunCounts::Find(absl::string_view name) const {
  const auto* const count = std::ranges::find(kCounts, name, &Count::name);
  if (count == std::end(kCounts)) return std::nullopt;
  return this->*count->value;
}

}  // namespace blockmgr::sim
