#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/model.h"
#include "manyhead/session.h"
#include "manyhead/step_profile.h"
#include "tools/manyhead/bench_plan.h"
#include "tools/manyhead/machine.h"

namespace manyhead::cli {

/// A test whose steps were profiled.
struct ProfileResult {
  BenchTest test;
  StepProfile profile;                  ///< of all counted runs
  std::vector<ProductPath> products{};  ///< of the session
  double seconds = 0;                   ///< of all counted runs
  double sampling_seconds = 0;          ///< thereof, to choose greedy tokens
};

/// One line of a profile, in seconds per step: a decoded token, or a chunk of a prompt.
struct ProfileRow {
  std::string name;
  double seconds = 0;
  double percent = 0;          ///< of the step's time; those of all rows add up to 100
  double waiting_seconds = 0;  ///< at this phase's barriers, which are a row of their own
  double bytes = 0, flops = 0;
  std::string product;       ///< by which its matrices are multiplied
  double bound_seconds = 0;  ///< the least that the machine needs for them; 0 = nothing to compare
  double of_bound = 0;       ///< bound over time and waiting; 0 = nothing to compare
};

/// The phases of the model, then sampling, barriers, and all else.
std::vector<ProfileRow> ProfileRows(const ProfileResult& result, const Roofline& roofline);

/// What the profiles of one session share.
struct ProfileSetting {
  SessionOptions options;  ///< resolved
  Roofline roofline;
};

struct Profile {
  ProfileSetting setting;
  ProfileResult result;
};

/// As a table for each, or rows of "json" or "csv".
void PrintProfiles(const Model& model, const std::vector<Profile>& profiles,
                   const std::string& format);

}  // namespace manyhead::cli
