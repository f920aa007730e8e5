#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"

namespace manyhead::testing {

/// A decoder of a few hundred weights with random values, written as a GGUF file, and its logits by
/// the formulas of the papers in double precision. It shares no code with the library: plain loops
/// over the whole sequence, no cache, no tiles, no threads.
struct TinyModel {
  std::string family = "llama";  ///< general.architecture
  std::int64_t layers = 2, d_model = 24, num_heads = 4, num_kv_heads = 2, head_dim = 6;
  std::int64_t ffn_dim = 20, context = 64;
  std::int64_t extra_tokens = 0;  ///< beyond the 259
  std::int64_t extra_rows = 0;    ///< embedding rows beyond the tokens
  bool tied = true, biases = false;
  std::int64_t window = 0,
               window_pattern = 0;  ///< every n-th layer is full; 0 = all have the window
  double rope_base = 10000;
  std::string rope_scaling;  ///< "", "linear", "yarn"
  double rope_factor = 1;
  std::int64_t rope_original_context = 0;
  std::vector<float> rope_factors;
  float final_softcap = 0;
  WeightType matrices = WeightType::kF32;  ///< type of storage; also kF16, kQ8_0
  bool epsilon_key = true;                 ///< the file states the norms' epsilon

  std::int64_t vocab() const { return 259 + extra_tokens + extra_rows; }
  bool gemma() const { return family == "gemma3"; }
  bool qk_norm() const { return gemma() || family == "qwen3"; }

  /// Draws the weights; call once after the shape is set.
  void MakeWeights(unsigned seed);
  /// The file, to which a test may add before it is written.
  GgufWriter ToGguf() const { return ToGguf({}, ""); }
  /// The same with the one key that `file` holds in place of its own.
  GgufWriter ToGguf(GgufWriter file, const std::string& replaced) const;
  /// Logits [ids.size()][vocab] after each token.
  std::vector<std::vector<double>> Logits(const std::vector<int>& ids) const;

  std::map<std::string, std::vector<float>> tensors;

 private:
  using Rows = std::vector<std::vector<double>>;
  void Fill(const std::string& name, std::int64_t rows, std::int64_t cols, double mean,
            double spread);
  std::vector<double> Multiply(const std::string& name, const std::vector<double>& x,
                               std::int64_t rows) const;
  std::vector<double> Norm(const std::string& name, const std::vector<double>& x) const;
  void Rotate(std::vector<double>& heads, std::int64_t position, bool local) const;
  void NormHeads(const std::string& name, std::vector<double>& heads) const;
  Rows Attention(const std::string& block, const Rows& x, std::int64_t layer) const;
  std::vector<double> FeedForward(const std::string& block, const std::vector<double>& x) const;
  bool IsLocal(std::int64_t layer) const;

  std::map<std::string, std::int64_t> cols_;  // columns of each matrix that MakeWeights drew
  unsigned state_ = 1;
};

}  // namespace manyhead::testing
