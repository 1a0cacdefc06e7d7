// Who is preempted in random mixes of shared prefixes, compressed pasts and
// swaps, compared with a look at all who run by what each has to compute again.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

// One that runs, with nothing in flight.
struct Runner {
  RequestId id{0};
  int32_t priority = 0;
  bool is_spared = false;
  int32_t cost = 0;          // tokens to compute again
  int32_t num_needed = 0;    // blocks for its next step
  std::set<BlockId> blocks;  // that it holds
};

// What the mixes have shown.
struct Tally {
  int32_t num_preemptions = 0;
  int32_t num_not_last = 0;    // steps that preempted, but not the most recent
  int32_t num_compressed = 0;  // who could have been chosen
  int32_t num_sharers = 0;     // of blocks, likewise
  uint64_t num_swap_ins = 0;
};

class Mix {
 public:
  Mix(uint64_t seed, Tally* tally) : random_(SplitMix64(seed)), tally_(tally) {
    for (int32_t i = Between(6, 14); i > 0; --i) Submit();
  }

  // Runs everything.
  void Run() {
    while (driver_.ok() && driver_.scheduler().has_unfinished_requests() &&
           !testing::Test::HasFailure()) {
      const std::vector<Runner> runners = Runners();
      const std::set<RequestId> expected = Victims(runners);
      if (!driver_.Issue()) break;
      std::set<RequestId> preempted;
      for (const Runner& runner : runners) {
        if (driver_.SlotOf(runner.id) != kNoSequenceSlot) continue;
        preempted.insert(runner.id);
        ++preemptions_[runner.id];
      }
      EXPECT_EQ(preempted, expected);
      Count(runners, expected);
      NoteStarts();
      driver_.Answer();
    }
    tally_->num_swap_ins += driver_.scheduler().stats().num_swap_ins;
    if (!testing::Test::HasFailure()) driver_.CheckQuiescent();
  }

 private:
  int32_t Between(int32_t low, int32_t high) {
    random_ = SplitMix64(random_);
    return low + static_cast<int32_t>(random_ %
                                      static_cast<uint64_t>(high - low + 1));
  }
  bool OneIn(int32_t n) { return Between(1, n) == 1; }

  ModelLayout RandomLayout() {
    const int32_t page_size = Between(1, 4);
    return SmallLayout(page_size, CeilDiv(Between(52, 80), page_size));
  }

  SchedulerOptions RandomOptions() {
    SchedulerOptions options = PlainOptions();
    // All that is known of a request is computed in one step.
    options.max_num_batched_tokens = 2048;
    options.enable_prefix_caching = !OneIn(4);
    options.min_prefix_wait_tokens = OneIn(2) ? 1 : 0;
    options.num_host_blocks = OneIn(2) ? 60 : 0;
    options.compaction = OneIn(2) ? CompactionPreference::kInPlace
                                  : CompactionPreference::kFreshFirst;
    if (OneIn(2)) options.policy = SchedulingPolicy::kPriority;
    if (OneIn(5)) options.admission = AdmissionPolicy::kMaxUtilization;
    return options;
  }

  void Submit() {
    const auto topic = Between(0, 2);
    Request request = MakeRequest(absl::StrCat(++num_requests_), Between(1, 25),
                                  Between(1, 25), topic);
    if (OneIn(2)) request.prompt.back() = 50'000 + num_requests_;
    request.priority = Between(0, 1);
    if (OneIn(2)) {
      request.eviction = Recency(Between(1, 8));
      request.eviction.share_prefix = OneIn(2);
    }
    blockmgr::Submit(&driver_, std::move(request));
  }

  const SequenceCache* SequenceOf(RequestId id) {
    const SequenceSlot slot = driver_.SlotOf(id);
    if (driver_.served(id).finish || slot == kNoSequenceSlot) return nullptr;
    return &driver_.scheduler().manager().sequence(slot);
  }

  // A compressed past that comes back from the host tier is not in the cache,
  // unless it was found there.
  void NoteStarts() {
    for (const SequenceStart& start : driver_.plan().starts) {
      if (start.swap != kNoSwap && start.region == kNoRegion) {
        came_back_alone_.insert(start.request);
      } else {
        came_back_alone_.erase(start.request);
      }
    }
  }

  // What it computes again, if it comes back at once: not the whole pages that
  // it has published, but for the last token; all, when its past is compressed
  // and cannot be found.
  int32_t CostOf(RequestId id, const Served& served,
                 const SequenceCache& sequence) const {
    const bool is_found =
        options_.enable_prefix_caching &&
        (sequence.region == nullptr ||
         (served.request.eviction.share_prefix &&
          !sequence.region->blocks.empty() && !came_back_alone_.contains(id)));
    if (!is_found) return sequence.num_settled;
    const auto known = static_cast<int32_t>(served.request.prompt.size() +
                                            served.outputs.size());
    const int32_t page_size = layout_.page_size;
    return sequence.num_settled -
           std::min(sequence.num_settled / page_size * page_size, known - 1);
  }

