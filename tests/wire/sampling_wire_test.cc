#include "wire/sampling_wire.h"

#include <cstdint>
#include <limits>
#include <string>

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr auto kBadArgument = absl::StatusCode::kInvalidArgument;

SamplingParams FullParams() {
  return {.temperature = 0.25,
          .top_k = 3,
          .top_p = 0.5,
          .min_p = 0.125,
          .repetition_penalty = 1.5,
          .presence_penalty = -0.5,
          .frequency_penalty = 0.75,
          .logit_bias = {{5, -100.0}, {2147483647, 2.5}},
          .seed = std::numeric_limits<int64_t>::min(),
          .min_tokens = 7,
          .ignore_eos = true,
          .logprobs = 0,
          .prompt_logprobs = 20,
          .stop = {"\n\n", "\xC3\xA9"}};
}

TEST(SamplingWireTest, ParametersArrive) {
  v1::SamplingParams proto;
  ToProto(FullParams(), &proto);
  const google::protobuf::Descriptor& type = *proto.GetDescriptor();
  const google::protobuf::Reflection& fields = *proto.GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    // A field added to the message must be filled, and tested, here.
    EXPECT_TRUE(type.field(i)->is_repeated() ||
                fields.HasField(proto, type.field(i)))
        << type.field(i)->name();
  }
  std::string bytes;
  ASSERT_TRUE(proto.SerializeToString(&bytes));
  v1::SamplingParams received;
  ASSERT_TRUE(received.ParseFromString(bytes));
  ASSERT_OK_AND_ASSIGN(const SamplingParams params, FromProto(received));
  EXPECT_EQ(params, FullParams());
}

TEST(SamplingWireTest, UnsetParametersHaveTheirDefaults) {
  ASSERT_OK_AND_ASSIGN(const SamplingParams params,
                       FromProto(v1::SamplingParams()));
  EXPECT_EQ(params, SamplingParams());
  // As common.proto has them.
  EXPECT_EQ(params.temperature, 1.0);
  EXPECT_EQ(params.top_k, 0);
  EXPECT_EQ(params.top_p, 1.0);
  EXPECT_EQ(params.repetition_penalty, 1.0);
  EXPECT_EQ(params.seed, std::nullopt);
  EXPECT_EQ(params.logprobs, std::nullopt);
  EXPECT_EQ(params.prompt_logprobs, std::nullopt);
  v1::SamplingParams zero;
  zero.set_temperature(0);
  zero.set_seed(0);
  ASSERT_OK_AND_ASSIGN(const SamplingParams greedy, FromProto(zero));
  EXPECT_EQ(greedy.temperature, 0.0);
  EXPECT_EQ(greedy.seed, 0);
}

TEST(SamplingWireTest, BiasesOfNoTokensAreNamed) {
  v1::SamplingParams proto;
  proto.add_logit_bias();
  proto.add_logit_bias()->set_token_id(uint32_t{1} << 31);
  EXPECT_THAT(FromProto(proto),
              StatusIs(kBadArgument,
                       "sampling.logit_bias[1].token_id: expected at most "
                       "2147483647, got 2147483648"));
}

// Each is a field of SamplingParams; only ignore_eos needs no engine.
TEST(SamplingWireTest, EveryFieldButOneNeedsTheEngine) {
  const google::protobuf::EnumDescriptor& needed =
      *v1::SamplingField_descriptor();
  EXPECT_EQ(needed.value_count(), kNumSamplingFields + 1);
  const google::protobuf::Descriptor& params =
      *v1::SamplingParams::descriptor();
  int num_needed = 0;
  for (int i = 0; i < params.field_count(); ++i) {
    const std::string name = params.field(i)->name();
    if (name == "ignore_eos") continue;
    ++num_needed;
    EXPECT_NE(needed.FindValueByName(
                  absl::StrCat("SAMPLING_FIELD_", absl::AsciiStrToUpper(name))),
              nullptr)
        << name;
  }
  EXPECT_EQ(num_needed, kNumSamplingFields);
}

TEST(SamplingWireTest, LogProbsArrive) {
  const TokenLogProbs sent{.first_index = 4,
                           .num_top = 1,
                           .tokens = {7, 8, 9, 9},
                           .logprobs = {-0.5f, -0.25f, -1.0f, -1.0f}};
  v1::TokenLogProbs proto;
  ToProto(sent, &proto);
  TokenLogProbs received{.tokens = {1}};  // of before
  FromProto(proto, &received);
  EXPECT_EQ(received, sent);
  EXPECT_EQ(received.num_rows(), 2);
  EXPECT_EQ(proto.GetDescriptor()->field_count(), 4);
}

}  // namespace
}  // namespace blockmgr
