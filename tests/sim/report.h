// What a run leaves behind: its first failure, a hash of all that happened, and
// counts that show whether the run was worth anything.
#ifndef TESTS_SIM_REPORT_H_
#define TESTS_SIM_REPORT_H_

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/bits.h"

namespace blockmgr::sim {

struct RunCounts {
  uint64_t events = 0;
  uint64_t steps = 0;       // plans issued
  uint64_t deep_steps = 0;  // of those: with three others in flight
  uint64_t requests = 0;
  uint64_t finished = 0;
  uint64_t refused = 0;
  uint64_t cached_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t passes = 0;        // of a request by another, as the scheduler says
  uint64_t prefix_waits = 0;  // of requests for a prefix, likewise
  uint64_t max_preemptions = 0;  // of one request
  uint64_t evictions = 0;
  uint64_t scored_evictions = 0;  // ordered, by a scorer state
  uint64_t table_evictions = 0;   // ordered, by a table that is known
  uint64_t orphan_evictions = 0;  // of forks whose parent has ended
  uint64_t squeezes = 0;          // under pressure, not those done again
  uint64_t evicted_again = 0;  // commanded before a step after the one before
  uint64_t region_hits = 0;    // starts on another's compressed prefix
  uint64_t table_hits = 0;     // of those: made by a table's budgets
  uint64_t engine_losses = 0;
  uint64_t cut_requests = 0;  // by the loss of blocks
  uint64_t forks = 0;         // starts on another's table
  uint64_t region_forks = 0;  // of those: with a region
  uint64_t other_media = 0;   // forks of other media than their parent
  uint64_t media_hits = 0;    // prefix hits on what media stand for
  uint64_t full_states = 0;   // plans with all scorer states in use
  uint64_t parts = 0;         // starts on a part of a cached block
  uint64_t swap_outs = 0;
  uint64_t swap_ins = 0;
  uint64_t region_swap_ins = 0;  // of those: with a region
  uint64_t accepted_drafts = 0;
  uint64_t rejected_drafts = 0;
  uint64_t left_behind = 0;       // pages, by windows
  uint64_t window_evictions = 0;  // from groups with a window
  uint64_t window_region_forks = 0;
  uint64_t window_region_ins = 0;  // from the host tier
  uint64_t left_regions = 0;       // by windows
  uint64_t window_region_hits = 0;
  uint64_t window_squeezes = 0;
  uint64_t refused_evictions = 0;  // by the engine, of requests that still ran
  uint64_t refused_ends = 0;       // requests that did not fit without
  uint64_t wrong_results = 0;
  uint64_t wire_faults = 0;  // answers lost, sent twice or overtaken
  uint64_t broken_streams = 0;
  uint64_t held_streams = 0;  // of plans, for long
  uint64_t lost_plans = 0;    // before the engine was known to be lost

  void Add(const RunCounts& other);
  std::string ToString() const;
  std::optional<uint64_t> Find(absl::string_view name) const;
};

// Everything of a run goes through here in order, so that equal hashes mean
// equal runs. Nothing that depends on addresses, hash-map order or the machine
// may be mixed in.
class Report {
 public:
  explicit Report(bool verbose = false) : verbose_(verbose) {}

  bool ok() const { return message_.empty(); }
  const std::string& message() const { return message_; }
  uint64_t hash() const { return hash_; }
  RunCounts& counts() { return counts_; }
  const RunCounts& counts() const { return counts_; }

  template <typename... Parts>
  void Fail(const Parts&... parts) {
    if (!ok()) return;
    message_ = absl::StrCat(parts...);
    if (verbose_) std::fprintf(stderr, "FAILED: %s\n", message_.c_str());
  }
  void Mix(uint64_t value) { hash_ = SplitMix64(hash_ ^ value); }
  void MixText(absl::string_view text) {
    for (const char c : text) Mix(static_cast<uint64_t>(c));
  }
  // A line of the trace; the parts are only put together when somebody reads.
  template <typename... Parts>
  void Note(const Parts&... parts) const {
    if (!verbose_) return;
    std::fprintf(stderr, "%s\n", absl::StrCat(parts...).c_str());
  }

 private:
  const bool verbose_;
  std::string message_;
  uint64_t hash_ = 0;
  RunCounts counts_;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_REPORT_H_
