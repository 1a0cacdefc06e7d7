// CallLimit: how many calls of one kind may be open at a time.
#ifndef SCHEDULER_SERVER_CALL_LIMIT_H_
#define SCHEDULER_SERVER_CALL_LIMIT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>

namespace blockmgr {

// Thread-safe.
class CallLimit {
 public:
  // A Place counts as one open call until its last copy is gone. It may outlive
  // the CallLimit.
  using Place = std::shared_ptr<void>;

  // Errors call the calls by `name`. At most `most` may be open.
  CallLimit(const char* name, int32_t most) : name_(name), most_(most) {}

  // Counts one more open call. ResourceExhausted if `most` calls are open.
  absl::StatusOr<Place> Take() {
    if (num_open_->fetch_add(1) >= most_) {
      num_open_->fetch_sub(1);
      return absl::ResourceExhaustedError(absl::StrCat(
          name_, ": expected at most ", most_, " open calls, got one more"));
    }
    return Place(nullptr, [num_open = num_open_](std::nullptr_t /*none*/) {
      num_open->fetch_sub(1);
    });
  }

 private:
  const char* const name_;
  const int32_t most_;
  const std::shared_ptr<std::atomic<int32_t>> num_open_ =
      std::make_shared<std::atomic<int32_t>>(0);
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_CALL_LIMIT_H_
