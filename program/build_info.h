// The version and the commit that a program was built from.
#ifndef PROGRAM_BUILD_INFO_H_
#define PROGRAM_BUILD_INFO_H_

namespace blockmgr {

// The project's version: "0.1.0".
const char* BuildVersion();

// The commit: 40 hexadecimal digits, followed by "-dirty" if files differed
// from it. "unknown" if the program was not built in a clone.
const char* BuildCommit();

}  // namespace blockmgr

#endif  // PROGRAM_BUILD_INFO_H_
