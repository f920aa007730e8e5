#include "tests/model/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace manyhead::testing {

namespace {

/// The bits of a half whose exponent is in range, ties rounded away from zero.
std::uint16_t ToHalf(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude < 0x38800000U) return static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000U) |
                                    (magnitude - 0x38000000U + 0x1000U) >> 13);
}

/// Some numbers as a file stores them in `type`.
std::string Encode(const std::vector<float>& values, WeightType type) {
  std::string bytes;
  const auto put = [&](const auto& x) {
    bytes.append(reinterpret_cast<const char*>(&x), sizeof x);
  };
  if (type == WeightType::kF32)
    for (const float x : values) put(x);
  if (type == WeightType::kF16)
    for (const float x : values) put(ToHalf(x));
  for (std::size_t begin = 0; type == WeightType::kQ8_0 && begin < values.size(); begin += 32) {
    float most = 1e-3F;
    for (std::size_t i = 0; i < 32; ++i) most = std::max(most, std::fabs(values[begin + i]));
    put(ToHalf(most / 127));
    for (std::size_t i = 0; i < 32; ++i)
      put(static_cast<std::int8_t>(std::lround(values[begin + i] / most * 126)));
  }
  return bytes;
}

}  // namespace

void TinyModel::Fill(const std::string& name, std::int64_t rows, std::int64_t cols, double mean,
                     double spread) {
  std::mt19937 bits(state_++);
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (float& v : values)
    v = static_cast<float>(mean + spread * (static_cast<double>(bits() >> 8) * 0x1p-23 - 1));
  tensors[name] = values;
  if (rows > 1) cols_[name] = cols;
}

void TinyModel::MakeWeights(unsigned seed) {
  state_ = seed * 1000;
  Fill("token_embd.weight", vocab(), d_model, 0, 1);
  if (!tied) Fill("output.weight", vocab(), d_model, 0, 1);
  Fill("output_norm.weight", 1, d_model, 1, 0.3);
  if (!rope_factors.empty()) tensors["rope_freqs.weight"] = rope_factors;
  const std::int64_t q = num_heads * head_dim, kv = num_kv_heads * head_dim;
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    const double spread = 1.5 / std::sqrt(static_cast<double>(d_model));
    Fill(b + "attn_norm.weight", 1, d_model, 1, 0.3);
    Fill(b + "attn_q.weight", q, d_model, 0, 2 * spread);
    Fill(b + "attn_k.weight", kv, d_model, 0, 2 * spread);
    Fill(b + "attn_v.weight", kv, d_model, 0, spread);
    Fill(b + "attn_output.weight", d_model, q, 0, spread);
    if (biases) {
      Fill(b + "attn_q.bias", 1, q, 0, 1);
      Fill(b + "attn_k.bias", 1, kv, 0, 1);
      Fill(b + "attn_v.bias", 1, kv, 0, 1);
    }
    if (qk_norm()) {
      Fill(b + "attn_q_norm.weight", 1, head_dim, 1, 0.3);
      Fill(b + "attn_k_norm.weight", 1, head_dim, 1, 0.3);
    }
    Fill(b + "ffn_norm.weight", 1, d_model, 1, 0.3);
    if (gemma()) {
      Fill(b + "post_attention_norm.weight", 1, d_model, 1, 0.3);
      Fill(b + "post_ffw_norm.weight", 1, d_model, 1, 0.3);
    }
    Fill(b + "ffn_gate.weight", ffn_dim, d_model, 0, spread);
    Fill(b + "ffn_up.weight", ffn_dim, d_model, 0, spread);
    Fill(b + "ffn_down.weight", d_model, ffn_dim, 0, spread);
  }
}

