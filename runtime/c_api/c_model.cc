#include "manyhead/threads.h"
#include "manyhead/tokenizer.h"
#include "manyhead/version.h"
#include "runtime/c_api/c_handles.h"

using manyhead::Status;
using manyhead::c_api::Call;
using manyhead::c_api::CheckArray;
using manyhead::c_api::CheckPointer;
using manyhead::c_api::CheckSize;
using manyhead::c_api::CopyOut;
using manyhead::c_api::Invalid;
using manyhead::c_api::Outcome;

const char* mh_version(void) { return manyhead::Version(); }

int mh_abi_version(void) { return MH_ABI_VERSION; }

const char* mh_status_name(mh_status status) {
  switch (status) {
    case MH_OUT_OF_MEMORY:
      return "out of memory";
    case MH_BUFFER_TOO_SMALL:
      return "buffer too small";
    case MH_INTERNAL_ERROR:
      return "internal error";
    case MH_OK:
    case MH_INVALID_ARGUMENT:
    case MH_UNSUPPORTED:
    case MH_OUT_OF_PAGES:
    case MH_IO_ERROR:
      return manyhead::StatusCodeName(static_cast<manyhead::StatusCode>(status));
  }
  return "?";
}

int mh_default_threads(void) {
  try {
    return manyhead::DefaultThreads();
  } catch (...) {  // no memory for the search
    return 1;
  }
}

void mh_model_options_init(mh_model_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof *options;
}

mh_status mh_model_load(const char* path, const mh_model_options* options, mh_model** model,
                        mh_message* message) {
  return manyhead::c_api::CreateHandle(model, message, [&](mh_model*& place) -> Outcome {
    if (auto error = CheckPointer(path, "path")) return *error;
    manyhead::ModelOptions loading;
    if (options != nullptr) {
      if (auto error = CheckSize(*options, "mh_model_options")) return *error;
      loading.threads = options->threads;
      if (options->mapped_weights != 0) loading.weights = manyhead::WeightStorage::kMapped;
    }
    const auto loaded = manyhead::Model::Load(path, loading);
    if (!loaded.ok()) return loaded.status();
    place = new mh_model{*loaded};
    return Status();
  });
}

mh_status mh_model_share(mh_model* model, mh_model** other) {
  if (other != nullptr) *other = nullptr;
  return Call(model, [&]() -> Outcome {
    if (auto error = CheckPointer(other, "the place for the handle")) return *error;
    *other = new mh_model{model->model};
    return Status();
  });
}

void mh_model_free(mh_model** model) { manyhead::c_api::FreeHandle(model); }

const char* mh_model_message(const mh_model* model) {
  return model == nullptr ? "the model is NULL" : model->message.text;
}

int64_t mh_model_vocab_size(const mh_model* model) {
  return model == nullptr ? 0 : model->model.config().vocab_size;
}

int64_t mh_model_context_length(const mh_model* model) {
  return model == nullptr ? 0 : model->model.config().context_length;
}

int64_t mh_model_num_layers(const mh_model* model) {
  return model == nullptr ? 0 : static_cast<int64_t>(model->model.config().layers.size());
}

int64_t mh_model_weight_bytes(const mh_model* model) {
  return model == nullptr ? 0 : model->model.weight_bytes();
}

const char* mh_model_architecture(const mh_model* model) {
  return model == nullptr ? "" : model->model.config().architecture.c_str();
}

mh_status mh_model_layer(mh_model* model, int64_t layer, mh_layer_shape* shape,
                         int64_t* num_heads) {
  return Call(model, [&]() -> Outcome {
    if (auto error = CheckPointer(shape, "shape")) return *error;
    const auto& layers = model->model.config().layers;
    if (layer < 0 || layer >= std::ssize(layers))
      return Invalid("layer = " + std::to_string(layer) + "; expected 0 to " +
                     std::to_string(std::ssize(layers) - 1));
    const auto& config = layers[static_cast<std::size_t>(layer)];
    *shape = {config.num_kv_heads, config.head_dim, config.head_dim_v};
    if (num_heads != nullptr) *num_heads = config.num_heads;
    return Status();
  });
}

mh_status mh_model_encode(mh_model* model, const char* text, size_t text_bytes, int add_special,
                          int parse_special, int32_t* ids, size_t capacity, size_t* count) {
  return Call(model, [&]() -> Outcome {
    if (auto error = CheckArray(text, text_bytes, "text")) return *error;
    if (auto error = CheckArray(ids, capacity, "ids")) return *error;
    if (auto error = CheckPointer(count, "count")) return *error;
    const auto encoded = model->model.tokenizer().Encode(
        std::string_view(text, text_bytes),
        {.add_special = add_special != 0, .parse_special = parse_special != 0});
    if (!encoded.ok()) return encoded.status();
    return CopyOut(encoded->data(), encoded->size(), ids, capacity, count, "ids");
  });
}

mh_status mh_model_decode(mh_model* model, const int32_t* ids, size_t count, char* text,
                          size_t capacity, size_t* text_bytes) {
  return Call(model, [&]() -> Outcome {
    if (auto error = CheckArray(ids, count, "ids")) return *error;
    if (auto error = CheckArray(text, capacity, "text")) return *error;
    if (auto error = CheckPointer(text_bytes, "text_bytes")) return *error;
    const std::string decoded = model->model.tokenizer().Decode({ids, count});
    return CopyOut(decoded.data(), decoded.size(), text, capacity, text_bytes, "text");
  });
}

int mh_model_is_end_token(const mh_model* model, int32_t id) {
  if (model == nullptr) return 0;
  const auto ends = model->model.tokenizer().end_tokens();
  return std::binary_search(ends.begin(), ends.end(), id) ? 1 : 0;
}
