// Visitors that read and write fields of a message by their names, for structs
// whose members have rows under the same names: policies (policy_fields.h),
// EngineAbilities and RequestEviction.
#ifndef WIRE_MESSAGE_FIELDS_H_
#define WIRE_MESSAGE_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include <absl/status/status.h>
#include <absl/strings/string_view.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/eviction/policy_fields.h"

namespace blockmgr {

// Returns the field of a name. REQUIRES: the message has it.
inline const google::protobuf::FieldDescriptor* FieldOf(
    const google::protobuf::Message& message, absl::string_view name) {
  const google::protobuf::FieldDescriptor* field =
      message.GetDescriptor()->FindFieldByName(std::string(name));
  BM_CHECK(field != nullptr);
  return field;
}

// Reads the fields that are set. The other values stay as they are.
class MessageReader {
 public:
  // Enums with unknown values set `status`, which names `stage` and the field.
  // Rows without enums need neither.
  explicit MessageReader(const google::protobuf::Message& message,
                         absl::string_view stage = "",
                         absl::Status* status = nullptr)
      : message_(message),
        fields_(*message.GetReflection()),
        stage_(stage),
        status_(status) {}

  void Int(absl::string_view name, int32_t& value, const auto&... /*rest*/) {
    Get(name, &Reflection::GetInt32, &value);
  }
  void Number(absl::string_view name, int32_t& value, const auto&... /*rest*/) {
    Int(name, value);
  }
  void Real(absl::string_view name, double& value, const auto&... /*rest*/) {
    Get(name, &Reflection::GetDouble, &value);
  }
  void Bool(absl::string_view name, bool& value, const auto&... /*rest*/) {
    Get(name, &Reflection::GetBool, &value);
  }
  void Text(absl::string_view name, std::string& value) {
    Get(name, &Reflection::GetString, &value);
  }
  // The values of the message's enum have the numbers of E.
  template <typename E>
  void Enum(absl::string_view name, E& value) {
    int number = static_cast<int>(value);
    Get(name, &Reflection::GetEnumValue, &number);
    if (number >= 0 && static_cast<size_t>(number) < EnumNames<E>().size()) {
      value = static_cast<E>(number);
    } else if (status_->ok()) {
      *status_ = Invalid(stage_, ".", name, ": unknown value ", number);
    }
  }

 private:
  using Reflection = google::protobuf::Reflection;

  template <typename Getter, typename T>
  void Get(absl::string_view name, Getter getter, T* value) const {
    const auto* field = FieldOf(message_, name);
    if (!fields_.HasField(message_, field)) return;
    *value = (fields_.*getter)(message_, field);
  }

  const google::protobuf::Message& message_;
  const Reflection& fields_;
  absl::string_view stage_;
  absl::Status* status_;
};

class MessageWriter {
 public:
  explicit MessageWriter(google::protobuf::Message* message)
      : message_(message), fields_(*message->GetReflection()) {}

  void Int(absl::string_view name, int32_t value, const auto&... /*rest*/) {
    fields_.SetInt32(message_, FieldOf(*message_, name), value);
  }
  void Number(absl::string_view name, int32_t value, const auto&... /*rest*/) {
    Int(name, value);
  }
  void Real(absl::string_view name, double value, const auto&... /*rest*/) {
    fields_.SetDouble(message_, FieldOf(*message_, name), value);
  }
  void Bool(absl::string_view name, bool value, const auto&... /*rest*/) {
    fields_.SetBool(message_, FieldOf(*message_, name), value);
  }
  void Text(absl::string_view name, const std::string& value) {
    fields_.SetString(message_, FieldOf(*message_, name), value);
  }
  template <typename E>
  void Enum(absl::string_view name, E value) {
    fields_.SetEnumValue(message_, FieldOf(*message_, name),
                         static_cast<int>(value));
  }

 private:
  google::protobuf::Message* message_;
  const google::protobuf::Reflection& fields_;
};

}  // namespace blockmgr

#endif  // WIRE_MESSAGE_FIELDS_H_
