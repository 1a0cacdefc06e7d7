// DenseReference: a RandomModel computed in float64, one token at a time, over
// a dense cache that never forgets; evictions and sliding windows are masks.
// Written without a line of the engine's: what the paged engine computes is
// compared with this.
//
// One object is one sequence. Thread-compatible. The model is borrowed.
// Cost of a token: O(parameters + layers * q_heads * length * head_dim).
#ifndef TESTS_TESTING_DENSE_REFERENCE_H_
#define TESTS_TESTING_DENSE_REFERENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/reference/tiny_model.h"

namespace blockmgr {

class DenseReference {
 public:
  explicit DenseReference(const LanguageModel* model);

  // Computes the next position; returns its logits, [vocabulary].
  std::vector<double> Forward(int32_t token);
  // The same for several tokens; returns the logits of the last.
  std::vector<double> Forward(std::span<const int32_t> tokens);

  // Of the positions below `cut`, only those in `kept` are attended by this
  // head from now on. Positions evicted before stay so only if not in `kept`.
  void Keep(int32_t layer, int32_t head, int32_t cut,
            std::span<const int32_t> kept);

  int32_t length() const { return length_; }
  // Positions in [first, limit) that a head attends, ascending, but for those
  // that are out of its layer's window.
  std::vector<int32_t> Attended(int32_t layer, int32_t head, int32_t limit,
                                int32_t first = 0) const;
  // After RoPE, [head_dim].
  std::span<const double> Query(int32_t layer, int32_t q_head,
                                int32_t position) const;
  std::span<const double> Key(int32_t layer, int32_t head,
                              int32_t position) const;
  std::span<const double> Value(int32_t layer, int32_t head,
                                int32_t position) const;
  // Before RoPE, [head_dim].
  std::span<const double> RawQuery(int32_t layer, int32_t q_head,
                                   int32_t position) const;
  // What all queries so far paid to the entry, summed over the query heads of
  // its group.
  double AttentionSum(int32_t layer, int32_t head, int32_t position) const;

 private:
  struct Layer {
    std::vector<double> queries;             // [length, q_width]
    std::vector<double> raw_queries;         // [length, q_width]
    std::vector<std::vector<double>> sums;   // [num_heads][length]
    std::vector<double> keys;                // [length, kv_width]
    std::vector<double> values;              // [length, kv_width]
    std::vector<std::vector<bool>> evicted;  // [num_heads][length]
    int32_t window = 0;                      // tokens; 0: all
  };

  std::vector<double> Attend(Layer* layer) const;
  std::span<const double> HeadRow(const std::vector<double>& rows,
                                  int32_t width, int32_t head,
                                  int32_t position) const;

  // The matrices of a layer's weights, [in, out].
  struct Matrices {
    std::vector<float> query, key, value, output, gate, up, down;
  };

  const LanguageModel& model_;
  std::vector<float> embedding_;  // [vocabulary, hidden]
  std::vector<Matrices> matrices_;
  std::vector<float> head_;  // [hidden, vocabulary]
  int32_t length_ = 0;
  std::vector<Layer> layers_;
};

// Returns a matrix as [in, out], row-major.
std::vector<float> DenseMatrix(const PackedMatrix& matrix);

// The lowest index of the largest logit: greedy decoding.
int32_t Argmax(std::span<const double> logits);

}  // namespace blockmgr

#endif  // TESTS_TESTING_DENSE_REFERENCE_H_
