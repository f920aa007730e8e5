#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "manyhead/heads.h"
#include "manyhead/kv_cache.h"
#include "manyhead/model.h"
#include "runtime/heads/observe/head_observer.h"
#include "runtime/model/decoder.h"

namespace manyhead::testing {

/// The data that a step passed on for one layer.
struct ObservedLayer {
  std::int64_t position = 0, rows = 0;
  std::vector<float> query, lse, attended, projected;  ///< as in AttentionStep
};

/// A decoder and a cache of one sequence, of which each step is kept beside what an observer sees.
class ObservedDecoder {
 public:
  struct Options {
    std::int64_t context = 400, chunk = 64;
    int threads = 2;
    KvType k_type = KvType::kF16, v_type = KvType::kF16;
    std::string kv_policy{};
    std::optional<Isa> isa{};
  };

  ObservedDecoder(const Model& model, const Options& options);
  ObservedDecoder(const ObservedDecoder&) = delete;
  ObservedDecoder& operator=(const ObservedDecoder&) = delete;

  void Capture(const CaptureOptions& options);
  void Profile(HeadProfile* profile, const HeadProfileOptions& options);
  void Step(std::span<const TokenId> ids);

  const ModelConfig& config() const { return model_.config(); }
  const KvCache& cache() const { return *cache_; }
  SequenceId sequence() const { return sequence_; }
  const std::vector<ObservedLayer>& last() const { return tap_.layers; }

  /// Softmax weights [position + 1] of a query of the last step, in double precision from its
  /// query and the keys that the cache returns, by window and policy.
  std::vector<double> Weights(HeadId head, std::int64_t position) const;
  /// Returns the weighted sum of the values that the cache returns.
  std::vector<double> Attended(HeadId head, const std::vector<double>& weights) const;

 private:
  struct Tap final : AttentionTap {
    void Observe(Worker& worker, const AttentionStep& step) noexcept override;
    std::int64_t* head_times() noexcept override { return observer.head_times(); }
    std::int64_t head_times_stride() const noexcept override {
      return observer.head_times_stride();
    }

    HeadObserver observer;
    const ModelConfig* config = nullptr;
    std::vector<ObservedLayer> layers;
  };

  bool Shows(HeadId head, std::int64_t position, std::int64_t key) const;

  Model model_;
  Options options_;
  std::optional<Decoder> decoder_;
  std::optional<KvCache> cache_;
  SequenceId sequence_{};
  Tap tap_;
};

}  // namespace manyhead::testing
