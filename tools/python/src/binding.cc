#include "tools/python/src/binding.h"

#include <nanobind/stl/string.h>

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

nb::str Represent(nb::handle self) {
  const nb::handle type = self.type();
  std::string text = nb::cast<std::string>(type.attr("__name__")) + "(";
  const nb::dict members = nb::steal<nb::dict>(
      PyObject_CallMethod(nb::object(type.attr("__dict__")).ptr(), "copy", nullptr));
  for (const auto& [name, member] : members) {
    if (!nb::isinstance(member, nb::borrow(reinterpret_cast<PyObject*>(&PyProperty_Type))))
      continue;
    const nb::object value = self.attr(name);
    if (PySequence_Check(value.ptr()) != 0 && !nb::isinstance<nb::str>(value)) continue;
    if (text.back() != '(') text += ", ";
    text += nb::cast<std::string>(nb::str(name)) + "=" + nb::cast<std::string>(nb::repr(value));
  }
  return nb::str((text + ")").c_str());
}

std::vector<HeadId> HeadIds(const std::vector<std::pair<std::int64_t, std::int64_t>>& heads) {
  std::vector<HeadId> ids;
  for (const auto& [layer, head] : heads) ids.push_back({layer, head});
  return ids;
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
