// Our messages for gateways against a list of those that gateways have.
#include <fstream>
#include <set>
#include <string>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "proto/vllm/grpc/engine.pb.h"

namespace blockmgr {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

// Collects the lines of a service and of what it uses.
class Lister {
 public:
  void AddService(const ServiceDescriptor& service) {
    for (int i = 0; i < service.method_count(); ++i) {
      const MethodDescriptor& method = *service.method(i);
      AddMessage(*method.input_type());
      AddMessage(*method.output_type());
      EXPECT_FALSE(method.client_streaming());
      lines_.insert(absl::StrCat("method ", method.name(), " ",
                                 method.input_type()->full_name(), " ",
                                 method.output_type()->full_name(),
                                 method.server_streaming() ? " streams" : ""));
    }
  }
  const std::set<std::string>& lines() const { return lines_; }

 private:
  void AddEnum(const EnumDescriptor& type) {
    for (int i = 0; i < type.value_count(); ++i) {
      lines_.insert(absl::StrCat("enum ", type.full_name(), " ",
                                 type.value(i)->number(), " ",
                                 type.value(i)->name()));
    }
  }
  void AddMessage(const Descriptor& message) {
    const std::string line = absl::StrCat("message ", message.full_name());
    if (!lines_.insert(line).second) return;
    for (int i = 0; i < message.field_count(); ++i) {
      AddField(message, *message.field(i));
    }
  }
  void AddField(const Descriptor& message, const FieldDescriptor& field) {
    std::string type = field.type_name();
    if (field.message_type() != nullptr) {
      type = field.message_type()->full_name();
      AddMessage(*field.message_type());
    }
    if (field.enum_type() != nullptr) {
      type = field.enum_type()->full_name();
      AddEnum(*field.enum_type());
    }
    const bool is_optional =
        field.has_optional_keyword() && field.message_type() == nullptr;
    // C++ has no field of the name "descriptor".
    const std::string name =
        field.name() == "descriptor_bytes" ? field.json_name() : field.name();
    lines_.insert(absl::StrCat(
        "field ", message.full_name(), " ", field.number(), " ", name, " ",
        field.is_repeated() ? "repeated"
        : is_optional       ? "optional"
                            : "singular",
        " ", type,
        field.real_containing_oneof() == nullptr
            ? ""
            : " in " + field.real_containing_oneof()->name()));
  }

  std::set<std::string> lines_;
};

std::set<std::string> CommittedLines() {
  std::ifstream file(VLLM_MESSAGES_PATH);
  std::set<std::string> lines;
  std::string line;
  while (std::getline(file, line)) {
    if (!absl::StartsWith(line, "#")) lines.insert(line);
  }
  return lines;
}

TEST(VllmMessagesTest, AreThoseOfGateways) {
  const std::set<std::string> expected = CommittedLines();
  EXPECT_GT(expected.size(), 300u);
  Lister lister;
  lister.AddService(*vllm::grpc::engine::GenerateRequest::descriptor()
                         ->file()
                         ->FindServiceByName("VllmEngine"));
  for (const std::string& line : expected) {
    EXPECT_TRUE(lister.lines().contains(line)) << "missing: " << line;
  }
  for (const std::string& line : lister.lines()) {
    EXPECT_TRUE(expected.contains(line)) << "not theirs: " << line;
  }
}

}  // namespace
}  // namespace blockmgr
