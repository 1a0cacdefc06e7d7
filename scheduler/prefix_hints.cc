#include "scheduler/prefix_hints.h"

#include <algorithm>
#include <span>
#include <utility>

#include "blockmgr/base/check.h"

namespace blockmgr {

void PrefixHints::Add(RequestState* request, int32_t num_blocks,
                      int32_t max_blocks) {
  PrefixHint& hint = request->hint;
  BM_CHECK(hint.list == nullptr);
  hint.num_blocks = num_blocks;
  const std::span<const BlockKey> keys = request->chain.keys();
  if (num_blocks >= std::min<int64_t>(std::ssize(keys), max_blocks)) return;
  std::unique_ptr<PrefixHintList>& list = lists_[KeyOf(keys[num_blocks])];
  if (list == nullptr) {
    list = std::make_unique<PrefixHintList>();
    list->key = keys[num_blocks];
  }
  hint.list = list.get();
  hint.index = static_cast<int32_t>(list->requests.size());
  list->requests.push_back(request);
  ++num_requests_;
}

void PrefixHints::Remove(RequestState* request) {
  PrefixHintList* list = request->hint.list;
  if (list == nullptr) return;
  const int32_t index = request->hint.index;
  BM_CHECK(list->requests[index] == request);
  list->requests[index] = list->requests.back();
  list->requests[index]->hint.index = index;
  list->requests.pop_back();
  request->hint.list = nullptr;
  --num_requests_;
  if (list->requests.empty() && !list->stale) lists_.erase(KeyOf(list->key));
}

void PrefixHints::OnPublished(const BlockKey& key) {
  const auto found = lists_.find(KeyOf(key));
  if (found == lists_.end()) return;
  found->second->stale = true;
  stale_.push_back(std::move(found->second));
  lists_.erase(found);
}

RequestState* PrefixHints::PopStale() {
  while (!stale_.empty() && stale_.back()->requests.empty()) stale_.pop_back();
  if (stale_.empty()) return nullptr;
  RequestState* request = stale_.back()->requests.back();
  Remove(request);
  return request;
}

void PrefixHints::CheckInvariants() const {
  size_t num_requests = 0;
  const auto check = [&num_requests](const PrefixHintList& list, bool stale) {
    BM_CHECK(list.stale == stale);
    num_requests += list.requests.size();
    for (size_t i = 0; i < list.requests.size(); ++i) {
      BM_CHECK(list.requests[i]->hint.list == &list);
      BM_CHECK(list.requests[i]->hint.index == static_cast<int32_t>(i));
      BM_CHECK(!list.requests[i]->running);
    }
  };
  for (const auto& [key, list] : lists_) {
    BM_CHECK(KeyOf(list->key) == key);
    BM_CHECK(!list->requests.empty());
    check(*list, false);
  }
  for (const auto& list : stale_) check(*list, true);
  BM_CHECK(num_requests == static_cast<size_t>(num_requests_));
}

}  // namespace blockmgr