  std::vector<Runner> Runners() {
    std::vector<Runner> runners;
    for (const auto& [id, served] : driver_.all()) {
      const SequenceCache* sequence = SequenceOf(id);
      if (sequence == nullptr) continue;
      Runner& runner = runners.emplace_back();
      runner.id = id;
      runner.priority = options_.policy == SchedulingPolicy::kPriority
                            ? served.request.priority
                            : 0;
      runner.is_spared = preemptions_[id] >= 2;
      runner.cost = CostOf(id, served, *sequence);
      const auto known = static_cast<int32_t>(served.request.prompt.size() +
                                              served.outputs.size());
      runner.num_needed = CeilDiv(known, layout_.page_size) -
                          CeilDiv(sequence->num_settled, layout_.page_size);
      runner.blocks = {sequence->tail.begin(), sequence->tail.end()};
      if (sequence->region != nullptr) {
        const std::vector<BlockId>& region = sequence->region->blocks;
        runner.blocks.insert(region.begin(), region.end());
      }
    }
    // Of equal priority by age, as they are.
    std::ranges::stable_sort(runners, {}, &Runner::priority);
    return runners;
  }

  // Blocks that nobody else holds.
  static int32_t NumOwn(const Runner& runner,
                        const std::vector<Runner>& runners) {
    return static_cast<int32_t>(
        std::ranges::count_if(runner.blocks, [&](BlockId block) {
          return std::ranges::count_if(runners, [&](const Runner& other) {
                   return other.blocks.contains(block);
                 }) == 1;
        }));
  }

  // Of those behind `index` who have not been chosen: the first to go. Itself,
  // when there is nobody else.
  size_t Choose(size_t index, const std::vector<Runner>& runners,
                const std::set<RequestId>& victims) const {
    const bool by_recency =
        options_.admission == AdmissionPolicy::kMaxUtilization;
    std::vector<std::tuple<bool, int32_t, bool, int32_t, int64_t>> order;
    for (size_t i = index + 1; i < runners.size(); ++i) {
      const Runner& runner = runners[i];
      if (victims.contains(runner.id)) continue;
      const bool gives_nothing = NumOwn(runner, runners) == 0;
      const bool is_weighed = !by_recency && !gives_nothing;
      order.emplace_back(gives_nothing, is_weighed ? -runner.priority : 0,
                         is_weighed && runner.is_spared,
                         is_weighed ? runner.cost : 0,
                         -static_cast<int64_t>(i));
    }
    if (order.empty()) return index;
    return static_cast<size_t>(-std::get<4>(*std::ranges::min_element(order)));
  }

  std::set<RequestId> Victims(const std::vector<Runner>& runners) {
    const BlockManager& manager = driver_.scheduler().manager();
    std::set<RequestId> victims;
    int32_t num_available = manager.num_available();
    for (size_t i = 0; i < runners.size(); ++i) {
      const Runner& runner = runners[i];
      while (!victims.contains(runner.id) &&
             runner.num_needed > num_available) {
        const size_t victim = Choose(i, runners, victims);
        if (victims.size() + 1 == runners.size()) {
          // It is alone: all that others had is there.
          num_available =
              manager.num_usable() - static_cast<int32_t>(runner.blocks.size());
          break;
        }
        victims.insert(runners[victim].id);
        num_available += NumOwn(runners[victim], runners);
      }
      if (!victims.contains(runner.id)) num_available -= runner.num_needed;
    }
    return victims;
  }

  void Count(const std::vector<Runner>& runners,
             const std::set<RequestId>& victims) {
    if (victims.empty()) return;
    tally_->num_preemptions += static_cast<int32_t>(victims.size());
    tally_->num_not_last += victims.contains(runners.back().id) ? 0 : 1;
    for (const Runner& runner : runners) {
      const bool is_compressed = !driver_.served(runner.id).recorded.empty();
      tally_->num_compressed += is_compressed ? 1 : 0;
      const bool shares = NumOwn(runner, runners) < std::ssize(runner.blocks);
      tally_->num_sharers += shares ? 1 : 0;
    }
  }

  uint64_t random_;
  Tally* const tally_;
  const ModelLayout layout_ = RandomLayout();
  const SchedulerOptions options_ = RandomOptions();
  SchedulerDriver driver_{layout_, options_};
  std::map<RequestId, int32_t> preemptions_;
  std::set<RequestId> came_back_alone_;
  int32_t num_requests_ = 0;
};

TEST(VictimChoiceTest, IsWhoHasLeastToComputeAgain) {
  Tally tally;
  for (uint64_t seed = 1; seed <= 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Mix(seed, &tally).Run();
  }
  EXPECT_GT(tally.num_preemptions, 500);
  EXPECT_GT(tally.num_not_last, 80);
  EXPECT_GT(tally.num_compressed, 500);
  EXPECT_GT(tally.num_sharers, 500);
  EXPECT_GT(tally.num_swap_ins, 200u);
}

}  // namespace
}  // namespace blockmgr