GgufWriter TinyModel::ToGguf(GgufWriter file, const std::string& replaced) const {
  const auto number = [](std::int64_t value) { return static_cast<std::uint32_t>(value); };
  const std::string p = family + ".";
  file.Add("general.architecture", family).Add("general.name", "tiny");
  file.Add(p + "block_count", number(layers)).Add(p + "embedding_length", number(d_model));
  file.Add(p + "context_length", number(context));
  const auto add = [&](const std::string& key, std::int64_t value) {
    if (p + key != replaced) file.Add(p + key, number(value));
  };
  add("attention.head_count", num_heads);
  add("attention.head_count_kv", num_kv_heads);
  file.Add(p + "attention.key_length", number(head_dim));
  file.Add(p + "attention.value_length", number(head_dim));
  add("feed_forward_length", ffn_dim);
  if (epsilon_key) file.Add(p + "attention.layer_norm_rms_epsilon", 1e-6F);
  file.Add(p + "rope.freq_base", static_cast<float>(rope_base));
  if (window > 0) file.Add(p + "attention.sliding_window", number(window));
  if (window_pattern > 0) file.Add(p + "attention.sliding_window_pattern", number(window_pattern));
  if (!rope_scaling.empty()) {
    file.Add(p + "rope.scaling.type", rope_scaling);
    file.Add(p + "rope.scaling.factor", static_cast<float>(rope_factor));
    if (rope_original_context > 0)
      file.Add(p + "rope.scaling.original_context_length", number(rope_original_context));
  }
  if (final_softcap > 0) file.Add(p + "final_logit_softcapping", final_softcap);

  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<std::int32_t> types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    tokens.emplace_back(text);
    types.push_back(6);
  }
  for (std::int64_t i = 0; i < extra_tokens; ++i) {
    tokens.push_back("<extra " + std::to_string(i) + ">");
    types.push_back(1);
  }
  file.Add("tokenizer.ggml.model", "llama").Add("tokenizer.ggml.tokens", tokens);
  file.Add("tokenizer.ggml.scores", std::vector<float>(tokens.size(), 0.0F));
  file.Add("tokenizer.ggml.token_type", types).Add("tokenizer.ggml.add_space_prefix", false);
  file.Add("tokenizer.ggml.bos_token_id", 1U).Add("tokenizer.ggml.eos_token_id", 2U);

  for (const auto& [name, values] : tensors) {
    const std::int64_t size = static_cast<std::int64_t>(values.size());
    std::vector<std::int64_t> shape = {size};
    const auto cols = cols_.find(name);
    if (cols != cols_.end()) shape = {cols->second, size / cols->second};
    const WeightType type = cols != cols_.end() ? matrices : WeightType::kF32;
    file.AddTensor(name, type, shape, Encode(values, type));
  }
  return file;
}

std::vector<double> TinyModel::Multiply(const std::string& name, const std::vector<double>& x,
                                        std::int64_t rows) const {
  const std::vector<float>& w = tensors.at(name + ".weight");
  std::vector<double> y(static_cast<std::size_t>(rows), 0.0);
  for (std::size_t r = 0; r < y.size(); ++r)
    for (std::size_t c = 0; c < x.size(); ++c)
      y[r] += static_cast<double>(w[r * x.size() + c]) * x[c];
  if (const auto bias = tensors.find(name + ".bias"); bias != tensors.end())
    for (std::size_t r = 0; r < y.size(); ++r) y[r] += static_cast<double>(bias->second[r]);
  return y;
}

std::vector<double> TinyModel::Norm(const std::string& name, const std::vector<double>& x) const {
  const std::vector<float>& w = tensors.at(name + ".weight");
  double mean = 0;
  for (double v : x) mean += v * v / static_cast<double>(x.size());
  std::vector<double> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    y[i] = x[i] / std::sqrt(mean + 1e-6) * static_cast<double>(w[i]);
  return y;
}

void TinyModel::NormHeads(const std::string& name, std::vector<double>& heads) const {
  const auto D = static_cast<std::ptrdiff_t>(head_dim);
  for (auto head = heads.begin(); head != heads.end(); head += D) {
    const std::vector<double> normed = Norm(name, std::vector<double>(head, head + D));
    std::copy(normed.begin(), normed.end(), head);
  }
}

bool TinyModel::IsLocal(std::int64_t layer) const {
  if (gemma() && window == 0) return false;
  const std::int64_t pattern = window_pattern > 0 ? window_pattern : gemma() ? 6 : 0;
  return pattern == 0 || (layer + 1) % pattern != 0;
}

void TinyModel::Rotate(std::vector<double>& heads, std::int64_t position, bool local) const {
  const bool own_base = gemma() && local;  // unscaled, base 10000
  const double base = own_base ? 10000 : rope_base;
  const std::int64_t half = head_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    double frequency =
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    double amplitude = 1;
    if (!own_base && rope_scaling == "linear") frequency /= rope_factor;
    if (!own_base && !rope_factors.empty()) frequency /= static_cast<double>(rope_factors[i]);
    if (!own_base && rope_scaling == "yarn") {
      const auto pair = [&](double turns) {
        return static_cast<double>(head_dim) *
               std::log(static_cast<double>(rope_original_context) / (turns * 2 * M_PI)) /
               (2 * std::log(base));
      };
      const double low = std::max(std::floor(pair(32)), 0.0);
      const double high = std::min(std::ceil(pair(1)), static_cast<double>(head_dim - 1));
      const double ramp =
          std::clamp((static_cast<double>(i) - low) / std::max(high - low, 0.001), 0.0, 1.0);
      frequency = frequency / rope_factor * ramp + frequency * (1 - ramp);
      amplitude = 0.1 * std::log(rope_factor) + 1;
    }
    const double angle = static_cast<double>(position) * frequency;
    const bool interleaved = family == "llama";
    for (std::size_t head = 0; head < heads.size(); head += static_cast<std::size_t>(head_dim)) {
      double& a = heads[head + static_cast<std::size_t>(interleaved ? 2 * i : i)];
      double& b = heads[head + static_cast<std::size_t>(interleaved ? 2 * i + 1 : i + half)];
      const double a0 = a, b0 = b;
      a = amplitude * (a0 * std::cos(angle) - b0 * std::sin(angle));
      b = amplitude * (a0 * std::sin(angle) + b0 * std::cos(angle));
    }
  }
}

