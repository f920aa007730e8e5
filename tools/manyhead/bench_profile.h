#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/session.h"
#include "manyhead/step_profile.h"
#include "tools/manyhead/bench_plan.h"
#include "tools/manyhead/machine.h"

namespace manyhead::cli {

/// A test whose steps were profiled.
struct ProfileResult {
  BenchTest test;
  StepProfile profile;                  ///< sum of all counted runs
  std::vector<ProductPath> products{};  ///< products of the session
  double seconds = 0;                   ///< time of all counted runs
  double sampling_seconds = 0;          ///< part of it that chooses greedy tokens
};

/// One line of a profile, in seconds per step: a decoded token, or a chunk of a prompt.
struct ProfileRow {
  std::string name;
  double seconds = 0;
  double percent = 0;          ///< share of the step's time; all rows add up to 100
  double waiting_seconds = 0;  ///< time at this phase's barriers, which have a row of their own
  double bytes = 0, flops = 0;
  std::string product;       ///< product of its matrices
  double bound_seconds = 0;  ///< least time that the machine needs for them; 0 = nothing to compare
  double of_bound = 0;       ///< bound over time and waiting; 0 = nothing to compare
};

/// Returns the phases of the model, then sampling, barriers, and the rest.
std::vector<ProfileRow> ProfileRows(const ProfileResult& result, const Roofline& roofline);

/// The settings that the profiles of one session share.
struct ProfileSetting {
  std::string model_path, model_type;
  SessionOptions options;  ///< resolved
  Roofline roofline;
};

struct Profile {
  ProfileSetting setting;
  ProfileResult result;
};

/// Prints profiles in one of RowFormats(): a table for each, or rows.
void PrintProfiles(const std::vector<Profile>& profiles, const std::string& format);

}  // namespace manyhead::cli
