#include <utility>

#include "runtime/model/weights.h"
#include "runtime/session/session_impl.h"

namespace manyhead {

Status Session::SetCapture(const CaptureOptions* options) {
  const ModelConfig& config = impl_->model.config();
  HeadObserver& observer = impl_->observer;
  if (options != nullptr) {
    constexpr const char* kName = "Session::SetCapture";
    if (Status status = HeadCapture::Check(config, context(), *options, kName); !status.ok())
      return status;
    observer.capture.emplace(config, context(), *options);
  } else {
    observer.capture.reset();
  }
  impl_->decoder.AllowTaps(!observer.is_idle());
  return {};
}

Status Session::SetHeadProfile(HeadProfile* profile, const HeadProfileOptions& options) {
  HeadObserver& observer = impl_->observer;
  if (profile != nullptr) {
    if (Status status = HeadProfiler::Check(options, "Session::SetHeadProfile"); !status.ok())
      return status;
    Result<HeadProfiler> profiler = HeadProfiler::Create(impl_->model.impl(),
                                                         {.context = context(),
                                                          .max_rows = impl_->options.chunk,
                                                          .threads = threads(),
                                                          .isa = isa()},
                                                         options, profile);
    if (!profiler.ok()) return profiler.status();
    observer.profiler.emplace(*std::move(profiler));
  } else {
    observer.profiler.reset();
  }
  impl_->decoder.AllowTaps(!observer.is_idle());
  return {};
}

}  // namespace manyhead
