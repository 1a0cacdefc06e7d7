// Probes of attention and scores: comparisons with float64.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/attention/chunk_runner.h"
#include "tests/kernels/cuda/attention/decode_runner.h"
#include "tests/kernels/cuda/plants/plant_probes.h"
#include "tests/kernels/cuda/scores/decode_sum_runner.h"
#include "tests/kernels/cuda/scores/entry_cases.h"
#include "tests/kernels/cuda/scores/expected_runner.h"
#include "tests/kernels/cuda/scores/key_runner.h"
#include "tests/kernels/cuda/scores/norm_runner.h"
#include "tests/kernels/cuda/scores/pool_runner.h"
#include "tests/kernels/cuda/scores/tova_runner.h"
#include "tests/kernels/cuda/scores/window_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

using BF16 = simt::BFloat16;
using Order = simt::Schedule::Order;

const std::vector<simt::Schedule>& Schedules() {
  static const auto& schedules = *new std::vector<simt::Schedule>{
      {}, {.order = Order::kReverse}, {.order = Order::kRandom, .seed = 1}};
  return schedules;
}

// What is wrong with a value that should be near `expected`, or "".
std::string Differs(double got, double expected, double tolerance) {
  if (std::abs(got - expected) <= tolerance) return "";
  return absl::StrCat("got ", got, ", expected ", expected);
}

std::string Differs(const AttentionError& error) {
  if (error.relative <= 4e-3 && error.lse <= 2e-5) return "";
  return absl::StrCat("error ", error.relative, ", of lse ", error.lse);
}

// What a run said was wrong, else what is wrong with its result.
template <typename Runner>
std::string OutcomeOf(const Runner& runner, const std::string& error) {
  return error.empty() ? Differs(runner.Error()) : error;
}

// Each probe runs a kernel in the way its own tests do and returns what they
// would have complained about, or "".
std::string ProbeDecode(const simt::Schedule& schedule) {
  const AttentionShape shape{.num_heads = 2,
                             .group_size = 4,
                             .head_dim = 64,
                             .page_size = 32,
                             .region_lengths = {300, 7, 140, 64},
                             .tail_lengths = {19, 80}};
  DecodeRunner<BF16> runner(shape, 1);
  for (const int32_t chunk_tiles : {0, 2}) {
    // So that some CTA holds two cut lists, and so that one cuts a chunk.
    std::string error =
        OutcomeOf(runner, runner.Run({.num_ctas = chunk_tiles == 0 ? 3 : 4,
                                      .chunk_tiles = chunk_tiles,
                                      .schedule = schedule}));
    if (!error.empty()) return error;
  }
  return "";
}

// A tile more than there is room for.
std::string ProbeDecodeRoom(const simt::Schedule& schedule) {
  DecodeRunner<BF16> runner({.num_heads = 2,
                             .group_size = 4,
                             .head_dim = 64,
                             .region_lengths = {},
                             .tail_lengths = {100}},
                            15);
  std::string error = runner.Run({.num_ctas = 2,
                                  .chunk_tiles = 1,
                                  .lacking_tiles = 1,
                                  .schedule = schedule});
  if (!error.empty()) return error;
  return runner.WroteNothing() ? "" : "wrote beyond its room";
}

// An entry too many, and a tile.
std::string ProbeSumRoom(const simt::Schedule& schedule) {
  DecodeSumRunner runner(2, {70, 64});
  runner.SetTails({71, 64});
  std::string error = runner.Run(schedule);
  if (error.empty() && !runner.AllSumsAre(1.0f)) error = "added to others";
  if (!error.empty()) return error;
  runner.SetTails({70, 65});
  error = runner.Run(schedule);
  if (error.empty() && !runner.AllSumsAre(0.0f)) error = "added what is not";
  return error;
}

