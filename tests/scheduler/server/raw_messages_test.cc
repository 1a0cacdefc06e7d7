#include "scheduler/server/raw_messages.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "proto/blockmgr/v1/admin.pb.h"
#include "proto/blockmgr/v1/engine.pb.h"
#include "proto/blockmgr/v1/eviction.pb.h"
#include "proto/blockmgr/v1/request.pb.h"
#include "tests/testing/counted_new.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;

constexpr MessageLimits kLarge = {.max_bytes = int64_t{64} << 20};

grpc::ByteBuffer Bytes(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

// In slices, as long messages come.
grpc::ByteBuffer Slices(const std::string& text, size_t size) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < text.size(); at += size) {
    slices.emplace_back(text.substr(at, size));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) {
    bytes += static_cast<char>(value | 0x80);
  }
  return bytes + static_cast<char>(value);
}

std::string Tag(int field, int wire) {
  return Varint(static_cast<uint64_t>(field) << 3 |
                static_cast<uint64_t>(wire));
}

std::string Delimited(int field, const std::string& content) {
  return absl::StrCat(Tag(field, 2), Varint(content.size()), content);
}

std::string Repeat(const std::string& unit, int64_t size) {
  std::string text;
  while (std::ssize(text) + std::ssize(unit) <= size) text += unit;
  return text;
}

// Bytes which, repeated, may take much more memory than they are.
std::vector<std::string> Units(const Descriptor& type, int depth) {
  std::vector<std::string> units;
  int unknown = 1;
  while (type.FindFieldByNumber(unknown) != nullptr) ++unknown;
  units.push_back(Tag(unknown, 0) + '\1');
  units.push_back(Delimited(unknown, ""));
  units.push_back(Tag(unknown, 3) + Tag(unknown, 4));
  std::string nested;
  for (int i = 0; i < 20; ++i) nested.insert(0, Tag(unknown, 3));
  for (int i = 0; i < 20; ++i) nested += Tag(unknown, 4);
  units.push_back(nested);
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    units.push_back(Tag(field.number(), 0) + '\1');
    units.push_back(Tag(field.number(), 5) + "1234");
    units.push_back(Delimited(field.number(), ""));
    // Fields of unknown groups are not known either.
    units.push_back(Tag(unknown, 3) +
                    Repeat(Tag(field.number(), 0) + '\1', 99) +
                    Tag(unknown, 4));
    if (field.message_type() == nullptr) {
      // One more than a power of two.
      units.push_back(Delimited(field.number(), std::string(5, '\1')));
      units.push_back(Delimited(field.number(), std::string(1025, '\1')));
      units.push_back(
          Delimited(field.number(), std::string((1 << 14) + 1, '\1')));
      continue;
    }
    if (depth == 0) continue;
    for (const std::string& unit : Units(*field.message_type(), depth - 1)) {
      units.push_back(Delimited(field.number(), unit));
      if (unit.size() < 1000) {
        units.push_back(Delimited(field.number(), Repeat(unit, 1 << 15)));
      }
    }
  }
  return units;
}

const std::vector<const FileDescriptor*>& Files() {
  static const auto& files = *new std::vector<const FileDescriptor*>{
      v1::GetStatsRequest::descriptor()->file(),
      v1::EngineMessage::descriptor()->file(),
      v1::EvictRequest::descriptor()->file(),
      v1::SubmitRequest::descriptor()->file()};
  return files;
}

// Of all methods.
std::vector<const Descriptor*> Requests() {
  std::vector<const Descriptor*> requests;
  for (const FileDescriptor* file : Files()) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j) {
        requests.push_back(file->service(i)->method(j)->input_type());
      }
    }
  }
  return requests;
}

TEST(RawMessagesTest, NoMessageTakesMuchMoreMemoryThanItsBytes) {
  constexpr int64_t kSize = int64_t{1} << 16;
  constexpr MessageLimits kLimits = {.max_bytes = kSize,
                                     .allowance_bytes = int64_t{1} << 16};
  for (const Descriptor* type : Requests()) {
    SCOPED_TRACE(type->full_name());
    int64_t num_refused = 0;
    for (const std::string& unit : Units(*type, 2)) {
      const std::string text = Repeat(unit, kSize);
      const grpc::ByteBuffer bytes = Bytes(text);
      const std::unique_ptr<Message> message(
          MessageFactory::generated_factory()->GetPrototype(type)->New());
      ForgetPeak();
      const int64_t before = AllocatedBytes();
      const absl::Status status = ParseMessage(bytes, kLimits, message.get());
      // And what an error takes.
      const int64_t most =
          kMaxAmplification * std::ssize(text) + kLimits.allowance_bytes + 4096;
      EXPECT_LE(PeakAllocatedBytes() - before, most)
          << absl::CHexEscape(unit.substr(0, 20)) << " " << status;
      if (absl::IsResourceExhausted(status)) ++num_refused;
    }
    // Those that no limit of its own would have refused.
    EXPECT_GT(num_refused, 0);
  }
}

