// The benchmarks of `blockmgr-bench micro`, and their limits.
#ifndef BENCH_MICRO_BENCHMARKS_H_
#define BENCH_MICRO_BENCHMARKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace blockmgr {

using Measure = std::pair<std::string, double>;
using Measures = std::vector<Measure>;

// The result of one run of a benchmark.
struct Outcome {
  Measures measures = {};
  // Times of steps that are the same in every run; empty: it has none.
  std::vector<double> steps_us = {};
};

struct Benchmark {
  std::string name;
  // Sizes and counts are divided by `divisor`, a power of two up to 32.
  std::function<Outcome(int32_t divisor)> run;
};

// In the order in which they are run.
std::vector<Benchmark> Benchmarks();

// The most that the project promises of figures, by key (see micro.h).
const std::map<std::string, double>& Limits();

// Every step's median over the runs, and of these medians the 99.9th percentile
// divided by the 50th: the tail that the steps have themselves. An interrupt
// strikes another step in every run; a step that has more to do has so in all.
// REQUIRES: a run at least, all of as many steps.
double TailOfMedians(std::span<const Outcome> runs);

}  // namespace blockmgr

#endif  // BENCH_MICRO_BENCHMARKS_H_
