// The commit that a program was built from.
#ifndef BENCH_BUILD_COMMIT_H_
#define BENCH_BUILD_COMMIT_H_

namespace blockmgr {

// 40 hexadecimal digits, and "-dirty" where files differed from it; "unknown"
// if it was not built in a clone.
const char* BuildCommit();

}  // namespace blockmgr

#endif  // BENCH_BUILD_COMMIT_H_
