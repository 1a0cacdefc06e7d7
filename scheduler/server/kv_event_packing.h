// Packs events as vLLM's publisher does, so that its consumers
// can read them.
//
//   batch  [seconds since 1970, [event, ..], nil]          MessagePack
//   event  {"type": "AllBlocksCleared"}
//          {"type": "BlockRemoved", "block_hashes": [..], "medium": "GPU"}
//          {"type": "BlockStored", "block_hashes": [..],
//           "parent_block_hash": hash or nil, "token_ids": [..],
//           "block_size": n, "lora_id": nil, "medium": "GPU",
//           "lora_name": text or nil,
//           "extra_keys": [per block: nil or [adapter, [media hash, begin], ..,
//                          salt]],                         if there are any
//           "cache_salt": text}                            if there is one
//
// and, for compressed prefixes, an event of our own, whose pieces have the same
// hash:
//
//          {"type": "CompressedPrefixStored", "block_hash": hash,
//           "token_ids": [..], "first_token": n, "length": n, "plan": text,
//           "block_size": n, "medium": "GPU", "lora_name": text or nil,
//           "media": [[hash, begin, length], ..], "cache_salt": text}
//
// vLLM knows no tenants. The salt of a tenant's blocks is
// "tenant=BYTES:NAME;SALT" with the number of the name's bytes. A salt without
// a tenant that begins with "tenant=" is told in this form, too, with 0 bytes.
#ifndef SCHEDULER_SERVER_KV_EVENT_PACKING_H_
#define SCHEDULER_SERVER_KV_EVENT_PACKING_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "scheduler/server/kv_event_index.h"

namespace blockmgr {

// Returns batches that hold `events` in order. A batch is closed when it has
// about max_bytes, so it may exceed them by one event. `seconds` is the time
// since 1970. Pure.
std::vector<std::string> PackKvEvents(std::span<const KvEvent> events,
                                      int32_t page_size, double seconds,
                                      int64_t max_bytes);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_KV_EVENT_PACKING_H_
