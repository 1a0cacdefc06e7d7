#include "wire/vllm_wire.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
namespace engine = ::vllm::grpc::engine;

engine::GenerateRequest Minimal() {
  engine::GenerateRequest request;
  request.set_request_id("r");
  request.mutable_tokenized()->add_input_ids(7);
  request.mutable_sampling_params()->set_max_tokens(3);
  return request;
}

// The bytes are put together by hand from the numbers that the gateway uses.
TEST(VllmWireTest, ReadsAMessageOfAGateway) {
  const std::string bytes = absl::HexStringToBytes(
      "0a0161"        // request_id = "a"
      "12080a026869"  // tokenized, 8 bytes: original_text = "hi"
      "1202ac02"      // input_ids = [300], packed
      "2212"          // sampling_params, 18 bytes
      "0d0000003f"    // temperature = 0.5
      "4005"          // max_tokens = 5
      "5a0109"        // stop_token_ids = [9], packed
      "7802"          // n = 2
      "b00103"        // logprobs = 3
      "c00107"        // seed = 7
      "2801");        // stream
  engine::GenerateRequest proto;
  ASSERT_TRUE(proto.ParseFromString(bytes));
  ASSERT_OK_AND_ASSIGN(const GenerateCall call, FromProto(proto, ""));
  EXPECT_TRUE(call.stream);
  EXPECT_TRUE(call.default_eviction);
  EXPECT_FALSE(call.all_tokens);
  EXPECT_EQ(call.num_answers, 2);
  const Request& first = call.request;
  EXPECT_EQ(first.id, "a");
  EXPECT_THAT(first.prompt, ElementsAre(300));
  EXPECT_EQ(first.max_tokens, 5);
  EXPECT_THAT(first.stop_token_ids, ElementsAre(9));
  EXPECT_EQ(first.sampling->temperature, 0.5);
  EXPECT_EQ(first.sampling->logprobs, 3);
  EXPECT_EQ(first.sampling->seed, 7);
}

TEST(VllmWireTest, UnsetFieldsHaveTheDefaults) {
  engine::GenerateRequest proto = Minimal();
  proto.clear_sampling_params();
  ASSERT_OK_AND_ASSIGN(const GenerateCall call, FromProto(proto, ""));
  EXPECT_EQ(call.request.sampling, SamplingParams());
  EXPECT_TRUE(call.all_tokens);
  EXPECT_FALSE(call.stream);
  EXPECT_EQ(call.num_answers, 1);
}

TEST(VllmWireTest, TakesEveryFieldOfSampling) {
  engine::GenerateRequest proto = Minimal();
  engine::SamplingParams& sampling = *proto.mutable_sampling_params();
  sampling.set_temperature(0);
  sampling.set_top_p(0.5);
  sampling.set_top_k(4);
  sampling.set_min_p(0.25);
  sampling.set_frequency_penalty(-0.5);
  sampling.set_presence_penalty(0.75);
  sampling.set_repetition_penalty(1.5);
  sampling.set_min_tokens(2);
  sampling.set_ignore_eos(true);
  sampling.set_prompt_logprobs(1);
  (*sampling.mutable_logit_bias())[5] = 2;
  (*sampling.mutable_logit_bias())[3] = -1;
  sampling.add_stop("two");
  sampling.add_stop("strings");
  ASSERT_OK_AND_ASSIGN(const GenerateCall call, FromProto(proto, ""));
  const SamplingParams expected{.temperature = 0,
                                .top_k = 4,
                                .top_p = 0.5,
                                .min_p = 0.25,
                                .repetition_penalty = 1.5,
                                .presence_penalty = 0.75,
                                .frequency_penalty = -0.5,
                                .logit_bias = {{3, -1}, {5, 2}},
                                .min_tokens = 2,
                                .ignore_eos = true,
                                .prompt_logprobs = 1,
                                .stop = {"two", "strings"}};
  EXPECT_EQ(call.request.sampling, expected);
}

