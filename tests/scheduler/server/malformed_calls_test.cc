// What every method answers to bytes that are no such message.
#include <future>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include "proto/vllm/grpc/engine.pb.h"
#include "tests/scheduler/server/server_harness.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

// A call of any kind with one message, or none: on the wire they are alike.
class RawCall final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  RawCall(grpc::GenericStub* stub, const std::string& method,
          const std::string* text) {
    stub->PrepareBidiStreamingCall(&context_, method, {}, this);
    if (text == nullptr) {
      StartWritesDone();
    } else {
      const grpc::Slice slice(*text);
      message_ = grpc::ByteBuffer(&slice, 1);
      StartWriteLast(&message_, {});
    }
    StartRead(&answer_);
    StartCall();
  }
  grpc::Status Wait() { return done_.get_future().get(); }

 private:
  void OnReadDone(bool ok) override {
    if (ok) StartRead(&answer_);
  }
  void OnDone(const grpc::Status& status) override { done_.set_value(status); }

  grpc::ClientContext context_;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer answer_;
  std::promise<grpc::Status> done_;
};

class MalformedCallsTest : public ServerTest {
 protected:
  // Of all services, but for those that answer everything with UNIMPLEMENTED.
  static std::vector<const google::protobuf::MethodDescriptor*> Methods() {
    std::vector<const google::protobuf::MethodDescriptor*> methods;
    for (const auto* file :
         {v1::GetStatsRequest::descriptor()->file(),
          v1::EngineMessage::descriptor()->file(),
          v1::EvictRequest::descriptor()->file(),
          v1::SubmitRequest::descriptor()->file(),
          vllm::grpc::engine::GenerateRequest::descriptor()->file()}) {
      for (int i = 0; i < file->service_count(); ++i) {
        for (int j = 0; j < file->service(i)->method_count(); ++j) {
          const auto* const method = file->service(i)->method(j);
          if (method->name() == "Embed" || method->name() == "StartProfile" ||
              method->name() == "StopProfile") {
            continue;
          }
          methods.push_back(method);
        }
      }
    }
    return methods;
  }
  grpc::Status Call(const google::protobuf::MethodDescriptor& method,
                    const std::string* text) {
    grpc::GenericStub stub(Connect(address()));
    return RawCall(&stub,
                   absl::StrCat("/", method.service()->full_name(), "/",
                                method.name()),
                   text)
        .Wait();
  }
};

TEST_F(MalformedCallsTest, BytesThatAreNoMessageAreInvalidArguments) {
  const auto methods = Methods();
  EXPECT_EQ(methods.size(), 19u);
  for (const auto* method : methods) {
    SCOPED_TRACE(method->full_name());
    // A varint without an end; a field longer than the message.
    for (const std::string& text :
         {std::string("\xFF\xFF\xFF"), std::string("\x0A\x05x")}) {
      EXPECT_THAT(Call(*method, &text),
                  GrpcError(grpc::INVALID_ARGUMENT,
                            method->input_type()->name() +
                                ": expected a message of this type"));
    }
  }
}

TEST_F(MalformedCallsTest, TextThatIsNotUtf8IsAnInvalidArgument) {
  int num_methods = 0;
  for (const auto* method : Methods()) {
    const google::protobuf::Descriptor* type = method->input_type();
    for (int i = 0; i < type->field_count(); ++i) {
      if (type->field(i)->type() !=
          google::protobuf::FieldDescriptor::TYPE_STRING) {
        continue;
      }
      SCOPED_TRACE(type->field(i)->full_name());
      const std::string text = {
          static_cast<char>(type->field(i)->number() << 3 | 2), '\1', '\xFF'};
      EXPECT_THAT(Call(*method, &text),
                  GrpcError(grpc::INVALID_ARGUMENT, "UTF-8"));
      ++num_methods;
    }
  }
  EXPECT_GE(num_methods, 9);
}

TEST_F(MalformedCallsTest, NoMessageAtAllIsAnError) {
  for (const auto* method : Methods()) {
    SCOPED_TRACE(method->full_name());
    const grpc::Status status = Call(*method, nullptr);
    // A stream of nothing is one, and an engine that detaches says no more.
    if (method->name() == "RunSteps") continue;
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT)
        << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("got none"));
  }
}

}  // namespace
}  // namespace blockmgr
