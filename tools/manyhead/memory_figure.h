#pragma once

#include <string>
#include <vector>

#include "manyhead/status.h"
#include "tools/manyhead/output.h"

namespace manyhead::cli {

/// Draws rows of MemoryJson, with or without measured values: memory and speed against the number
/// of query heads, with a curve for each kind of attention (as many key/value heads as query heads,
/// fewer, one) and for every other difference between the rows. The SVG refers to no other file,
/// follows the reader's light or dark scheme, and prints in black.
std::string MemorySvg(const std::vector<Json>& rows);

/// Writes the figure to `path`: alone where its name ends in .svg, else in a page with the numbers
/// as a table.
/// Errors   kIoError.
Status WriteMemoryFigure(const std::vector<Json>& rows, const std::string& path);

}  // namespace manyhead::cli
