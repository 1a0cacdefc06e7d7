#include "scheduler/waiting_queue.h"

#include <algorithm>

#include "blockmgr/base/check.h"

namespace blockmgr {

RequestState* WaitingQueue::front() const {
  if (heads_.empty()) return nullptr;
  return tenants_[Index(heads_.begin()->tenant)].entries.begin()->request;
}

void WaitingQueue::Insert(RequestState* request) {
  BM_CHECK(Index(request->tenant) >= 0);
  if (Index(request->tenant) >= std::ssize(tenants_)) {
    tenants_.resize(Index(request->tenant) + 1);
  }
  Entries& entries = tenants_[Index(request->tenant)].entries;
  const bool is_first =
      entries.empty() || request->place < entries.begin()->place;
  if (is_first && !entries.empty()) heads_.erase(HeadOf(request->tenant));
  BM_CHECK(entries.insert({request->place, request}).second);
  if (is_first) heads_.insert(HeadOf(request->tenant));
  ++num_requests_;
}

void WaitingQueue::Erase(RequestState* request) {
  BM_CHECK(Waits(request->tenant));
  Entries& entries = tenants_[Index(request->tenant)].entries;
  const bool is_first = entries.begin()->request == request;
  if (is_first) heads_.erase(HeadOf(request->tenant));
  const auto found = entries.find({request->place, nullptr});
  BM_CHECK(found != entries.end());
  BM_CHECK(found->request == request);
  entries.erase(found);
  if (is_first && !entries.empty()) heads_.insert(HeadOf(request->tenant));
  --num_requests_;
}

void WaitingQueue::Move(RequestState* request, const WaitingPlace& place) {
  if (place == request->place) return;
  Erase(request);
  request->place = place;
  Insert(request);
}

void WaitingQueue::SetService(TenantId tenant, int64_t service) {
  if (Index(tenant) >= std::ssize(tenants_)) {
    tenants_.resize(Index(tenant) + 1);
  }
  Tenant& entry = tenants_[Index(tenant)];
  if (entry.service == service) return;
  const bool waits = !entry.entries.empty();
  if (waits) heads_.erase(HeadOf(tenant));
  entry.service = service;
  if (waits) heads_.insert(HeadOf(tenant));
}

WaitingQueue::Walk::Walk(const WaitingQueue& queue)
    : queue_(queue), next_head_(queue.heads_.begin()) {}

void WaitingQueue::Walk::PutBack() {
  const Tenant& tenant = queue_.tenants_[Index(current_.tenant)];
  if (++current_.entry == tenant.entries.end()) return;
  begun_.push_back(current_);
  std::ranges::push_heap(begun_, std::greater<>(), &Cursor::head);
}

RequestState* WaitingQueue::Walk::Next() {
  if (!skip_) PutBack();
  skip_ = false;
  const bool has_head = next_head_ != queue_.heads_.end();
  if (has_head && (begun_.empty() || *next_head_ < begun_.front().head())) {
    current_.service = next_head_->service;
    current_.tenant = next_head_->tenant;
    current_.entry = queue_.tenants_[Index(current_.tenant)].entries.begin();
    ++next_head_;
  } else if (!begun_.empty()) {
    std::ranges::pop_heap(begun_, std::greater<>(), &Cursor::head);
    current_ = begun_.back();
    begun_.pop_back();
  } else {
    skip_ = true;
    return nullptr;
  }
  return current_.entry->request;
}

std::vector<const RequestState*> WaitingQueue::All() const {
  std::vector<const RequestState*> requests;
  requests.reserve(num_requests_);
  for (const Tenant& tenant : tenants_) {
    for (const Entry& entry : tenant.entries) requests.push_back(entry.request);
  }
  return requests;
}

void WaitingQueue::CheckInvariants() const {
  size_t num_requests = 0;
  size_t num_heads = 0;
  for (size_t i = 0; i < tenants_.size(); ++i) {
    const Entries& entries = tenants_[i].entries;
    num_requests += entries.size();
    if (entries.empty()) continue;
    ++num_heads;
    BM_CHECK(heads_.contains(HeadOf(TenantId{static_cast<int32_t>(i)})));
    for (const Entry& entry : entries) {
      BM_CHECK(entry.place == entry.request->place);
      BM_CHECK(static_cast<size_t>(Index(entry.request->tenant)) == i);
      BM_CHECK(!entry.request->running);
    }
  }
  BM_CHECK(num_heads == heads_.size());
  BM_CHECK(num_requests == static_cast<size_t>(num_requests_));
}

}  // namespace blockmgr
