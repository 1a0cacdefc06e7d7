// ServedModel: what an engine tells of its model, for frontends. Plain data.
#ifndef BLOCKMGR_SERVED_MODEL_H_
#define BLOCKMGR_SERVED_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace blockmgr {

inline constexpr size_t kMaxModelNameBytes = 256;
inline constexpr int64_t kMaxTokenizerZipBytes = int64_t{15} << 20;

// The comments of the message of this name in proto/blockmgr/v1/engine.proto
// give the meaning and the limit of each field.
struct ServedModel {
  std::string name = {};
  std::string model_type = {};
  std::vector<std::string> architectures = {};
  int32_t context_tokens = 0;
  std::optional<int32_t> bos_token_id = std::nullopt;
  std::optional<int32_t> pad_token_id = std::nullopt;
  std::string tokenizer_zip = {};

  friend bool operator==(const ServedModel&, const ServedModel&) = default;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_SERVED_MODEL_H_
