// AnswerSpoiler: what is wrong with the answer of an engine that has a bug.
#ifndef TESTS_SIM_ANSWER_SPOILER_H_
#define TESTS_SIM_ANSWER_SPOILER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/step_plan.h"
#include "tests/sim/options.h"
#include "tests/sim/random.h"

namespace blockmgr::sim {

class AnswerSpoiler {
 public:
  // Borrows both.
  AnswerSpoiler(const SimOptions& options, Random* random)
      : options_(options), random_(*random) {}

  // Draws what is to be wrong with an answer to come.
  void Draw();
  void Stop() { corruption_ = Corruption::kNone; }
  // Spoils an answer, if one is to be spoiled and this one can be. `orders`
  // are the evictions that the answer has outcomes of. The reference model says
  // which answers are right, and disagrees with a scheduler that takes this
  // one. A spoiled outcome may be right after all, if the request is gone and
  // nobody reads the outcome.
  void Spoil(std::span<const EvictionOrder> orders, StepResult* result);

 private:
  enum class Corruption : uint8_t {
    kNone,
    kLaterStep,
    kEarlierStep,
    kToken,
    kMoreTokens,
    kFewerTokens,
    kMoreOutcomes,
    kCounts,  // of the next eviction
    kLayout,  // of the next eviction
    kLostBlock,
    kDrafts,
  };

  void SpoilDrafts(StepResult* result);
  void SpoilLostBlocks(StepResult* result);
  void SpoilCounts(const EvictionOrder& order, std::vector<int32_t>* counts);

  const SimOptions& options_;
  Random& random_;
  Corruption corruption_ = Corruption::kNone;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_ANSWER_SPOILER_H_
