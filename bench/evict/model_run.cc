#include "bench/evict/model_run.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/layer_groups.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy.h"

namespace blockmgr {
namespace {

constexpr int32_t kRunPageSize = 16;
// Enough rows for the matrix products to be fast.
constexpr size_t kPassTokens = 512;

int32_t BlocksOf(int32_t num_tokens) {
  return CeilDiv(num_tokens, kRunPageSize);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRun>> ModelRun::Create(
    const LanguageModel* model, int32_t max_tokens, ThreadPool* threads) {
  BM_CHECK(max_tokens > 0);
  ModelLayout layout = MakeLayout(model->shape(), kRunPageSize, DType::kFloat32,
                                  /*num_blocks=*/0);
  // Block 0 is nobody's.
  layout.num_blocks = layout.num_groups() * BlocksOf(max_tokens) + 1;
  BM_RETURN_IF_ERROR(layout.Validate());
  BM_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                      CreateCpuBackend(layout));
  return std::unique_ptr<ModelRun>(
      new ModelRun(model, max_tokens, threads, std::move(backend)));
}

ModelRun::ModelRun(const LanguageModel* model, int32_t max_tokens,
                   ThreadPool* threads, std::unique_ptr<Backend> backend)
    : model_(*model),
      max_tokens_(max_tokens),
      backend_(std::move(backend)),
      forward_(model, threads) {
  int32_t next = 1;
  for (int32_t group = 0; group < backend_->layout().num_groups(); ++group) {
    std::vector<BlockId>& blocks = blocks_.emplace_back();
    for (int32_t i = 0; i < BlocksOf(max_tokens); ++i) {
      blocks.push_back(BlockId{next++});
    }
  }
}

int32_t ModelRun::Extend(std::span<const int32_t> tokens,
                         const LayerVisitor& visitor) {
  BM_CHECK(!tokens.empty());
  BM_CHECK(tokens.size() <= static_cast<size_t>(max_tokens_ - length_));
  size_t last_row = 0;
  while (!tokens.empty()) {
    const size_t count = std::min(tokens.size(), kPassTokens);
    last_row = Pass(tokens.first(count), visitor);
    tokens = tokens.subspan(count);
  }
  const std::span<const float> logits = forward_.Logits(last_row);
  return static_cast<int32_t>(std::ranges::max_element(logits) -
                              logits.begin());
}

size_t ModelRun::Pass(std::span<const int32_t> tokens,
                      const LayerVisitor& visitor) {
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), length_);
  forward_.Begin(tokens, positions);
  const auto num_rows = static_cast<int32_t>(tokens.size());
  for (int32_t layer = 0; layer < model_.shape().num_layers; ++layer) {
    forward_.Project(layer);
    if (visitor) visitor(layer, length_, forward_);
    Attend(layer, num_rows);
    forward_.Finish(layer);
  }
  length_ += num_rows;
  return tokens.size() - 1;
}

void ModelRun::Attend(int32_t layer, int32_t num_rows) {
  const LayerPlace& place = model_.groups().layers[static_cast<size_t>(layer)];
  const std::vector<BlockId>& blocks =
      blocks_[static_cast<size_t>(place.group)];
  std::vector<int64_t> slots(static_cast<size_t>(num_rows));
  for (int32_t row = 0; row < num_rows; ++row) {
    const int32_t position = length_ + row;
    const BlockId block = blocks[static_cast<size_t>(position / kRunPageSize)];
    slots[static_cast<size_t>(row)] =
        int64_t{Index(block)} * kRunPageSize + position % kRunPageSize;
  }
  backend_->Append({.layer = place.slot,
                    .slot_mapping = slots,
                    .keys = forward_.keys().data(),
                    .values = forward_.values().data()});
  SequenceKv sequence;
  sequence.tail_blocks = blocks.data();
  sequence.tail_length = length_ + num_rows;
  const std::array<int32_t, 2> offsets = {0, num_rows};
  backend_->Attention({.layer = place.slot,
                       .sequences = {&sequence, 1},
                       .query_offsets = offsets,
                       .queries = forward_.queries().data(),
                       .output = forward_.attention().data(),
                       .scale = model_.score_scale(),
                       .window = place.window});
}

void ModelRun::Truncate(int32_t num_tokens) {
  BM_CHECK(num_tokens >= 0);
  BM_CHECK(num_tokens <= length_);
  length_ = num_tokens;
}

std::vector<float> ModelRun::ProjectedSizes(int32_t layer) {
  const ModelShape& shape = model_.shape();
  const ModelLayout& layout = backend_->layout();
  const LayerPlace& place = model_.groups().layers[static_cast<size_t>(layer)];
  const std::vector<BlockId>& blocks =
      blocks_[static_cast<size_t>(place.group)];
  std::vector<int64_t> offsets = {0};
  std::vector<SlotIndex> slots;
  std::vector<int32_t> positions;
  for (int32_t head = 0; head < shape.num_heads; ++head) {
    for (int32_t position = 0; position < length_; ++position) {
      const BlockId block =
          blocks[static_cast<size_t>(position / kRunPageSize)];
      slots.push_back(layout.slot(layout.page_id(place.slot, block, head),
                                  position % kRunPageSize));
      positions.push_back(position);
    }
    offsets.push_back(std::ssize(slots));
  }
  std::vector<float> output(static_cast<size_t>(shape.q_width()) *
                            static_cast<size_t>(shape.hidden));
  model_.UnpackOutput(layer, 0, output);
  std::vector<float> sizes(static_cast<size_t>(shape.num_q_heads) *
                           static_cast<size_t>(length_));
  backend_->ValueNorms(
      {.layer = place.slot,
       .norm = ValueNorm::kL2,
       .entries = {.offsets = offsets, .slots = slots, .positions = positions},
       .output_projection = output.data(),
       .model_dim = shape.hidden,
       .per_query_head = true,
       .norms = sizes});
  return sizes;
}

}  // namespace blockmgr
