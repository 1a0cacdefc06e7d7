#include "bench/kernel_problem.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

static_assert(std::endian::native == std::endian::little,
              "problems are written as they are in memory");

constexpr std::array<char, 8> kMagic = {'B', 'M', 'K', 'V', 'P', 'R', 'B', '1'};
constexpr uint32_t kVersion = 2;
// The longest of ragged lists, in multiples of the mean.
constexpr double kRaggedMaxOverMean = 4.0;
// The largest spread of the logarithm of a ragged length. A few lists cannot
// reach kRaggedMaxOverMean: with a larger spread, all but one are nearly empty.
constexpr double kMaxSpread = 2.0;

// The host keeps some 20 bytes per list.
constexpr int64_t kMaxProblemLists = int64_t{1} << 26;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t element_type = 0;
  int32_t num_sequences = 0;
  int32_t num_heads = 0;
  int32_t group_size = 0;
  int32_t head_dim = 0;
  int32_t page_size = 0;
  int32_t num_pages = 0;
  uint64_t seed = 0;
  int64_t num_page_ids = 0;
  int64_t num_tail_blocks = 0;
};
static_assert(sizeof(Header) == 64, "no padding");
// Every version begins with magic and version.
constexpr std::streamsize kCommonBytes = 12;

// In the order of ElementType.
constexpr std::array<absl::string_view, 2> kElementNames = {"bf16", "fp16"};

absl::Status Expected(absl::string_view field, absl::string_view expected,
                      int64_t got) {
  return Invalid(field, ": expected ", expected, ", got ", got);
}

// Uniform in (0, 1), number `index` of a seed.
double Uniform(uint64_t seed, uint64_t index) {
  const uint64_t bits = SplitMix64(seed * 0x9E3779B97F4A7C15u + index) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

// Normal, by Box and Muller.
double Normal(uint64_t seed, uint64_t index) {
  const double radius = std::sqrt(-2.0 * std::log(Uniform(seed, 2 * index)));
  return radius * std::cos(6.283185307179586 * Uniform(seed, 2 * index + 1));
}

// Lognormal, of the spread that these draws need: of one that is the same for
// any number of lists the longest of many is too long, and of few too short.
std::vector<double> RaggedWeights(uint64_t seed, int64_t count) {
  std::vector<double> normals;
  normals.reserve(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    normals.push_back(Normal(seed, static_cast<uint64_t>(i)));
  }
  const double most = *std::ranges::max_element(normals);
  // In multiples of the longest.
  const auto weights = [&](double spread) {
    std::vector<double> result;
    result.reserve(normals.size());
    for (const double x : normals) {
      result.push_back(std::exp(spread * (x - most)));
    }
    return result;
  };
  // The longest over the mean grows with the spread.
  double low = 0.0;
  double high = kMaxSpread;
  for (int step = 0; step < 40; ++step) {
    const double spread = (low + high) / 2;
    const std::vector<double> tried = weights(spread);
    const double mean = std::accumulate(tried.begin(), tried.end(), 0.0) /
                        static_cast<double>(count);
    (mean * kRaggedMaxOverMean > 1.0 ? low : high) = spread;
  }
  return weights(high);
}

std::vector<double> Weights(const KernelProblemShape& shape, int64_t count) {
  if (shape.distribution == LengthDistribution::kRagged) {
    return RaggedWeights(shape.seed, count);
  }
  std::vector<double> weights(static_cast<std::size_t>(count), 1.0);
  if (shape.distribution == LengthDistribution::kOneHuge) {
    weights[count / 2] = static_cast<double>(std::max<int64_t>(1, count - 1));
  }
  return weights;
}

// Counts the pages of lists of these lengths. An error calls a length `name`.
absl::StatusOr<int64_t> CountPages(absl::string_view name,
                                   const std::vector<int32_t>& lengths,
                                   int32_t page_size) {
  int64_t num_pages = 0;
  for (const int32_t length : lengths) {
    if (length < 0) return Expected(name, "at least 0", length);
    num_pages += CeilDiv<int64_t>(length, page_size);
  }
  return num_pages;
}

// Ids in range, none twice. Takes a bit of memory per page of the pool.
absl::Status ValidatePages(const KernelProblem& problem) {
  std::vector<bool> taken(static_cast<std::size_t>(problem.num_pages));
  for (const int32_t page : problem.page_ids) {
    if (page < 0 || page >= problem.num_pages) {
      return Expected("page id", absl::StrCat("below ", problem.num_pages),
                      page);
    }
    if (taken[page]) return Expected("page id", "each once", page);
    taken[page] = true;
  }
  const int32_t num_blocks = problem.num_pages / problem.num_heads;
  for (const int32_t block : problem.tail_blocks) {
    if (block < 0 || block >= num_blocks) {
      return Expected("tail block", absl::StrCat("below ", num_blocks), block);
    }
    for (int32_t head = 0; head < problem.num_heads; ++head) {
      const int32_t page = block * problem.num_heads + head;
      if (taken[page]) return Expected("page id", "each once", page);
      taken[page] = true;
    }
  }
  return absl::OkStatus();
}

// The same order for the same seed.
void Shuffle(uint64_t seed, std::vector<int32_t>* values) {
  for (std::size_t i = values->size(); i-- > 1;) {
    std::swap((*values)[i],
              (*values)[SplitMix64(seed ^ (uint64_t{i} << 20)) % (i + 1)]);
  }
}

// Pages of a pool of `num_blocks` but for those of the tails' blocks, which are
// any of them.
void PickPages(int64_t num_blocks, int64_t num_tail_blocks, int64_t num_pages,
               KernelProblem* problem) {
  std::vector<int32_t> blocks(static_cast<std::size_t>(num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  const auto rest = blocks.begin() + num_tail_blocks;
  if (num_tail_blocks > 0) {
    Shuffle(problem->seed + 1, &blocks);
    problem->tail_blocks.assign(blocks.begin(), rest);
    std::sort(rest, blocks.end());
  }
  std::vector<int32_t>& ids = problem->page_ids;
  ids.reserve((blocks.size() - num_tail_blocks) * problem->num_heads);
  for (auto block = rest; block != blocks.end(); ++block) {
    for (int32_t head = 0; head < problem->num_heads; ++head) {
      ids.push_back(*block * problem->num_heads + head);
    }
  }
  Shuffle(problem->seed, &ids);
  ids.resize(static_cast<std::size_t>(num_pages));
}

template <typename T>
void WriteArray(std::ofstream& file, const std::vector<T>& values) {
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(T)));
}

template <typename T>
bool ReadArray(std::ifstream& file, std::vector<T>* values) {
  const auto bytes = static_cast<std::streamsize>(values->size() * sizeof(T));
  file.read(reinterpret_cast<char*>(values->data()), bytes);
  return file.gcount() == bytes;
}

}  // namespace

