// The whole line with an engine whose cache is on a device: the emulator or a
// GPU, whichever the program is linked with. What it computes is the dense
// float64 model's to the error of 16-bit elements, what it keeps is what the
// policy keeps by scores as near the dense ones.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy.h"
#include "kernels/cuda/host/cuda_backend.h"
#include "tests/e2e/jobs.h"
#include "tests/e2e/line.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/testing/case_count.h"
#include "tests/testing/test_tables.h"
#include "wire/policy_wire.h"

namespace blockmgr {
namespace {

using Decode = CudaBackendOptions::Decode;

// Weights and inputs of products are rounded to fp16, too.
constexpr ReferenceMargins kHalfMargins = {.logits = 0.03, .scores = 5e-3};

BackendFactory OnDevice(Decode decode) {
  return [decode](const ModelLayout& layout)
             -> absl::StatusOr<std::vector<std::unique_ptr<Backend>>> {
    std::vector<std::unique_ptr<Backend>> backends;
    const std::shared_ptr<DeviceRuntime> runtime = MakeTestRuntime(1);
    for (int32_t shard = 0; shard < layout.num_shards; ++shard) {
      BM_ASSIGN_OR_RETURN(backends.emplace_back(),
                          CudaBackend::Create(layout.ShardLayout(),
                                              {.decode = decode}, runtime));
    }
    return backends;
  };
}

LineOptions Options(Decode decode, int32_t num_shards, int32_t num_blocks) {
  return {.model = SmallDeviceModel(num_shards, {0, 0}),
          .num_blocks = num_blocks,
          .page_size = 16,
          .num_shards = num_shards,
          .scheduler = SmallScheduler(true, 2),
          .num_scorer_states = 8,
          .query_stats = MeasuredQueryStats(2, 4 * num_shards, 64, 3),
          .dtype = DType::kFloat16,
          .backends = OnDevice(decode),
          .margins = kHalfMargins};
}

// Of prompts that are longer than a chunk, which is what every_chunk is about.
std::vector<v1::SubmitRequest> Requests(int32_t count, int32_t num_outputs,
                                        std::mt19937_64* random) {
  std::vector<v1::SubmitRequest> requests;
  requests.reserve(count);
  for (int32_t i = 0; i < count; ++i) {
    requests.push_back(Line::MakeRequest(
        absl::StrCat("r", i), RandomTokens(100 + 29 * i, random), num_outputs));
  }
  return requests;
}

// Policy, mode, shards.
using Method = std::tuple<std::string, v1::EvictionMode, int32_t>;

class CudaMethodTest : public DeviceTest,
                       public testing::WithParamInterface<Method> {};

// Strings, whose text is in the names of tests; of pointers the address is.
std::vector<std::string> Policies() {
  return {
      "snapkv(window=8) | adakv",
      "snapkv(window=8,pool=avg,kernel=5,order=kvpress,group=max) | pyramid",
      "h2o | adakv",
      "h2o(obs_window=16) | uniform",
      ("keydiff | adakv(alpha=0.3,mode=floor) | topk | "
       "protect(sinks=4,recent=1)"),
      "keydiff(anchor=raw,metric=dot) | global",
      "keydiff(anchor=pairwise) | adakv",
      "keydiff(metric=euclidean) | uniform",
      "keydiff(anchor=median) | global",
      "expected_attention(n_future=64) | adakv",
      "expected_attention(n_future=64,cov=false,vnorm=false) | global",
      "expected_attention(n_future=64,stats=measured) | adakv",
      "streaming(sinks=4)",
      "tova | adakv",
      "knorm | uniform",
      "random(seed=3) | global",
      "snapkv(window=8) | adakv | critical",
      "snapkv(window=8) | uniform | critical(gqa_product=true,norm=l2)",
      "tova | uniform | critical(gqa_product=true)",
  };
}

INSTANTIATE_TEST_SUITE_P(
    Chunks, CudaMethodTest,
    testing::Combine(testing::ValuesIn(Policies()),
                     testing::Values(v1::EVICTION_MODE_EVERY_CHUNK),
                     testing::Values(1)));
// Their scores of chunks are those of the other instances.
std::vector<std::string> LaterPolicies() {
  std::vector<std::string> policies = {"snapkv(window=8) | adakv",
                                       "keydiff | adakv | critical"};
  if (!kBrief) {
    policies.insert(policies.end(),
                    {"h2o | uniform", "expected_attention(n_future=64)"});
  }
  return policies;
}
INSTANTIATE_TEST_SUITE_P(
    LaterInShards, CudaMethodTest,
    testing::Combine(testing::ValuesIn(LaterPolicies()),
                     testing::Values(v1::EVICTION_MODE_DECODE),
                     testing::Values(2)));

TEST_P(CudaMethodTest, KeepsAndComputesWhatTheDenseModelSays) {
  const auto& [policy, mode, num_shards] = GetParam();
  SCOPED_TRACE(policy);
  std::mt19937_64 random(11);
  const bool later = mode == v1::EVICTION_MODE_DECODE;
  std::vector<v1::SubmitRequest> requests =
      Requests(2, later ? 40 : 6, &random);
  for (v1::SubmitRequest& request : requests) {
    SetPolicy(policy, mode, &request);
  }
  const v1::GetStatsResponse stats =
      Serve(Options(Decode::kInvariant, num_shards, 48), requests).stats;
  EXPECT_GT(stats.evicted_blocks(), 0U);
  // At 48, 96 and the end; or at the end of the prompt and 32 tokens later.
  EXPECT_GE(stats.num_evictions(), 4U);
}

class CudaLineTest : public DeviceTest {};

TEST_F(CudaLineTest, ComputesInBFloat16) {
  std::mt19937_64 random(13);
  std::vector<v1::SubmitRequest> requests = Requests(2, 6, &random);
  for (v1::SubmitRequest& request : requests) {
    SetPolicy("snapkv(window=8) | adakv", v1::EVICTION_MODE_AFTER_PREFILL,
              &request);
  }
  LineOptions options = Options(Decode::kBalanced, 1, 48);
  options.dtype = DType::kBFloat16;
  options.margins = {.logits = 0.12, .scores = 0.02};
  EXPECT_EQ(Serve(options, requests).stats.num_evictions(), 2U);
}

// Windows beside layers that attend to all, in two shards, with drafts.
TEST_F(CudaLineTest, ComputesHybridModelsAndDrafts) {
  std::mt19937_64 random(17);
  std::vector<v1::SubmitRequest> requests = Requests(2, 24, &random);
  SetPolicy("keydiff | adakv", v1::EVICTION_MODE_AFTER_PREFILL, &requests[0]);
  LineOptions options = Options(Decode::kInvariant, 2, 64);
  options.model = SmallDeviceModel(2, {32, 0, 20});
  options.query_stats.clear();
  options.scheduler.num_speculative_tokens = 3;
  options.max_drafts = 3;
  const v1::GetStatsResponse stats = Serve(options, requests).stats;
  EXPECT_EQ(stats.num_evictions(), 1U);
  EXPECT_GT(stats.num_draft_tokens(), 0U);
}

// Regions under windows, in the chunks that a prompt is computed in and behind
// it: masked by position, scored and selected from as far as they are attended
// to.
TEST_F(CudaLineTest, EvictsFromWindowsWhatTheDenseModelSays) {
  for (const v1::EvictionMode mode :
       {v1::EVICTION_MODE_EVERY_CHUNK, v1::EVICTION_MODE_DECODE}) {
    SCOPED_TRACE(v1::EvictionMode_Name(mode));
    std::mt19937_64 random(18);
    const bool later = mode == v1::EVICTION_MODE_DECODE;
    std::vector<v1::SubmitRequest> requests =
        Requests(2, later ? 40 : 6, &random);
    for (v1::SubmitRequest& request : requests) {
      SetPolicy("snapkv(window=8) | adakv", mode, &request)
          ->mutable_target()
          ->set_window_keep_ratio("0.3");
    }
    LineOptions options = Options(Decode::kInvariant, 1, 96);
    options.model = SmallDeviceModel(1, {96, 0, 64});
    options.query_stats.clear();
    EXPECT_GE(Serve(options, requests).checked.window_evictions, 4);
  }
}

// With chunk attention for everything a token has the same bits however it came
// to be computed: in which chunk, beside whom, after a preemption or a swap.
TEST_F(CudaLineTest, OutputsEqualThoseOfARunThatIsNeverPreempted) {
  std::mt19937_64 random(19);
  std::vector<v1::SubmitRequest> requests;
  const std::vector<int32_t> prefix = RandomTokens(40, &random);
  for (int32_t i = 0; i < 4; ++i) {
    std::vector<int32_t> prompt = prefix;
    const std::vector<int32_t> own = RandomTokens(20 + 5 * i, &random);
    prompt.insert(prompt.end(), own.begin(), own.end());
    requests.push_back(Line::MakeRequest(absl::StrCat("r", i), prompt, 30));
    if (i % 2 == 0) continue;
    SetPolicy("snapkv(window=8) | adakv", v1::EVICTION_MODE_DECODE,
              &requests.back());
  }
  LineOptions options = Options(Decode::kChunked, 1, 200);
  options.scheduler.admission = AdmissionPolicy::kMaxUtilization;
  const Served fresh = Serve(options, requests);
  EXPECT_EQ(fresh.stats.num_preemptions(), 0U);
  options.num_blocks = 13;
  for (const int32_t num_host_blocks : {0, 40}) {
    // Without swaps in nightly tests only.
    if (kBrief && num_host_blocks == 0) continue;
    options.num_host_blocks = num_host_blocks;
    const Served resumed = Serve(options, requests);
    EXPECT_GT(resumed.stats.num_preemptions(), 0U);  // or this shows nothing
    EXPECT_EQ(resumed.stats.num_swap_ins() > 0, num_host_blocks > 0);
    ExpectSameTokens(resumed.answers, fresh.answers);
  }
}

// A command may come to requests that nobody meant to evict from: to those with
// scores that need no state.
TEST_F(CudaLineTest, CommandsEvictFromPlainRequests) {
  std::mt19937_64 random(23);
  Line line(Options(Decode::kInvariant, 1, 128));
  line.Open();
  // So many that a fast device does not come to the last before the command.
  const int32_t num_outputs = 80 * std::min(TestLengthFactor(), 8);
  for (const char* policy : {"keydiff(anchor=median)", "knorm"}) {
    ASSERT_TRUE(
        line.Submit(Line::MakeRequest(policy, RandomTokens(100, &random),
                                      num_outputs))
            .ok());
    line.WaitForTokens(policy, 1);
    v1::EvictRequest command;
    command.set_request_id(policy);
    command.mutable_target()->set_keep_ratio("0.5");
    ToProto(*ParsePolicy(policy), command.mutable_policy());
    v1::EvictResponse response;
    const grpc::Status status = line.Evict(command, &response);
    EXPECT_TRUE(status.ok()) << policy << status.error_message();
  }
  const Served served = Finish(&line, 2);
  for (const auto& [id, answer] : served.answers) {
    EXPECT_EQ(std::ssize(answer.tokens), num_outputs) << id;
  }
  EXPECT_EQ(served.stats.num_evictions(), 2U);
}

}  // namespace
}  // namespace blockmgr
