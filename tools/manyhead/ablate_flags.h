#pragma once

#include <string>

#include "manyhead/ablation.h"
#include "manyhead/model.h"
#include "manyhead/session.h"
#include "tools/manyhead/options.h"

namespace manyhead::cli {

/// How edits of heads are written, for the help of whatever takes them.
extern const char* const kAblationHelp;

struct AblationFlags {
  std::string edits;  ///< empty: none
  std::string means;  ///< file of the text that means are measured on
};

/// --ablate and --ablate-means.
void AddAblation(App app, AblationFlags* flags);
/// --ablate-means alone.
void AddAblationMeans(App app, AblationFlags* flags);

/// The edits, in the form of the command line or as JSON, themselves or in a file; with the means
/// that they need.
Result<Ablation> ReadAblation(const AblationFlags& flags, const Model& model,
                              const HeadTextOptions& options);

/// Gives an empty session, made with `session_flags`, the ablation.
Status Ablate(const AblationFlags& flags, const SessionFlags& session_flags, const Model& model,
              Session& session);

/// How a text is evaluated, as a session with these flags would.
HeadTextOptions ToHeadTextOptions(const SessionFlags& flags);

}  // namespace manyhead::cli