TEST(VllmWireTest, OptionsComeFromTheMetadataOrTheRequest) {
  const std::string json =
      R"({"blockmgr": {"tenant": "t", "cacheSalt": "s", "priority": 3,
          "eviction": {"mode": "EVICTION_MODE_AFTER_PREFILL",
                       "policy": {"streaming": {"sinks": 4}},
                       "target": {"keepRatio": "0.5"}}}})";
  engine::GenerateRequest proto = Minimal();
  ASSERT_OK_AND_ASSIGN(const GenerateCall by_metadata, FromProto(proto, json));
  proto.set_kv_transfer_params_json(json);
  ASSERT_OK_AND_ASSIGN(const GenerateCall by_field, FromProto(proto, ""));
  for (const GenerateCall& call : {by_metadata, by_field}) {
    EXPECT_FALSE(call.default_eviction);
    const Request& first = call.request;
    EXPECT_EQ(first.scope.tenant, "t");
    EXPECT_EQ(first.scope.cache_salt, "s");
    EXPECT_EQ(first.priority, 3);
    EXPECT_EQ(first.eviction.mode, EvictionMode::kAfterPrefill);
    EXPECT_EQ(first.eviction.policy.scorer.kind, ScorerKind::kStreaming);
  }
  EXPECT_THAT(FromProto(proto, json), IsInvalid("both"));
}

TEST(VllmWireTest, AnEmptyEvictionIsNone) {
  ASSERT_OK_AND_ASSIGN(
      const GenerateCall call,
      FromProto(Minimal(), R"({"blockmgr": {"eviction": {}}})"));
  EXPECT_FALSE(call.default_eviction);
  EXPECT_EQ(call.request.eviction.mode, EvictionMode::kNone);
}

