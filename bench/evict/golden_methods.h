// Maps the methods of golden vectors to policies of this library. The map is a
// text file:
//
//   method uniform/tova
//   policy tova | uniform | topk | round(token) | parity(kvpress)
//   evicted {ratio}     the target: 1 - keep ratio; or: tokens {k}
//   blocks {block}      optional: the prompt comes in blocks of that size
//   past {window}       optional: results leave out the last so many positions,
//                       all of which are kept
//
// {key} stands for the case's `i` or `d` of that key. A method's lines end
// where the next begins; # opens a comment. METHOD/KIND is what makes the lines
// KIND of METHOD's cases (golden_budgets.h).
#ifndef BENCH_EVICT_GOLDEN_METHODS_H_
#define BENCH_EVICT_GOLDEN_METHODS_H_

#include <cstdint>
#include <map>
#include <string>

#include <absl/status/statusor.h>

#include "bench/evict/golden.h"
#include "bench/evict/parity_policy.h"
#include "blockmgr/eviction/policy.h"

namespace blockmgr {

// As written, {keys} included; empty: not given.
struct GoldenMethod {
  std::string policy;
  std::string evicted;
  std::string tokens;
  std::string blocks;
  std::string past;
};

// Errors name the file, the line, what was expected and what came.
absl::StatusOr<std::map<std::string, GoldenMethod>> ReadGoldenMethods(
    const std::string& path);

// InvalidArgument if there is none of that name.
absl::StatusOr<GoldenMethod> FindGoldenMethod(
    const std::map<std::string, GoldenMethod>& methods,
    const std::string& name);

// A method with the numbers of a case.
struct GoldenRun {
  ParityPolicy policy;
  EvictionTarget target;
  int32_t block = 0;  // 0: all at once
  int32_t past = 0;   // last positions that the results leave out
};

// Errors name the line of the method, and the key that the case has not got.
absl::StatusOr<GoldenRun> ResolveGoldenMethod(const GoldenMethod& method,
                                              const GoldenCase& golden);

}  // namespace blockmgr

#endif  // BENCH_EVICT_GOLDEN_METHODS_H_
