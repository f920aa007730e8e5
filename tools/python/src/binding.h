#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/attention.h"
#include "manyhead/head_id.h"
#include "manyhead/isa.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

/// Declares what the files of the extension module share. They wrap the C++ API one to one, check
/// the shapes of arrays, and release Python's lock while the library works; the package's Python
/// files convert arrays to these shapes.

namespace manyhead::python {

namespace nb = nanobind;

/// Arrays with any strides, f32, f16 or (bf16) uint16.
template <int kRank>
using StridedArray = nb::ndarray<nb::ro, nb::ndim<kRank>, nb::device::cpu>;
/// Row-major arrays of one type; const T is read only.
template <class T, int kRank>
using DenseArray = nb::ndarray<T, nb::ndim<kRank>, nb::c_contig, nb::device::cpu>;

/// Throws the exception of manyhead._errors that corresponds to `status`, which must not be ok.
[[noreturn]] void Raise(const Status& status);
void Check(const Status& status);

template <class T>
T Take(Result<T> result) {
  Check(result.status());
  return std::move(*result);
}

/// Calls `function` without Python's lock and returns its result.
template <class Function>
auto WithoutGil(Function&& function) {
  nb::gil_scoped_release release;
  return std::forward<Function>(function)();
}

/// Raise ValueError for a name that the library does not know.
KvType ParseKvTypeOrRaise(const std::string& name);
MathMode ParseMathOrRaise(const std::string& name);
std::optional<Isa> ParseIsaOrRaise(const std::optional<std::string>& name);

/// Returns the type of an array's elements; bfloat16 is passed as uint16.
KvType TypeOf(nb::dlpack::dtype dtype, const char* name);

using Shape = std::initializer_list<std::int64_t>;
/// Raises ValueError naming both shapes when they differ. `letters` is the expected shape in the
/// letters of the documentation.
void CheckShape(std::span<const std::int64_t> shape, const char* name, const char* letters,
                Shape expected);
template <class Array>
void CheckShape(const Array& array, const char* name, const char* letters, Shape expected) {
  CheckShape(std::span(array.shape_ptr(), array.ndim()), name, letters, expected);
}

/// Numbers per (request, query head, query, key), [B, H, T, S], or none; a stride of 0 broadcasts.
template <class T>
using Logits = std::optional<nb::ndarray<const T, nb::ndim<4>, nb::device::cpu>>;

/// Raises ValueError unless the last dimension of [.., .., .., n] is dense.
template <class Array>
void CheckLastDense(const Array& array, const char* name) {
  if (array.size() == 0 || array.shape(3) == 1 || array.stride(3) == 1) return;
  Raise({StatusCode::kInvalidArgument, std::string(name) + " has a last dimension of stride " +
                                           std::to_string(array.stride(3)) + "; expected 1"});
}

template <class T>
LogitTensor<T> LogitView(const Logits<T>& logits, const char* name, Shape expected) {
  if (!logits) return {};
  CheckShape(*logits, name, "[B, H, T, S]", expected);
  CheckLastDense(*logits, name);
  return {.data = logits->data(),
          .kv_len = static_cast<std::int64_t>(logits->shape(3)),
          .batch_stride = logits->stride(0),
          .head_stride = logits->stride(1),
          .query_stride = logits->stride(2)};
}

/// `Class(name=value, ...)` of the read-only numbers and texts that a class has.
nb::str Represent(nb::handle self);

/// (layer, head) as the library takes it.
std::vector<HeadId> HeadIds(const std::vector<std::pair<std::int64_t, std::int64_t>>& heads);

void BindAblation(nb::module_& module);
void BindAttention(nb::module_& module);
void BindCalibrate(nb::module_& module);
void BindDlpack(nb::module_& module);
void BindHeadClasses(nb::module_& module);
void BindHeads(nb::module_& module);
void BindKvCache(nb::module_& module);
void BindLayer(nb::module_& module);
void BindModel(nb::module_& module);
void BindMemory(nb::module_& module);
void BindRope(nb::module_& module);
void BindSession(nb::module_& module);

}  // namespace manyhead::python