// So many lists that a block merges all query heads of one.
std::string ProbeManyLists(const simt::Schedule& schedule) {
  AttentionShape shape{.num_heads = 8,
                       .group_size = 4,
                       .head_dim = 64,
                       .page_size = 32,
                       .region_lengths = std::vector<int32_t>(128 * 8, 1),
                       .tail_lengths = std::vector<int32_t>(128, 1)};
  shape.region_lengths[9] = 400;
  DecodeRunner<BF16> runner(shape, 9);
  return OutcomeOf(
      runner,
      runner.Run({.num_ctas = 2, .chunk_tiles = 1, .schedule = schedule}));
}

// So many parts that blocks merge three groups of them.
std::string ProbeLongList(const simt::Schedule& schedule) {
  const AttentionShape shape{
      .num_heads = 1,
      .group_size = 1,
      .head_dim = 64,
      .page_size = 32,
      .region_lengths = {2 * kMergeParts * kDecodeTileRanks + 1},
      .tail_lengths = {0}};
  DecodeRunner<BF16> runner(shape, 16);
  return OutcomeOf(
      runner,
      runner.Run({.num_ctas = 2, .chunk_tiles = 1, .schedule = schedule}));
}

std::string ProbeChunk(const simt::Schedule& schedule) {
  const AttentionShape shape{.num_heads = 2,
                             .group_size = 4,
                             .head_dim = 64,
                             .page_size = 16,
                             .region_lengths = {70, 7},
                             .tail_lengths = {90}};
  ChunkRunner<BF16> runner(shape, {20}, 2);
  return OutcomeOf(runner, runner.Run(schedule));
}

// Decode and chunk attention of the same sequence under a sliding window.
std::string ProbeTailWindow(const simt::Schedule& schedule) {
  const AttentionShape shape{.num_heads = 2,
                             .group_size = 4,
                             .head_dim = 64,
                             .page_size = 16,
                             .region_lengths = {},
                             .tail_lengths = {200},
                             .window = 75};
  DecodeRunner<BF16> decode(shape, 7);
  std::string error =
      OutcomeOf(decode, decode.Run({.num_ctas = 2, .schedule = schedule}));
  if (!error.empty()) return error;
  ChunkRunner<BF16> chunk(shape, {20}, 8);
  return OutcomeOf(chunk, chunk.Run(schedule));
}

AttentionShape ShapeWithSinks() {
  return {.num_heads = 2,
          .group_size = 4,
          .head_dim = 64,
          .region_lengths = {300, 7, 140, 64},
          .tail_lengths = {19, 80},
          .with_sinks = true};
}

// Lists that CTAs share, in both modes.
std::string ProbeSinks(const simt::Schedule& schedule) {
  DecodeRunner<BF16> runner(ShapeWithSinks(), 16);
  for (const int32_t chunk_tiles : {0, 2}) {
    std::string error = OutcomeOf(
        runner,
        runner.Run(
            {.num_ctas = 4, .chunk_tiles = chunk_tiles, .schedule = schedule}));
    if (!error.empty()) return error;
  }
  return "";
}

std::string ProbeChunkSinks(const simt::Schedule& schedule) {
  ChunkRunner<BF16> runner(ShapeWithSinks(), {7, 20}, 17);
  return OutcomeOf(runner, runner.Run(schedule));
}

AttentionShape RegionUnderWindow() {
  return {.num_heads = 2,
          .group_size = 4,
          .head_dim = 64,
          .page_size = 16,
          .region_lengths = {70, 7},
          .tail_lengths = {40},
          .window = 90,
          .cut = 96};
}

std::string ProbeRegionWindow(const simt::Schedule& schedule) {
  DecodeRunner<BF16> runner(RegionUnderWindow(), 10);
  return OutcomeOf(runner, runner.Run({.num_ctas = 2, .schedule = schedule}));
}

std::string ProbeRegionWindowOfChunk(const simt::Schedule& schedule) {
  ChunkRunner<BF16> runner(RegionUnderWindow(), {20}, 11);
  return OutcomeOf(runner, runner.Run(schedule));
}

