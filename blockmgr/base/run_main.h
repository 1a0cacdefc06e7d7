#ifndef BLOCKMGR_BASE_RUN_MAIN_H_
#define BLOCKMGR_BASE_RUN_MAIN_H_

#include <cstdio>
#include <exception>

namespace blockmgr {

// Runs `run` and returns its exit status for main. If an exception escapes from
// `run`, prints the exception on standard error and returns 1.
inline int RunMain(int (*run)(int, char**), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
}

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_RUN_MAIN_H_
