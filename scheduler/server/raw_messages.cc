#include "scheduler/server/raw_messages.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/reflection.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"

namespace blockmgr {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::io::CodedInputStream;
using WireFormat = google::protobuf::internal::WireFormatLite;

// The overhead of a part that is allocated by itself: malloc's own bytes, and
// the part's pointer in an array that is copied whenever its size doubles.
constexpr int64_t kPartBytes = 48;
// The memory of a field that this version does not know. Protobuf keeps such
// fields in an array of values.
constexpr int64_t kUnknownBytes = 96;
// The most memory that one received byte can need. The largest part needs less
// than twice as much, and has at least two bytes.
constexpr int64_t kMostPerByte = 128;

int64_t ElementBytes(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return 8;
    case FieldDescriptor::CPPTYPE_BOOL:
      return 1;
    default:
      return 4;
  }
}

// Counter counts the memory of a message's parts, and the numbers in its
// arrays. MakeRoom then allocates each array at once. Protobuf itself would
// double the arrays again and again.
class Counter {
 public:
  // The count stops when it exceeds `most_bytes`.
  Counter(CodedInputStream* input, int64_t most_bytes)
      : input_(input), most_bytes_(most_bytes) {}

  // Returns false if the bytes are no such message. The parser then fails, too.
  // `message` is the message that will be parsed. It is null if a field has
  // several messages of the type.
  bool Count(const Descriptor& type, Message* message) {
    // The depth of groups. No field in a group is known.
    int64_t depth = 0;
    while (const uint32_t tag = input_->ReadTag()) {
      if (is_too_much()) return true;
      const WireFormat::WireType wire = WireFormat::GetTagWireType(tag);
      if (wire == WireFormat::WIRETYPE_START_GROUP) ++depth;
      if (wire == WireFormat::WIRETYPE_END_GROUP) --depth;
      const FieldDescriptor* const field =
          depth > 0
              ? nullptr
              : type.FindFieldByNumber(WireFormat::GetTagFieldNumber(tag));
      const bool good = wire == WireFormat::WIRETYPE_LENGTH_DELIMITED
                            ? CountDelimited(field, message)
                            : CountNumber(wire, field, message);
      if (!good) return false;
    }
    return true;
  }

  bool is_too_much() const { return bytes_ > most_bytes_; }
  void MakeRoom() const {
    for (const auto& [array, count] : counts_) {
      Reserve(array.first, *array.second, static_cast<int>(count));
    }
  }

 private:
  void AddNumbers(const FieldDescriptor& field, Message* message,
                  int64_t count) {
    const int64_t bytes = count * ElementBytes(field);
    if (message == nullptr) {
      // An array was doubled, and the smaller array was allocated before.
      bytes_ += 3 * bytes;
    } else {
      bytes_ += bytes;
      counts_[{message, &field}] += count;
    }
  }
  int64_t SizeOf(const Descriptor& type) {
    int64_t& size = sizes_[&type];
    if (size == 0) {
      size = static_cast<int64_t>(MessageFactory::generated_factory()
                                      ->GetPrototype(&type)
                                      ->SpaceUsedLong());
    }
    return size;
  }
  static WireFormat::WireType WireOf(const FieldDescriptor& field) {
    return WireFormat::WireTypeForFieldType(
        static_cast<WireFormat::FieldType>(field.type()));
  }

  bool CountNumber(WireFormat::WireType wire, const FieldDescriptor* field,
                   Message* message) {
    if (field == nullptr || wire != WireOf(*field)) {
      bytes_ += kUnknownBytes;
    } else if (field->is_repeated()) {
      AddNumbers(*field, message, 1);
    }
    uint64_t varint = 0;
    switch (wire) {
      case WireFormat::WIRETYPE_VARINT:
        return input_->ReadVarint64(&varint);
      case WireFormat::WIRETYPE_FIXED32:
        return input_->Skip(4);
      case WireFormat::WIRETYPE_FIXED64:
        return input_->Skip(8);
      case WireFormat::WIRETYPE_START_GROUP:
      case WireFormat::WIRETYPE_END_GROUP:
        return true;
      default:
        return false;
    }
  }

  bool CountDelimited(const FieldDescriptor* field, Message* message) {
    uint32_t length = 0;
    if (!input_->ReadVarint32(&length)) return false;
    const int left = input_->BytesUntilLimit();
    if (left >= 0 && length > static_cast<uint32_t>(left)) return false;
    if (field != nullptr && field->message_type() != nullptr) {
      return CountPart(*field, static_cast<int>(length), message);
    }
    if (field != nullptr && field->is_packable()) {
      const CodedInputStream::Limit outer =
          input_->PushLimit(static_cast<int>(length));
      int64_t count = 0;
      const bool good = CountPacked(*field, length, &count);
      input_->PopLimit(outer);
      AddNumbers(*field, message, count);
      return good;
    }
    bytes_ += static_cast<int64_t>(sizeof(std::string)) + kPartBytes + length;
    if (field == nullptr ||
        WireOf(*field) != WireFormat::WIRETYPE_LENGTH_DELIMITED) {
      bytes_ += kUnknownBytes;
    }
    return input_->Skip(static_cast<int>(length));
  }

