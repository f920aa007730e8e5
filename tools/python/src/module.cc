#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "manyhead/isa.h"
#include "manyhead/threads.h"
#include "tools/python/src/binding.h"

namespace manyhead::python {
namespace {

std::vector<std::string> SupportedIsaNames() {
  std::vector<std::string> names;
  for (const Isa isa : SupportedIsas()) names.emplace_back(IsaName(isa));
  return names;
}

}  // namespace
}  // namespace manyhead::python

NB_MODULE(_core, module) {
  using namespace manyhead;          // NOLINT(google-build-using-namespace)
  using namespace manyhead::python;  // NOLINT(google-build-using-namespace)
  module.doc() = "The C++ library as it is; the modules beside it are what programs use.";
  module.attr("version") = MANYHEAD_VERSION;
  module.def("supported_isas", &SupportedIsaNames,
             "Instruction sets this CPU runs, lowest first: 'scalar', 'avx2', 'avx512'.");
  module.def(
      "select_isa", [] { return IsaName(Take(SelectIsa())); },
      "The best of supported_isas(), or what MANYHEAD_ISA lowers it to.");
  module.def("default_threads", &DefaultThreads,
             "Threads used where none are given: the CPUs this process may use.");
  BindAttention(module);
  BindKvCache(module);
  BindRope(module);
  BindLayer(module);
  BindAblation(module);
  BindModel(module);
  BindSession(module);
  BindDlpack(module);
  BindCalibrate(module);
  BindHeads(module);
  BindHeadClasses(module);
  BindMemory(module);
}
