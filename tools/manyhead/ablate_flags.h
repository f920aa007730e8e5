#pragma once

#include <string>

#include "manyhead/ablation.h"
#include "manyhead/model.h"
#include "manyhead/session.h"
#include "tools/manyhead/options.h"

namespace manyhead::cli {

/// Describes the form of edits, for the help of subcommands that read them.
extern const char* const kAblationHelp;

struct AblationFlags {
  std::string edits;       ///< empty: none
  std::string means;       ///< file with the text that means are measured on
  std::string patch;       ///< heads and positions to patch; empty: none
  std::string patch_from;  ///< file with the text that the patches come from

  bool Given() const { return !edits.empty() || !patch.empty(); }
};

/// Adds --ablate, --ablate-means, --patch and --patch-from.
void AddAblation(App app, AblationFlags* flags);
/// Adds all but --ablate.
void AddAblationTexts(App app, AblationFlags* flags);

/// Reads the edits, in the form of the command line or as JSON, from the flag or from a file;
/// measures the means that they need, and the patches.
Result<Ablation> ReadAblation(const AblationFlags& flags, const Model& model,
                              const HeadTextOptions& options);

/// Applies the ablation to an empty session that was made with `session_flags`.
Status Ablate(const AblationFlags& flags, const SessionFlags& session_flags, const Model& model,
              Session& session);

/// Returns the options with which a session with these flags evaluates a text.
HeadTextOptions ToHeadTextOptions(const SessionFlags& flags);

}  // namespace manyhead::cli