  bool CountPart(const FieldDescriptor& field, int length, Message* message) {
    const Descriptor& type = *field.message_type();
    // The part may need an array besides itself.
    bytes_ += 2 * kPartBytes + SizeOf(type);
    if (!input_->IncrementRecursionDepth()) return false;
    // The message of a part that later parts of the same field are merged into.
    // Null for other parts.
    Message* const part =
        message == nullptr || field.is_repeated() ||
                field.containing_oneof() != nullptr
            ? nullptr
            : message->GetReflection()->MutableMessage(message, &field);
    const CodedInputStream::Limit outer = input_->PushLimit(length);
    const bool good = Count(type, part);
    input_->PopLimit(outer);
    input_->DecrementRecursionDepth();
    return good;
  }

  bool CountPacked(const FieldDescriptor& field, int64_t length,
                   int64_t* count) {
    switch (WireOf(field)) {
      case WireFormat::WIRETYPE_FIXED32:
        *count += length / 4;
        return input_->Skip(static_cast<int>(length));
      case WireFormat::WIRETYPE_FIXED64:
        *count += length / 8;
        return input_->Skip(static_cast<int>(length));
      default:
        break;
    }
    // The last byte of a varint is below 0x80.
    const void* data = nullptr;
    int size = 0;
    while (input_->BytesUntilLimit() > 0) {
      if (!input_->GetDirectBufferPointer(&data, &size)) return false;
      size = std::min(size, input_->BytesUntilLimit());
      const auto* const bytes = static_cast<const uint8_t*>(data);
      for (int i = 0; i < size; ++i) *count += bytes[i] < 0x80 ? 1 : 0;
      input_->Skip(size);
    }
    return true;
  }

  static void Reserve(Message* message, const FieldDescriptor& field,
                      int count) {
    const google::protobuf::Reflection& access = *message->GetReflection();
    // The function is deprecated, but its successor cannot make room.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    const auto reserve = [&]<typename Number>(Number /*type*/) {
      access.MutableRepeatedField<Number>(message, &field)->Reserve(count);
    };
#pragma GCC diagnostic pop
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
      case FieldDescriptor::CPPTYPE_ENUM:
        return reserve(int32_t{});
      case FieldDescriptor::CPPTYPE_UINT32:
        return reserve(uint32_t{});
      case FieldDescriptor::CPPTYPE_INT64:
        return reserve(int64_t{});
      case FieldDescriptor::CPPTYPE_UINT64:
        return reserve(uint64_t{});
      case FieldDescriptor::CPPTYPE_FLOAT:
        return reserve(float{});
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return reserve(double{});
      default:
        // Our messages have no such arrays.
        return;
    }
  }

  CodedInputStream* const input_;
  const int64_t most_bytes_;
  int64_t bytes_ = 0;
  // The sizes of messages without content.
  std::map<const Descriptor*, int64_t> sizes_;
  // The lengths of arrays, for messages that occur once.
  std::map<std::pair<Message*, const FieldDescriptor*>, int64_t> counts_;
};

absl::Status NotSuch(const Descriptor& type) {
  return Invalid(
      type.name(),
      ": expected a message of this type, whose strings are UTF-8, got bytes "
      "that are none");
}

// Makes room in `message`. Returns an error if the message would need too much
// memory.
absl::Status CheckMemory(grpc::ByteBuffer* bytes, const MessageLimits& limits,
                         Message* message) {
  const Descriptor& type = *message->GetDescriptor();
  const auto size = static_cast<int64_t>(bytes->Length());
  if (size * kMostPerByte <= limits.allowance_bytes) return absl::OkStatus();
  grpc::ProtoBufferReader reader(bytes);
  CodedInputStream input(&reader);
  const CodedInputStream::Limit all = input.PushLimit(static_cast<int>(size));
  const int64_t most = kMaxAmplification * size + limits.allowance_bytes;
  Counter counter(&input, most);
  if (!counter.Count(type, message)) return NotSuch(type);
  input.PopLimit(all);
  if (counter.is_too_much()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(type.name(), ": expected parts that take at most ", most,
                     " bytes of memory, got ", size,
                     " bytes of some that take "
                     "more"));
  }
  counter.MakeRoom();
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseMessage(grpc::ByteBuffer bytes, const MessageLimits& limits,
                          Message* message) {
  const Descriptor& type = *message->GetDescriptor();
  if (!bytes.Valid()) {
    return Invalid(type.name(), ": expected a message, got none");
  }
  const auto size = static_cast<int64_t>(bytes.Length());
  if (size > limits.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(type.name(), ": expected at most ", limits.max_bytes,
                     " bytes, got ", size));
  }
  message->Clear();
  absl::Status fits = CheckMemory(&bytes, limits, message);
  if (!fits.ok()) return fits;
  grpc::ProtoBufferReader reader(&bytes);
  CodedInputStream input(&reader);
  // ParseFrom is not used: it clears the message, and may free its room.
  if (reader.status().ok() && message->MergeFromCodedStream(&input) &&
      input.ConsumedEntireMessage()) {
    return absl::OkStatus();
  }
  return NotSuch(type);
}

grpc::ByteBuffer ToBytes(const Message& message) {
  grpc::ByteBuffer bytes;
  bool owns = false;
  // GenericSerialize fails only for messages of 2 GiB, and no message of the
  // daemon comes near that.
  const grpc::Status status =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, Message>(message, &bytes,
                                                               &owns);
  BM_CHECK(status.ok());
  return bytes;
}

}  // namespace blockmgr
