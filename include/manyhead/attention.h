#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/isa.h"
#include "manyhead/kv_cache.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// Shapes and options of an AttentionPlan. Lengths are upper bounds; each Run states its own.
struct AttentionParams {
  std::int64_t num_heads = 0;     ///< H, query heads; a multiple of num_kv_heads
  std::int64_t num_kv_heads = 0;  ///< K, key/value heads: H = MHA, 1 = MQA, between = GQA
  std::int64_t head_dim = 0;      ///< D, elements of a query or key head, 1..1024
  std::int64_t head_dim_v = 0;    ///< elements of a value head, 1..1024; 0 selects head_dim
  std::int64_t max_q_len = 0;   ///< most query tokens of one Run, over all its requests, at least 1
  std::int64_t max_kv_len = 0;  ///< most key/value tokens of one request, at least 1
  float softmax_scale = 0;      ///< factor on every logit, finite; 0 selects 1/sqrt(head_dim)
  float logit_softcap = 0;      ///< x becomes cap * tanh(x / cap); 1e-30..1e30, or 0 = off
  bool causal = true;           ///< query i sees key j iff j <= i + (kv_len - q_len)
  std::int64_t window = 0;      ///< W: sees j in [i - W + 1, i] only (absolute positions); 0 = all
  /// R: sees up to j = i + R. Unset: R = 0 under causal or a window, unbounded otherwise. Causal
  /// caps it at 0.
  std::optional<std::int64_t> window_right;
  /// The first tokens of a sequence, which `window` does not hide (arXiv:2309.17453).
  std::int64_t num_sink_tokens = 0;
  /// [H] or empty: logit -= slope[h] * |i - j|, absolute positions (arXiv:2108.12409); finite.
  std::vector<float> alibi_slopes;
  /// [H] or empty: one more logit per head that joins the maximum and the denominator only, so that
  /// a row's weights sum to less than 1; finite, or -inf for a head without one.
  std::vector<float> sink_logits;
  int threads = 0;         ///< 0 selects DefaultThreads()
  std::optional<Isa> isa;  ///< default SelectIsa()
  /// When set, Create and Run fail with kUnsupported, and the reason that Explain would give, where
  /// a faster kernel must be refused; otherwise they take the slower kernel.
  bool strict = false;
};

/// Returns the slopes of ALiBi for any number of heads: 2^(-8 h / H), h = 1..H, for powers of two;
/// for other numbers those of the next lower power of two, followed by every other slope of twice
/// that power.
///
/// Source   arXiv:2108.12409 and the authors' code.
std::vector<float> AlibiSlopes(std::int64_t num_heads);

/// A tensor in memory: element (b, t, h, d) lies at data[b * batch_stride + t * token_stride +
/// h * head_stride + d]. Strides in elements, any sign; the last dimension is dense.
template <class T>
struct TensorView {
  T* data = nullptr;              ///< points to element (0, 0, 0, 0)
  std::int64_t batch_stride = 0;  ///< from request to request
  std::int64_t token_stride = 0;  ///< from token to token
  std::int64_t head_stride = 0;   ///< from head to head
};

/// One number per (request, query head, query, key): element (b, h, t, s) lies at data[b *
/// batch_stride + h * head_stride + t * query_stride + s]; a stride of 0 broadcasts. t counts from
/// the first query of request b; s is the key's position.
template <class T>
struct LogitTensor {
  const T* data = nullptr;        ///< null: absent
  std::int64_t kv_len = 0;        ///< elements of the last dimension; at least the request's kv_len
  std::int64_t batch_stride = 0;  ///< from request to request
  std::int64_t head_stride = 0;   ///< from query head to query head
  std::int64_t query_stride = 0;  ///< from query to query
};

/// Tensors that one Run adds to its logits. A key that `mask` or a bias of -inf hides is not
/// attended: NaN in its key and value changes nothing.
struct AttentionBias {
  LogitTensor<float> bias;         ///< added after scale and soft-cap
  LogitTensor<std::uint8_t> mask;  ///< 0 hides the key
};

