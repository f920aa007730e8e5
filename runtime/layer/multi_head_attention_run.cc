#include <algorithm>

#include "runtime/cache/kv_cache_impl.h"
#include "runtime/layer/multi_head_attention_impl.h"

namespace manyhead {
namespace {

/// What a head's logits get of the bias of all.
AttentionBias BiasOfHead(AttentionBias bias, std::int64_t head) noexcept {
  if (bias.bias.data != nullptr) bias.bias.data += head * bias.bias.head_stride;
  if (bias.mask.data != nullptr) bias.mask.data += head * bias.mask.head_stride;
  return bias;
}

/// Over dense tensors of one request.
Status Attend(AttentionPlan& plan, std::int64_t q_len, std::int64_t kv_len, const float* q,
              const float* k, const float* v, float* out, const AttentionBias& bias) noexcept {
  if (bias.bias.data == nullptr && bias.mask.data == nullptr)
    return plan.Run(q_len, kv_len, q, k, v, out);
  const AttentionParams& params = plan.params();
  AttentionTensors tensors;
  tensors.q_len = q_len;
  tensors.kv_len = kv_len;
  tensors.q = {q, 0, params.num_heads * params.head_dim, params.head_dim};
  tensors.k = {k, 0, params.num_kv_heads * params.head_dim, params.head_dim};
  tensors.v = {v, 0, params.num_kv_heads * params.head_dim_v, params.head_dim_v};
  tensors.out = {out, 0, params.num_heads * params.head_dim_v, params.head_dim_v};
  tensors.bias = bias;
  return plan.Run(tensors);
}

}  // namespace

/// As in the decoder: a sequence's first token is where models park their largest activations.
LinearMath MultiHeadAttention::Impl::MathOf(const Call& call) const noexcept {
  return !is_cross() && call.position == 0 ? LinearMath::kBf16 : LinearMath::kInt8;
}

/// The rows that keys and values are computed from.
MultiHeadAttention::Impl::Rows MultiHeadAttention::Impl::KvSource(const Call& call) const noexcept {
  if (!is_cross()) return {call.x, params_.d_model, call.q_len};
  return {call.memory, params_.memory_dim, call.memory != nullptr ? call.kv_len : 0};
}

Status MultiHeadAttention::Impl::Run(const Call& call) noexcept {
  if (is_cross()) memory_len = call.kv_len;
  return params_.sequential ? RunSequential(call) : RunParallel(call);
}

Status MultiHeadAttention::Impl::RunParallel(const Call& call) noexcept {
  const int threads = params_.attention.threads;
  RunTeam(threads, [&](Worker& worker) { ProjectInputs(worker, call); });
  if (Status status = AttendAllHeads(call); !status.ok()) return status;
  RunTeam(threads, [&](Worker& worker) { ProjectOutput(worker, call); });
  return {};
}

Status MultiHeadAttention::Impl::AttendAllHeads(const Call& call) noexcept {
  AttentionPlan& plan = plans_.front();
  const std::int64_t qo_indptr[] = {0, call.q_len};
  if (call.cache != nullptr)
    return plan.Run(*call.cache, call.layer, {&call.sequence, 1}, qo_indptr, query_.data(),
                    attended_.data(), nullptr, call.options.bias);
  return Attend(plan, call.q_len, call.kv_len, query_.data(), key_.data(), value_.data(),
                attended_.data(), call.options.bias);
}

void MultiHeadAttention::Impl::ProjectInputs(Worker& worker, const Call& call) noexcept {
  const LinearOutput outputs[] = {
      {&query_weights_.weight, query_.data(), query_weights_.weight.rows,
       query_weights_.BiasFrom(0)},
      {&key_weights_.weight, key_.data(), key_weights_.weight.rows, key_weights_.BiasFrom(0)},
      {&value_weights_.weight, value_.data(), value_weights_.weight.rows,
       value_weights_.BiasFrom(0)},
  };
  const std::span<const LinearOutput> all(outputs);
  const LinearMath math = MathOf(call);
  if (is_cross()) {
    const Rows memory = KvSource(call);
    RunLinear(worker, *linear_, call.x, params_.d_model, call.q_len, all.first(1), math);
    RunLinear(worker, *linear_, memory.data, memory.stride, memory.count, all.last(2), math);
    return;
  }
  RunLinear(worker, *linear_, call.x, params_.d_model, call.q_len, all, math);
  RotateKeys(worker, call);
  RotateQueries(worker, call, params_.attention.num_heads);
  WriteCache(worker, call);
}

/// Also computes the angles that RotateQueries uses.
void MultiHeadAttention::Impl::RotateKeys(Worker& worker, const Call& call) noexcept {
  if (!rope_) return;
  const std::int64_t K = params_.attention.num_kv_heads, D = params_.attention.head_dim;
  const std::int64_t pairs = rope_->config().rotary_dim / 2;
  worker.ForEach(call.q_len, [&](std::int64_t t) {
    float* cosine = cosine_.data() + t * pairs;
    float* sine = sine_.data() + t * pairs;
    rope_->Angles(call.position + t, cosine, sine);
    rope_->Rotate(cosine, sine, K, D, key_.data() + t * K * D);
  });
}

/// Of `heads` heads beside each other in query_.
void MultiHeadAttention::Impl::RotateQueries(Worker& worker, const Call& call,
                                             std::int64_t heads) noexcept {
  if (!rope_) return;
  const std::int64_t D = params_.attention.head_dim, pairs = rope_->config().rotary_dim / 2;
  worker.ForEach(call.q_len, [&](std::int64_t t) {
    rope_->Rotate(cosine_.data() + t * pairs, sine_.data() + t * pairs, heads, D,
                  query_.data() + t * heads * D);
  });
}

void MultiHeadAttention::Impl::WriteCache(Worker& worker, const Call& call) noexcept {
  if (call.cache == nullptr) return;
  call.cache->impl().WriteOn(worker, call.sequence, call.layer, call.position, call.q_len,
                             key_.data(), value_.data(), key_weights_.weight.rows,
                             value_weights_.weight.rows);
}

void MultiHeadAttention::Impl::ProjectOutput(Worker& worker, const Call& call) noexcept {
  const std::int64_t H = params_.attention.num_heads, Dv = params_.attention.head_dim_v;
  const HeadOutputs& wanted = call.options.head_outputs;
  const LinearOutput output[] = {
      {&output_weights_.weight, call.out, params_.d_model, output_weights_.BiasFrom(0)}};
  RunLinear(worker, *linear_, attended_.data(), H * Dv, call.q_len, output, MathOf(call));
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

/// The columns of W_o that head `head` meets, as whole blocks of its type.
std::int64_t MultiHeadAttention::Impl::PaddedColumns(std::int64_t head,
                                                     std::int64_t* first) const noexcept {
  const std::int64_t Dv = params_.attention.head_dim_v;
  const std::int64_t block = WeightBlockOf(output_weights_.weight.type).elements;
  *first = head * Dv / block * block;
  return ((head + 1) * Dv + block - 1) / block * block - *first;
}

/// term [q_len, d_model] = W_h head, of one head's `rows`.
void MultiHeadAttention::Impl::ProjectTerm(Worker& worker, const Call& call, std::int64_t head,
                                           const Rows& rows, float* term) noexcept {
  const std::int64_t Dv = params_.attention.head_dim_v;
  std::int64_t first = 0;
  const std::int64_t columns = PaddedColumns(head, &first);
  const WeightView slice = WeightColumns(output_weights_.weight, first, columns);
  Rows input = rows;
  if (columns != Dv) {  // the neighbours' columns in the head's blocks meet zeros
    worker.ForEach(rows.count, [&](std::int64_t t) {
      float* padded = padded_.data() + t * columns;
      std::fill_n(padded, columns, 0.0F);
      std::copy_n(rows.data + t * rows.stride, Dv, padded + head * Dv - first);
    });
    input = {padded_.data(), columns, rows.count};
  }
  const LinearOutput output[] = {{&slice, term, params_.d_model, nullptr}};
  RunLinear(worker, *linear_, input.data, input.stride, input.count, output, MathOf(call));
}

Status MultiHeadAttention::Impl::RunSequential(const Call& call) noexcept {
  RunTeam(params_.attention.threads, [&](Worker& worker) { ProjectKeysByHead(worker, call); });
  for (std::int64_t h = 0; h < params_.attention.num_heads; ++h)
    if (Status status = RunHead(call, h); !status.ok()) return status;
  return {};
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
    RunLinear(worker, *linear_, source.data, source.stride, source.count, outputs, MathOf(call));
  }
  if (is_cross()) return;
  RotateKeys(worker, call);
  WriteCache(worker, call);
}

/// From x to the head's term, which is added to out.
Status MultiHeadAttention::Impl::RunHead(const Call& call, std::int64_t head) noexcept {
  const AttentionParams& attention = params_.attention;
  const std::int64_t group = attention.num_heads / attention.num_kv_heads;
  const HeadOutputs& wanted = call.options.head_outputs;
  RunTeam(attention.threads, [&](Worker& worker) {
    ProjectQueryHead(worker, call, head);
    if (head % group == 0) GatherKvHead(worker, call, head / group);
  });
  float* attended = wanted.heads != nullptr
                        ? wanted.heads + head * call.q_len * attention.head_dim_v
                        : attended_.data();
  AttentionPlan& plan = plans_[std::min(static_cast<std::size_t>(head), plans_.size() - 1)];
  if (Status status = Attend(plan, call.q_len, call.kv_len, query_.data(), head_key_.data(),
                             head_value_.data(), attended, BiasOfHead(call.options.bias, head));
      !status.ok())
    return status;
  float* term =
      wanted.terms != nullptr ? wanted.terms + head * call.q_len * params_.d_model : term_.data();
  RunTeam(attention.threads, [&](Worker& worker) {
    ProjectTerm(worker, call, head, {attended, attention.head_dim_v, call.q_len}, term);
    AddTerm(worker, call, head, term);
  });
  return {};
}

void MultiHeadAttention::Impl::ProjectQueryHead(Worker& worker, const Call& call,
                                                std::int64_t head) noexcept {
  const std::int64_t D = params_.attention.head_dim;
  const WeightView weight = WeightRows(query_weights_.weight, head * D, D);
  const LinearOutput output[] = {{&weight, query_.data(), D, query_weights_.BiasFrom(head * D)}};
  RunLinear(worker, *linear_, call.x, params_.d_model, call.q_len, output, MathOf(call));
  RotateQueries(worker, call, 1);
}

void MultiHeadAttention::Impl::GatherKvHead(Worker& worker, const Call& call,
                                            std::int64_t kv_head) noexcept {
  const AttentionParams& attention = params_.attention;
  const std::int64_t K = attention.num_kv_heads, D = attention.head_dim, Dv = attention.head_dim_v;
  worker.ForEach(call.kv_len, [&](std::int64_t s) {
    float* key = head_key_.data() + s * D;
    float* value = head_value_.data() + s * Dv;
    if (call.cache != nullptr) {
      call.cache->impl().ReadRow(call.sequence, call.layer, kv_head, s, key, value);
    } else {
      std::copy_n(key_.data() + (s * K + kv_head) * D, D, key);
      std::copy_n(value_.data() + (s * K + kv_head) * Dv, Dv, value);
    }
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
