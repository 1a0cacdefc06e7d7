#ifndef TESTS_TESTING_COUNTED_NEW_H_
#define TESTS_TESTING_COUNTED_NEW_H_

#include <cstdint>

namespace blockmgr {

// What operator new has given out in this program, in every form but those of
// over-aligned types, which keep the library's. Linking `blockmgr_counted_new`
// replaces the operators for a whole program, so a suite that does is a program
// of its own. Any thread may ask.

// Calls that gave out memory, since the program began.
int64_t num_allocations();

// Bytes asked for that have not been given back.
int64_t AllocatedBytes();

// The most that they were since ForgetPeak.
int64_t PeakAllocatedBytes();
void ForgetPeak();

}  // namespace blockmgr

#endif  // TESTS_TESTING_COUNTED_NEW_H_