// What the plain parser says, too.
void ExpectTaken(const Message& message, const MessageLimits& limits = kLarge) {
  const std::string text = message.SerializeAsString();
  for (const size_t size : {text.size(), size_t{1000}, size_t{7}}) {
    if (size == 7 && text.size() > 100'000) continue;
    const std::unique_ptr<Message> parsed(message.New());
    ASSERT_OK(ParseMessage(Slices(text, size), limits, parsed.get()))
        << text.size();
    EXPECT_EQ(parsed->SerializeAsString(), text);
  }
}

TEST(RawMessagesTest, TakesTheMostThatARequestMayHave) {
  v1::SubmitRequest request;
  request.set_client_session(std::string(128, 's'));
  request.set_request_id(std::string(128, 'r'));
  for (int i = 0; i < 4096; ++i) {
    request.add_stop_token_ids(1);
    v1::MediaItem* item = request.add_media();
    item->set_begin(i);
    item->set_length(1);
    item->set_hash("h");
  }
  for (int i = 0; i < 64; ++i) request.add_retention()->set_priority(1);
  request.set_engine_data(std::string(16 << 10, '\0'));
  for (uint32_t i = 0; i < 1024; ++i) {
    request.mutable_sampling()->add_logit_bias()->set_token_id(i);
  }
  request.mutable_eviction()->mutable_policy()->mutable_snapkv()->set_window(3);
  for (const uint32_t token : {1u, 0x7fffffffu}) {
    request.clear_prompt_token_ids();
    for (int i = 0; i < (1 << 20) + 1; ++i) request.add_prompt_token_ids(token);
    ExpectTaken(request);
  }
}

TEST(RawMessagesTest, TakesTheMostThatAnEngineMayAnswer) {
  v1::EngineMessage message;
  message.set_epoch(1);
  for (int i = 0; i < 1000; ++i) {
    v1::EvictionOutcome* outcome = message.mutable_result()->add_evictions();
    for (int j = 0; j < 80 * 8; ++j) outcome->add_counts(1);
    message.mutable_result()->add_sampled(-1);
    message.mutable_result()->add_token_data("");
    v1::RunLogProbs* rows = message.mutable_result()->add_logprobs();
    rows->set_run(i);
    for (int j = 0; j < 8 * 21; ++j) {
      rows->mutable_prompt()->add_token_ids(300);
      rows->mutable_prompt()->add_logprobs(-1);
    }
  }
  ExpectTaken(message, {.max_bytes = int64_t{16} << 20,
                        .allowance_bytes = int64_t{16} << 20});
}

TEST(RawMessagesTest, TakesScoresAndBudgets) {
  v1::EvictByScoresRequest scores;
  for (int i = 0; i < (1 << 18); ++i) scores.add_scores(0.5F);
  ExpectTaken(scores);
  v1::EvictByScoresRequest header;
  header.mutable_header()->set_request_id("r");
  header.mutable_header()->mutable_policy()->mutable_external_budgets();
  for (int i = 0; i < 80 * 128; ++i) {
    header.mutable_header()->add_budgets(i % 9);
  }
  ExpectTaken(header);
}

// Senders may say an array in pieces, and number by number.
TEST(RawMessagesTest, TakesArraysHoweverTheyAreSaid) {
  std::string text = Delimited(1, "session");
  v1::SubmitRequest expected;
  expected.set_client_session("session");
  for (uint32_t i = 0; i < 9000; ++i) {
    const bool alone = i % 3 == 0;
    const uint32_t token = i * 99;
    text += alone ? Tag(3, 0) + Varint(token)
                  : Delimited(3, Varint(token) + Varint(i));
    expected.add_prompt_token_ids(token);
    if (!alone) expected.add_prompt_token_ids(i);
  }
  v1::SubmitRequest parsed;
  ASSERT_OK(ParseMessage(Slices(text, 11), kLarge, &parsed));
  EXPECT_EQ(parsed.SerializeAsString(), expected.SerializeAsString());
}

TEST(RawMessagesTest, ReplacesWhatWasThere) {
  v1::CancelRequest request;
  request.set_request_id("before");
  ASSERT_OK(ParseMessage(Bytes(""), {}, &request));
  EXPECT_EQ(request.request_id(), "");
}

TEST(RawMessagesTest, NamesTheTypeOfWhatIsNone) {
  v1::CancelRequest request;
  // No end of a varint; longer than the message; not UTF-8; no field number.
  for (const std::string& text :
       {std::string("\xFF\xFF"), std::string("\x0A\x05x"),
        std::string("\x0A\x01\xFF"), std::string("\x00\x01", 2),
        // The same in what is looked at twice.
        Delimited(1, std::string(60000, 'x')) + "\x0A\x05x",
        Delimited(1, std::string(60000, 'x')) + "\x0A\x01\xFF"}) {
    EXPECT_THAT(ParseMessage(Bytes(text), {}, &request),
                IsInvalid("CancelRequest: expected a message of this type"))
        << text.size();
  }
  EXPECT_THAT(ParseMessage(grpc::ByteBuffer(), {}, &request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "CancelRequest: expected a message, got none"));
}

TEST(RawMessagesTest, TheLimitOfBytesIsExact) {
  v1::CancelRequest request;
  request.set_request_id("12345678");
  const std::string text = request.SerializeAsString();
  EXPECT_OK(ParseMessage(Bytes(text), {.max_bytes = 10}, &request));
  EXPECT_THAT(ParseMessage(Bytes(text), {.max_bytes = 9}, &request),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "CancelRequest: expected at most 9 bytes, got 10"));
}

TEST(RawMessagesTest, ToBytesIsTheMessage) {
  v1::CancelRequest request;
  request.set_request_id("r");
  v1::CancelRequest parsed;
  ASSERT_OK(ParseMessage(ToBytes(request), {}, &parsed));
  EXPECT_EQ(parsed.request_id(), "r");
  EXPECT_TRUE(ToBytes(v1::CancelRequest()).Valid());
}

}  // namespace
}  // namespace blockmgr
