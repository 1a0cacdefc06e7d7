#ifndef BLOCKMGR_BASE_RUN_MAIN_H_
#define BLOCKMGR_BASE_RUN_MAIN_H_

#include <cstdio>
#include <exception>

namespace blockmgr {

// What main returns: run's exit status; 1 after an exception that nobody has
// caught, which is told on standard error.
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
