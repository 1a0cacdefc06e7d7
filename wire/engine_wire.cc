#include "wire/engine_wire.h"

#include <cstdint>
#include <limits>
#include <string>

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "wire/message_fields.h"
#include "wire/sampling_wire.h"

namespace blockmgr {
namespace {

constexpr size_t kMaxTypeBytes = 64;
constexpr int kMaxArchitectures = 8;
// The first bytes of every zip archive that is not empty.
constexpr absl::string_view kZipMagic = "PK\x03\x04";

absl::Status CheckText(absl::string_view field, const std::string& text,
                       size_t max_bytes) {
  if (text.size() <= max_bytes) return absl::OkStatus();
  return Invalid(field, ": expected at most ", max_bytes, " bytes, got ",
                 text.size());
}

absl::Status CheckToken(absl::string_view field, uint32_t token) {
  constexpr uint32_t kMaxToken = std::numeric_limits<int32_t>::max();
  if (token <= kMaxToken) return absl::OkStatus();
  return Invalid(field, ": expected at most ", kMaxToken, ", got ", token);
}

absl::StatusOr<EngineSampling> SamplingFromProto(
    const v1::AttachRequest& proto) {
  EngineSampling engine;
  for (int i = 0; i < proto.sampling_fields_size(); ++i) {
    const int field = proto.sampling_fields(i);
    // The field comes from a newer engine, or is none.
    if (field < 1 || field > kNumSamplingFields) {
      return Invalid("sampling_fields[", i, "]: expected a field from 1 to ",
                     kNumSamplingFields, ", got ", field);
    }
    engine.fields |= EngineSampling::BitOf(static_cast<SamplingField>(field));
  }
  engine.vocabulary_size = proto.vocabulary_size();
  BM_RETURN_IF_ERROR(TokensFromProto("end_token_ids", proto.end_token_ids(),
                                     &engine.end_token_ids));
  return engine;
}

}  // namespace

absl::StatusOr<EngineAbilities> FromProto(const v1::AttachRequest& proto) {
  EngineAbilities abilities;
  VisitEngineAbilities(abilities, MessageReader(proto));
  for (const auto& [name, fingerprint] : proto.query_stats()) {
    abilities.query_stats.emplace(name, fingerprint);
  }
  BM_ASSIGN_OR_RETURN(abilities.sampling, SamplingFromProto(proto));
  return abilities;
}

void ToProto(const EngineAbilities& abilities, v1::AttachRequest* proto) {
  VisitEngineAbilities(abilities, MessageWriter(proto));
  proto->mutable_query_stats()->insert(abilities.query_stats.begin(),
                                       abilities.query_stats.end());
  const EngineSampling& sampling = abilities.sampling;
  for (int field = 1; field <= kNumSamplingFields; ++field) {
    if (!sampling.Supports(static_cast<SamplingField>(field))) continue;
    proto->add_sampling_fields(static_cast<v1::SamplingField>(field));
  }
  proto->set_vocabulary_size(sampling.vocabulary_size);
  proto->mutable_end_token_ids()->Add(sampling.end_token_ids.begin(),
                                      sampling.end_token_ids.end());
}

absl::StatusOr<ServedModel> FromProto(const v1::ServedModel& proto) {
  BM_RETURN_IF_ERROR(CheckText("model.name", proto.name(), kMaxModelNameBytes));
  BM_RETURN_IF_ERROR(
      CheckText("model.model_type", proto.model_type(), kMaxTypeBytes));
  if (proto.architectures_size() > kMaxArchitectures) {
    return Invalid("model.architectures: expected at most ", kMaxArchitectures,
                   ", got ", proto.architectures_size());
  }
  for (const std::string& architecture : proto.architectures()) {
    BM_RETURN_IF_ERROR(
        CheckText("model.architectures", architecture, kMaxTypeBytes));
  }
  if (proto.context_tokens() < 0) {
    return Invalid("model.context_tokens: expected at least 0, got ",
                   proto.context_tokens());
  }
  BM_RETURN_IF_ERROR(CheckToken("model.bos_token_id", proto.bos_token_id()));
  BM_RETURN_IF_ERROR(CheckToken("model.pad_token_id", proto.pad_token_id()));
  const std::string& zip = proto.tokenizer_zip();
  if (std::ssize(zip) > kMaxTokenizerZipBytes) {
    return Invalid("model.tokenizer_zip: expected at most ",
                   kMaxTokenizerZipBytes, " bytes, got ", zip.size());
  }
  if (!zip.empty() && !absl::StartsWith(zip, kZipMagic)) {
    return Invalid(
        "model.tokenizer_zip: expected a zip archive, got bytes that do not "
        "begin as one");
  }
  ServedModel model{.name = proto.name(),
                    .model_type = proto.model_type(),
                    .architectures = {proto.architectures().begin(),
                                      proto.architectures().end()},
                    .context_tokens = proto.context_tokens(),
                    .tokenizer_zip = zip};
  if (proto.has_bos_token_id()) {
    model.bos_token_id = static_cast<int32_t>(proto.bos_token_id());
  }
  if (proto.has_pad_token_id()) {
    model.pad_token_id = static_cast<int32_t>(proto.pad_token_id());
  }
  return model;
}

void ToProto(const ServedModel& model, v1::ServedModel* proto) {
  proto->set_name(model.name);
  proto->set_model_type(model.model_type);
  for (const std::string& architecture : model.architectures) {
    proto->add_architectures(architecture);
  }
  proto->set_context_tokens(model.context_tokens);
  if (model.bos_token_id.has_value()) {
    proto->set_bos_token_id(static_cast<uint32_t>(*model.bos_token_id));
  }
  if (model.pad_token_id.has_value()) {
    proto->set_pad_token_id(static_cast<uint32_t>(*model.pad_token_id));
  }
  proto->set_tokenizer_zip(model.tokenizer_zip);
}

}  // namespace blockmgr