TEST(VllmWireTest, RefusesByField) {
  const auto refused =
      [](const std::function<void(engine::GenerateRequest*)>& spoil,
         const char* field) {
        engine::GenerateRequest bad = Minimal();
        spoil(&bad);
        EXPECT_THAT(FromProto(bad, ""), IsInvalid(field));
      };
  refused([](auto* r) { r->clear_request_id(); },
          "request_id: expected 1..120");
  refused([](auto* r) { r->set_request_id(std::string(121, 'x')); },
          "request_id");
  refused([](auto* r) { r->set_text("hi"); }, "tokenized: ");
  refused([](auto* r) { r->clear_input(); }, "tokenized: ");
  refused([](auto* r) { r->mutable_tokenized()->clear_input_ids(); },
          "tokenized.input_ids: expected at least one");
  refused([](auto* r) { r->mutable_tokenized()->add_input_ids(1U << 31); },
          "tokenized.input_ids[1]");
  refused([](auto* r) { r->mutable_mm_inputs(); }, "mm_inputs");
  refused([](auto* r) { r->add_extra_mm_inputs(); }, "extra_mm_inputs");
  refused([](auto* r) { r->mutable_media_refs(); }, "media_refs");
  refused([](auto* r) { r->mutable_kv_transfer_params(); },
          "kv_transfer_params: ");
  refused([](auto* r) { r->set_data_parallel_rank(1); }, "data_parallel_rank");
  refused([](auto* r) { r->set_kv_transfer_params_json("{\"other\": 1}"); },
          "kv_transfer_params_json");
  refused(
      [](auto* r) { r->set_kv_transfer_params_json(std::string(16'385, ' ')); },
      "kv_transfer_params_json: expected at most 16384 bytes");
  refused(
      [](auto* r) {
        r->set_kv_transfer_params_json(
            R"({"blockmgr": {"eviction": {"mode": 1}}})");
      },
      "policy");
  const auto sampling =
      [&refused](const std::function<void(engine::SamplingParams*)>& spoil,
                 const char* field) {
        refused([&spoil](auto* r) { spoil(r->mutable_sampling_params()); },
                field);
      };
  sampling([](auto* s) { s->set_max_tokens(0); }, "sampling_params.max_tokens");
  sampling([](auto* s) { s->set_top_k(~0U); }, "sampling_params.top_k");
  sampling([](auto* s) { s->set_min_tokens(~0U); },
           "sampling_params.min_tokens");
  sampling([](auto* s) { s->set_n(129); }, "sampling_params.n");
  sampling([](auto* s) { s->add_stop_token_ids(1U << 31); },
           "sampling_params.stop_token_ids[0]");
  sampling([](auto* s) { s->set_truncate_prompt_tokens(5); },
           "sampling_params.truncate_prompt_tokens");
  sampling([](auto* s) { s->set_json_schema("{}"); },
           "sampling_params.json_schema");
  sampling([](auto* s) { s->set_regex("."); }, "sampling_params.regex");
  sampling([](auto* s) { s->set_grammar("x"); }, "sampling_params.grammar");
  sampling([](auto* s) { s->set_structural_tag("x"); },
           "sampling_params.structural_tag");
  sampling([](auto* s) { s->set_json_object(true); },
           "sampling_params.json_object");
  sampling([](auto* s) { s->mutable_choice(); }, "sampling_params.choice");
}

TEST(VllmWireTest, LongPromptsHaveFewerAnswers) {
  engine::GenerateRequest proto = Minimal();
  for (int i = 1; i < 1 << 18; ++i) proto.mutable_tokenized()->add_input_ids(1);
  proto.mutable_sampling_params()->set_n(4);
  EXPECT_OK(FromProto(proto, ""));
  proto.mutable_sampling_params()->set_n(5);
  EXPECT_THAT(FromProto(proto, ""),
              IsInvalid("sampling_params.n: expected at most 4"));
}

// The largest answer to a call, as one message. Its numbers take the most
// bytes.
engine::GenerateResponse LargestAnswer(const engine::GenerateRequest& call,
                                       int64_t num_outputs) {
  constexpr uint32_t kToken = std::numeric_limits<int32_t>::max();
  const engine::SamplingParams& sampling = call.sampling_params();
  const auto add_top = [](int32_t num_top, engine::TopLogProbs* top) {
    for (int32_t i = 0; i < num_top; ++i) {
      top->add_token_ids(kToken);
      top->add_values(-1);
    }
  };
  engine::GenerateResponse response;
  engine::GenerateComplete& complete = *response.mutable_complete();
  complete.set_finish_reason("length");
  complete.set_prompt_tokens(kToken);
  complete.set_completion_tokens(kToken);
  complete.set_cached_tokens(kToken);
  complete.set_index(127);
  complete.set_matched_stop_str(std::string(256, 'x'));
  for (int64_t i = 0; i < num_outputs; ++i) {
    complete.add_output_ids(kToken);
    if (!sampling.has_logprobs() || call.stream()) continue;
    engine::OutputLogProbs& rows = *complete.mutable_output_logprobs();
    rows.add_token_logprobs(-1);
    rows.add_token_ids(kToken);
    if (sampling.logprobs() > 0) {
      add_top(sampling.logprobs(), rows.add_top_logprobs());
    }
  }
  for (int i = 0; i < call.tokenized().input_ids_size(); ++i) {
    if (!sampling.has_prompt_logprobs() || call.stream()) break;
    engine::InputLogProbs& rows = *complete.mutable_input_logprobs();
    rows.add_token_logprobs()->set_value(-1);
    rows.add_token_ids(kToken);
    if (sampling.prompt_logprobs() > 0) {
      add_top(sampling.prompt_logprobs(), rows.add_top_logprobs());
    }
  }
  return response;
}

// Clients take 4 MiB by default. A call without max_tokens gets as many tokens
// as a message has room for; one token more is refused.
TEST(VllmWireTest, TheLargestAnswerFitsAMessage) {
  for (const bool stream : {false, true}) {
    for (const int32_t top : {-1, 0, 1, 5, 20}) {
      SCOPED_TRACE(absl::StrCat("stream ", stream, ", top ", top));
      engine::GenerateRequest proto = Minimal();
      proto.set_stream(stream);
      proto.mutable_tokenized()->mutable_input_ids()->Resize(9000, 1);
      engine::SamplingParams& sampling = *proto.mutable_sampling_params();
      if (top >= 0) sampling.set_logprobs(top);
      if (top >= 0) sampling.set_prompt_logprobs(top);
      sampling.clear_max_tokens();
      ASSERT_OK_AND_ASSIGN(const GenerateCall call, FromProto(proto, ""));
      const int32_t most = call.request.max_tokens;
      const size_t bytes = LargestAnswer(proto, most).ByteSizeLong();
      EXPECT_LE(bytes, size_t{4} << 20);
      EXPECT_GT(bytes, (size_t{4} << 20) * 95 / 100);

      sampling.set_max_tokens(static_cast<uint32_t>(most));
      EXPECT_OK(FromProto(proto, ""));
      sampling.set_max_tokens(static_cast<uint32_t>(most) + 1);
      EXPECT_THAT(FromProto(proto, ""),
                  IsInvalid(absl::StrCat(
                      "sampling_params.max_tokens: expected at most ", most)));
    }
  }
}

TEST(VllmWireTest, LogProbabilitiesOfAPromptFitAMessage) {
  for (const int32_t top : {0, 20}) {
    const int most = top == 0 ? 349'438 : 21'070;
    engine::GenerateRequest proto = Minimal();
    proto.mutable_sampling_params()->set_max_tokens(1);
    proto.mutable_sampling_params()->set_logprobs(top);
    proto.mutable_sampling_params()->set_prompt_logprobs(top);
    proto.mutable_tokenized()->mutable_input_ids()->Resize(most, 1);
    EXPECT_OK(FromProto(proto, ""));
    EXPECT_LE(LargestAnswer(proto, 1).ByteSizeLong(), size_t{4} << 20);
    proto.mutable_tokenized()->add_input_ids(1);
    for (const bool stream : {false, true}) {
      proto.set_stream(stream);
      EXPECT_THAT(
          FromProto(proto, ""),
          IsInvalid(absl::StrCat(
              "tokenized.input_ids: expected at most ", most,
              " tokens with sampling_params.prompt_logprobs = ", top,
              ", as an answer is one message of at most 4194304 bytes, got ",
              most + 1)));
    }
  }
}

TEST(VllmWireTest, AnIdleDaemonHasNoLoad) {
  CoreStats stats;
  engine::SchedulerLoad load;
  ToProto(LoadStats{.core = stats}, &load);
  EXPECT_EQ(load.ByteSizeLong(), 0u);
}

// A token takes a place in a block of every layer group.
TEST(VllmWireTest, TokensOfALoadCountLayerGroups) {
  CoreStats stats;
  stats.layout = ModelLayout{.num_layers = 1,
                                  .num_heads = 1,
                                  .num_q_heads = 1,
                                  .head_dim = 8,
                                  .page_size = 16,
                                  .num_blocks = 61};
  stats.scheduler.blocks.num_blocks = 61;
  stats.scheduler.blocks.used_blocks = 12;
  engine::SchedulerLoad load;
  ToProto(LoadStats{.core = stats}, &load);
  EXPECT_EQ(load.num_used_tokens(), 12 * 16);
  EXPECT_EQ(load.max_total_num_tokens(), 60 * 16);
  stats.layout->group_windows = {16, 32};
  ToProto(LoadStats{.core = stats}, &load);
  EXPECT_EQ(load.num_used_tokens(), 4 * 16);
  EXPECT_EQ(load.max_total_num_tokens(), 20 * 16);
}

TEST(VllmWireTest, TheModelIsCalledLikeTheEngineUnlessItHasAName) {
  CoreStats stats;
  stats.engine_name = "engine";
  engine::GetModelInfoResponse info;
  ToProto(stats, &info);
  EXPECT_EQ(info.served_model_name(), "engine");
  EXPECT_THAT(info.architectures(), IsEmpty());
}

}  // namespace
}  // namespace blockmgr
