// Inputs made from others, as fuzzers do it, for builds without one.
#ifndef TESTS_FUZZ_MUTATOR_H_
#define TESTS_FUZZ_MUTATOR_H_

#include <span>
#include <string>

#include "tests/testing/random.h"

namespace blockmgr::fuzz {

// One of `seeds`, changed in one to eight places: bytes flipped, drawn, taken
// out, doubled, copied from another seed; parts (kPartEnd) left out, doubled,
// exchanged, taken from another seed. Follows from `rng` alone.
// REQUIRES: there are seeds.
std::string Mutate(std::span<const std::string> seeds, Rng& rng);

}  // namespace blockmgr::fuzz

#endif  // TESTS_FUZZ_MUTATOR_H_
