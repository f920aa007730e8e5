#pragma once

#include <string>
#include <string_view>

#include "manyhead/export.h"
#include "manyhead/status.h"

namespace MANYHEAD_API manyhead {

/// How every file of this library is written, snapshots and models included: it appears under its
/// name when it is whole and on the disk, and until then, or where writing fails, that name keeps
/// what it had. A symbolic link stays, and the file it leads to is replaced or made.

/// Whether a file can be written so, before the work of which it is to hold the result.
/// Errors   kIoError naming `path` and why: a name that the file system does not take, something
///          that is there and no regular file, a folder in which no file can be made.
Status CheckOutputFile(const std::string& path);

/// Writes a file with the content `bytes`.
/// Errors   as CheckOutputFile, and kIoError where it cannot be written; the old file then stays.
Status WriteOutputFile(const std::string& path, std::string_view bytes);

}  // namespace manyhead
