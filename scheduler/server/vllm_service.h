// VllmService: the service by which gateways use an engine of vLLM
// (proto/vllm/grpc/engine.proto), for frontends that know nothing of blockmgr.
//
// The messages have no field for some settings of a request, above all its
// eviction. Such a setting has the daemon's default, unless the metadata of the
// call set it (GenerateOptions).
//
// Threads: thread-safe. The CoreThread must outlive every call.
#ifndef SCHEDULER_SERVER_VLLM_SERVICE_H_
#define SCHEDULER_SERVER_VLLM_SERVICE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "blockmgr/served_model.h"
#include "proto/vllm/grpc/engine.grpc.pb.h"
#include "scheduler/server/call_limit.h"
#include "scheduler/server/core_thread.h"
#include "scheduler/server/prefix_cache_watches.h"
#include "scheduler/server/token_rate.h"
#include "scheduler/server/worker.h"

namespace blockmgr {

using VllmEngine = vllm::grpc::engine::VllmEngine;

// Methods that are not overridden answer with UNIMPLEMENTED.
template <typename Base>
using WithUnsupported = VllmEngine::WithRawCallbackMethod_Embed<
    VllmEngine::WithRawCallbackMethod_StartProfile<
        VllmEngine::WithRawCallbackMethod_StopProfile<Base>>>;
template <typename Base>
using WithCalls = VllmEngine::WithRawCallbackMethod_Generate<
    VllmEngine::WithRawCallbackMethod_Abort<Base>>;
template <typename Base>
using WithFacts = VllmEngine::WithRawCallbackMethod_GetModelInfo<
    VllmEngine::WithRawCallbackMethod_GetServerInfo<
        VllmEngine::WithRawCallbackMethod_GetTokenizer<Base>>>;
template <typename Base>
using WithState = VllmEngine::WithRawCallbackMethod_HealthCheck<
    VllmEngine::WithRawCallbackMethod_GetLoads<Base>>;
template <typename Base>
using WithCache = VllmEngine::WithRawCallbackMethod_FlushCache<
    VllmEngine::WithRawCallbackMethod_SubscribeKvEvents<Base>>;

// Computes the digest of the tokenizer that an engine has announced, once for
// each model. Thread-compatible.
class TokenizerDigest {
 public:
  const std::string& Of(const std::shared_ptr<const ServedModel>& model);

 private:
  std::weak_ptr<const ServedModel> model_;  // the model of digest_
  std::string digest_;
};

class VllmService final
    : public WithUnsupported<
          WithCalls<WithFacts<WithState<WithCache<VllmEngine::Service>>>>> {
 public:
  struct Options {
    int64_t max_pending_bytes = 0;  // the limit of RequestService
    // The MessageLimits of a GenerateRequest.
    int64_t max_generate_bytes = 0;
    int64_t generate_allowance_bytes = 0;
    int32_t max_num_seqs = 0;
  };
  // `watches` must outlive every call, too.
  VllmService(CoreThread* core, PrefixCacheWatches* watches,
              const Options& options)
      : core_(core),
        watches_(watches),
        options_(options),
        start_(std::chrono::steady_clock::now()) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* HealthCheck(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* FlushCache(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetTokenizer(
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* SubscribeKvEvents(
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request) override;

 private:
  CoreThread* const core_;
  PrefixCacheWatches* const watches_;
  const Options options_;
  const std::chrono::steady_clock::time_point start_;
  std::atomic<uint64_t> num_calls_{0};  // calls of Generate
  TokenRate rate_;
  CallLimit flushes_{"FlushCache", 16};
  CallLimit tokenizers_{"GetTokenizer", 16};
  // This limit is low, because a stream may hold a copy of all that the prefix
  // cache has, until its client has read it.
  CallLimit subscriptions_{"SubscribeKvEvents", 8};
  TokenizerDigest tokenizer_digest_;  // used by tokenizer_worker_ only
  Worker worker_;  // makes and writes the messages of token streams
  // Makes and writes the messages of tokenizers, which takes longer.
  Worker tokenizer_worker_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_VLLM_SERVICE_H_