std::string ProbeWindow(const simt::Schedule& schedule) {
  EntryCase<BF16> test({.num_heads = 1,
                        .group_size = 1,
                        .sizes = {kSplitEntries + 40},
                        .window = 20},
                       3);
  WindowRunner<BF16> runner(&test);
  std::string error = runner.RunStats({.schedule = schedule});
  if (!error.empty()) return error;
  for (int32_t q = 0; q < 20 && error.empty(); ++q) {
    double lse = 0.0;
    test.Weights(0, q, 0, &lse);
    error = Differs(runner.lse()[test.QueryRow(0, q, 0)], lse, 2e-5);
  }
  if (!error.empty()) return error;
  return runner.RunColumns({.schedule = schedule});
}

// Logits that are far from 0.
std::string ProbeFarWindow(const simt::Schedule& schedule) {
  EntryCase<BF16> test(
      {.num_heads = 1, .group_size = 1, .sizes = {80}, .window = 4}, 12);
  for (int32_t e = 0; e < test.size(0); ++e) {
    for (int32_t i = 0; i < 64; ++i) {
      const float key = test.cache().Value(test.slot(e), false, i);
      test.cache().SetValue(test.slot(e), false, i, 150.0f * key);
    }
  }
  WindowRunner<BF16> runner(&test);
  std::string error = runner.RunStats({.schedule = schedule});
  for (int32_t q = 0; q < 4 && error.empty(); ++q) {
    double lse = 0.0;
    test.Weights(0, q, 0, &lse);
    error = Differs(runner.lse()[test.QueryRow(0, q, 0)], lse,
                    1e-5 * std::abs(lse));
  }
  return error;
}

std::string ProbePool(const simt::Schedule& schedule) {
  EntryCase<BF16> test(
      {.num_heads = 1, .group_size = 2, .sizes = {60}, .window = 4}, 4);
  PoolRunner<BF16> runner(&test);
  const auto rows = Shared(RandomFloats(test.cache().rng(), 120));
  const ScorerSpec scorer{.window = 4};
  std::string error = runner.Run(scorer, rows, {.schedule = schedule});
  std::vector<float> past(rows.begin(), rows.begin() + 56);
  past.insert(past.end(), rows.begin() + 60, rows.begin() + 116);
  std::vector<float> expected(56);
  ReduceSnapKv(scorer, past, 2, expected);
  for (int32_t e = 0; e < 56 && error.empty(); ++e) {
    error = Differs(runner.scores()[e], expected[e], 0.0);
  }
  return error;
}

std::string ProbeKeys(const simt::Schedule& schedule) {
  EntryCase<BF16> test({.num_heads = 1, .sizes = {kRowSplitEntries + 20}}, 5);
  // All keys alike, but those of the second split point elsewhere.
  for (int32_t e = 0; e < test.size(0); ++e) {
    for (int32_t i = 0; i < 64; ++i) {
      test.cache().SetValue(test.slot(e), false, i,
                            i == (e < kRowSplitEntries ? 0 : 1) ? 1.0f : 0.0f);
    }
  }
  KeyRunner<BF16> runner(&test);
  std::string error =
      runner.Run(KeyAnchor::kNormalized, KeyMetric::kDot, schedule);
  if (!error.empty()) return error;
  return Differs(runner.scores()[kRowSplitEntries], -20.0 / test.size(0), 1e-6);
}

// Keys of length 1 or none, so that medians are plain; and one with a NaN.
std::string ProbeMedians(const simt::Schedule& schedule) {
  EntryCase<BF16> test({.num_heads = 2, .sizes = {300, 40}}, 14);
  for (int32_t e = 0; e < test.num_entries(); ++e) {
    for (int32_t i = 0; i < 64; ++i) {
      const bool first = e % 2 == 0 && i == 0;
      test.cache().SetValue(test.slot(e), false, i, first ? 1.0f : 0.0f);
    }
  }
  test.cache().SetValue(test.slot(test.offset(1)), false, 5, std::nanf(""));
  KeyRunner<BF16> runner(&test);
  std::string error = runner.Run(KeyAnchor::kMedian, KeyMetric::kDot, schedule);
  if (!error.empty()) return error;
  if (!std::isnan(runner.scores()[test.offset(1) + 1])) return "NaN is lost";
  return Differs(runner.scores()[0], -0.5, 1e-6);
}

