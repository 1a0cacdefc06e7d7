// ForwardPass: the part of a forward pass that works on rows, one row per
// token. The caller does attention and keeps the cache:
//
//   Begin
//   for each layer:
//     Project
//     <the caller appends keys and values to the cache, and attends with the
//      queries: host_rows(), or rows() of device()>
//     Finish
//   ComputeLogits, then Logits, or DrawTokens of device()
//
// ModelForward computes on the CPU, DeviceForward on a GPU. The result of a row
// does not depend on the other rows, bit for bit; DeviceForward names an
// exception. Thread-compatible.
#ifndef ENGINE_REFERENCE_FORWARD_PASS_H_
#define ENGINE_REFERENCE_FORWARD_PASS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "kernels/cuda/layers/token_draws.h"

namespace blockmgr {

class DeviceRuntime;
class ThreadPool;

// The rows of the last Project in host memory.
struct HostRows {
  std::span<const float> queries;      // after RoPE, [rows, q_width]
  std::span<const float> raw_queries;  // before RoPE, [rows, q_width]
  std::span<const float> keys;         // [rows, kv_width]
  std::span<const float> values;       // [rows, kv_width]
  std::span<float> attention;          // [rows, q_width]
  ThreadPool* threads = nullptr;       // for attention; null means none
};

// A shard's part of the rows of the last Project in device memory, in the
// pool's elements.
struct DeviceRows {
  const void* queries = nullptr;  // after RoPE, [rows, q_width of the shard]
  const void* keys = nullptr;     // rows of one head after another
  const void* values = nullptr;
  int64_t kv_stride = 0;  // bytes from one row's keys, or values, to the next
  void* attention = nullptr;  // [rows, q_width of the shard]
};

// DevicePass has the functions of a pass on a device that come on top of
// ForwardPass. The functions that copy or draw wait for the device.
class DevicePass {
 public:
  virtual ~DevicePass() = default;

  // Returns what computes matrix products, for people.
  virtual const std::string& products() const = 0;
  // Returns the device. Its timer runs at most until the last draw.
  virtual DeviceRuntime& runtime() = 0;

  // The parts of a pass that a graph can be captured of, instead of Begin and
  // ComputeLogits. PrepareDecode uploads the inputs of a pass of num_rows rows,
  // and makes room, or returns ResourceExhausted. Rows behind the last token
  // are dead: they have token 0, and nobody reads their results. It appends to
  // `arguments` the number of rows, and numbers that are equal for two passes
  // if the rest of the pass passes equal arguments to kernels. Then
  // BeginDecode, Project and Finish of each layer, and FinishDecode only launch
  // kernels. FinishDecode computes the logits after all rows: ComputeLogits for
  // the first rows then has nothing to do.
  virtual absl::Status PrepareDecode(std::span<const int32_t> tokens,
                                     std::span<const int32_t> positions,
                                     int32_t num_rows,
                                     std::vector<uint64_t>* arguments) = 0;
  virtual void BeginDecode() = 0;
  virtual void FinishDecode() = 0;
  // Returns the queries of that pass after RoPE in device memory, [layers,
  // shards, num_rows, q_width of a shard].
  virtual const char* decode_queries() = 0;
  virtual DeviceRows rows(int32_t shard) = 0;
  // Copy a shard's queries of rows [first, first + num_rows) to the host, after
  // or before RoPE, [num_rows, q_width of the shard].
  virtual void CopyQueries(int32_t shard, int32_t first, int32_t num_rows,
                           float* queries) = 0;
  virtual void CopyRawQueries(int32_t shard, int32_t first, int32_t num_rows,
                              float* queries) = 0;
  // Applies the edits to the logits, then draws a token for each of `draws`.
  // Their rows count those of the last ComputeLogits.
  virtual void DrawTokens(std::span<const LogitEdit> edits,
                          std::span<const RowDraw> draws,
                          std::span<int32_t> tokens) = 0;
};

class ForwardPass {
 public:
  virtual ~ForwardPass() = default;

  // Begins a pass over tokens[i] at positions[i].
  virtual void Begin(std::span<const int32_t> tokens,
                     std::span<const int32_t> positions) = 0;
  virtual void Project(int32_t layer) = 0;
  virtual void Finish(int32_t layer) = 0;
  // Computes the logits after these rows of the pass in one product, which is
  // much faster than one by one. `rows` ascends.
  virtual void ComputeLogits(std::span<const size_t> rows) = 0;
  // Returns the logits after one row, [vocabulary]. Computes them now if the
  // last ComputeLogits did not have the row. Valid until the next call of
  // either function. The edits of DrawTokens show.
  virtual std::span<const float> Logits(size_t row) = 0;

  // Returns null if the rows are in host memory.
  virtual DevicePass* device() { return nullptr; }
  // REQUIRES: device() is null.
  virtual HostRows host_rows() = 0;
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_FORWARD_PASS_H_
