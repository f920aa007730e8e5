#pragma once

#include <barrier>
#include <functional>

namespace manyhead::cli {

/// The work of one of `threads` threads; all of them share `barrier`.
using TogetherWork = std::function<void(int thread, int threads, std::barrier<>& barrier)>;

/// Runs `work` on `threads` threads at once, of which the caller is the first. Where the system
/// gives fewer threads, fewer run it. Returns their number.
int RunTogether(int threads, const TogetherWork& work);

}  // namespace manyhead::cli
