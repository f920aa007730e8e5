#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace manyhead::cli {

// These functions wait until a descriptor is ready: another process that shares an inherited
// descriptor may set it to O_NONBLOCK at any time.

/// Writes all of `bytes`. Returns 0, or the errno of the write that failed.
int WriteAll(int descriptor, std::string_view bytes);

/// Reads up to block.size() bytes, at least one unless the file ends. Returns their number, 0 at
/// the end, and -1 with errno set where reading fails.
std::ptrdiff_t ReadSome(int descriptor, std::span<char> block);

/// Makes `stderr` a stream that writes by WriteAll, so that no message is lost to EAGAIN.
void MakeStderrWait();

}  // namespace manyhead::cli
