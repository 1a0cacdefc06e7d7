#include "tests/sim/report.h"

#include <algorithm>

namespace blockmgr::sim {

void RunCounts::Add(const RunCounts& other) {
  events += other.events;
  steps += other.steps;
  requests += other.requests;
  finished += other.finished;
  refused += other.refused;
  cached_tokens += other.cached_tokens;
  preemptions += other.preemptions;
  max_preemptions = std::max(max_preemptions, other.max_preemptions);
  evictions += other.evictions;
  region_hits += other.region_hits;
  engine_losses += other.engine_losses;
  cut_requests += other.cut_requests;
  forks += other.forks;
  other_media += other.other_media;
  media_hits += other.media_hits;
  full_states += other.full_states;
  parts += other.parts;
  swap_outs += other.swap_outs;
  swap_ins += other.swap_ins;
  accepted_drafts += other.accepted_drafts;
  rejected_drafts += other.rejected_drafts;
  left_behind += other.left_behind;
  wrong_results += other.wrong_results;
  wire_faults += other.wire_faults;
  broken_streams += other.broken_streams;
}

std::string RunCounts::ToString() const {
  return absl::StrCat(
      events, " events, ", steps, " steps, ", requests, " requests, ", finished,
      " finished, ", refused, " refused, ", cached_tokens, " cached tokens, ",
      preemptions, " preemptions (of one request at most ", max_preemptions,
      "), ", evictions, " evictions, ", region_hits, " region hits, ",
      engine_losses, " engine losses, ", cut_requests, " cut requests, ", forks,
      " forks, ", other_media, " of other media, ", media_hits,
      " hits on media, ", full_states, " plans with all scorer states, ", parts,
      " starts on parts of blocks, ", swap_outs, " swapped out, ", swap_ins,
      " swapped in, ", accepted_drafts, " drafts accepted, ", rejected_drafts,
      " rejected, ", left_behind, " pages left behind, ", wrong_results,
      " wrong results, ", wire_faults, " answers lost, repeated or overtaken, ",
      broken_streams, " broken streams");
}

}  // namespace blockmgr::sim
