#include "scheduler/server/request_service.h"

#include <memory>
#include <string>
#include <utility>

#include <google/protobuf/message.h>

#include "blockmgr/base/status_macros.h"
#include "scheduler/eviction_requests.h"
#include "scheduler/server/grpc_status.h"
#include "scheduler/server/peer_text.h"
#include "scheduler/server/raw_messages.h"
#include "scheduler/server/token_stream.h"
#include "wire/request_wire.h"
#include "wire/sampling_wire.h"

namespace blockmgr {
namespace {

// A batch takes no more tokens at this size. Clients accept messages of 4 MiB
// by default.
constexpr int64_t kMaxBatchBytes = int64_t{1} << 20;

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kFailed:
      break;
  }
  return v1::FINISH_REASON_FAILED;
}

// ClientStream is the token stream of one client.
class ClientStream final : public TokenStream {
 public:
  ClientStream(CoreThread* core, Worker* worker, std::string session,
               int64_t max_pending_bytes)
      : TokenStream(core, worker, std::move(session), max_pending_bytes,
                    /*writes_at_end=*/false) {}

  // Ends the stream at once if `status` is an error or the session's id is
  // invalid.
  void Start(absl::Status status) {
    Begin();
    status.Update(CheckId("client_session", session()));
    if (!status.ok()) {
      End(ToGrpc(status));
      return;
    }
    const auto self =
        std::static_pointer_cast<ClientStream>(shared_from_this());
    core()->Post(
        OpenClient{session(), self, [self](const absl::Status& opened) {
                     // The first message is empty. It says that the stream is
                     // open.
                     self->OnOpened(opened, &self->message_);
                   }});
  }

 private:
  const google::protobuf::Message* NextMessage() override {
    if (!has_entry()) return nullptr;
    message_.Clear();
    ++num_messages_;
    int64_t bytes = 0;
    while (has_entry() && bytes < kMaxBatchBytes) {
      bytes += BytesOf(entry());
      Add(entry());
      PopEntry();
    }
    return &message_;
  }

  void Add(const Entry& entry) {
    RequestStream& stream = *entry.stream;
    if (stream.batch != num_messages_) {
      stream.batch = num_messages_;
      stream.chunk = message_.chunks_size();
      v1::TokenChunk* added = message_.add_chunks();
      added->set_request_id(stream.id);
      added->set_first_index(entry.index);
    }
    v1::TokenChunk* chunk = message_.mutable_chunks(stream.chunk);
    if (entry.logprobs != nullptr) {
      ToProto(entry.logprobs->logprobs, entry.logprobs->of_prompt
                                            ? chunk->add_prompt_logprobs()
                                            : chunk->add_logprobs());
      return;
    }
    if (entry.finish == nullptr) {
      chunk->add_tokens(static_cast<uint32_t>(entry.token));
      if (entry.data != nullptr) {
        v1::TokenData* data = chunk->add_token_data();
        data->set_index(entry.index);
        data->set_data(*entry.data);
      }
      return;
    }
    const FinishEffect& finish = *entry.finish;
    if (chunk->tokens().empty()) {
      chunk->set_first_index(finish.num_output_tokens);
    }
    chunk->set_finish_reason(ToProto(finish.reason));
    if (finish.stop.has_value()) chunk->set_stop(*finish.stop);
    chunk->set_error(Shorten(finish.status.message()));
    chunk->set_num_cached_tokens(finish.num_cached_tokens);
    chunk->set_num_preemptions(finish.num_preemptions);
  }

  // Used by the thread that has set busy_ of TokenStream.
  v1::TokenBatch message_;
  uint64_t num_messages_ = 0;
};

}  // namespace

grpc::ServerUnaryReactor* RequestService::Submit(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<v1::SubmitRequest>(
      context, *request, {.max_bytes = max_submit_bytes_},
      [this, response](const v1::SubmitRequest& submit,
                       grpc::ServerUnaryReactor* reactor) -> absl::Status {
        BM_ASSIGN_OR_RETURN(Request parsed, FromProto(submit));
        if (const std::string warning = SharingWarning(parsed.eviction);
            !warning.empty()) {
          sharing_.Warn(ForLog(warning));
        }
        core_->Post(SubmitCommand{
            submit.client_session(), std::move(parsed),
            [reactor, response](const absl::Status& status) {
              Answer(reactor, NamePrompt(status, "prompt_token_ids"),
                     v1::SubmitResponse(), response);
            },
            // A fork takes over the evictions of its parent.
            !submit.has_eviction() && submit.fork_of().empty()});
        return absl::OkStatus();
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RequestService::StreamTokens(
    grpc::CallbackServerContext* /*context*/, const grpc::ByteBuffer* request) {
  v1::StreamTokensRequest parsed;
  const absl::Status status = ParseMessage(*request, {}, &parsed);
  const auto stream = std::make_shared<ClientStream>(
      core_, &worker_, parsed.client_session(), max_pending_bytes_);
  stream->Start(status);
  return stream.get();
}

grpc::ServerUnaryReactor* RequestService::Cancel(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<v1::CancelRequest>(
      context, *request, {},
      [this, response](const v1::CancelRequest& cancel,
                       grpc::ServerUnaryReactor* reactor) -> absl::Status {
        BM_RETURN_IF_ERROR(CheckId("request_id", cancel.request_id()));
        core_->Post(CancelCommand{
            cancel.request_id(), [reactor, response](const absl::Status& s) {
              Answer(reactor, s, v1::CancelResponse(), response);
            }});
        return absl::OkStatus();
      });
}

}  // namespace blockmgr