absl::StatusOr<LengthDistribution> ParseDistribution(absl::string_view name) {
  if (name == "uniform") return LengthDistribution::kUniform;
  if (name == "ragged") return LengthDistribution::kRagged;
  if (name == "one-huge") return LengthDistribution::kOneHuge;
  return Invalid(
      "distribution: expected uniform, ragged, one-huge or prompt, got '", name,
      "'");
}

absl::string_view ElementName(ElementType type) {
  return kElementNames[static_cast<std::size_t>(type)];
}

absl::StatusOr<ElementType> ParseElementType(absl::string_view name) {
  for (const ElementType type : {ElementType::kBFloat16, ElementType::kHalf}) {
    if (ElementName(type) == name) return type;
  }
  return Invalid("dtype: expected bf16 or fp16, got '", name, "'");
}

int64_t KernelProblem::CountEntries() const {
  return std::accumulate(lengths.begin(), lengths.end(),
                         num_heads * tail_tokens());
}

int64_t KernelProblem::tail_tokens() const {
  return std::accumulate(tail_lengths.begin(), tail_lengths.end(), int64_t{0});
}

double KernelProblem::max_over_mean() const {
  int64_t longest = 0;
  for (std::size_t list = 0; list < lengths.size(); ++list) {
    longest = std::max<int64_t>(
        longest, lengths[list] + int64_t{tail_lengths[list / num_heads]});
  }
  return static_cast<double>(longest) * static_cast<double>(lengths.size()) /
         static_cast<double>(std::max<int64_t>(CountEntries(), 1));
}

