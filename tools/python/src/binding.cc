#include "tools/python/src/binding.h"

#include <algorithm>

namespace manyhead::python {
namespace {

std::string ShapeText(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

nb::object ExceptionOf(StatusCode code) {
  const auto named = [](const char* name) {
    return nb::object(nb::module_::import_("manyhead._errors").attr(name));
  };
  switch (code) {
    case StatusCode::kUnsupported:
      return named("UnsupportedError");
    case StatusCode::kOutOfPages:
      return named("OutOfPagesError");
    case StatusCode::kIoError:
      return named("FileError");
    default:
      return nb::borrow(PyExc_ValueError);
  }
}

}  // namespace

void Raise(const Status& status) {
  const nb::object type = ExceptionOf(status.code());
  // A message may quote bytes of a file.
  const nb::object text = nb::steal(
      PyUnicode_DecodeUTF8(status.message().data(),
                           static_cast<Py_ssize_t>(status.message().size()), "backslashreplace"));
  PyErr_SetObject(type.ptr(), text.ptr());
  throw nb::python_error();
}

void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

KvType ParseKvTypeOrRaise(const std::string& name) {
  const std::optional<KvType> type = ParseKvType(name);
  if (!type)
    Raise({StatusCode::kInvalidArgument,
           "kv_type = '" + name + "'; expected 'f32', 'f16', 'bf16', 'int8' or 'int4'"});
  return *type;
}

std::optional<Isa> ParseIsaOrRaise(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  const std::optional<Isa> isa = ParseIsa(*name);
  if (!isa)
    Raise({StatusCode::kInvalidArgument,
           "isa = '" + *name + "'; expected 'scalar', 'avx2', 'avx512' or 'amx'"});
  return isa;
}

MathMode ParseMathOrRaise(const std::string& name) {
  if (name == "fast") return MathMode::kFast;
  if (name == "exact") return MathMode::kExact;
  Raise({StatusCode::kInvalidArgument, "math = '" + name + "'; expected 'fast' or 'exact'"});
}

KvType TypeOf(nb::dlpack::dtype dtype, const char* name) {
  if (dtype == nb::dtype<float>()) return KvType::kF32;
  if (dtype == nb::dtype<std::uint16_t>()) return KvType::kBf16;
  if (dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) && dtype.bits == 16)
    return KvType::kF16;
  Raise({StatusCode::kInvalidArgument,
         std::string(name) + " has a dtype other than float32, float16 and uint16"});
}

void CheckShape(std::span<const std::int64_t> shape, const char* name, const char* letters,
                Shape expected) {
  if (std::equal(shape.begin(), shape.end(), expected.begin(), expected.end())) return;
  Raise({StatusCode::kInvalidArgument, std::string(name) + " has shape " + ShapeText(shape) +
                                           "; expected " + letters + " = " +
                                           ShapeText({expected.begin(), expected.size()})});
}

}  // namespace manyhead::python
