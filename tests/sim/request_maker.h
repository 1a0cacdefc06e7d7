// RequestMaker: what the simulator's clients ask for, by random draws.
#ifndef TESTS_SIM_REQUEST_MAKER_H_
#define TESTS_SIM_REQUEST_MAKER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "blockmgr/eviction/budget_table.h"
#include "scheduler/request.h"
#include "scheduler/server/core.h"
#include "tests/sim/options.h"
#include "tests/sim/random.h"

namespace blockmgr::sim {

// A request that was made, and what its client has heard of it.
struct ServedRequest {
  // One life of a request id, from an accepted Submit on.
  struct Life {
    bool stream_broke = false;
    std::vector<int32_t> outputs;
    std::optional<FinishReason> finish;
  };

  Request request;
  int32_t client = 0;
  // An id that has ended may be used again, even in the very pass in which it
  // ended: then the new life is accepted before the old one's end is heard.
  std::deque<Life> lives;
};

class RequestMaker {
 public:
  // Borrows all three. `served`: the requests made so far.
  RequestMaker(const SimOptions& options, Random* random,
               const std::deque<ServedRequest>* served);

  // One of each kind.
  const std::array<std::shared_ptr<const BudgetTable>, 2>& tables() const {
    return tables_;
  }
  // A request made `back` requests ago or less; -1: none yet.
  int32_t Pick(int32_t back);
  Request RandomRequest();
  EvictionCommand RandomCommand();

 private:
  Request WrongRequest(Request request);
  EvictionPolicy RandomPolicy();
  EvictionTarget RandomTarget();
  // Sometimes: budgets by one of the tables.
  void MaybeUseTable(Random* random, EvictionPolicy* policy,
                     std::shared_ptr<const BudgetTable>* table) const;
  // In decode, or under pressure, instead of when it was.
  void EvictLater(RequestEviction* eviction);
  void MaybeEvictInWindows(RequestEviction* eviction);
  // Makes it one of a few that requests share.
  void ShareEviction(RequestEviction* eviction);
  // Makes it a later turn of a recent one.
  void GoOn(Request* request);
  // Makes it a fork of a recent one.
  void ForkRecent(Request* request);
  std::vector<int32_t> RandomPrompt();
  std::vector<RetentionWish> RandomRetention();
  std::vector<MediaItem> RandomMedia(int32_t num_tokens);

  const SimOptions& options_;
  Random& random_;
  const std::deque<ServedRequest>& served_;
  std::array<std::shared_ptr<const BudgetTable>, 2> tables_;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_REQUEST_MAKER_H_
