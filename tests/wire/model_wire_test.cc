#include "wire/model_wire.h"

#include <cstdint>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

ServedModel SomeModel() {
  return {.name = "m",
          .model_type = "llama",
          .architectures = {"LlamaForCausalLM"},
          .context_tokens = 8192,
          .bos_token_id = 1,
          .pad_token_id = 0,
          .tokenizer_zip = "PK\x03\x04"};
}

TEST(ModelWireTest, GoesThereAndBack) {
  for (const ServedModel& model : {SomeModel(), ServedModel()}) {
    v1::ServedModel proto;
    ToProto(model, &proto);
    ASSERT_OK_AND_ASSIGN(const ServedModel back, FromProto(proto));
    EXPECT_EQ(back, model);
  }
}

TEST(ModelWireTest, RefusesByField) {
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
