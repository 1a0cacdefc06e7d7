// Small models, schedulers and requests for tests of the whole line.
#ifndef TESTS_E2E_JOBS_H_
#define TESTS_E2E_JOBS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/policy.h"
#include "proto/blockmgr/v1/request.pb.h"
#include "scheduler/scheduler_options.h"
#include "tests/e2e/line.h"
#include "tests/engine/reference/test_util.h"
#include "wire/policy_wire.h"

namespace blockmgr {

// Of SmallModel.
inline constexpr int32_t kVocabulary = 64;

struct Job {
  std::vector<int32_t> prompt;
  int32_t max_tokens = 0;
};

inline std::vector<int32_t> RandomTokens(int32_t count,
                                         std::mt19937_64* random) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>((*random)() % kVocabulary);
  }
  return tokens;
}

// Prompts of 1 to `longest` tokens; with `num_prefixes`, most begin with one of
// as many common prefixes of 70 tokens.
inline std::vector<Job> RandomJobs(int32_t count, int32_t longest,
                                   int32_t num_prefixes,
                                   std::mt19937_64* random) {
  std::vector<std::vector<int32_t>> prefixes;
  prefixes.reserve(num_prefixes);
  for (int32_t i = 0; i < num_prefixes; ++i) {
    prefixes.push_back(RandomTokens(70, random));
  }
  std::vector<Job> jobs;
  for (int32_t i = 0; i < count; ++i) {
    Job job;
    if (num_prefixes > 0 && (*random)() % 4 != 0) {
      job.prompt = prefixes[(*random)() % prefixes.size()];
    }
    const std::vector<int32_t> own = RandomTokens(
        1 + static_cast<int32_t>((*random)() % static_cast<uint64_t>(longest)),
        random);
    job.prompt.insert(job.prompt.end(), own.begin(), own.end());
    job.max_tokens = 1 + static_cast<int32_t>((*random)() % 100);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

inline SchedulerOptions SmallScheduler(bool prefix_caching,
                                       int32_t steps_in_flight) {
  SchedulerOptions options;
  options.max_num_seqs = 12;
  options.max_num_batched_tokens = 64;
  options.max_model_len = 1024;
  options.watermark = 0.0;
  options.max_steps_in_flight = steps_in_flight;
  options.enable_prefix_caching = prefix_caching;
  options.reuse_partial_blocks = prefix_caching;
  return options;
}

inline v1::EvictionPolicy SnapKvAdaKv(int32_t window) {
  v1::EvictionPolicy policy;
  policy.mutable_snapkv()->set_window(window);
  policy.mutable_snapkv()->set_kernel(7);
  policy.mutable_adakv()->set_alpha(0.2);
  policy.mutable_topk();
  return policy;
}

// Asks a request to keep 40 % when `mode` says so.
inline v1::RequestEviction* SetEviction(v1::EvictionMode mode,
                                        v1::SubmitRequest* request) {
  v1::RequestEviction* eviction = request->mutable_eviction();
  eviction->set_mode(mode);
  *eviction->mutable_policy() = SnapKvAdaKv(8);
  eviction->mutable_target()->set_keep_ratio("0.4");
  return eviction;
}

// Does the same by this policy, every 48 tokens of a prompt or 16 of outputs.
inline v1::RequestEviction* SetPolicy(absl::string_view policy,
                                      v1::EvictionMode mode,
                                      v1::SubmitRequest* request) {
  v1::RequestEviction* eviction = SetEviction(mode, request);
  ToProto(*ParsePolicy(policy), eviction->mutable_policy());
  if (mode == v1::EVICTION_MODE_EVERY_CHUNK) eviction->set_compress_every(48);
  if (mode == v1::EVICTION_MODE_DECODE) eviction->set_compress_every(16);
  return eviction;
}

// Returns requests r0, r1 .. for the jobs. If `mode` evicts, each is evicted
// from; every 32 tokens, if that is not once.
inline std::vector<v1::SubmitRequest> RequestsFor(
    const std::vector<Job>& jobs,
    v1::EvictionMode mode = v1::EVICTION_MODE_NONE) {
  std::vector<v1::SubmitRequest> requests;
  for (const Job& job : jobs) {
    requests.push_back(Line::MakeRequest(absl::StrCat("r", requests.size()),
                                         job.prompt, job.max_tokens));
    if (mode == v1::EVICTION_MODE_NONE) continue;
    v1::RequestEviction* eviction = SetEviction(mode, &requests.back());
    if (mode != v1::EVICTION_MODE_AFTER_PREFILL) {
      eviction->set_compress_every(32);
    }
  }
  return requests;
}

inline void ExpectSameTokens(const std::map<std::string, Answer>& answers,
                             const std::map<std::string, Answer>& expected) {
  ASSERT_EQ(answers.size(), expected.size());
  for (const auto& [id, answer] : answers) {
    EXPECT_EQ(answer.tokens, expected.at(id).tokens) << id;
  }
}

}  // namespace blockmgr

#endif  // TESTS_E2E_JOBS_H_
