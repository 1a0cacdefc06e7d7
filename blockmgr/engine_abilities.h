// EngineAbilities: what an engine announces of itself when it attaches, beside
// its layout and its model.
#ifndef BLOCKMGR_ENGINE_ABILITIES_H_
#define BLOCKMGR_ENGINE_ABILITIES_H_

#include <cstdint>
#include <map>
#include <string>

#include "blockmgr/sampling_params.h"

namespace blockmgr {

// VisitEngineAbilities has the meanings and ranges of the numbers and flags.
struct EngineAbilities {
  // The most host blocks that an engine may announce.
  static constexpr int32_t kMaxHostBlocks = 1 << 24;

  int32_t num_scorer_states = 0;
  int32_t num_host_blocks = 0;
  bool supports_window_evictions = false;
  // The tables of query statistics that policies may name, at most 256: by name
  // a text of at most 64 bytes that identifies the content.
  std::map<std::string, std::string> query_stats = {};
  // The fields, tokens and end tokens that requests may use.
  EngineSampling sampling = {};

  friend bool operator==(const EngineAbilities&,
                         const EngineAbilities&) = default;
};

// Shows a visitor of options (scheduler/scheduler_options.h) the numbers and
// flags, under their names in AttachRequest (proto/blockmgr/v1/engine.proto).
// The rows are the source of their validation, of their conversion to messages
// and back, and of their part in the comparison of two engines
// (DescribeDifference). Another engine can serve live requests only if its
// numbers are equal, and if it has the flags that are set.
template <typename Abilities, typename Visitor>
void VisitEngineAbilities(Abilities& abilities, Visitor&& visitor) {
  // A request whose policy needs a state (ScorerState) waits for one. It is
  // refused if the engine has none.
  visitor.Number("num_scorer_states", abilities.num_scorer_states, 0, INT32_MAX,
                 "Sequences for which the engine can accumulate scores at a "
                 "time");
  // 0 means that all preempted requests are computed again.
  visitor.Number("num_host_blocks", abilities.num_host_blocks, 0,
                 EngineAbilities::kMaxHostBlocks,
                 "Blocks of host memory for the KV of preempted requests; "
                 "requests that find no room are computed again");
  // Without this flag, requests with a window_keep_ratio are refused with
  // FailedPrecondition.
  visitor.Bool("supports_window_evictions", abilities.supports_window_evictions,
               "Carry out evictions in layer groups with a window");
}

}  // namespace blockmgr

#endif  // BLOCKMGR_ENGINE_ABILITIES_H_
