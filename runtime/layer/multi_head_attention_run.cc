#include <algorithm>
#include <array>
#include <numeric>

#include "runtime/attention/plan_impl.h"
#include "runtime/cache/kv_cache_impl.h"
#include "runtime/layer/multi_head_attention_impl.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/math.h"

namespace manyhead {

namespace {

/// Returns the part of the bias that applies to one head.
AttentionBias BiasOfHead(AttentionBias bias, std::int64_t head) noexcept {
  if (bias.bias.data != nullptr) bias.bias.data += head * bias.bias.head_stride;
  if (bias.mask.data != nullptr) bias.mask.data += head * bias.mask.head_stride;
  return bias;
}

}  // namespace

LinearRows MultiHeadAttention::Impl::QueryRows(const Call& call) const noexcept {
  static constexpr auto kRows = [] {
    std::array<std::int64_t, kAccuratePositions> rows = {};
    std::iota(rows.begin(), rows.end(), std::int64_t{0});
    return rows;
  }();
  LinearRows rows;
  const RowRole by_default = call.q_len == 1 ? RowRole::kDecode : RowRole::kPrefill;
  const RowRole role = call.options.role.value_or(by_default);
  (role == RowRole::kDecode ? rows.decode : rows.prefill) = call.q_len;
  std::int64_t accurate = 0;
  if (!is_cross())
    while (accurate < call.q_len && IsAccurate(role, call.position + accurate)) ++accurate;
  rows.accurate = std::span(kRows).first(static_cast<std::size_t>(accurate));
  return rows;
}

LinearRows MultiHeadAttention::Impl::KvRowsOf(const Call& call) const noexcept {
  if (!is_cross()) return QueryRows(call);
  return {.prefill = KvSource(call).count};
}

/// Returns the rows that keys and values are computed from.
MultiHeadAttention::Impl::Rows MultiHeadAttention::Impl::KvSource(const Call& call) const noexcept {
  if (!is_cross()) return {call.x, params_.d_model, call.q_len};
  return {call.memory, params_.memory_dim, call.memory != nullptr ? call.kv_len : 0};
}

Status MultiHeadAttention::Impl::CheckKind(const Call& call, bool cross) const noexcept {
  if (is_cross() == cross) return {};
  return InvalidArgument(call.function, "memory_dim = ", params_.memory_dim, "; expected ",
                         cross ? "more than 0 for cross" : "0 for self", " attention");
}

/// Checks that the call's sequence and layer of its cache can serve this layer.
Status MultiHeadAttention::Impl::CheckCache(const Call& call) const noexcept {
  const AttentionParams& attention = params_.attention;
  const auto& layers = call.cache->params().layers;
  const auto count = static_cast<std::int64_t>(layers.size());
  if (Status status = CheckRange(call.function, "layer", call.layer, 0, count - 1); !status.ok())
    return status;
  const KvLayerShape& shape = layers[static_cast<std::size_t>(call.layer)];
  const struct {
    const char* name;
    std::int64_t wanted, stored;
  } sizes[] = {
      {"num_kv_heads", attention.num_kv_heads, shape.num_kv_heads},
      {"head_dim", attention.head_dim, shape.head_dim},
      {"head_dim_v", attention.head_dim_v,
       shape.head_dim_v == 0 ? shape.head_dim : shape.head_dim_v},
  };
  for (const auto& [name, wanted, stored] : sizes)
    if (wanted != stored)
      return InvalidArgument(call.function, name, " = ", wanted, " differs from ", name, " = ",
                             stored, " of layer ", call.layer, " in the cache");
  const std::int64_t length = call.cache->length(call.sequence);
  if (length < 0)
    return InvalidArgument(call.function, "sequence = ", static_cast<std::int64_t>(call.sequence),
                           " is not in the cache");
  if (call.q_len > length)
    return InvalidArgument(call.function, "q_len = ", call.q_len, " exceeds the ", length,
                           " tokens that the cache holds room for");
  return {};
}

Status MultiHeadAttention::Impl::CheckRows(const Call& call) const noexcept {
  const AttentionParams& attention = params_.attention;
  if (Status status = CheckRange(call.function, "q_len", call.q_len, 0, attention.max_q_len);
      !status.ok())
    return status;
  if (Status status = CheckRange(call.function, "kv_len", call.kv_len, 0, attention.max_kv_len);
      !status.ok())
    return status;
  if (call.q_len == 0 || (call.x != nullptr && call.out != nullptr)) return {};
  return InvalidArgument(call.function, call.x == nullptr ? "x" : "out",
                         " is null with q_len = ", call.q_len);
}

Status MultiHeadAttention::Impl::RunSelf(const Call& call) noexcept {
  if (Status status = CheckKind(call, false); !status.ok()) return status;
  return Run(call);
}

Status MultiHeadAttention::Impl::RunCross(const Call& call) noexcept {
  if (Status status = CheckKind(call, true); !status.ok()) return status;
  return Run(call);
}

Status MultiHeadAttention::Impl::RunCached(const Call& call) noexcept {
  if (Status status = CheckKind(call, false); !status.ok()) return status;
  if (Status status = CheckCache(call); !status.ok()) return status;
  Call placed = call;
  placed.kv_len = call.cache->length(call.sequence);
  placed.position = placed.kv_len - call.q_len;
  return Run(placed);
}

Status MultiHeadAttention::Impl::Run(const Call& call) noexcept {
  if (Status status = CheckRows(call); !status.ok()) return status;
  return params_.sequential ? RunSequential(call) : RunParallel(call);
}

/// Returns all heads' queries, keys, values and results in the layer's buffers.
AttentionTensors MultiHeadAttention::Impl::TensorsOf(const Call& call) const noexcept {
  const AttentionParams& a = params_.attention;
  AttentionTensors tensors;
  tensors.q_len = call.q_len;
  tensors.kv_len = call.kv_len;
  tensors.q = {query_.data(), 0, a.num_heads * a.head_dim, a.head_dim};
  tensors.k = {key_.data(), 0, a.num_kv_heads * a.head_dim, a.head_dim};
  tensors.v = {value_.data(), 0, a.num_kv_heads * a.head_dim_v, a.head_dim_v};
  tensors.bias = call.options.bias;
  return tensors;
}

Status MultiHeadAttention::Impl::RunParallel(const Call& call) noexcept {
  AttentionPlan::Impl& plan = plans_.front().impl();
  const std::int64_t qo_indptr[] = {0, call.q_len};
  const AttentionTensors tensors = TensorsOf(call);
  if (Status status = call.cache != nullptr
                          ? plan.Prepare(*call.cache, {&call.sequence, 1}, qo_indptr,
                                         call.options.bias, call.function)
                          : plan.Prepare(tensors, call.function);
      !status.ok())
    return status;
  if (is_cross()) memory_len = call.kv_len;
  const LinearOutput inputs[] = {
      {&query_weights_.weight, query_.data(), query_weights_.weight.rows,
       query_weights_.BiasFrom(0)},
      {&key_weights_.weight, key_.data(), key_weights_.weight.rows, key_weights_.BiasFrom(0)},
      {&value_weights_.weight, value_.data(), value_weights_.weight.rows,
       value_weights_.BiasFrom(0)},
  };
  AttentionBlock block = Block();
  block.inputs = inputs;
  RunTeam(params_.attention.threads, [&](Worker& worker) {
    ProjectInputs(worker, call, block);
    block.Attend(worker, call.layer);
    ProjectOutput(worker, call, block);
  });
  return {};
}

/// Returns the layer's weights and buffers as a block, without inputs.
AttentionBlock MultiHeadAttention::Impl::Block() noexcept {
  AttentionBlock block;
  block.output = &output_weights_.weight;
  block.output_bias = output_weights_.BiasFrom(0);
  block.query_rotation = block.key_rotation = {{}, rope_ ? &*rope_ : nullptr, kernels_};
  block.plan = &plans_.front().impl();
  block.query = query_.data();
  block.key = key_.data();
  block.value = value_.data();
  block.attended = attended_.data();
  block.cosine = cosine_.data();
  block.sine = sine_.data();
  return block;
}

void MultiHeadAttention::Impl::ProjectInputs(Worker& worker, const Call& call,
                                             const AttentionBlock& block) noexcept {
  if (is_cross()) {
    const Rows memory = KvSource(call);
    RunLinear(worker, *linear_, call.x, params_.d_model, QueryRows(call), block.inputs.first(1));
    RunLinear(worker, *linear_, memory.data, memory.stride, KvRowsOf(call), block.inputs.last(2));
    return;
  }
  block.ProjectInputs(worker, *linear_, QueryRows(call), call.x, params_.d_model);
  SetAngles(worker, call);
  block.Rotate(worker, call.q_len);
  if (call.cache == nullptr) return;
  const KvRows tokens[] = {{call.sequence, call.position, call.q_len, 0}};
  block.Write(worker, *call.cache, call.layer, tokens);
}

void MultiHeadAttention::Impl::SetAngles(Worker& worker, const Call& call) noexcept {
  if (!rope_) return;
  const std::int64_t pairs = rope_->config().rotary_dim / 2;
  worker.ForEach(call.q_len, [&](std::int64_t t) {
    rope_->Angles(call.position + t, cosine_.data() + t * pairs, sine_.data() + t * pairs);
  });
}

/// Rotates `count` neighbouring heads in each row of `heads`.
void MultiHeadAttention::Impl::RotateRows(Worker& worker, const Call& call, std::int64_t count,
                                          float* heads) noexcept {
  if (!rope_) return;
  const HeadRotation rotation = {{}, &*rope_, kernels_};
  const std::int64_t D = params_.attention.head_dim, pairs = rope_->config().rotary_dim / 2;
  worker.ForEach(call.q_len, [&](std::int64_t t) {
    rotation.Run(cosine_.data() + t * pairs, sine_.data() + t * pairs, count, D,
                 heads + t * count * D);
  });
}

void MultiHeadAttention::Impl::ProjectOutput(Worker& worker, const Call& call,
                                             const AttentionBlock& block) noexcept {
  const std::int64_t H = params_.attention.num_heads, Dv = params_.attention.head_dim_v;
  const HeadOutputs& wanted = call.options.head_outputs;
  block.ProjectOutput(worker, *linear_, QueryRows(call), call.out);
  if (wanted.heads != nullptr)
    worker.ForEach(call.q_len, [&](std::int64_t t) {
      for (std::int64_t h = 0; h < H; ++h)
        std::copy_n(attended_.data() + (t * H + h) * Dv, Dv,
                    wanted.heads + (h * call.q_len + t) * Dv);
    });
  if (wanted.terms != nullptr)
    for (std::int64_t h = 0; h < H; ++h)
      ProjectTerm(worker, call, h, {attended_.data() + h * Dv, H * Dv, call.q_len},
                  wanted.terms + h * call.q_len * params_.d_model);
}

/// Returns the columns of W_o that head `head` is multiplied with, as whole blocks of its type.
std::int64_t MultiHeadAttention::Impl::PaddedColumns(std::int64_t head,
                                                     std::int64_t* first) const noexcept {
  const std::int64_t Dv = params_.attention.head_dim_v;
  const std::int64_t block = WeightBlockOf(output_weights_.weight.type).elements;
  *first = head * Dv / block * block;
  return RoundUp((head + 1) * Dv, block) - *first;
}

/// Computes term [q_len, d_model] = W_h head of one head's `rows`.
void MultiHeadAttention::Impl::ProjectTerm(Worker& worker, const Call& call, std::int64_t head,
                                           const Rows& rows, float* term) noexcept {
  const std::int64_t Dv = params_.attention.head_dim_v;
  std::int64_t first = 0;
  const std::int64_t columns = PaddedColumns(head, &first);
  const WeightView slice = WeightColumns(output_weights_.weight, first, columns);
  Rows input = rows;
  if (columns != Dv) {  // zeros meet the columns of other heads in the head's blocks
    worker.ForEach(rows.count, [&](std::int64_t t) {
      float* padded = padded_.data() + t * columns;
      std::fill_n(padded, columns, 0.0F);
      std::copy_n(rows.data + t * rows.stride, Dv, padded + head * Dv - first);
    });
    input = {padded_.data(), columns, rows.count};
  }
  const LinearOutput output[] = {{&slice, term, params_.d_model, nullptr}};
  RunLinear(worker, *linear_, input.data, input.stride, QueryRows(call), output);
}

Status MultiHeadAttention::Impl::RunSequential(const Call& call) noexcept {
  // An error for one head is an error for each: it is found before anything is written.
  const AttentionTensors tensors = TensorsOfHead(call, 0);
  if (Status status = plans_.front().impl().Prepare(tensors, call.function); !status.ok())
    return status;
  if (is_cross()) memory_len = call.kv_len;
  RunTeam(params_.attention.threads, [&](Worker& worker) { ProjectKeysByHead(worker, call); });
  for (std::int64_t h = 0; h < params_.attention.num_heads; ++h)
    if (Status status = RunHead(call, h); !status.ok()) return status;
  return {};
}

/// Returns the tensors of one head; keys and values rounded as by the cache have buffers of their
/// own.
AttentionTensors MultiHeadAttention::Impl::TensorsOfHead(const Call& call,
                                                         std::int64_t head) const noexcept {
  const AttentionParams& a = params_.attention;
  const std::int64_t kv_head = head / (a.num_heads / a.num_kv_heads);
  AttentionTensors tensors = TensorsOf(call);
  tensors.q = {query_.data(), 0, a.head_dim, a.head_dim};
  tensors.k.data = key_.data() + kv_head * a.head_dim;
  tensors.v.data = value_.data() + kv_head * a.head_dim_v;
  if (call.cache != nullptr) {
    tensors.k = {head_key_.data(), 0, a.head_dim, a.head_dim};
    tensors.v = {head_value_.data(), 0, a.head_dim_v, a.head_dim_v};
  }
  tensors.bias = BiasOfHead(call.options.bias, head);
  return tensors;
}

void MultiHeadAttention::Impl::ProjectKeysByHead(Worker& worker, const Call& call) noexcept {
  const std::int64_t D = params_.attention.head_dim, Dv = params_.attention.head_dim_v;
  const Rows source = KvSource(call);
  for (std::int64_t g = 0; g < params_.attention.num_kv_heads; ++g) {
    const WeightView key = WeightRows(key_weights_.weight, g * D, D);
    const WeightView value = WeightRows(value_weights_.weight, g * Dv, Dv);
    const LinearOutput outputs[] = {
        {&key, key_.data() + g * D, key_weights_.weight.rows, key_weights_.BiasFrom(g * D)},
        {&value, value_.data() + g * Dv, value_weights_.weight.rows,
         value_weights_.BiasFrom(g * Dv)},
    };
    RunLinear(worker, *linear_, source.data, source.stride, KvRowsOf(call), outputs);
  }
  if (is_cross()) return;
  SetAngles(worker, call);
  RotateRows(worker, call, params_.attention.num_kv_heads, key_.data());
  if (call.cache == nullptr) return;
  const KvRows tokens[] = {{call.sequence, call.position, call.q_len, 0}};
  call.cache->impl().WriteOn(worker, call.layer, tokens, key_.data(), value_.data(),
                             key_weights_.weight.rows, value_weights_.weight.rows);
}

/// Computes one head from x to its term, which is added to out.
Status MultiHeadAttention::Impl::RunHead(const Call& call, std::int64_t head) noexcept {
  const AttentionParams& attention = params_.attention;
  const HeadOutputs& wanted = call.options.head_outputs;
  const std::int64_t T = call.q_len, Dv = attention.head_dim_v, d = params_.d_model;
  float* attended = wanted.heads != nullptr ? wanted.heads + head * T * Dv : attended_.data();
  float* term = wanted.terms != nullptr ? wanted.terms + head * T * d : term_.data();
  const AttentionTensors tensors = TensorsOfHead(call, head);
  AttentionPlan::Impl& plan =
      plans_[std::min(static_cast<std::size_t>(head), plans_.size() - 1)].impl();
  if (Status status = plan.Prepare(tensors, call.function); !status.ok()) return status;
  RunTeam(attention.threads, [&](Worker& worker) {
    ProjectQueryHead(worker, call, head);
    if (call.cache != nullptr) ReadKvHead(worker, call, head);
    plan.RunOn(worker, 0, query_.data(), attended, nullptr);
    ProjectTerm(worker, call, head, {attended, Dv, T}, term);
    AddTerm(worker, call, head, term);
  });
  return {};
}

void MultiHeadAttention::Impl::ProjectQueryHead(Worker& worker, const Call& call,
                                                std::int64_t head) noexcept {
  const std::int64_t D = params_.attention.head_dim;
  const WeightView weight = WeightRows(query_weights_.weight, head * D, D);
  const LinearOutput output[] = {{&weight, query_.data(), D, query_weights_.BiasFrom(head * D)}};
  RunLinear(worker, *linear_, call.x, params_.d_model, QueryRows(call), output);
  RotateRows(worker, call, 1, query_.data());
}

/// Reads the keys and values of `head`, unless the previous head has read the same ones.
void MultiHeadAttention::Impl::ReadKvHead(Worker& worker, const Call& call,
                                          std::int64_t head) noexcept {
  const AttentionParams& a = params_.attention;
  const std::int64_t group = a.num_heads / a.num_kv_heads;
  if (head % group != 0) return;
  worker.ForEach(call.kv_len, [&](std::int64_t s) {
    call.cache->impl().ReadRow(call.sequence, call.layer, head / group, s,
                               head_key_.data() + s * a.head_dim,
                               head_value_.data() + s * a.head_dim_v);
  });
}

void MultiHeadAttention::Impl::AddTerm(Worker& worker, const Call& call, std::int64_t head,
                                       const float* term) noexcept {
  const std::int64_t d = params_.d_model;
  const float* bias = output_weights_.BiasFrom(0);
  worker.ForEach(call.q_len, [&](std::int64_t t) {
    float* out = call.out + t * d;
    if (head == 0 && bias != nullptr) std::copy_n(bias, d, out);
    if (head == 0 && bias == nullptr) std::fill_n(out, d, 0.0F);
    kernels_->add(out, term + t * d, d);
  });
}

}  // namespace manyhead
