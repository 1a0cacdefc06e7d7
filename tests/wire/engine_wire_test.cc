#include "wire/engine_wire.h"

#include <cstdint>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

EngineAbilities SomeAbilities() {
  return {.num_scorer_states = 3,
          .num_host_blocks = 5,
          .supports_window_evictions = true,
          .query_stats = {{"chat", "1a2b"}, {"code", ""}},
          .sampling = {
              .fields = EngineSampling::BitOf(SamplingField::kTemperature) |
                        EngineSampling::BitOf(SamplingField::kPromptLogprobs),
              .vocabulary_size = 49152,
              .end_token_ids = {2, 0}}};
}

TEST(EngineWireTest, AbilitiesArrive) {
  const EngineAbilities sent = SomeAbilities();
  v1::AttachRequest proto;
  ToProto(sent, &proto);
  EXPECT_EQ(proto.num_scorer_states(), 3);
  EXPECT_EQ(proto.num_host_blocks(), 5);
  EXPECT_TRUE(proto.supports_window_evictions());
  EXPECT_THAT(proto.sampling_fields(),
              ElementsAre(v1::SAMPLING_FIELD_TEMPERATURE,
                          v1::SAMPLING_FIELD_PROMPT_LOGPROBS));
  EXPECT_EQ(proto.vocabulary_size(), 49152);
  EXPECT_THAT(proto.end_token_ids(), ElementsAre(2u, 0u));
  ASSERT_OK_AND_ASSIGN(const EngineAbilities received, FromProto(proto));
  EXPECT_EQ(received, sent);
}

TEST(EngineWireTest, FieldsThatThereAreNotAreNamed) {
  v1::AttachRequest proto;
  proto.add_sampling_fields(v1::SAMPLING_FIELD_SEED);
  proto.add_sampling_fields(v1::SAMPLING_FIELD_UNSPECIFIED);
  EXPECT_THAT(FromProto(proto),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "sampling_fields[1]: expected a field from 1 to 13, "
                       "got 0"));
  proto.set_sampling_fields(1, static_cast<v1::SamplingField>(14));
  EXPECT_THAT(FromProto(proto), IsInvalid("sampling_fields[1]"));
  proto.clear_sampling_fields();
  proto.add_end_token_ids(~uint32_t{0});
  EXPECT_THAT(FromProto(proto), IsInvalid("end_token_ids[0]"));
}

ServedModel SomeModel() {
  return {.name = "m",
          .model_type = "llama",
          .architectures = {"LlamaForCausalLM"},
          .context_tokens = 8192,
          .bos_token_id = 1,
          .pad_token_id = 0,
          .tokenizer_zip = "PK\x03\x04"};
}

TEST(EngineWireTest, ModelsArrive) {
  for (const ServedModel& model : {SomeModel(), ServedModel()}) {
    v1::ServedModel proto;
    ToProto(model, &proto);
    ASSERT_OK_AND_ASSIGN(const ServedModel back, FromProto(proto));
    EXPECT_EQ(back, model);
  }
}

TEST(EngineWireTest, FieldsOfModelsAreNamed) {
  v1::ServedModel good;
  ToProto(SomeModel(), &good);
  const auto refused = [&good](
                           const std::function<void(v1::ServedModel*)>& spoil,
                           const char* field) {
    v1::ServedModel bad = good;
    spoil(&bad);
    EXPECT_THAT(FromProto(bad), IsInvalid(field));
  };
  constexpr uint32_t kTooLarge = uint32_t{1} << 31;
  refused([](auto* m) { m->set_name(std::string(257, 'x')); },
          "model.name: expected at most 256 bytes, got 257");
  refused([](auto* m) { m->set_model_type(std::string(65, 'x')); },
          "model.model_type");
  refused([](auto* m) { m->add_architectures(std::string(65, 'x')); },
          "model.architectures");
  refused(
      [](auto* m) {
        for (int i = 0; i < 8; ++i) m->add_architectures("x");
      },
      "model.architectures: expected at most 8, got 9");
  refused([](auto* m) { m->set_context_tokens(-1); }, "model.context_tokens");
  refused([](auto* m) { m->set_bos_token_id(kTooLarge); },
          "model.bos_token_id");
  refused([](auto* m) { m->set_pad_token_id(kTooLarge); },
          "model.pad_token_id");
  refused([](auto* m) { m->set_tokenizer_zip("{}"); },
          "model.tokenizer_zip: expected a zip archive");
  refused(
      [](auto* m) {
        m->set_tokenizer_zip(
            "PK\x03\x04" +
            std::string(static_cast<size_t>(kMaxTokenizerZipBytes), 'z'));
      },
      "model.tokenizer_zip: expected at most 15728640 bytes");
}

}  // namespace
}  // namespace blockmgr
