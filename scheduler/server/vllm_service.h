// VllmService: the service by which gateways use an engine of vLLM
// (proto/vllm/grpc/engine.proto), for frontends that know nothing of blockmgr.
//
// What its messages have no field for is the daemon's default, above all the
// eviction, unless the metadata of a call say otherwise (GenerateOptions).
//
// Threads: thread-safe. The CoreThread must outlive every call.
#ifndef SCHEDULER_SERVER_VLLM_SERVICE_H_
#define SCHEDULER_SERVER_VLLM_SERVICE_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include <grpcpp/grpcpp.h>

#include "proto/vllm/grpc/engine.grpc.pb.h"
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

class VllmService final
    : public WithUnsupported<
          WithCalls<WithFacts<WithState<WithCache<VllmEngine::Service>>>>> {
 public:
  struct Options {
    int64_t max_pending_bytes = 0;   // as of RequestService
    int64_t max_generate_bytes = 0;  // of a GenerateRequest
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
  std::atomic<uint64_t> num_calls_{0};  // of Generate
  TokenRate rate_;
  Worker worker_;            // makes and writes the messages of token streams
  Worker tokenizer_worker_;  // the same for tokenizers, which takes longer
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_VLLM_SERVICE_H_
