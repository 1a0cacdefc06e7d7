#include "tests/blockmgr/driver_state.h"

#include <algorithm>

namespace blockmgr {

bool DriverState::IsStale(SequenceSlot slot, uint64_t incarnation) const {
  const auto found = incarnations.find(slot);
  return found == incarnations.end() || found->second != incarnation;
}

bool DriverState::HasOrderAtLength(SequenceSlot slot) const {
  return std::ranges::any_of(step.orders, [&](const DriverOrder& order) {
    return order.slot == slot && config.layout.window_of(order.group) > 0 &&
           !IsStale(slot, order.incarnation);
  });
}

void DriverState::SetNames(NaiveSequence* sequence) const {
  sequence->names =
      BlockChain({.tenant = sequence->scope == 0 ? "one" : "other"});
  sequence->names.SetRetention(sequence->wishes);
  sequence->names.Extend(sequence->tokens, config.layout.page_size);
}

void DriverState::Forget(SequenceSlot slot) {
  NaiveSequence& sequence = model.at(slot);
  sequence.tokens.resize(sequence.num_reserved);
  SetNames(&sequence);
}

void DriverState::Remember(const NaiveSequence& sequence, int32_t num_tokens) {
  const auto begin = sequence.tokens.begin();
  compressed.emplace_back(sequence.scope,
                          std::vector(begin, begin + num_tokens));
}

}  // namespace blockmgr
