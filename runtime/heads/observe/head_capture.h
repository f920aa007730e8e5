#pragma once

#include <cstdint>
#include <vector>

#include "manyhead/heads.h"
#include "manyhead/model.h"
#include "manyhead/status.h"
#include "runtime/model/attention_tap.h"
#include "runtime/platform/aligned_buffer.h"

namespace manyhead {

/// Recomputes the chosen rows of attention weights on all threads of a step's region and passes
/// them to the caller on one thread.
class HeadCapture {
 public:
  /// Checks options; `context` bounds positions; `function` begins the message of an error.
  static Status Check(const ModelConfig& config, std::int64_t context,
                      const CaptureOptions& options, const char* function);

  /// Creates a capture; `options` must have passed Check. Throws bad_alloc.
  HeadCapture(const ModelConfig& config, std::int64_t context, const CaptureOptions& options);

  /// Observes one layer; see AttentionTap.
  void Observe(Worker& worker, const AttentionStep& step) noexcept;

 private:
  /// The chosen heads of one layer. The rows of a position cover whole groups.
  struct Layer {
    std::int64_t group = 1;
    std::vector<std::int64_t> kv_heads;  ///< KV heads with a chosen head, ascending
    struct Head {
      std::int64_t id = 0;
      std::int64_t row = 0;  ///< index among the rows of a position
    };
    std::vector<Head> heads;  ///< ascending

    std::int64_t rows() const noexcept { return std::ssize(kv_heads) * group; }
  };
  /// Some positions of a step: first, first + every, ...
  struct Batch {
    std::int64_t first = 0, count = 0;
  };

  void Compute(Worker& worker, const AttentionStep& step, const Layer& layer, Batch batch) noexcept;
  void HandOut(const AttentionStep& step, const Layer& layer, Batch batch) const;

  CaptureOptions options_;
  std::vector<Layer> layers_;
  AlignedBuffer<float> rows_;  ///< rows of a batch: [position][row][key]
};

}  // namespace manyhead
