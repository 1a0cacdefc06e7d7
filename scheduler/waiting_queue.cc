#include "scheduler/waiting_queue.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "blockmgr/base/check.h"

namespace blockmgr {

WaitingQueue::Tenant& WaitingQueue::At(TenantId tenant) {
  BM_CHECK(Index(tenant) >= 0);
  if (Index(tenant) >= std::ssize(tenants_)) tenants_.resize(Index(tenant) + 1);
  Tenant& entry = tenants_[Index(tenant)];
  entry.head.tenant = tenant;
  return entry;
}

const RequestState* WaitingQueue::front() const {
  return heads_.empty() ? nullptr : first(heads_.begin()->tenant);
}

const int64_t* WaitingQueue::least_service() const {
  const int64_t* least = heads_.empty() ? nullptr : &heads_.begin()->service;
  for (const TenantId tenant : barred_) {
    const Tenant& entry = tenants_[Index(tenant)];
    if (entry.first == nullptr) continue;
    if (least == nullptr || entry.head.service < *least) {
      least = &entry.head.service;
    }
  }
  return least;
}

void WaitingQueue::RefreshFirst(Tenant* tenant) {
  const Entry* first = nullptr;
  for (const Entries& entries : tenant->lanes) {
    if (entries.empty()) continue;
    if (first == nullptr || *entries.begin() < *first) {
      first = &*entries.begin();
    }
  }
  if (first == nullptr) {
    if (tenant->has_head()) heads_.erase(tenant->head);
    tenant->first = nullptr;
    return;
  }
  Head head = tenant->head;
  head.place = first->place;
  const bool waited = tenant->first != nullptr;
  tenant->first = first->request;
  if (waited) return MoveHead(tenant, head);
  tenant->head = head;
  if (tenant->has_head()) heads_.insert(head);
}

void WaitingQueue::MoveHead(Tenant* tenant, const Head& head) {
  if (head == tenant->head) return;
  if (tenant->has_head()) {
    Heads::node_type node = heads_.extract(tenant->head);
    node.value() = head;
    heads_.insert(std::move(node));
  }
  tenant->head = head;
}

void WaitingQueue::Insert(RequestState* request) {
  Tenant& tenant = At(request->tenant);
  BM_CHECK(
      tenant.lanes[request->lane].insert({request->place, request}).second);
  RefreshFirst(&tenant);
  ++num_requests_;
}

void WaitingQueue::Erase(RequestState* request) {
  BM_CHECK(Waits(request->tenant));
  Tenant& tenant = tenants_[Index(request->tenant)];
  Entries& entries = tenant.lanes[request->lane];
  const auto found = entries.find({request->place, nullptr});
  BM_CHECK(found != entries.end());
  BM_CHECK(found->request == request);
  entries.erase(found);
  RefreshFirst(&tenant);
  --num_requests_;
}

void WaitingQueue::Move(RequestState* request, const WaitingPlace& place) {
  if (place == request->place) return;
  BM_CHECK(Waits(request->tenant));
  Tenant& tenant = tenants_[Index(request->tenant)];
  Entries& entries = tenant.lanes[request->lane];
  Entries::node_type node = entries.extract({request->place, nullptr});
  BM_CHECK(!node.empty() && node.value().request == request);
  node.value().place = request->place = place;
  BM_CHECK(entries.insert(std::move(node)).inserted);
  RefreshFirst(&tenant);
}

void WaitingQueue::SetService(TenantId tenant, int64_t service) {
  Tenant& entry = At(tenant);
  Head head = entry.head;
  head.service = service;
  MoveHead(&entry, head);
}

void WaitingQueue::SetBarred(TenantId tenant, bool barred) {
  Tenant& entry = At(tenant);
  if (entry.is_barred() == barred) return;
  if (barred) {
    if (entry.has_head()) heads_.erase(entry.head);
    entry.barred_index = static_cast<int32_t>(barred_.size());
    barred_.push_back(tenant);
    return;
  }
  const TenantId last = barred_.back();
  barred_[entry.barred_index] = last;
  tenants_[Index(last)].barred_index = entry.barred_index;
  barred_.pop_back();
  entry.barred_index = -1;
  if (entry.has_head()) heads_.insert(entry.head);
}

WaitingQueue::Walk::Walk(const WaitingQueue& queue)
    : queue_(queue), next_head_(queue.heads_.begin()) {}

void WaitingQueue::Walk::Restart() {
  next_head_ = queue_.heads_.begin();
  begun_.clear();
  skip_ = true;
  barred_lanes_ = 0;
}

bool WaitingQueue::Walk::FindLane(Cursor* cursor) const {
  const Tenant& tenant = queue_.tenants_[Index(cursor->tenant)];
  cursor->lane = kNumLanes;
  for (int32_t lane = 0; lane < kNumLanes; ++lane) {
    if ((lane & barred_lanes_) != 0) continue;
    if (cursor->entries[lane] == tenant.lanes[lane].end()) continue;
    if (cursor->lane == kNumLanes ||
        *cursor->entries[lane] < *cursor->entries[cursor->lane]) {
      cursor->lane = lane;
    }
  }
  return cursor->lane < kNumLanes;
}

void WaitingQueue::Walk::PutBack(Cursor cursor) {
  if (!FindLane(&cursor)) return;
  begun_.push_back(cursor);
  std::ranges::push_heap(begun_, std::greater<>(), &Cursor::head);
}

const RequestState* WaitingQueue::Walk::Next() {
  if (!skip_) {
    ++current_.entries[current_.lane];
    PutBack(current_);
  }
  skip_ = true;
  while (true) {
    const bool has_head = next_head_ != queue_.heads_.end();
    if (has_head && (begun_.empty() || *next_head_ < begun_.front().head())) {
      current_.service = next_head_->service;
      current_.tenant = next_head_->tenant;
      const Tenant& tenant = queue_.tenants_[Index(current_.tenant)];
      for (int32_t lane = 0; lane < kNumLanes; ++lane) {
        current_.entries[lane] = tenant.lanes[lane].begin();
      }
      const WaitingPlace place = next_head_++->place;
      if (!FindLane(&current_)) continue;
      // The tenant's first request may be in a barred lane.
      if (current_.head().place != place) {
        PutBack(current_);
        continue;
      }
    } else if (!begun_.empty()) {
      std::ranges::pop_heap(begun_, std::greater<>(), &Cursor::head);
      current_ = begun_.back();
      begun_.pop_back();
      if ((current_.lane & barred_lanes_) != 0) {
        PutBack(current_);
        continue;
      }
    } else {
      return nullptr;
    }
    skip_ = false;
    return current_.entries[current_.lane]->request;
  }
}

std::vector<const RequestState*> WaitingQueue::All() const {
  std::vector<const RequestState*> requests;
  requests.reserve(num_requests_);
  for (const Tenant& tenant : tenants_) {
    const size_t begin = requests.size();
    for (const Entries& entries : tenant.lanes) {
      for (const Entry& entry : entries) requests.push_back(entry.request);
    }
    std::sort(requests.begin() + static_cast<ptrdiff_t>(begin), requests.end(),
              [](const RequestState* a, const RequestState* b) {
                return a->place < b->place;
              });
  }
  return requests;
}

void WaitingQueue::CheckInvariants() const {
  size_t num_requests = 0;
  size_t num_heads = 0;
  size_t num_barred = 0;
  for (size_t i = 0; i < tenants_.size(); ++i) {
    const Tenant& tenant = tenants_[i];
    const TenantId id{static_cast<int32_t>(i)};
    for (int32_t lane = 0; lane < kNumLanes; ++lane) {
      num_requests += tenant.lanes[lane].size();
      for (const Entry& entry : tenant.lanes[lane]) {
        BM_CHECK(entry.place == entry.request->place);
        BM_CHECK(entry.request->tenant == id);
        BM_CHECK(entry.request->lane == lane);
        BM_CHECK(!entry.request->running);
      }
    }
    const bool waits = std::ranges::any_of(
        tenant.lanes, [](const Entries& entries) { return !entries.empty(); });
    BM_CHECK(waits == (tenant.first != nullptr));
    BM_CHECK(!tenant.is_barred() || barred_[tenant.barred_index] == id);
    num_barred += tenant.is_barred() ? 1 : 0;
    if (!waits) continue;
    for (const Entries& entries : tenant.lanes) {
      BM_CHECK(entries.empty() ||
               !(entries.begin()->place < tenant.first->place));
    }
    BM_CHECK(tenant.head.tenant == id);
    BM_CHECK(tenant.head.place == tenant.first->place);
    if (!tenant.has_head()) continue;
    BM_CHECK(heads_.contains(tenant.head));
    ++num_heads;
  }
  BM_CHECK(num_heads == heads_.size());
  BM_CHECK(num_barred == barred_.size());
  BM_CHECK(num_requests == static_cast<size_t>(num_requests_));
}

}  // namespace blockmgr
