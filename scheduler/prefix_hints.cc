#include "scheduler/prefix_hints.h"

#include <algorithm>
#include <span>
#include <utility>

#include "blockmgr/base/check.h"

namespace blockmgr {

void PrefixHints::Reserve(int32_t num_requests) {
  const auto num_lists = static_cast<size_t>(num_requests);
  if (spare_.capacity() < num_lists) spare_.reserve(2 * num_lists);
  while (lists_.size() + spare_.size() < num_lists) {
    Lists made;
    made.try_emplace({});
    spare_.push_back(made.extract(made.begin()));
  }
}

PrefixHintList* PrefixHints::ListOf(const BlockKey& block) {
  const PrefixHintKey key = {.block = block};
  const auto found = lists_.lower_bound(key);
  if (found != lists_.end() && !(key < found->first)) return &found->second;
  if (spare_.empty()) Reserve(static_cast<int32_t>(lists_.size()) + 1);
  Lists::node_type node = std::move(spare_.back());
  spare_.pop_back();
  node.key() = node.mapped().key = key;
  return &lists_.insert(found, std::move(node))->second;
}

void PrefixHints::Add(RequestState* request, int32_t num_blocks,
                      int32_t max_blocks) {
  PrefixHintLinks& links = request->hint.links;
  BM_CHECK(links.list_ == nullptr);
  request->hint.num_blocks = num_blocks;
  const std::span<const BlockKey> keys = request->chain.keys();
  if (num_blocks >= std::min<int64_t>(std::ssize(keys), max_blocks)) return;
  links.list_ = ListOf(keys[num_blocks]);
  links.previous_ = nullptr;
  links.next_ = links.list_->first;
  if (links.next_ != nullptr) links.next_->hint.links.previous_ = request;
  links.list_->first = request;
  ++num_requests_;
}

void PrefixHints::Remove(RequestState* request) {
  PrefixHintLinks& links = request->hint.links;
  if (links.list_ == nullptr) return;
  if (links.previous_ == nullptr) {
    links.list_->first = links.next_;
  } else {
    links.previous_->hint.links.next_ = links.next_;
  }
  if (links.next_ != nullptr) {
    links.next_->hint.links.previous_ = links.previous_;
  }
  if (links.list_->first == nullptr) {
    spare_.push_back(lists_.extract(lists_.find(links.list_->key)));
  }
  links.list_ = nullptr;
  --num_requests_;
}

void PrefixHints::OnPublished(const BlockKey& key) {
  const auto found = lists_.find({.block = key});
  if (found == lists_.end()) return;
  Lists::node_type node = lists_.extract(found);
  node.key().published = node.mapped().key.published = ++num_published_;
  lists_.insert(lists_.end(), std::move(node));
}

RequestState* PrefixHints::PopStale() {
  if (lists_.empty()) return nullptr;
  const PrefixHintList& last = lists_.rbegin()->second;
  if (last.key.published == 0) return nullptr;
  RequestState* request = last.first;
  Remove(request);
  return request;
}

void PrefixHints::CheckInvariants() const {
  int32_t num_requests = 0;
  for (const auto& [key, list] : lists_) {
    BM_CHECK(!(key < list.key) && !(list.key < key));
    BM_CHECK(list.first != nullptr);
    const RequestState* previous = nullptr;
    for (const RequestState* request = list.first; request != nullptr;
         request = request->hint.links.next_) {
      BM_CHECK(request->hint.links.list_ == &list);
      BM_CHECK(request->hint.links.previous_ == previous);
      BM_CHECK(!request->running);
      previous = request;
      ++num_requests;
    }
  }
  BM_CHECK(num_requests == num_requests_);
}

}  // namespace blockmgr
