#include "manyhead/ablation.h"
#include "runtime/c_api/c_handles.h"

using manyhead::Status;
using manyhead::c_api::Call;
using manyhead::c_api::CheckArray;
using manyhead::c_api::CheckPointer;
using manyhead::c_api::CheckSize;
using manyhead::c_api::Invalid;
using manyhead::c_api::Outcome;

namespace {

std::optional<Outcome> CheckIndex(std::int64_t index, std::size_t count, const char* what) {
  if (index >= 0 && index < static_cast<std::int64_t>(count)) return std::nullopt;
  return Invalid(std::string(what) + " = " + std::to_string(index) + "; expected 0 to " +
                 std::to_string(count - 1));
}

/// Returns the heads that `options` name, one by one where not all are meant.
std::optional<Outcome> ReadHeads(const mh_capture_options& options,
                                 const manyhead::ModelConfig& config,
                                 std::vector<manyhead::HeadId>& heads) {
  if (options.layer == -1) {
    if (options.head == -1) return std::nullopt;
    return Invalid("head = " + std::to_string(options.head) + " without a layer");
  }
  if (auto error = CheckIndex(options.layer, config.layers.size(), "layer")) return error;
  const std::int64_t count = config.layers[static_cast<std::size_t>(options.layer)].num_heads;
  if (options.head != -1) {
    if (auto error = CheckIndex(options.head, static_cast<std::size_t>(count), "head"))
      return error;
    heads.push_back({options.layer, options.head});
    return std::nullopt;
  }
  for (std::int64_t head = 0; head < count; ++head) heads.push_back({options.layer, head});
  return std::nullopt;
}

}  // namespace

mh_status mh_session_profile_heads(mh_session* session, int64_t every) {
  return Call(session, [&]() -> Outcome {
    manyhead::HeadProfile* const profile = every == 0 ? nullptr : &session->profile;
    if (Status status = session->session.SetHeadProfile(profile, {.every = every == 0 ? 1 : every});
        !status.ok())
      return status;
    session->profiles = every != 0;
    return Status();
  });
}

mh_status mh_session_get_head_stats(mh_session* session, int64_t layer, int64_t head,
                                    mh_head_stats* stats) {
  return Call(session, [&]() -> Outcome {
    if (auto error = CheckPointer(stats, "stats")) return *error;
    if (!session->profiles) return Invalid("no profile: call mh_session_profile_heads before");
    const auto& layers = session->profile.heads;
    if (auto error = CheckIndex(layer, layers.size(), "layer")) return *error;
    const auto& heads = layers[static_cast<std::size_t>(layer)];
    if (auto error = CheckIndex(head, heads.size(), "head")) return *error;
    const manyhead::HeadStats& of = heads[static_cast<std::size_t>(head)];
    *stats = {.seconds = of.seconds,
              .kv_bytes = of.kv_bytes,
              .rows = of.rows,
              .entropy = of.entropy,
              .sink_mass = of.sink_mass,
              .recent_mass = of.recent_mass,
              .mean_distance = of.mean_distance,
              .median_distance = of.median_distance,
              .max_weight = of.max_weight,
              .output_norm = of.output_norm};
    return Status();
  });
}

void mh_capture_options_init(mh_capture_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof *options;
  options->layer = options->head = options->last = -1;
  options->every = 1;
}

mh_status mh_session_capture(mh_session* session, const mh_capture_options* options) {
  return Call(session, [&]() -> Outcome {
    if (options == nullptr) return session->session.SetCapture(nullptr);
    if (auto error = CheckSize(*options, "mh_capture_options")) return *error;
    if (options->on_row == nullptr) return Invalid("on_row is NULL");
    manyhead::CaptureOptions capture;
    if (auto error = ReadHeads(*options, session->model.config(), capture.heads)) return *error;
    capture.first = options->first;
    capture.last = options->last;
    capture.every = options->every;
    capture.on_row = [on_row = options->on_row,
                      user = options->user](const manyhead::CapturedRow& row) {
      const mh_captured_row shown = {.layer = row.head.layer,
                                     .head = row.head.head,
                                     .position = row.position,
                                     .weights = row.weights.data(),
                                     .lse = row.lse,
                                     .sink_share = row.sink_share,
                                     .output = row.output.data(),
                                     .head_dim_v = std::ssize(row.output)};
      on_row(user, &shown);
    };
    return session->session.SetCapture(&capture);
  });
}

mh_status mh_session_ablate(mh_session* session, const char* edits) {
  return Call(session, [&]() -> Outcome {
    manyhead::Ablation ablation;
    if (edits != nullptr) {
      auto parsed = manyhead::ParseAblation(edits, session->model.config());
      if (!parsed.ok()) return parsed.status();
      if (manyhead::NeedsMeans(*parsed))
        return Invalid("edits: means are measured in C++ and Python only; expected a number");
      ablation = std::move(*parsed);
    }
    ablation.patches = session->session.ablation().patches;
    return session->session.SetAblation(ablation);
  });
}

mh_status mh_session_patch(mh_session* session, const mh_head_patch* patches, size_t count) {
  return Call(session, [&]() -> Outcome {
    if (auto error = CheckArray(patches, count, "patches")) return *error;
    manyhead::Ablation ablation = session->session.ablation();
    ablation.patches.clear();
    const auto& layers = session->model.config().layers;
    for (const mh_head_patch& patch : std::span(patches, count)) {
      if (auto error = CheckIndex(patch.layer, layers.size(), "layer")) return *error;
      const auto width = static_cast<size_t>(layers[static_cast<size_t>(patch.layer)].head_dim_v);
      if (patch.count < 1 || patch.count > session->session.context())
        return Invalid("count = " + std::to_string(patch.count) + " of a patch; expected 1 to " +
                       std::to_string(session->session.context()));
      const size_t size = static_cast<size_t>(patch.count) * width;
      if (auto error = CheckArray(patch.values, size, "the values of a patch")) return *error;
      ablation.patches.push_back(
          {{patch.layer, patch.head}, patch.position, {patch.values, patch.values + size}});
    }
    return session->session.SetAblation(ablation);
  });
}
