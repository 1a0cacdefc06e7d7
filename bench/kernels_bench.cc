// Kernels of the CPU backend next to what this machine can do: those that are
// bound by memory next to a loop that only reads and to memcpy, in bytes of K
// and V per second (scores: of what their passes read, see there), those that
// are products of matrices next to cblas_sgemm of the same size, on one thread.
//
// Sizes are in tokens: --tokens sets how long the caches are (default: small
// enough for a smoke run; 65536 leaves every cache of a desktop CPU).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#ifdef BLOCKMGR_HAVE_OPENBLAS
#include <cblas.h>
#endif

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"

// Highway compiles this part once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/kernels_bench.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace blockmgr::HWY_NAMESPACE {

// The sum of `size` floats, a multiple of 256.
float ReadAllImpl(const float* values, int64_t size) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (int64_t i = 0; i < size; i += 4 * lanes) {
    s0 = hn::Add(s0, hn::LoadU(d, values + i));
    s1 = hn::Add(s1, hn::LoadU(d, values + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(d, values + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(d, values + i + 3 * lanes));
  }
  const auto sum = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace blockmgr::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockmgr {
namespace {

HWY_EXPORT(ReadAllImpl);

constexpr int32_t kNumHeads = 8;
constexpr int32_t kHeadDim = 128;
constexpr int32_t kPageSize = 16;
constexpr int32_t kWindow = 32;
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
  Cache(int64_t num_tokens, int32_t group_size, DType dtype = DType::kBFloat16,
        int32_t num_heads = kNumHeads)
      : tokens(static_cast<int32_t>(num_tokens)) {
    layout = {.num_layers = 1,
              .num_heads = num_heads,
              .num_q_heads = num_heads * group_size,
              .head_dim = kHeadDim,
              .page_size = kPageSize,
              .dtype = dtype,
              .num_blocks = CeilDiv(tokens, kPageSize) + 1};
    auto created = CreateCpuBackend(layout);
    BM_CHECK(created.ok());
    backend = *std::move(created);
    for (int32_t b = 1; b < layout.num_blocks; ++b) {
      blocks.push_back(BlockId{b});
    }
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(2));
    rows = RandomFloats(int64_t{kPageSize} * num_heads * kHeadDim);
    for (const BlockId block : blocks) {
      std::vector<int64_t> slots(kPageSize);
      std::iota(slots.begin(), slots.end(), int64_t{Index(block)} * kPageSize);
      backend->Append({.layer = 0,
                       .slot_mapping = slots,
                       .keys = rows.data(),
                       .values = rows.data()});
    }
  }

  // Bytes of K alone.
  int64_t key_bytes() const { return tokens * layout.token_bytes() / 2; }

  int32_t tokens;
  ModelLayout layout;
  std::unique_ptr<Backend> backend;
  std::vector<BlockId> blocks;
  std::vector<float> rows;  // [page_size, num_heads, head_dim]
};

// Every token of a cache, as entries of every head.
struct AllEntries {
  explicit AllEntries(const Cache& cache) {
    for (int32_t head = 0; head < cache.layout.num_heads; ++head) {
      for (int32_t i = 0; i < cache.tokens; ++i) {
        slots.push_back(cache.layout.slot(
            cache.layout.page_id(0, cache.blocks[i / kPageSize], head),
            i % kPageSize));
        positions.push_back(i);
      }
      offsets.push_back(std::ssize(slots));
    }
    scores.resize(slots.size());
    list = {.offsets = offsets, .slots = slots, .positions = positions};
  }

  std::vector<int64_t> offsets = {0};
  std::vector<SlotIndex> slots;
  std::vector<int32_t> positions;
  std::vector<float> scores;
  EntryList list;
};

void SetBytes(benchmark::State& state, int64_t bytes_per_iteration) {
  state.SetBytesProcessed(state.iterations() * bytes_per_iteration);
}

// The ceiling of everything that only reads: as many bytes, summed.
void ReadBaseline(benchmark::State& state) {
  const std::vector<float> values(state.range(0) * kTokenBytes / 4, 1.0f);
  float sum = 0.0f;
  while (state.KeepRunning()) {
    sum = HWY_DYNAMIC_DISPATCH(ReadAllImpl)(values.data(), std::ssize(values));
    benchmark::DoNotOptimize(sum);
  }
  SetBytes(state, state.range(0) * kTokenBytes);
  state.counters["sum"] = sum;
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

// Attention of the last queries of a cache.
void RunAttention(benchmark::State& state, Cache& cache, int32_t num_queries) {
  SequenceKv sequence;
  sequence.tail_blocks = cache.blocks.data();
  sequence.tail_length = cache.tokens;
  const std::vector<int32_t> offsets = {0, num_queries};
  const int64_t floats =
      int64_t{num_queries} * cache.layout.num_q_heads * kHeadDim;
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
  state.counters["output0"] = output[0];
}

// range: tokens, q_heads per head.
void AttentionDecode(benchmark::State& state) {
  Cache cache(state.range(0), static_cast<int32_t>(state.range(1)));
  RunAttention(state, cache, 1);
  SetBytes(state, cache.tokens * cache.layout.token_bytes());
}

// range: tokens. The whole prompt in one call; items are tokens.
void AttentionPrefill(benchmark::State& state) {
  Cache cache(state.range(0), 4);
  RunAttention(state, cache, cache.tokens);
  state.SetItemsProcessed(state.iterations() * cache.tokens);
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

// range: tokens; in place? Half the slots move into the other half, in random
// order. In place, they go by way of staging, in groups of 1,024.
void Move(benchmark::State& state) {
  Cache cache(state.range(0), 1);
  std::vector<SlotIndex> slots(cache.layout.num_pages() * kPageSize);
  std::iota(slots.begin(), slots.end(), SlotIndex{0});
  std::shuffle(slots.begin(), slots.end(), std::mt19937(3));
  CompactionMoves moves;
  for (std::size_t i = 0; i + 1 < slots.size(); i += 2) {
    moves.moves.push_back({slots[i], slots[i + 1]});
    if (moves.moves.size() % 1024 == 0) {
      moves.group_ends.push_back(std::ssize(moves.moves));
    }
  }
  moves.group_ends.push_back(std::ssize(moves.moves));
  moves.in_place = state.range(1) != 0;
  while (state.KeepRunning()) {
    cache.backend->Move(moves);
    benchmark::ClobberMemory();
  }
  SetBytes(state, std::ssize(moves.moves) * 2 * cache.layout.row_bytes());
}

// Scores of a whole cache by `scorer`, `passes` times reading K.
void RunScorer(benchmark::State& state, const ScorerSpec& scorer, Cache& cache,
               int64_t passes) {
  AllEntries entries(cache);
  const int32_t num_queries = std::min(kWindow, cache.tokens);
  const std::vector<float> queries =
      RandomFloats(int64_t{num_queries} * cache.layout.num_q_heads * kHeadDim);
  std::vector<double> frequencies;
  frequencies.reserve(kHeadDim / 2);
  for (int32_t i = 0; i < kHeadDim / 2; ++i) {
    frequencies.push_back(std::pow(1e4, -2.0 * i / kHeadDim));
  }
  QueryStatistics statistics;
  if (scorer.kind == ScorerKind::kExpectedAttention) {
    cache.backend->AddQueries(queries.data(), num_queries, &statistics);
  }
  const bool one_query = scorer.kind == ScorerKind::kTova;
  ScoreBatch batch;
  batch.scorer = scorer;
  batch.scale = 1.0f / std::sqrt(float{kHeadDim});
  batch.entries = entries.list;
  batch.window = {.queries = queries.data(),
                  .count = one_query ? 1 : num_queries,
                  .length = cache.tokens};
  batch.statistics = &statistics;
  batch.inverse_frequencies = frequencies;
  batch.scores = entries.scores;
  while (state.KeepRunning()) {
    cache.backend->Score(batch);
    benchmark::ClobberMemory();
  }
  SetBytes(state, passes * cache.key_bytes());
  state.counters["score0"] = entries.scores[0];
}

// range: tokens, q_heads per head. Window of 32; bytes of K, read once.
void SnapKvScores(benchmark::State& state) {
  Cache cache(state.range(0), static_cast<int32_t>(state.range(1)));
  RunScorer(state, {.window = kWindow}, cache, 1);
  state.counters["flops"] = benchmark::Counter(
      2.0 * kWindow * cache.layout.num_q_heads * kHeadDim * cache.tokens,
      benchmark::Counter::kIsIterationInvariantRate);
}

// range: tokens, and the number of a DType. Heads as many as fit: up to 2^20
// rows. Bytes of K as often as it is read.
void ScoreKeys(benchmark::State& state, const ScorerSpec& scorer,
               int64_t passes) {
  const int64_t heads = std::clamp<int64_t>((1 << 20) / state.range(0), 1, 8);
  Cache cache(state.range(0), 1, static_cast<DType>(state.range(1)),
              static_cast<int32_t>(heads));
  RunScorer(state, scorer, cache, passes);
}

void KeyDiffScores(benchmark::State& state) {
  ScoreKeys(state, {.kind = ScorerKind::kKeyDiff}, 2);
}

void KnormScores(benchmark::State& state) {
  ScoreKeys(state, {.kind = ScorerKind::kKnorm}, 1);
}

// range: tokens. Four q_heads per head.
void TovaScores(benchmark::State& state) {
  Cache cache(state.range(0), 4);
  RunScorer(state, {.kind = ScorerKind::kTova}, cache, 1);
}

// range: tokens. Four q_heads per head; bytes of K, read once.
void ExpectedAttentionScores(benchmark::State& state) {
  Cache cache(state.range(0), 4);
  RunScorer(state, {.kind = ScorerKind::kExpectedAttention}, cache, 1);
  state.counters["flops"] = benchmark::Counter(
      2.0 * cache.layout.num_q_heads * kHeadDim * kHeadDim * cache.tokens,
      benchmark::Counter::kIsIterationInvariantRate);
}

// range: tokens, columns of the output projection, 1 for L1 and 0 for L2.
void ValueNorms(benchmark::State& state) {
  Cache cache(state.range(0), 1);
  AllEntries entries(cache);
  const int64_t model_dim = state.range(1);
  const std::vector<float> projection =
      RandomFloats(int64_t{cache.layout.num_q_heads} * kHeadDim * model_dim);
  const ValueNormBatch batch = {
      .norm = state.range(2) == 1 ? ValueNorm::kL1 : ValueNorm::kL2,
      .entries = entries.list,
      .output_projection = projection.data(),
      .model_dim = static_cast<int32_t>(model_dim),
      .norms = entries.scores};
  while (state.KeepRunning()) {
    cache.backend->ValueNorms(batch);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * cache.tokens);
  state.counters["norm0"] = entries.scores[0];
  state.counters["flops"] =
      benchmark::Counter(2.0 * cache.layout.num_q_heads * kHeadDim *
                             static_cast<double>(model_dim * cache.tokens),
                         benchmark::Counter::kIsIterationInvariantRate);
}

// range: tokens in a call. 32 q_heads.
void AddQueries(benchmark::State& state) {
  Cache cache(kPageSize, 4);
  const int32_t num_tokens = static_cast<int32_t>(state.range(0));
  const std::vector<float> queries =
      RandomFloats(int64_t{num_tokens} * cache.layout.num_q_heads * kHeadDim);
  QueryStatistics statistics;
  while (state.KeepRunning()) {
    cache.backend->AddQueries(queries.data(), num_tokens, &statistics);
  }
  state.SetItemsProcessed(state.iterations() * num_tokens);
  state.counters["sum0"] = statistics.sums[0];
}

#ifdef BLOCKMGR_HAVE_OPENBLAS
// range: tokens, q_heads per head. The products that SnapKvScores computes, and
// nothing else, of rows that lie together as floats.
void SnapKvProducts(benchmark::State& state) {
  openblas_set_num_threads(1);
  const auto tokens = static_cast<int32_t>(state.range(0));
  const auto num_queries = static_cast<int32_t>(kWindow * state.range(1));
  const std::vector<float> keys =
      RandomFloats(int64_t{kNumHeads} * tokens * kHeadDim);
  const std::vector<float> queries =
      RandomFloats(int64_t{num_queries} * kHeadDim);
  std::vector<float> logits(int64_t{num_queries} * tokens);
  while (state.KeepRunning()) {
    for (int64_t head = 0; head < kNumHeads; ++head) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, num_queries, tokens,
                  kHeadDim, 1.0f, queries.data(), kHeadDim,
                  keys.data() + head * tokens * kHeadDim, kHeadDim, 0.0f,
                  logits.data(), tokens);
    }
    benchmark::ClobberMemory();
  }
  state.counters["logit0"] = logits[0];
  state.counters["flops"] =
      benchmark::Counter(2.0 * kNumHeads * num_queries * kHeadDim * tokens,
                         benchmark::Counter::kIsIterationInvariantRate);
}
#endif

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
  benchmark::RegisterBenchmark("Move", Move)
      ->Args({tokens, 0})
      ->Args({tokens, 1});
  for (const int64_t group_size : {1, 4}) {
#ifdef BLOCKMGR_HAVE_OPENBLAS
    benchmark::RegisterBenchmark("SnapKvProducts", SnapKvProducts)
        ->Args({tokens, group_size});
#endif
    benchmark::RegisterBenchmark("SnapKvScores", SnapKvScores)
        ->Args({tokens, group_size});
  }
  for (int64_t dtype = 0; dtype < std::ssize(kDTypeNames); ++dtype) {
    benchmark::RegisterBenchmark("KeyDiffScores", KeyDiffScores)
        ->Args({tokens, dtype});
    benchmark::RegisterBenchmark("KnormScores", KnormScores)
        ->Args({tokens, dtype});
  }
  benchmark::RegisterBenchmark("TovaScores", TovaScores)->Arg(tokens);
  benchmark::RegisterBenchmark("ExpectedAttentionScores",
                               ExpectedAttentionScores)
      ->Arg(tokens);
  // Seconds per thousand tokens at the width of a real model.
  const int64_t model_dim = tokens < 1024 ? 256 : 4096;
  for (const int64_t l1 : {0, 1}) {
    benchmark::RegisterBenchmark("ValueNorms", ValueNorms)
        ->Args({std::min<int64_t>(tokens, 4096), model_dim, l1});
  }
  for (const int64_t chunk : {1, 128}) {
    benchmark::RegisterBenchmark("AddQueries", AddQueries)->Arg(chunk);
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
#endif  // HWY_ONCE
