// Virtual time and the messages on their way. Messages of one channel keep
// their order, all others overtake each other as their delays will have it;
// those due at the same tick arrive in the order in which they were sent.
#ifndef TESTS_SIM_TRANSPORT_H_
#define TESTS_SIM_TRANSPORT_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace blockmgr::sim {

class Transport {
 public:
  using Delivery = std::function<void()>;
  // A stream in one direction: when its last message arrives.
  using Channel = int64_t;

  int64_t now() const { return now_; }
  bool HasDue(int64_t time) const {
    return !messages_.empty() && messages_.begin()->first.first <= time;
  }

  void Send(int64_t delay, Delivery delivery) {
    messages_.emplace(std::pair(now_ + delay, next_++), std::move(delivery));
  }
  void SendInOrder(Channel* channel, int64_t delay, Delivery delivery) {
    *channel = std::max(*channel, now_ + delay);
    messages_.emplace(std::pair(*channel, next_++), std::move(delivery));
  }

  // Delivers the next message due until `time`, which becomes the present.
  // False: there is none, and `time` has come.
  bool DeliverNext(int64_t time) {
    if (!HasDue(time)) {
      now_ = std::max(now_, time);
      return false;
    }
    const auto node = messages_.extract(messages_.begin());
    now_ = std::max(now_, node.key().first);
    node.mapped()();
    return true;
  }

 private:
  int64_t now_ = 0;
  uint64_t next_ = 0;
  std::map<std::pair<int64_t, uint64_t>, Delivery> messages_;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_TRANSPORT_H_