absl::Status KernelProblem::Validate() const {
  if (num_sequences < 1) {
    return Expected("num_sequences", "at least 1", num_sequences);
  }
  if (num_heads < 1 || num_heads > 1024) {
    return Expected("num_heads", "1 to 1024", num_heads);
  }
  if (group_size < 1 || group_size > 16) {
    return Expected("group_size", "1 to 16", group_size);
  }
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) {
    return Expected("head_dim", "64, 128 or 256", head_dim);
  }
  if (page_size != 16 && page_size != 32) {
    return Expected("page_size", "16 or 32", page_size);
  }
  const int64_t num_lists = int64_t{num_sequences} * num_heads;
  if (std::ssize(lengths) != num_lists) {
    return Expected("lengths", absl::StrCat(num_lists), std::ssize(lengths));
  }
  if (std::ssize(tail_lengths) != num_sequences) {
    return Expected("tail_lengths", absl::StrCat(num_sequences),
                    std::ssize(tail_lengths));
  }
  BM_ASSIGN_OR_RETURN(const int64_t num_needed,
                      CountPages("length", lengths, page_size));
  if (std::ssize(page_ids) != num_needed) {
    return Expected("page_ids", absl::StrCat(num_needed), std::ssize(page_ids));
  }
  BM_ASSIGN_OR_RETURN(const int64_t num_blocks,
                      CountPages("tail length", tail_lengths, page_size));
  if (std::ssize(tail_blocks) != num_blocks) {
    return Expected("tail_blocks", absl::StrCat(num_blocks),
                    std::ssize(tail_blocks));
  }
  const int64_t num_all = num_needed + num_blocks * num_heads;
  if (num_pages < num_all) {
    return Expected("num_pages", absl::StrCat("at least ", num_all), num_pages);
  }
  if (num_blocks > 0 && num_pages % num_heads != 0) {
    return Expected("num_pages", absl::StrCat("a multiple of ", num_heads),
                    num_pages);
  }
  return ValidatePages(*this);
}

absl::StatusOr<KernelProblem> MakeKernelProblem(
    const KernelProblemShape& shape) {
  if (shape.num_heads < 1 || shape.head_dim < 1 || shape.mean_length < 1 ||
      shape.page_size < 1) {
    return absl::InvalidArgumentError(
        "num_heads, head_dim, page_size and mean_length: expected at least 1");
  }
  const int64_t num_tokens = shape.kv_bytes / (int64_t{4} * shape.head_dim);
  const int64_t num_sequences = std::max<int64_t>(
      1, num_tokens / (int64_t{shape.num_heads} * shape.mean_length));
  const int64_t num_lists = num_sequences * shape.num_heads;
  if (num_tokens < num_lists ||
      num_tokens > int64_t{std::numeric_limits<int32_t>::max()}) {
    return Expected("kv_bytes", "one token a list, and fewer than 2^31 tokens",
                    shape.kv_bytes);
  }
  if (num_lists > kMaxProblemLists) {
    return Expected(
        "mean_length",
        absl::StrCat("lists so long that they are at most ", kMaxProblemLists),
        shape.mean_length);
  }
  const std::vector<double> weights = Weights(shape, num_lists);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int32_t> lengths;
  for (const double weight : weights) {
    const double share = static_cast<double>(num_tokens) * weight / sum;
    lengths.push_back(std::max<int32_t>(1, static_cast<int32_t>(share)));
  }
  return MakeProblemOfLengths(shape, std::move(lengths));
}

absl::StatusOr<KernelProblem> MakeProblemOfLengths(
    const KernelProblemShape& shape, std::vector<int32_t> lengths) {
  constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
  const int64_t num_lists = std::ssize(lengths);
  if (num_lists == 0 || num_lists > kMaxProblemLists ||
      num_lists % shape.num_heads != 0) {
    return Expected("lists",
                    absl::StrCat("1 to ", kMaxProblemLists, ", in ",
                                 shape.num_heads, " heads"),
                    num_lists);
  }
  const int64_t num_tokens =
      std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (num_tokens > kMaxTokens) {
    return Expected("lengths", "fewer than 2^31 tokens in all lists",
                    num_tokens);
  }
  if (shape.tail_tokens < 0) {
    return Expected("tail_tokens", "at least 0", shape.tail_tokens);
  }
  const int64_t num_sequences = num_lists / shape.num_heads;
  const int64_t num_tail_blocks =
      num_sequences * CeilDiv<int64_t>(shape.tail_tokens, shape.page_size);
  if (num_tail_blocks * shape.num_heads * shape.page_size >
      kMaxTokens - num_tokens) {
    return Expected("tail_tokens", "fewer than 2^31 tokens in all lists",
                    shape.tail_tokens);
  }
  BM_ASSIGN_OR_RETURN(const int64_t num_pages,
                      CountPages("length", lengths, shape.page_size));
  const int64_t num_blocks =
      CeilDiv<int64_t>(num_pages, shape.num_heads) + num_tail_blocks;
  KernelProblem problem = {
      .num_sequences = static_cast<int32_t>(num_sequences),
      .num_heads = shape.num_heads,
      .group_size = shape.group_size,
      .head_dim = shape.head_dim,
      .page_size = shape.page_size,
      .num_pages = static_cast<int32_t>(num_blocks * shape.num_heads),
      .element_type = shape.element_type,
      .seed = shape.seed,
      .lengths = std::move(lengths),
      .tail_lengths = std::vector<int32_t>(
          static_cast<std::size_t>(num_sequences), shape.tail_tokens),
      .page_ids = {},
      .tail_blocks = {}};
  PickPages(num_blocks, num_tail_blocks, num_pages, &problem);
  BM_RETURN_IF_ERROR(problem.Validate());
  return problem;
}

