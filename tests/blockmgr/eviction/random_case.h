// Small random evictions that reach every rule and boundary.
#ifndef TESTS_BLOCKMGR_EVICTION_RANDOM_CASE_H_
#define TESTS_BLOCKMGR_EVICTION_RANDOM_CASE_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "blockmgr/eviction/select.h"
#include "tests/blockmgr/eviction/naive_planner.h"

namespace blockmgr {

// Scores full of ties, NaN of both signs, infinities, signed zeros, denormals
// or arbitrary bit patterns, as `random` has it.
std::vector<float> RandomScores(std::mt19937_64& random, size_t count);

EvictionCase RandomCase(std::mt19937_64& random);

// New scores, and what critical needs, for the case's policy and positions.
void DrawScores(std::mt19937_64& random, EvictionCase* eviction);

std::string Describe(const EvictionCase& eviction);

// The flat arrays of a case, as the library wants them.
class FlatEntries {
 public:
  explicit FlatEntries(const EvictionCase& eviction);
  EntriesView view() const {
    return {offsets_, positions_, scores_, value_norms_, products_};
  }

 private:
  std::vector<int64_t> offsets_;
  std::vector<int32_t> positions_;
  std::vector<float> scores_;
  std::vector<float> value_norms_;
  std::vector<float> products_;
};

// Runs the library.
std::vector<int32_t> Budgets(const EvictionCase& eviction);
KeepSets Select(const EvictionCase& eviction);
int64_t Total(const EvictionCase& eviction);
// REQUIRES: budgets that are not given.
std::vector<double> Ideals(const EvictionCase& eviction);

// The kept positions of every head.
std::vector<std::vector<int32_t>> KeptPositions(const EvictionCase& eviction,
                                                const KeepSets& kept);

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_EVICTION_RANDOM_CASE_H_
