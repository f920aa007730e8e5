#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/circuits.h"
#include "tests/model/load_tiny.h"

/// The matrices of heads as dense ones: plain loops in double over the tensors of small models.

namespace manyhead::testing {

struct Dense {
  std::size_t rows = 0, cols = 0;
  std::vector<double> values;

  Dense(std::size_t r, std::size_t c) : rows(r), cols(c), values(r * c, 0.0) {}
  double& at(std::size_t r, std::size_t c) { return values[r * cols + c]; }
  double at(std::size_t r, std::size_t c) const { return values[r * cols + c]; }
};

inline Dense Multiply(const Dense& a, const Dense& b) {
  Dense c(a.rows, b.cols);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t k = 0; k < a.cols; ++k)
      for (std::size_t j = 0; j < b.cols; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
  return c;
}

inline Dense Transpose(const Dense& a) {
  Dense t(a.cols, a.rows);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.cols; ++j) t.at(j, i) = a.at(i, j);
  return t;
}

inline double Norm(const Dense& a) {
  double sum = 0;
  for (const double v : a.values) sum += v * v;
  return std::sqrt(sum);
}

inline Dense Full(const LowRankMatrix& matrix) {
  const auto rows = static_cast<std::size_t>(matrix.rows),
             cols = static_cast<std::size_t>(matrix.cols),
             rank = static_cast<std::size_t>(matrix.rank);
  EXPECT_EQ(matrix.left.size(), rows * rank);
  EXPECT_EQ(matrix.right.size(), cols * rank);
  Dense full(rows, cols);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j)
      for (std::size_t k = 0; k < rank; ++k)
        full.at(i, j) += matrix.left[i * rank + k] * matrix.right[j * rank + k];
  return full;
}

inline TinyModel MakeTiny(const std::string& family) {
  TinyModel tiny;
  tiny.family = family;
  tiny.layers = 3;
  tiny.biases = family == "qwen2";
  if (family == "gemma3") {
    tiny.window = 32;
    tiny.window_pattern = 2;
  }
  tiny.MakeWeights(11);
  return tiny;
}

/// W_QK and W_OV of the file's tensors, the norms' weights folded in.
class DenseHead {
 public:
  DenseHead(const TinyModel& tiny, std::int64_t layer, std::int64_t head)
      : tiny_(tiny), block_("blk." + std::to_string(layer) + "."), head_(head) {}

  Dense Qk() const {
    return Multiply(Transpose(Rows("attn_q", head_, "attn_q_norm")),
                    Rows("attn_k", KvHead(), "attn_k_norm"));
  }
  Dense Ov() const {
    const auto d = static_cast<std::size_t>(tiny_.d_model),
               D = static_cast<std::size_t>(tiny_.head_dim);
    const std::vector<float>& output = tiny_.tensors.at(block_ + "attn_output.weight");
    const auto post = tiny_.tensors.find(block_ + "post_attention_norm.weight");
    Dense block(d, D);
    for (std::size_t i = 0; i < d; ++i)
      for (std::size_t j = 0; j < D; ++j) {
        const auto column = static_cast<std::size_t>(head_) * D + j;
        block.at(i, j) =
            static_cast<double>(output[i * static_cast<std::size_t>(tiny_.num_heads) * D + column]);
        if (post != tiny_.tensors.end()) block.at(i, j) *= static_cast<double>(post->second[i]);
      }
    return Multiply(block, Rows("attn_v", KvHead(), "none"));
  }

 private:
  std::int64_t KvHead() const { return head_ / (tiny_.num_heads / tiny_.num_kv_heads); }
  Dense Rows(const std::string& name, std::int64_t index, const std::string& norm) const {
    const auto d = static_cast<std::size_t>(tiny_.d_model),
               D = static_cast<std::size_t>(tiny_.head_dim);
    const std::vector<float>& weights = tiny_.tensors.at(block_ + name + ".weight");
    const std::vector<float>& inputs = tiny_.tensors.at(block_ + "attn_norm.weight");
    const auto outputs = tiny_.tensors.find(block_ + norm + ".weight");
    Dense rows(D, d);
    for (std::size_t i = 0; i < D; ++i)
      for (std::size_t j = 0; j < d; ++j) {
        rows.at(i, j) =
            static_cast<double>(weights[(static_cast<std::size_t>(index) * D + i) * d + j]) *
            static_cast<double>(inputs[j]);
        if (outputs != tiny_.tensors.end())
          rows.at(i, j) *= static_cast<double>(outputs->second[i]);
      }
    return rows;
  }

  const TinyModel& tiny_;
  std::string block_;
  std::int64_t head_;
};

}  // namespace manyhead::testing
