// The weights that a device gets are those of the model, rounded once.
#include "engine/reference/device_weights.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/dtype.h"
#include "engine/reference/tiny_model.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

std::shared_ptr<const LanguageModel> Model(TensorType type, bool tied) {
  return RandomModel(ModelShape{.num_layers = 2,
                                .num_q_heads = 2,
                                .num_heads = 1,
                                .head_dim = 64,
                                .hidden = 48,
                                .mlp = 80,
                                .vocabulary = 50},
                     3, type, tied);
}

constexpr size_t kRowBytes = size_t{48} * 2;  // of matrices of hidden inputs

class DeviceWeightsTest : public DeviceTest {
 protected:
  // Expects the bits of a matrix in device memory.
  void ExpectMatrix(const PackedMatrix& matrix, const void* at,
                    ElementType type) {
    std::vector<uint16_t> bits(static_cast<size_t>(matrix.in()) *
                               static_cast<size_t>(matrix.out()));
    runtime_->Download(std::as_writable_bytes(std::span(bits)),
                       static_cast<const char*>(at));
    std::vector<float> row(static_cast<size_t>(matrix.in()));
    for (int32_t o = 0; o < matrix.out(); ++o) {
      matrix.UnpackRow(o, row);
      for (size_t i = 0; i < row.size(); ++i) {
        const uint16_t expected =
            type == ElementType::kHalf ? ToFloat16(row[i]) : ToBFloat16(row[i]);
        ASSERT_EQ(bits[static_cast<size_t>(o) * row.size() + i], expected);
      }
    }
  }

  std::shared_ptr<DeviceRuntime> runtime_;
  ThreadPool threads_{2};
};

TEST_F(DeviceWeightsTest, AreThoseOfTheModel) {
  runtime_ = MakeTestRuntime(1);
  for (const TensorType type : {TensorType::kF32, TensorType::kBF16}) {
    const auto model = Model(type, false);
    ASSERT_OK_AND_ASSIGN(
        const auto weights,
        DeviceWeights::Create(*model, runtime_.get(), &threads_));
    const ElementType element =
        type == TensorType::kBF16 ? ElementType::kBFloat16 : ElementType::kHalf;
    EXPECT_EQ(weights->type(), element);
    ExpectMatrix(model->weights().embedding, weights->embedding(), element);
    ExpectMatrix(model->head(), weights->head(), element);
    const ModelLayer& layer = model->weights().layers[1];
    const DeviceLayer& on_device = weights->layer(1);
    const auto* projections = static_cast<const char*>(on_device.projections);
    ExpectMatrix(layer.query, projections, element);
    ExpectMatrix(layer.key, projections + kRowBytes * 128, element);
    ExpectMatrix(layer.value, projections + kRowBytes * (128 + 64), element);
    ExpectMatrix(layer.output, on_device.output, element);
    const auto* gate_up = static_cast<const char*>(on_device.gate_up);
    ExpectMatrix(layer.gate, gate_up, element);
    ExpectMatrix(layer.up, gate_up + kRowBytes * 80, element);
    ExpectMatrix(layer.down, on_device.down, element);
    std::vector<float> norm(48);
    runtime_->Download(std::as_writable_bytes(std::span(norm)),
                       reinterpret_cast<const char*>(on_device.mlp_norm));
    EXPECT_EQ(norm, layer.mlp_norm);
    EXPECT_EQ(on_device.bias, nullptr);
    EXPECT_EQ(on_device.query_norm, nullptr);
  }
}

TEST_F(DeviceWeightsTest, ATiedModelHasItsEmbeddingOnce) {
  runtime_ = MakeTestRuntime(1);
  const auto model = Model(TensorType::kBF16, true);
  ASSERT_OK_AND_ASSIGN(
      const auto weights,
      DeviceWeights::Create(*model, runtime_.get(), &threads_));
  EXPECT_EQ(weights->embedding(), weights->head());
}

}  // namespace
}  // namespace blockmgr
