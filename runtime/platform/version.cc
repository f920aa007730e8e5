#include "manyhead/version.h"

namespace manyhead {

const char* Version() noexcept { return MANYHEAD_VERSION; }

}  // namespace manyhead