std::string ProbeNorms(const simt::Schedule& schedule) {
  EntryCase<BF16> test({.num_heads = 1, .group_size = 2, .sizes = {20}}, 6);
  NormRunner<BF16> runner(&test, 264);
  std::string error = runner.Run({.schedule = schedule});
  for (int32_t e = 0; e < 20 && error.empty(); ++e) {
    double mean = 0.0;
    for (int64_t column = 0; column < 2 * 264; ++column) {
      double x = 0.0;
      for (int32_t d = 0; d < 64; ++d) {
        const int64_t row = (column / 264) * 64 + d;
        x += double{test.cache().Value(test.slot(e), true, d)} *
             double{
                 simt::ToFloat(runner.projection()[row * 264 + column % 264])};
      }
      mean += std::abs(x) / 2;
    }
    error = Differs(runner.norms()[e], mean, 1e-5 * mean);
  }
  return error;
}

// Weights of 1, so that scores say in how many heads a position is.
std::string ProbeTova(const simt::Schedule& schedule) {
  EntryCase<BF16> test(
      {.num_heads = 3, .group_size = 1, .sizes = {400, 350, 300}}, 12);
  TovaRunner<BF16> runner(&test);
  const SharedVector<float> attention(test.num_entries(), 1.0f);
  std::string error = runner.Run(attention, {.schedule = schedule});
  std::vector<int32_t> heads(test.lengths()[0]);
  for (int64_t i = 0; i < test.num_entries(); ++i) ++heads[test.position(i)];
  for (int64_t i = 0; i < test.num_entries() && error.empty(); ++i) {
    const int32_t position = test.position(i);
    if (position == test.lengths()[0] - 1) continue;
    error = Differs(runner.scores()[i], heads[position] / 3.0, 1e-6);
  }
  return error;
}

std::string ProbeExpected(const simt::Schedule& schedule) {
  EntryCase<BF16> test({.num_heads = 1, .group_size = 2, .sizes = {90}}, 13);
  ExpectedRunner<BF16> runner(&test);
  // So that the sinks are some.
  const ExpectedOptions options = {.n_sink = test.position(10),
                                   .schedule = schedule};
  const std::string error = runner.Run(options);
  return error.empty() ? Differs(runner.Error(options), 0.0, 1e-5) : error;
}

// The first complaint of a probe under any of the schedules, or "".
template <auto kProbe>
std::string FindUnderSchedules() {
  for (const simt::Schedule& schedule : Schedules()) {
    std::string found = kProbe(schedule);
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace

std::vector<PlantProbe> AttentionProbes() {
  return {
      {"decode", FindUnderSchedules<ProbeDecode>},
      {"decode_room", FindUnderSchedules<ProbeDecodeRoom>},
      {"sum_room", FindUnderSchedules<ProbeSumRoom>},
      {"many_lists", FindUnderSchedules<ProbeManyLists>},
      {"long_list", FindUnderSchedules<ProbeLongList>},
      {"chunk", FindUnderSchedules<ProbeChunk>},
      {"tail_window", FindUnderSchedules<ProbeTailWindow>},
      {"region_window", FindUnderSchedules<ProbeRegionWindow>},
      {"region_window_of_chunk", FindUnderSchedules<ProbeRegionWindowOfChunk>},
      {"sinks", FindUnderSchedules<ProbeSinks>},
      {"chunk_sinks", FindUnderSchedules<ProbeChunkSinks>},
      {"window", FindUnderSchedules<ProbeWindow>},
      {"far_window", FindUnderSchedules<ProbeFarWindow>},
      {"pool", FindUnderSchedules<ProbePool>},
      {"keys", FindUnderSchedules<ProbeKeys>},
      {"medians", FindUnderSchedules<ProbeMedians>},
      {"norms", FindUnderSchedules<ProbeNorms>},
      {"tova", FindUnderSchedules<ProbeTova>},
      {"expected", FindUnderSchedules<ProbeExpected>}};
}

}  // namespace blockmgr
