#include "manyhead/threads.h"

#include "runtime/c_api/c_handles.h"

using manyhead::Status;
using manyhead::c_api::CheckSize;
using manyhead::c_api::Invalid;
using manyhead::c_api::Outcome;

void mh_threads_options_init(mh_threads_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof *options;
  options->join_timeout_us = manyhead::ThreadsOptions{}.join_timeout_us;
}

mh_status mh_set_threads(const mh_threads_options* options, mh_message* message) {
  return manyhead::c_api::Guard(message, [&]() -> Outcome {
    manyhead::ThreadsOptions threads;
    if (options != nullptr) {
      if (auto error = CheckSize(*options, "mh_threads_options")) return *error;
      if (options->team != nullptr) {
        threads.team = manyhead::ParseTeam(options->team);
        if (!threads.team)
          return Invalid(std::string("team = ") + options->team +
                         "; expected own, openmp or executor");
      }
      threads.run = options->run;
      threads.context = options->context;
      threads.max_workers = options->max_workers;
      threads.join_timeout_us = options->join_timeout_us;
    }
    return manyhead::SetThreads(threads);
  });
}

const char* mh_team_name(void) {
  try {
    const manyhead::Result<manyhead::Team> team = manyhead::SelectTeam();
    return team.ok() ? manyhead::TeamName(*team) : "?";
  } catch (...) {  // no memory for the message
    return "?";
  }
}
