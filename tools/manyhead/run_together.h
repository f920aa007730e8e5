#pragma once

#include <barrier>
#include <functional>

namespace manyhead::cli {

/// What one of `threads` threads does; `barrier` is that of all of them.
using TogetherWork = std::function<void(int thread, int threads, std::barrier<>& barrier)>;

/// Runs `work` on `threads` threads at once, the caller being the first. Where the system gives
/// fewer threads, fewer run it. Returns how many.
int RunTogether(int threads, const TogetherWork& work);

}  // namespace manyhead::cli
