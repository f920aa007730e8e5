#pragma once

/// Precedes the name of a namespace whose declarations the shared library exports to programs that
/// link it; all others are hidden.
#define MANYHEAD_API [[gnu::visibility("default")]]