TinyModel::Rows TinyModel::Attention(const std::string& block, const Rows& x,
                                     std::int64_t layer) const {
  Rows q, k, v, out;
  const bool local = IsLocal(layer);
  for (std::size_t t = 0; t < x.size(); ++t) {
    q.push_back(Multiply(block + "attn_q", x[t], num_heads * head_dim));
    k.push_back(Multiply(block + "attn_k", x[t], num_kv_heads * head_dim));
    v.push_back(Multiply(block + "attn_v", x[t], num_kv_heads * head_dim));
    if (qk_norm()) {
      NormHeads(block + "attn_q_norm", q[t]);
      NormHeads(block + "attn_k_norm", k[t]);
    }
    Rotate(q[t], static_cast<std::int64_t>(t), local);
    Rotate(k[t], static_cast<std::int64_t>(t), local);
  }
  const std::int64_t W = local && window > 0 ? window : std::numeric_limits<std::int64_t>::max();
  const auto D = static_cast<std::size_t>(head_dim);
  for (std::size_t t = 0; t < x.size(); ++t) {
    std::vector<double> row(static_cast<std::size_t>(num_heads) * D, 0.0);
    for (std::size_t h = 0; h < static_cast<std::size_t>(num_heads); ++h) {
      const std::size_t g = h / static_cast<std::size_t>(num_heads / num_kv_heads);
      std::vector<double> p(t + 1, 0.0);
      double best = -1e300, sum = 0;
      const auto visible = [&](std::size_t s) { return static_cast<std::int64_t>(t - s) < W; };
      for (std::size_t s = 0; s <= t; ++s) {
        for (std::size_t i = 0; i < D; ++i) p[s] += q[t][h * D + i] * k[s][g * D + i];
        p[s] /= std::sqrt(static_cast<double>(head_dim));
        if (visible(s)) best = std::max(best, p[s]);
      }
      for (std::size_t s = 0; s <= t; ++s) sum += p[s] = visible(s) ? std::exp(p[s] - best) : 0;
      for (std::size_t s = 0; s <= t; ++s)
        for (std::size_t i = 0; i < D; ++i) row[h * D + i] += p[s] / sum * v[s][g * D + i];
    }
    out.push_back(Multiply(block + "attn_output", row, d_model));
  }
  return out;
}

std::vector<double> TinyModel::FeedForward(const std::string& block,
                                           const std::vector<double>& x) const {
  std::vector<double> gate = Multiply(block + "ffn_gate", x, ffn_dim);
  const std::vector<double> up = Multiply(block + "ffn_up", x, ffn_dim);
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i];
    gate[i] = up[i] *
              (gemma() ? 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)))
                       : g / (1 + std::exp(-g)));
  }
  return Multiply(block + "ffn_down", gate, d_model);
}

std::vector<std::vector<double>> TinyModel::Logits(const std::vector<int>& ids) const {
  const auto d = static_cast<std::size_t>(d_model);
  const std::vector<float>& embedding = tensors.at("token_embd.weight");
  Rows hidden;
  for (int id : ids) {
    const auto row = embedding.begin() + static_cast<std::ptrdiff_t>(d) * id;
    hidden.emplace_back(row, row + static_cast<std::ptrdiff_t>(d));
    if (gemma())
      for (double& v : hidden.back()) v *= std::sqrt(static_cast<double>(d_model));
  }
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    Rows normed;
    for (const auto& x : hidden) normed.push_back(Norm(block + "attn_norm", x));
    const Rows attended = Attention(block, normed, layer);
    for (std::size_t t = 0; t < hidden.size(); ++t) {
      std::vector<double> a =
          gemma() ? Norm(block + "post_attention_norm", attended[t]) : attended[t];
      for (std::size_t i = 0; i < d; ++i) hidden[t][i] += a[i];
      a = FeedForward(block, Norm(block + "ffn_norm", hidden[t]));
      if (gemma()) a = Norm(block + "post_ffw_norm", a);
      for (std::size_t i = 0; i < d; ++i) hidden[t][i] += a[i];
    }
  }
  Rows logits;
  for (const auto& x : hidden) {
    logits.push_back(Multiply(tied ? "token_embd" : "output", Norm("output_norm", x), vocab()));
    if (final_softcap > 0)
      for (double& v : logits.back())
        v = static_cast<double>(final_softcap) * std::tanh(v / static_cast<double>(final_softcap));
  }
  return logits;
}

}  // namespace manyhead::testing
