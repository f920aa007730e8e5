#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "manyhead/export.h"
#include "manyhead/status.h"

namespace MANYHEAD_API manyhead {

/// Every file of this library, snapshots and models included, is written as follows: it appears
/// under its name only when it is complete and on the disk; until then, or where writing fails, a
/// file that was there stays. A symbolic link stays, and the file that it leads to is replaced or
/// created.

/// Checks that a file can be written in this way, before the work whose result it is to hold.
/// Errors   kIoError naming `path` and the reason: a name that the file system does not accept, an
///          object that exists and is no regular file, a folder in which no file can be created.
Status CheckOutputFile(const std::string& path);

/// Writes a file with the content `bytes`.
/// Errors   as CheckOutputFile, and kIoError where it cannot be written; the old file then stays.
Status WriteOutputFile(const std::string& path, std::string_view bytes);

/// Appends bytes to a file that is being written.
using OutputSink = std::function<Status(std::string_view)>;
/// Writes a file part by part: `write` calls the sink for each part, and returns its error.
/// Errors   as above, and that of `write`.
Status WriteOutputFile(const std::string& path,
                       const std::function<Status(const OutputSink&)>& write);

}  // namespace manyhead