absl::Status WriteKernelProblem(const std::string& path,
                                const KernelProblem& problem) {
  Header header;
  header.element_type = static_cast<uint32_t>(problem.element_type);
  header.num_sequences = problem.num_sequences;
  header.num_heads = problem.num_heads;
  header.group_size = problem.group_size;
  header.head_dim = problem.head_dim;
  header.page_size = problem.page_size;
  header.num_pages = problem.num_pages;
  header.seed = problem.seed;
  header.num_page_ids = std::ssize(problem.page_ids);
  header.num_tail_blocks = std::ssize(problem.tail_blocks);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
  WriteArray(file, problem.lengths);
  WriteArray(file, problem.tail_lengths);
  WriteArray(file, problem.page_ids);
  WriteArray(file, problem.tail_blocks);
  file.flush();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot write the problem to ", path));
}

absl::StatusOr<KernelProblem> ReadKernelProblem(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot read the problem ", path));
  }
  const int64_t num_bytes = file.tellg();
  file.seekg(0);
  const auto refuse = [&](absl::string_view what) {
    return Invalid(path, ": ", what);
  };
  Header header;
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  const std::streamsize num_read = file.gcount();
  if (num_read < kCommonBytes || header.magic != kMagic) {
    return refuse("expected a problem of blockmgr-bench kernels");
  }
  if (header.version != kVersion) {
    return refuse(absl::StrCat("expected version ", kVersion,
                               " of the format, got version ", header.version));
  }
  if (num_read != sizeof(header)) {
    return refuse(absl::StrCat("expected a header of ", sizeof(header),
                               " bytes, got ", num_read));
  }
  if (header.element_type >= kElementNames.size()) {
    return refuse(
        absl::StrCat("expected elements of type 0 (bf16) or 1 (fp16)"
                     ", got type ",
                     header.element_type));
  }
  // The file must have room for its lists, before anything is allocated.
  const int64_t num_words =
      (num_bytes - int64_t{sizeof(header)}) / int64_t{sizeof(int32_t)};
  const int64_t num_lists = int64_t{header.num_sequences} * header.num_heads;
  if (header.num_sequences < 1 || header.num_heads < 1 ||
      header.num_page_ids < 0 || header.num_page_ids > num_words ||
      header.num_tail_blocks < 0 || header.num_tail_blocks > num_words ||
      num_lists + header.num_sequences + header.num_page_ids +
              header.num_tail_blocks !=
          num_words) {
    return refuse(
        "expected as many lengths, page ids and blocks as its header says");
  }
  KernelProblem problem;
  problem.num_sequences = header.num_sequences;
  problem.num_heads = header.num_heads;
  problem.group_size = header.group_size;
  problem.head_dim = header.head_dim;
  problem.page_size = header.page_size;
  problem.num_pages = header.num_pages;
  problem.element_type = static_cast<ElementType>(header.element_type);
  problem.seed = header.seed;
  problem.lengths.resize(static_cast<std::size_t>(num_lists));
  problem.tail_lengths.resize(static_cast<std::size_t>(header.num_sequences));
  problem.page_ids.resize(static_cast<std::size_t>(header.num_page_ids));
  problem.tail_blocks.resize(static_cast<std::size_t>(header.num_tail_blocks));
  if (!ReadArray(file, &problem.lengths) ||
      !ReadArray(file, &problem.tail_lengths) ||
      !ReadArray(file, &problem.page_ids) ||
      !ReadArray(file, &problem.tail_blocks)) {
    return refuse("expected all of its arrays");
  }
  const absl::Status valid = problem.Validate();
  if (!valid.ok()) return refuse(valid.message());
  return problem;
}

}  // namespace blockmgr
