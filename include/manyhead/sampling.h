#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// Says how the next token is drawn. Filters apply in this order: repeat penalty, top_k, top_p,
/// min_p, temperature; the best token always remains.
struct SamplingParams {
  float temperature = 0;            ///< finite, >= 0; 0 is argmax, lowest id on ties
  std::int64_t top_k = 0;           ///< >= 0; 0 = off; above the vocabulary = the vocabulary
  float top_p = 1;                  ///< in [0, 1]; 1 = off, 0 keeps the best token
  float min_p = 0;                  ///< in [0, 1]; keeps probabilities >= min_p * the best; 0 = off
  float repeat_penalty = 1;         ///< > 0; 1 = off; divides positive, multiplies negative logits
  std::int64_t repeat_last_n = 64;  ///< >= 0; number of latest tokens that the penalty considers
  std::uint64_t seed = 0;           ///< seed of the random numbers; any value
};

/// Checks the parameters.
/// Errors   kInvalidArgument for a value out of range, naming it.
Status Validate(const SamplingParams& params);

/// Draws tokens; a seed gives the same tokens on every machine.
class Sampler {
 public:
  /// Creates a sampler.
  /// Errors   as Validate, and for an empty vocabulary.
  static Result<Sampler> Create(const SamplingParams& params, std::int64_t vocab_size);

  /// Draws the next token for `logits` [vocab_size]; `history` holds the ids before it, oldest
  /// first. It allocates nothing.
  /// Errors   kInvalidArgument for a NaN logit, +inf, or when every logit is -inf.
  Result<TokenId> Sample(std::span<const float> logits, std::span<const TokenId> history);

  /// The seed with which another sampler continues the random numbers of this one.
  std::uint64_t next_seed() const noexcept { return state_; }

 private:
  Sampler(const SamplingParams& params, std::int64_t vocab_size);
  struct Candidate {
    float logit;
    TokenId id;
  };
  static bool Worse(const Candidate& a, const Candidate& b);
  Status LoadCandidates(std::span<const float> logits, std::span<const TokenId> history);
  std::size_t KeepBest(float best);
  double NextUniform();

  SamplingParams params_;
  std::uint64_t state_;
  std::vector<Candidate> candidates_;
};

}  // namespace manyhead
