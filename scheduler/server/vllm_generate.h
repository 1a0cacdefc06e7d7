// GenerateStream: one call of vllm.grpc.engine.VllmEngine.Generate.
#ifndef SCHEDULER_SERVER_VLLM_GENERATE_H_
#define SCHEDULER_SERVER_VLLM_GENERATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <google/protobuf/message.h>

#include "proto/vllm/grpc/engine.pb.h"
#include "scheduler/request.h"
#include "scheduler/server/token_stream.h"
#include "wire/vllm_wire.h"

namespace blockmgr {

// A call has a session of its own, so its end cancels its requests. Each answer
// ends with a complete message, and the call ends with the last answer. The
// call ends with an error in three cases: one of its requests fails; its
// answers take more than max_pending_bytes while they wait to be sent; or the
// engine leaves out the log-probabilities of a token between others.
class GenerateStream final : public TokenStream {
 public:
  // No other call has this `session`. The call ends at once if `call` is an
  // error.
  GenerateStream(CoreThread* core, Worker* worker, std::string session,
                 int64_t max_pending_bytes,
                 const absl::StatusOr<GenerateCall>& call);
  void Start(absl::StatusOr<GenerateCall> call);

 private:
  // One answer of the call, as far as it has come.
  struct Answer {
    std::vector<int32_t> outputs;
    // The log-probabilities of outputs from index first_row on. Rows are
    // removed when they are put into a message.
    int32_t first_row = 0;
    TokenLogProbs rows;
    // The answer has ended, and its complete message is due.
    bool has_ended = false;
    FinishEffect finish;
  };

  const google::protobuf::Message* NextMessage() override;
  bool IsComplete() const override { return num_ended_ == answers_.size(); }

  // Returns the bytes that all answers hold for messages to come.
  int64_t HeldBytes() const;
  // Returns whether the chunk at hand of a stream tells the log-probabilities
  // of the prompt. LimitAnswer (vllm_wire.cc) leaves room for one output beside
  // them.
  bool TellsPrompt(int32_t index) const {
    return index == 0 && next_output_ == 0 && !prompt_.empty();
  }
  // Takes the next entries, as long as they belong to this answer and a chunk
  // has room for them. The entry that ends the answer stays.
  void TakeEntries(int32_t index, Answer* answer);
  void FillChunk(int32_t index, Answer* answer);
  void FillComplete(int32_t index, Answer* answer);
  // Moves the log-probabilities of outputs [first_row, end) into the message.
  void TakeRows(size_t end, Answer* answer,
                vllm::grpc::engine::OutputLogProbs* proto);
  void TakePromptRows(vllm::grpc::engine::InputLogProbs* proto);

  // Constant.
  const bool streams_;
  std::vector<int32_t> prompt_;          // empty without prompt_logprobs
  std::vector<int32_t> stop_token_ids_;  // ascending
  std::vector<std::string> stop_;        // stop strings
  uint32_t num_prompt_tokens_ = 0;

  // The worker.
  std::vector<Answer> answers_;
  TokenLogProbs prompt_rows_;  // rows of the prompt that are not told yet
  bool lacks_rows_ = false;    // an engine has left out some rows
  size_t num_ended_ = 0;       // answers whose complete message was made
  // The index of the first output of the answer at hand that is in no chunk
  // yet.
  size_t next_output_ = 0;
  vllm::grpc::engine::GenerateResponse message_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_VLLM_GENERATE_H_
