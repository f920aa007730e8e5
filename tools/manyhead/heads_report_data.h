#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "manyhead/heads.h"
#include "manyhead/model.h"
#include "manyhead/session.h"
#include "manyhead/status.h"
#include "tools/manyhead/output.h"

namespace manyhead::cli {

/// The contents of a report on a model's heads, for pages and terminals alike. All of its texts are
/// printable UTF-8.
struct HeadsReport {
  /// One number per head that the grid can be coloured by.
  struct Metric {
    std::string key, name, unit, help;
    int digits = 2;
    bool is_signed = false;  ///< a change, up or down from 0
  };
  /// The KV heads of one layer that have equal types and policies.
  struct Memory {
    std::int64_t layer = 0, kv_heads = 0, heads = 0;
    std::string type, policy;
    /// Bytes of one head and token; bytes of all heads.
    std::int64_t token_bytes = 0, held_bytes = 0;
  };

  std::string title;
  std::vector<std::pair<std::string, std::string>> summary;
  std::vector<LayerConfig> layers;
  std::vector<Metric> metrics;
  std::vector<std::vector<std::optional<double>>> heads;  ///< [head of all layers][metric]
  std::vector<std::string> class_names;                   ///< empty: not classified
  std::vector<std::size_t> class_of;                      ///< [head of all layers]
  std::vector<Memory> memory;
  std::int64_t memory_tokens = 0;
  std::vector<std::string> tokens;  ///< T, the first tokens of the text
  /// [head of all layers][T (T + 1) / 2] rows of the lower triangle: 255 times the square root of a
  /// weight, so that small weights are visible.
  std::vector<std::uint8_t> weights;

  std::int64_t triangle() const noexcept {
    const std::int64_t T = std::ssize(tokens);
    return T * (T + 1) / 2;
  }
  /// Returns a head's index among those of all layers; nothing if there is no such head.
  std::optional<std::size_t> IndexOf(HeadId id) const noexcept;
  /// Returns the weight of `key` for `query`; key <= query.
  double Weight(std::size_t head, std::int64_t query, std::int64_t key) const noexcept;
};

struct HeadsReportOptions {
  std::int64_t tokens = 96;  ///< upper limit of T
  HeadProfileOptions profile;
  std::string classes;  ///< JSON of `heads classify`, or empty
  std::string effects;  ///< JSON of `heads ablate --each`, or empty
};

/// Evaluates as many of `ids` as the context holds, in a session of its own.
/// Errors   as Session; kInvalidArgument for fewer ids than options.profile.every, for JSON that
///          has another form than expected or names heads that the model does not have.
Result<HeadsReport> CollectHeadsReport(const Model& model, const SessionOptions& session,
                                       std::vector<TokenId> ids, const HeadsReportOptions& options);

/// Returns a token's bytes in readable form: control characters, characters that would change the
/// direction or break a line, and bytes that are not UTF-8 become escape sequences.
std::string VisibleToken(std::string_view bytes);

}  // namespace manyhead::cli
