// Memory-bound kernels of the CPU backend next to what this machine can read
// and copy, in bytes of K and V per second.
//
// Sizes are in tokens: --tokens sets how long the caches are (default: small
// enough for a smoke run; 65536 leaves every cache of a desktop CPU).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"

namespace blockmgr {
namespace {

constexpr int32_t kNumHeads = 8;
constexpr int32_t kHeadDim = 128;
constexpr int32_t kPageSize = 16;
// Tokens of the read and copy baselines: 4 KiB of K and V each at bf16.
constexpr int64_t kTokenBytes = int64_t{2} * kNumHeads * kHeadDim * 2;

std::vector<float> RandomFloats(int64_t count) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(rng);
  return values;
}

// One layer whose blocks 1..n hold a sequence of random rows, in shuffled
// order.
struct Cache {
  Cache(int64_t num_tokens, int32_t group_size)
      : tokens(static_cast<int32_t>(num_tokens)) {
    layout = {.num_layers = 1,
              .num_heads = kNumHeads,
              .num_q_heads = kNumHeads * group_size,
              .head_dim = kHeadDim,
              .page_size = kPageSize,
              .dtype = DType::kBFloat16,
              .num_blocks = CeilDiv(tokens, kPageSize) + 1};
    auto created = CreateCpuBackend(layout);
    BM_CHECK(created.ok());
    backend = *std::move(created);
    for (int32_t b = 1; b < layout.num_blocks; ++b) {
      blocks.push_back(BlockId{b});
    }
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(2));
    rows = RandomFloats(int64_t{kPageSize} * kNumHeads * kHeadDim);
    for (const BlockId block : blocks) {
      std::vector<int64_t> slots(kPageSize);
      std::iota(slots.begin(), slots.end(), int64_t{Index(block)} * kPageSize);
      backend->Append({.layer = 0,
                       .slot_mapping = slots,
                       .keys = rows.data(),
                       .values = rows.data()});
    }
  }

  int32_t tokens;
  ModelLayout layout;
  std::unique_ptr<Backend> backend;
  std::vector<BlockId> blocks;
  std::vector<float> rows;  // [page_size, num_heads, head_dim]
};

void SetBytes(benchmark::State& state, int64_t bytes_per_iteration) {
  state.SetBytesProcessed(state.iterations() * bytes_per_iteration);
}

// The ceiling of everything that only reads: as many bytes, summed.
void ReadBaseline(benchmark::State& state) {
  const std::vector<uint64_t> words(state.range(0) * kTokenBytes / 8, 1);
  while (state.KeepRunning()) {
    uint64_t sum[8] = {};
    for (std::size_t i = 0; i + 8 <= words.size(); i += 8) {
      for (std::size_t k = 0; k < 8; ++k) sum[k] += words[i + k];
    }
    benchmark::DoNotOptimize(sum);
  }
  SetBytes(state, state.range(0) * kTokenBytes);
}

// The ceiling of everything that copies, counted once per byte copied.
void CopyBaseline(benchmark::State& state) {
  const std::vector<char> source(state.range(0) * kTokenBytes, 1);
  std::vector<char> destination(source.size());
  while (state.KeepRunning()) {
    std::memcpy(destination.data(), source.data(), source.size());
    benchmark::ClobberMemory();
  }
  SetBytes(state, state.range(0) * kTokenBytes);
}

// range: tokens, q_heads per head.
void AttentionDecode(benchmark::State& state) {
  Cache cache(state.range(0), static_cast<int32_t>(state.range(1)));
  SequenceKv sequence;
  sequence.tail_blocks = cache.blocks.data();
  sequence.tail_length = cache.tokens;
  const std::vector<int32_t> offsets = {0, 1};
  const int64_t floats = int64_t{cache.layout.num_q_heads} * kHeadDim;
  const std::vector<float> queries = RandomFloats(floats);
  std::vector<float> output(floats);
  while (state.KeepRunning()) {
    cache.backend->Attention({.layer = 0,
                              .sequences = {&sequence, 1},
                              .query_offsets = offsets,
                              .queries = queries.data(),
                              .output = output.data(),
                              .scale = 1.0f / std::sqrt(float{kHeadDim})});
    benchmark::ClobberMemory();
  }
  SetBytes(state, cache.tokens * cache.layout.token_bytes());
  state.counters["output0"] = output[0];
}

// range: tokens. The whole prompt in one call; items are tokens.
void AttentionPrefill(benchmark::State& state) {
  Cache cache(state.range(0), 4);
  SequenceKv sequence;
  sequence.tail_blocks = cache.blocks.data();
  sequence.tail_length = cache.tokens;
  const std::vector<int32_t> offsets = {0, cache.tokens};
  const int64_t floats =
      int64_t{cache.tokens} * cache.layout.num_q_heads * kHeadDim;
  const std::vector<float> queries = RandomFloats(floats);
  std::vector<float> output(floats);
  while (state.KeepRunning()) {
    cache.backend->Attention({.layer = 0,
                              .sequences = {&sequence, 1},
                              .query_offsets = offsets,
                              .queries = queries.data(),
                              .output = output.data(),
                              .scale = 1.0f / std::sqrt(float{kHeadDim})});
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * cache.tokens);
  state.counters["output0"] = output[0];
}