/// Plain tensors of `batch` requests of one shape.
struct AttentionTensors {
  std::int64_t batch = 1;                 ///< B, requests
  std::int64_t q_len = 0;                 ///< T, query tokens of every request
  std::int64_t kv_len = 0;                ///< S, key/value tokens of every request
  const std::int64_t* kv_lens = nullptr;  ///< [batch] valid tokens, 0..kv_len; null: kv_len
  /// [batch] position of each request's first query, -2^40..2^40, from which causal, window and
  /// ALiBi count; null: its valid tokens - q_len. 0 gives the upper-left causal mask of other
  /// libraries.
  /// count; null: its valid tokens - q_len. 0 gives the upper-left causal mask of other libraries.
  const std::int64_t* query_starts = nullptr;
  KvType k_type = KvType::kF32;  ///< type of k.data: f32, f16 or bf16
  KvType v_type = KvType::kF32;  ///< type of v.data: f32, f16 or bf16
  TensorView<const float> q;     ///< [batch, q_len, H, D]
  TensorView<const void> k;      ///< [batch, kv_len, K, D]
  TensorView<const void> v;      ///< [batch, kv_len, K, Dv]
  TensorView<float> out;         ///< [batch, q_len, H, Dv]
  TensorView<float> lse;         ///< [batch, q_len, H] or null
  AttentionBias bias;            ///< bias and mask of all requests
};

/// A stage of the logits that AttentionPlan::Weights writes.
enum class LogitStage : std::uint8_t {
  kScores,  ///< softmax_scale * q k of every key, hidden or not
  kCapped,  ///< after the soft-cap
  kBiased,  ///< after bias and ALiBi; -inf where hidden
  kProbs,   ///< softmax; a row without a visible key is 0
};

/// Says which kernel a plan uses for given lengths, and what it costs.
struct AttentionExplanation {
  std::string kernel;           ///< e.g. "tiled online softmax, f16 keys widened in registers"
  Isa isa = Isa::kScalar;       ///< instruction set of the kernels
  int threads = 0;              ///< threads that share the items of work
  std::int64_t tile_rows = 0;   ///< rows (query head at a query position) that share a read
  std::int64_t block_keys = 0;  ///< keys between two updates of a row's maximum
  std::int64_t split_keys = 0;  ///< keys of one item, where the keys are split over threads; else 0
  std::int64_t items = 0;       ///< items of work handed out to threads
  std::int64_t scratch_bytes = 0;    ///< scratch memory of the plan
  std::int64_t bytes = 0;            ///< bytes of K and V that memory must deliver at least
  std::int64_t flops = 0;            ///< operations of both products, over visible keys
  std::vector<std::string> refused;  ///< faster kernels, each with the reason why it was not taken

  std::string ToString() const;  ///< returns one line per entry
};

/// out[t,h] = sum_s softmax_s(logit(t,h,s)) * v[s,h/G], G = H/K,
/// logit = bias + softcap(softmax_scale * dot(q[t,h], k[s,h/G])) - alibi, over the keys that
/// causal, window, sink tokens and mask let (t,h) see. Scale, soft-cap, bias and ALiBi, mask and
/// softmax are applied in this order.
///
/// Create validates and may fail; Run cannot fail for shapes within the plan's.
///
/// Rows     a row without a visible key gives zeros and lse = -inf (the sink logit where there is
///          one), never NaN; NaN in a key or value that no query may see changes nothing.
/// lse      natural log of each softmax denominator, the sink logit included.
/// Aliasing out and lse overlap no input.
/// Errors   kInvalidArgument, naming the parameter and both values, before anything is written.
///          Create throws bad_alloc when its scratch memory cannot be allocated.
/// Threads  Run may be called from several threads: the calls of one plan are serialised, since the
///          plan owns scratch memory; different plans run concurrently. Run allocates nothing and
///          keeps the caller's floating-point mode.
/// Bits     equal for every thread count, for a request alone or in a batch, and for one prefill or
///          any chunks of it, on one instruction set.
/// Source   grouped heads arXiv:2305.13245; one-pass softmax arXiv:1805.02867; tiling over keys
///          arXiv:2205.14135; sink logits as in gpt-oss, arXiv:2508.10925.
class AttentionPlan {
 public:
  /// Checks `params` and allocates the scratch memory that every Run uses.
  static Result<AttentionPlan> Create(const AttentionParams& params);
  AttentionPlan(AttentionPlan&&) noexcept;
  AttentionPlan& operator=(AttentionPlan&&) noexcept;
  ~AttentionPlan();

