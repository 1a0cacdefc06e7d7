// Reads PTX text: the subset that nvcc makes of this project's kernels, which
// have no functions left, no static shared memory, no local memory and no
// textures. What it does not know is an error that names it.
#ifndef TESTS_KERNELS_PTX_PTX_PARSER_H_
#define TESTS_KERNELS_PTX_PTX_PARSER_H_

#include <string>

#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "tests/kernels/ptx/ptx_kernel.h"

namespace blockmgr::ptx {

// Names of files, without folders, by their numbers.
using SourceFiles = absl::flat_hash_map<std::string, std::string>;

struct Module {
  SourceFiles files;
  absl::flat_hash_map<std::string, std::string> kernels;  // texts by name
};

absl::StatusOr<Module> ReadModule(absl::string_view text);

// InvalidArgument where the text has what is not known here.
absl::StatusOr<Kernel> ParseKernel(absl::string_view name,
                                   absl::string_view text,
                                   const SourceFiles& files);

}  // namespace blockmgr::ptx

#endif  // TESTS_KERNELS_PTX_PTX_PARSER_H_
