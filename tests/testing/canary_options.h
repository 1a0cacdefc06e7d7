// CanaryOptions: how a CanaryEngine differs from others.
#ifndef TESTS_TESTING_CANARY_OPTIONS_H_
#define TESTS_TESTING_CANARY_OPTIONS_H_

#include <cstdint>

namespace blockmgr {

struct CanaryOptions {
  uint64_t seed = 1;
  int32_t vocabulary = 1000;
  // Whether a recomputed sequence keeps the entries that it kept before. Real
  // engines do. The bookkeeping must survive an engine that does not.
  bool same_choice_on_replay = true;
  // Whether heads keep all that an order leaves them, in order of their choice.
  // Then regions are as large as promised. Otherwise one compression in three
  // does so.
  bool keeps_all = false;
  // One eviction order of so many is refused. No order is refused if it is 0.
  int32_t refuse_one_in = 0;
  int32_t num_host_blocks = 0;
  // The engine has at most max_drafts drafts ready after a sampled token. One
  // draft of wrong_draft_one_in is drawn at random instead of right.
  int32_t max_drafts = 0;
  int32_t wrong_draft_one_in = 4;
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_CANARY_OPTIONS_H_
