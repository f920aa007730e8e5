#include "manyhead/types.h"

#include "manyhead/status.h"

namespace manyhead {
namespace {

struct WeightTypeRow {
  WeightType type;
  const char* name;
  WeightBlock block;
};

// The GGUF format fixes the sizes of blocks.
constexpr WeightTypeRow kWeightTypes[] = {
    {WeightType::kF32, "F32", {1, 4}},       {WeightType::kF16, "F16", {1, 2}},
    {WeightType::kBf16, "BF16", {1, 2}},     {WeightType::kQ4_0, "Q4_0", {32, 18}},
    {WeightType::kQ4_1, "Q4_1", {32, 20}},   {WeightType::kQ5_0, "Q5_0", {32, 22}},
    {WeightType::kQ5_1, "Q5_1", {32, 24}},   {WeightType::kQ8_0, "Q8_0", {32, 34}},
    {WeightType::kQ2_K, "Q2_K", {256, 84}},  {WeightType::kQ3_K, "Q3_K", {256, 110}},
    {WeightType::kQ4_K, "Q4_K", {256, 144}}, {WeightType::kQ5_K, "Q5_K", {256, 176}},
    {WeightType::kQ6_K, "Q6_K", {256, 210}},
};

constexpr KvType kKvTypes[] = {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8,
                               KvType::kInt4};

}  // namespace

const char* StatusCodeName(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kOutOfPages:
      return "out of pages";
    case StatusCode::kIoError:
      return "i/o error";
  }
  return "?";
}

const char* KvTypeName(KvType type) noexcept {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kF16:
      return "f16";
    case KvType::kBf16:
      return "bf16";
    case KvType::kInt8:
      return "int8";
    case KvType::kInt4:
      return "int4";
  }
  return "?";
}

std::optional<KvType> ParseKvType(std::string_view name) noexcept {
  for (KvType type : kKvTypes)
    if (name == KvTypeName(type)) return type;
  return std::nullopt;
}

const char* WeightTypeName(WeightType type) noexcept {
  for (const WeightTypeRow& row : kWeightTypes)
    if (row.type == type) return row.name;
  return "?";
}

std::optional<WeightBlock> FindWeightBlock(std::uint32_t gguf_type_id) noexcept {
  for (const WeightTypeRow& row : kWeightTypes)
    if (static_cast<std::uint32_t>(row.type) == gguf_type_id) return row.block;
  return std::nullopt;
}

WeightBlock WeightBlockOf(WeightType type) noexcept {
  return FindWeightBlock(static_cast<std::uint32_t>(type)).value_or(WeightBlock{});
}

}  // namespace manyhead