  /// Computes attention over one layer of a paged cache, for a ragged batch of requests: request b
  /// has the queries [qo_indptr[b], qo_indptr[b + 1]) of q, which are the last tokens of
  /// sequences[b]. qo_indptr holds sequences.size() + 1 prefix sums, the first 0; null stands for
  /// one query per request (decode). Dense q [T, H, D], out [T, H, Dv], lse [T, H] or null.
  Status Run(const KvCache& cache, std::int64_t layer, std::span<const SequenceId> sequences,
             const std::int64_t* qo_indptr, const float* q, float* out, float* lse = nullptr,
             const AttentionBias& bias = {}) noexcept;

  /// Computes attention over plain tensors.
  Status Run(const AttentionTensors& tensors) noexcept;

  /// Computes attention over plain tensors of one request, all dense f32: q [q_len, H, D], k
  /// [kv_len, K, D], v [kv_len, K, Dv], out [q_len, H, Dv], lse [q_len, H] or null.
  Status Run(std::int64_t q_len, std::int64_t kv_len, const float* q, const float* k,
             const float* v, float* out, float* lse = nullptr) noexcept;

  /// Writes a stage of the logits of plain tensors, dense [batch, H, q_len, kv_len]. It serves
  /// inspection: it takes memory and time in proportion to q_len * kv_len. `tensors.v` and `out`
  /// are not used; kProbs reads the `lse` that Run wrote.
  Status Weights(const AttentionTensors& tensors, LogitStage stage, float* weights) noexcept;

  /// Does the same over one layer of a paged cache, for the last q_len tokens of `sequence`: writes
  /// the softmax weights [H, q_len, kv_len] of the Run that wrote `lse` [q_len, H], as long as the
  /// cache has not changed since. q [q_len, H, D]. Weights are 0 for keys that are hidden, evicted
  /// or not stored. A row sums to 1, or to 1 minus its sink logit's share e^(sink_logit - lse); a
  /// row that sees no key is 0.
  Status Weights(const KvCache& cache, std::int64_t layer, SequenceId sequence, std::int64_t q_len,
                 const float* q, const float* lse, float* weights,
                 const AttentionBias& bias = {}) noexcept;

  /// Explains how a Run of one request of these lengths over a cache of these types is done. The
  /// lengths must be within the plan's.
  Result<AttentionExplanation> Explain(KvType k_type, KvType v_type, std::int64_t q_len,
                                       std::int64_t kv_len) const;

  /// The parameters, with the defaults filled in.
  const AttentionParams& params() const noexcept;
  /// Bytes of the plan's scratch memory.
  std::int64_t scratch_bytes() const noexcept;

  /// The implementation, for other rooms of this library only; its type is incomplete outside.
  struct Impl;
  Impl& impl() noexcept { return *impl_; }

 private:
  explicit AttentionPlan(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// Joins two attention results over disjoint keys: out [rows, Dv] and lse [rows] of both, natural
/// log. The result may overwrite either. A state without keys is zeros with lse = -inf. Where sink
/// logits are used, only one of the two may have included them.
///
/// out = (out_a e^lse_a + out_b e^lse_b) / (e^lse_a + e^lse_b), lse = log(e^lse_a + e^lse_b)
///
/// Errors   kInvalidArgument for negative sizes or null pointers.
/// Source   arXiv:2501.01005, section 3.
Status MergeAttentionStates(std::int64_t rows, std::int64_t head_dim_v, const float* out_a,
                            const float* lse_a, const float* out_b, const float* lse_b, float* out,
                            float* lse) noexcept;

}  // namespace manyhead
