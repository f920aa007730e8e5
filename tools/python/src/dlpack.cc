#include <cstdint>
#include <vector>

#include "tools/python/src/binding.h"

namespace manyhead::python {
namespace {

constexpr nb::dlpack::dtype kBfloat16 = {static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat),
                                         16, 1};

/// Returns the elements of a bfloat16 tensor where they lie, as NumPy's uint16.
nb::ndarray<nb::numpy, nb::ro> Bits(const nb::object& tensor) {
  nb::ndarray<nb::ro, nb::device::cpu> array;
  if (!nb::try_cast(tensor, array) || array.dtype() != kBfloat16)
    Raise({StatusCode::kInvalidArgument, "expected a tensor of bfloat16 in the CPU's memory"});
  std::vector<std::size_t> shape;
  std::vector<std::int64_t> strides;
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    shape.push_back(array.shape(i));
    strides.push_back(array.stride(i));
  }
  return {array.data(), array.ndim(),   shape.data(),
          tensor,       strides.data(), nb::dtype<std::uint16_t>()};
}

/// Returns a DLPack capsule of bfloat16 whose elements are `bits`, which `owner` keeps.
nb::ndarray<> Tensor(const nb::ndarray<std::uint16_t, nb::device::cpu>& bits,
                     const nb::object& owner) {
  std::vector<std::size_t> shape;
  std::vector<std::int64_t> strides;
  for (std::size_t i = 0; i < bits.ndim(); ++i) {
    shape.push_back(bits.shape(i));
    strides.push_back(bits.stride(i));
  }
  return {bits.data(), bits.ndim(), shape.data(), owner, strides.data(), kBfloat16};
}

}  // namespace

void BindDlpack(nb::module_& module) {
  module.def("bfloat16_bits", &Bits, nb::arg("tensor"));
  module.def("bfloat16_tensor", &Tensor, nb::arg("bits").noconvert(), nb::arg("owner"));
}

}  // namespace manyhead::python
