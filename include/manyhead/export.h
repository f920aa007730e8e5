#pragma once

/// Goes before the name of a namespace whose declarations the shared library shows to programs that
/// link it; all others stay inside.
#define MANYHEAD_API [[gnu::visibility("default")]]
