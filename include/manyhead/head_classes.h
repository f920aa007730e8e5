#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/head_id.h"
#include "manyhead/isa.h"
#include "manyhead/kv_cache.h"
#include "manyhead/model.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// The kinds of tokens that a head attends to; tools/docs/head_classes.md defines each class with
/// its source and threshold.
enum class HeadClass : std::uint8_t {
  kInduction,       ///< the token after the earlier occurrence of the current token
  kRetrieval,       ///< distant tokens that the model then copies
  kPreviousToken,   ///< the token before
  kFixedOffset,     ///< the token k back, k = 0 being the current token
  kDuplicateToken,  ///< earlier occurrences of the current token
  kSyntactic,       ///< words that the current one depends on, or that depend on it
  kSink,            ///< the first tokens of the text, whatever they are
  /// No selection of its own: weights are uniform, the same for every text, or another head's.
  kCollapsed,
  kLocal,  ///< the tokens just before
  kMixed,  ///< none of these
};

/// The number of classes in HeadClass.
inline constexpr int kNumHeadClasses = 10;

/// Returns "induction", "retrieval", "previous-token", "fixed-offset", "duplicate-token",
/// "syntactic", "sink", "collapsed", "local" or "mixed".
const char* HeadClassName(HeadClass head_class) noexcept;

/// Says how often a head's strongest arc from a word is a dependency of one relation and direction.
/// Only earlier words can be attended to, so the later word of an arc is the one that attends.
struct DependencyScore {
  std::string relation;     ///< relation without its subtype, e.g. "nsubj"
  bool to_head = false;     ///< the later word is the dependent; else the later word is the head
  std::int64_t count = 0;   ///< words that have such an arc to an earlier word
  double accuracy = 0;      ///< share of these words whose strongest arc is the dependency
  double baseline = 0;      ///< the same share for the best fixed distance in words
  std::int64_t offset = 0;  ///< the best fixed distance in words
};

/// Scores of one head, each from 0 to 1; NaN where it was not measured.
struct HeadScores {
  double previous_token = 0;   ///< mean weight of the token before
  double fixed_offset = 0;     ///< mean weight of the token `offset` back
  std::int64_t offset = 0;     ///< offset in 0..16 with the largest weight
  double duplicate_token = 0;  ///< mean weight of earlier occurrences of the token
  double induction = 0;        ///< mean weight of the token after the earlier occurrence
  /// Share of the needle's tokens that are attended to while they are copied.
  double retrieval = 0;
  double sink = 0;              ///< mean weight of the first 4 tokens
  double local = 0;             ///< mean weight of the last 16 tokens
  double uniformity = 0;        ///< mean entropy divided by that of equal weights
  double constancy = 0;         ///< 1 - total variation between rows of unrelated inputs
  double twin = 0;              ///< 1 - total variation between the head and `twin_head`
  std::int64_t twin_head = -1;  ///< the most similar of the earlier heads of the layer; -1: none
  std::vector<DependencyScore> dependencies{};  ///< empty without annotated sentences
};

/// The scores from which a head belongs to a class.
struct HeadThresholds {
  double pattern = 0.4;         ///< induction, duplicate_token, previous_token, fixed_offset
  double retrieval = 0.1;       ///< arXiv:2404.15574
  double sink = 0.5;            ///< weight of the first tokens
  double local = 0.7;           ///< weight of the last tokens
  double collapsed = 0.95;      ///< uniformity, constancy, twin
  double syntactic_gain = 0.1;  ///< rise of accuracy over the best fixed distance
  /// The same rise in standard deviations of the baseline's share.
  double syntactic_deviations = 3;
  std::int64_t syntactic_count = 10;  ///< least number of words for which a relation counts
};

/// Returns the class of a head with these scores: the first class in the order of HeadClass whose
/// threshold is reached, except that a twin that is no sink is always kCollapsed.
HeadClass ClassOf(const HeadScores& scores, const HeadThresholds& thresholds = {}) noexcept;
/// Returns the dependency, among those that make the head syntactic, that rises most above its
/// baseline; null where there is none.
const DependencyScore* BestDependency(const HeadScores& scores,
                                      const HeadThresholds& thresholds = {}) noexcept;

/// The class and scores of one head.
struct HeadReport {
  HeadId id;                                 ///< the head
  std::int64_t kv_head = 0;                  ///< KV head that the head reads
  HeadClass head_class = HeadClass::kMixed;  ///< class that follows from `scores`
  HeadScores scores;                         ///< measured on the probes
};

/// The kinds of token sequences that heads are classified on.
enum class ProbeKind : std::uint8_t {
  kText,      ///< the given text
  kRepeat,    ///< one token, then random tokens twice
  kNeedle,    ///< random tokens early in the text, and once more after it
  kSentence,  ///< an annotated sentence
};

/// Returns "text", "repeat", "needle" or "sentence".
const char* ProbeKindName(ProbeKind kind) noexcept;

/// One sequence of tokens that scores were measured on.
struct Probe {
  ProbeKind kind = ProbeKind::kText;  ///< kind of the sequence
  std::vector<TokenId> ids;           ///< the sequence
  /// Position of the random tokens in kRepeat and kNeedle.
  std::int64_t begin = 0;
  std::int64_t count = 0;  ///< number of random tokens
  std::int64_t again = 0;  ///< position where the random tokens begin for the second time
};

/// Says what heads are classified on, and how.
struct ClassifyOptions {
  /// At least 256 tokens, of which at most 512 are used; empty: a text that is part of the library.
  std::vector<TokenId> text{};
  std::string conllu{};             ///< the bytes of a CoNLL-U file; empty: no syntactic scores
  std::uint64_t seed = 0;           ///< seed of the random tokens
  HeadThresholds thresholds{};      ///< thresholds of the classes
  MathMode math = MathMode::kFast;  ///< arithmetic of the products with weights
  int threads = 0;                  ///< 0 selects the CPUs this process may use
  std::optional<Isa> isa{};         ///< default SelectIsa()
  /// Called after each probe with (tokens evaluated, tokens to evaluate); may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_progress{};
  /// When any thread sets it, the work ends after the current probe, with an error.
  const std::atomic<bool>* cancel = nullptr;
};

/// The classes and scores of all heads.
struct HeadClassification {
  std::vector<HeadReport> heads;  ///< in the order of the layers
  std::vector<Probe> probes;      ///< sequences that were evaluated, in order
};

/// Measures scores and classes of every head from the attention weights of the decoder on a text,
/// on random tokens that appear twice, on needles in the text, and on annotated sentences.
///
/// Weights are processed row by row and never stored for all heads. The same seed, text and machine
/// give the same bits, whatever the number of threads.
///
/// Errors   kInvalidArgument naming the option and both values: a text that is too short, ids out
///          of the vocabulary, a model whose context or vocabulary is too small; a line of the
///          CoNLL-U file, by its number. kUnsupported as Session::Create. kIoError when cancelled.
/// Source   induction arXiv:2209.11895, retrieval arXiv:2404.15574, sinks arXiv:2309.17453,
///          dependencies arXiv:1906.04341 and arXiv:1905.09418.
Result<HeadClassification> ClassifyHeads(const Model& model, const ClassifyOptions& options);

/// Returns the policy that each KV head needs for the classes of its query heads, as [layer][KV
/// head] for FormatKvHeads: all tokens where one of them attends anywhere, the first and the recent
/// tokens where all attend only there. A twin needs what the head that it resembles needs. Types
/// are f16.
std::vector<std::vector<KvHeadParams>> ClassPolicies(const ModelConfig& config,
                                                     std::span<const HeadReport> heads);

}  // namespace manyhead
