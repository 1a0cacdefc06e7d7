#include "tests/sim/ledger_effects.h"

#include <algorithm>

namespace blockmgr::sim {
namespace {

// Preemptions that one request may suffer. Traces of healthy vLLM servers show
// up to 4 (inference-sim issue 963). Twice as many are thrashing.
constexpr int32_t kMaxPreemptions = 8;

}  // namespace

const FinishEffect* FindFinish(const Effects& effects, RequestId request) {
  const auto found =
      std::ranges::find(effects.finished, request, &FinishEffect::request);
  return found == effects.finished.end() ? nullptr : &*found;
}

void TakeCommandEffects(const Effects& effects, LedgerBooks* books) {
  for (const EvictionEffect& effect : effects.evictions) {
    books->report->Mix(Index(effect.request));
    books->report->Mix(static_cast<uint64_t>(effect.status.code()));
    if (effect.command == 0) continue;
    if (books->commands.erase(effect.command) == 0) {
      books->Fail("command ", effect.command, " was answered twice");
    }
    if (effect.status.ok()) books->commanded.insert(effect.request);
  }
}

void TakeEnd(const FinishEffect& effect, FinishReason reason,
             LedgerBooks* books) {
  const auto found = books->requests.find(effect.request);
  if (found == books->requests.end() || !found->second.live) {
    books->Fail("request ", Index(effect.request), " ended twice");
    return;
  }
  LedgerRequest& served = found->second;
  if (effect.reason != reason ||
      effect.num_output_tokens != served.num_outputs() ||
      effect.num_preemptions != served.num_preemptions ||
      effect.num_cached_tokens != std::max(served.num_cached, 0)) {
    books->Fail("request ", Index(effect.request), " ended by ",
                static_cast<int>(effect.reason), " (expected ",
                static_cast<int>(reason), ") with ", effect.num_output_tokens,
                " tokens, ", effect.num_preemptions, " preemptions, ",
                effect.num_cached_tokens, " cached tokens");
  }
  books->report->Mix(Index(effect.request));
  books->report->Mix(static_cast<uint64_t>(reason));
  RunCounts& counts = books->counts();
  counts.max_preemptions = std::max(
      counts.max_preemptions, static_cast<uint64_t>(served.num_preemptions));
  if (served.num_preemptions > kMaxPreemptions) {
    books->Fail("request ", Index(effect.request), " was preempted ",
                served.num_preemptions, " times");
  }
  ++counts.finished;
  ++books->num_finished;
  served.live = false;
  for (auto& [id, swap] : books->swaps) {
    if (swap.table.request == effect.request) swap.is_due = true;
  }
  books->names.erase(served.request.id);
  if (served.slot != kNoSequenceSlot) books->CloseTable(served.slot);
}

}  // namespace blockmgr::sim
