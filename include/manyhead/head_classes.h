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

/// What a head attends to; tools/docs/head_classes.md defines each with its source and threshold.
enum class HeadClass : std::uint8_t {
  kInduction,       ///< the token after the earlier occurrence of the present one
  kRetrieval,       ///< far away tokens that the model then copies
  kPreviousToken,   ///< the token before
  kFixedOffset,     ///< the token k back, k = 0 being the present one
  kDuplicateToken,  ///< earlier occurrences of the present token
  kSyntactic,       ///< words that the present one depends on, or that depend on it
  kSink,            ///< the first tokens of the text, whatever they are
  kCollapsed,       ///< nothing of its own: uniform, the same for every text, or another head's
  kLocal,           ///< the tokens just before
  kMixed,           ///< none of these
};

/// How many HeadClass has.
inline constexpr int kNumHeadClasses = 10;

/// "induction", "retrieval", "previous-token", "fixed-offset", "duplicate-token", "syntactic",
/// "sink", "collapsed", "local", "mixed".
const char* HeadClassName(HeadClass head_class) noexcept;

/// How often a head's strongest arc from a word is a dependency of one relation and direction. Only
/// earlier words can be attended to, so the later word of an arc is the one that looks.
struct DependencyScore {
  std::string relation;     ///< without its subtype: "nsubj"
  bool to_head = false;     ///< the later word is the dependent; else the later word is the head
  std::int64_t count = 0;   ///< words that have such an arc to an earlier word
  double accuracy = 0;      ///< share of them whose strongest arc is it
  double baseline = 0;      ///< the same share for the best fixed distance in words
  std::int64_t offset = 0;  ///< that distance
};

/// Scores of one head, each from 0 to 1; NaN where it was not measured.
struct HeadScores {
  double previous_token = 0;    ///< mean weight of the token before
  double fixed_offset = 0;      ///< mean weight of the token `offset` back
  std::int64_t offset = 0;      ///< of 0..16 the one with most weight
  double duplicate_token = 0;   ///< mean weight of earlier occurrences
  double induction = 0;         ///< mean weight of what followed the earlier occurrence
  double retrieval = 0;         ///< share of the needle's tokens looked at while they are copied
  double sink = 0;              ///< mean weight of the first 4 tokens
  double local = 0;             ///< mean weight of the last 16 tokens
  double uniformity = 0;        ///< mean entropy over that of equal weights
  double constancy = 0;         ///< 1 - total variation between unrelated inputs' rows
  double twin = 0;              ///< 1 - total variation to `twin_head`
  std::int64_t twin_head = -1;  ///< the most similar of the layer's heads before this; -1: none
  std::vector<DependencyScore> dependencies{};  ///< empty without annotated sentences
};

/// From which score on a head belongs to a class.
struct HeadThresholds {
  double pattern = 0.4;               ///< induction, duplicate_token, previous_token, fixed_offset
  double retrieval = 0.1;             ///< arXiv:2404.15574
  double sink = 0.5;                  ///< of the first tokens
  double local = 0.7;                 ///< of the last tokens
  double collapsed = 0.95;            ///< uniformity, constancy, twin
  double syntactic_gain = 0.1;        ///< of accuracy over the best fixed distance
  double syntactic_deviations = 3;    ///< ... and in standard deviations of the baseline's share
  std::int64_t syntactic_count = 10;  ///< fewer words of a relation say nothing
};

/// The class of a head with these scores: of those whose threshold is reached the first in the
/// order of HeadClass, but a twin that is no sink is collapsed first of all.
HeadClass ClassOf(const HeadScores& scores, const HeadThresholds& thresholds = {}) noexcept;
/// The dependency that rises most above its baseline of those that make a head syntactic, or null.
const DependencyScore* BestDependency(const HeadScores& scores,
                                      const HeadThresholds& thresholds = {}) noexcept;

/// What one head looks for.
struct HeadReport {
  HeadId id;                                 ///< which head
  std::int64_t kv_head = 0;                  ///< that it reads
  HeadClass head_class = HeadClass::kMixed;  ///< by `scores`
  HeadScores scores;                         ///< measured on the probes
};

/// What a probe consists of.
enum class ProbeKind : std::uint8_t {
  kText,      ///< the text
  kRepeat,    ///< one token, then random ones twice
  kNeedle,    ///< random tokens early in the text, and once more after it
  kSentence,  ///< an annotated sentence
};

/// "text", "repeat", "needle", "sentence".
const char* ProbeKindName(ProbeKind kind) noexcept;

/// One sequence of tokens that scores were measured on.
struct Probe {
  ProbeKind kind = ProbeKind::kText;  ///< what it consists of
  std::vector<TokenId> ids;           ///< the sequence
  /// Where random tokens begin and how many they are; of kRepeat and kNeedle.
  std::int64_t begin = 0;
  std::int64_t count = 0;  ///< random tokens
  std::int64_t again = 0;  ///< where they begin for the second time
};

/// What heads are classified on.
struct ClassifyOptions {
  /// At least 256 tokens, of which 512 are used at most; empty: a text that is part of the library.
  std::vector<TokenId> text{};
  std::string conllu{};             ///< the bytes of a CoNLL-U file; empty: no syntactic scores
  std::uint64_t seed = 0;           ///< of the random tokens
  HeadThresholds thresholds{};      ///< of the classes
  MathMode math = MathMode::kFast;  ///< of the products with weights
  int threads = 0;                  ///< 0 selects the CPUs this process may use
  std::optional<Isa> isa{};         ///< default SelectIsa()
  /// Called after each probe with (tokens evaluated, tokens to evaluate); may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_progress{};
  /// When set by anyone, the work ends after the probe it is in, with an error.
  const std::atomic<bool>* cancel = nullptr;
};

/// What every head looks for.
struct HeadClassification {
  std::vector<HeadReport> heads;  ///< layer by layer
  std::vector<Probe> probes;      ///< what was evaluated, in order
};

/// Scores and classes of every head, from the attention weights of the decoder on a text, random
/// tokens said twice, needles in the text, and annotated sentences.
///
/// Weights are looked at row by row and never kept for all heads. The same seed, text and machine
/// give the same bits, whatever the number of threads.
///
/// Errors   kInvalidArgument naming the option and both values: a text that is too short, ids out
/// of
///          the vocabulary, a model whose context or vocabulary is too small; a line of the CoNLL-U
///          file, by its number. kUnsupported as Session::Create. kIoError when cancelled.
/// Source   induction arXiv:2209.11895, retrieval arXiv:2404.15574, sinks arXiv:2309.17453,
///          dependencies arXiv:1906.04341 and arXiv:1905.09418.
Result<HeadClassification> ClassifyHeads(const Model& model, const ClassifyOptions& options);

/// What each KV head needs to keep for the classes of its query heads, [layer][KV head], for
/// FormatKvHeads: all tokens where one of them looks anywhere, the first and the recent tokens
/// where all look only there. A twin needs what the head it resembles needs. Types are f16.
std::vector<std::vector<KvHeadParams>> ClassPolicies(const ModelConfig& config,
                                                     std::span<const HeadReport> heads);

}  // namespace manyhead