// range: tokens. Bytes are those written.
void Append(benchmark::State& state) {
  Cache cache(state.range(0), 1);
  std::vector<int64_t> slots(cache.tokens);
  std::iota(slots.begin(), slots.end(), int64_t{kPageSize});
  const std::vector<float> rows =
      RandomFloats(int64_t{cache.tokens} * kNumHeads * kHeadDim);
  while (state.KeepRunning()) {
    cache.backend->Append({.layer = 0,
                           .slot_mapping = slots,
                           .keys = rows.data(),
                           .values = rows.data()});
    benchmark::ClobberMemory();
  }
  SetBytes(state, cache.tokens * cache.layout.token_bytes());
}

// range: tokens. Half the slots move into the other half, in random order.
void Move(benchmark::State& state) {
  Cache cache(state.range(0), 1);
  std::vector<SlotIndex> slots(cache.layout.num_pages() * kPageSize);
  std::iota(slots.begin(), slots.end(), SlotIndex{0});
  std::shuffle(slots.begin(), slots.end(), std::mt19937(3));
  CompactionMoves moves;
  for (std::size_t i = 0; i + 1 < slots.size(); i += 2) {
    moves.phase1.push_back({slots[i], slots[i + 1]});
  }
  while (state.KeepRunning()) {
    cache.backend->Move(moves);
    benchmark::ClobberMemory();
  }
  SetBytes(state, std::ssize(moves.phase1) * 2 * cache.layout.row_bytes());
}

// range: tokens, q_heads per head. Window of 32; bytes of K, read once.
void SnapKvScores(benchmark::State& state) {
  Cache cache(state.range(0), static_cast<int32_t>(state.range(1)));
  SnapKvBatch batch;
  batch.num_queries = std::min(batch.scorer.window, cache.tokens);
  batch.length = cache.tokens;
  batch.scale = 1.0f / std::sqrt(float{kHeadDim});
  const std::vector<float> queries = RandomFloats(
      int64_t{batch.num_queries} * cache.layout.num_q_heads * kHeadDim);
  batch.queries = queries.data();
  std::vector<int64_t> offsets = {0};
  std::vector<SlotIndex> slots;
  std::vector<int32_t> positions;
  for (int32_t head = 0; head < kNumHeads; ++head) {
    for (int32_t i = 0; i < cache.tokens; ++i) {
      slots.push_back(cache.layout.slot(
          cache.layout.page_id(0, cache.blocks[i / kPageSize], head),
          i % kPageSize));
      positions.push_back(i);
    }
    offsets.push_back(std::ssize(slots));
  }
  std::vector<float> scores(slots.size());
  batch.offsets = offsets;
  batch.slots = slots;
  batch.positions = positions;
  batch.scores = scores;
  while (state.KeepRunning()) {
    cache.backend->SnapKvScores(batch);
    benchmark::ClobberMemory();
  }
  SetBytes(state, cache.tokens * cache.layout.token_bytes() / 2);
  state.counters["score0"] = scores[0];
}

void Register(int64_t tokens) {
  benchmark::RegisterBenchmark("ReadBaseline", ReadBaseline)->Arg(tokens);
  benchmark::RegisterBenchmark("CopyBaseline", CopyBaseline)->Arg(tokens);
  for (const int64_t group_size : {1, 4, 8}) {
    benchmark::RegisterBenchmark("AttentionDecode", AttentionDecode)
        ->Args({tokens, group_size});
  }
  // Quadratic: a prompt as long as the caches would take minutes.
  benchmark::RegisterBenchmark("AttentionPrefill", AttentionPrefill)
      ->Arg(std::min<int64_t>(tokens, 1024));
  benchmark::RegisterBenchmark("Append", Append)->Arg(tokens);
  benchmark::RegisterBenchmark("Move", Move)->Arg(tokens);
  for (const int64_t group_size : {1, 4}) {
    benchmark::RegisterBenchmark("SnapKvScores", SnapKvScores)
        ->Args({tokens, group_size});
  }
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  int64_t tokens = 128;
  constexpr char kFlag[] = "--tokens=";
  constexpr std::size_t kFlagSize = sizeof(kFlag) - 1;
  if (argc == 2 && std::string(argv[1]).starts_with(kFlag)) {
    tokens = std::atoll(argv[1] + kFlagSize);
    --argc;
  }
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  if (tokens < 1 || tokens > (int64_t{1} << 24)) {
    std::cerr << "--tokens: expected 1 to 2^24, got " << tokens << "\n";
    return 1;
  }
  Register(tokens);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace blockmgr

int main(int argc, char** argv) { return blockmgr::Main(argc, argv); }
