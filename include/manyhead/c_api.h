#ifndef MANYHEAD_C_API_H_
#define MANYHEAD_C_API_H_

#include <stddef.h>
#include <stdint.h>

/// \file
/// manyhead for C, and for languages that call C.
///
/// Handles   A `*_create` or `*_load` gives a handle, its `*_free` takes it back and sets the
///           caller's pointer to NULL, so that freeing twice does nothing, as does freeing NULL.
///           Handles keep what they need: a model may be freed before its sessions.
/// Errors    Every function that can fail returns an mh_status and changes nothing then, unless its
///           comment says otherwise. One line that names the thing and both values is kept in the
///           handle for `*_message`, until the next call with it that returns an mh_status;
///           creators write it to the caller's mh_message. No exception or abort crosses
///           this interface; a NULL handle is MH_INVALID_ARGUMENT, and running out of memory
///           MH_OUT_OF_MEMORY. A pointer that is neither NULL nor of this library is not noticed.
/// Threads   One call at a time for each handle; different handles are independent, but for
///           mh_plan_run_cache, which reads a cache that nobody may change meanwhile. Further
///           threads use a model by handles from mh_model_share. mh_session_cancel may be called by
///           any thread and by signal handlers.
/// Memory    What pointers in arguments lead to belongs to the caller, and is read or written
///           during the call only. What returned pointers lead to belongs to the handle.
/// Structs   An `*_init` fills a struct with defaults; fields are then set as needed. Where an
///           options pointer may be NULL, that means the defaults.
/// Numbers   Ids are int32_t, sizes int64_t in tokens or elements, or in bytes where the name says
///           so. Shapes are written outermost first: H query heads, K key/value heads, D head_dim.

/// Changes when programs have to be compiled anew.
#define MH_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
/// In C++ an enumeration that does not say so holds the values of its names alone, and to look at
/// another, as a program in C may give, would be undefined.
#define MH_ANY_INT : int
#else
#define MH_ANY_INT
#endif
#pragma GCC visibility push(default)

// NOLINTBEGIN(readability-identifier-naming): names of C.

/// What came of a call.
typedef enum mh_status MH_ANY_INT {
  MH_OK = 0,                ///< done
  MH_INVALID_ARGUMENT = 1,  ///< an argument, shape or option is out of range, or NULL
  MH_UNSUPPORTED = 2,       ///< valid, but this CPU, build or combination cannot serve it
  MH_OUT_OF_PAGES = 3,      ///< the cache's byte cap or token limit is reached; nothing was changed
  MH_IO_ERROR = 4,          ///< a file could not be read or written, or its contents are wrong
  MH_OUT_OF_MEMORY = 5,     ///< the system gave no memory
  MH_BUFFER_TOO_SMALL = 6,  ///< the caller's array; the size it needs was written, nothing else
  MH_INTERNAL_ERROR = 7     ///< a fault of this library; the message says where
} mh_status;

/// Number types of keys and values; see KvType in types.h for what each costs in accuracy.
typedef enum mh_kv_type MH_ANY_INT {
  MH_KV_F32 = 0,   ///< 4 bytes a number
  MH_KV_F16 = 1,   ///< 2 bytes, the default
  MH_KV_BF16 = 2,  ///< 2 bytes
  MH_KV_INT8 = 3,  ///< 1 byte, and a scale for each token and head
  MH_KV_INT4 = 4   ///< 5 bits, scales included
} mh_kv_type;

/// Why a generation ended.
typedef enum mh_stop_reason MH_ANY_INT {
  MH_STOP_MAX_TOKENS = 0,  ///< max_tokens were generated
  MH_STOP_END_TOKEN = 1,   ///< the model ended the text
  MH_STOP_TEXT = 2,        ///< a stop string appeared; the text ends before it
  MH_STOP_CONTEXT = 3,     ///< the context is full
  MH_STOP_CANCELLED = 4    ///< mh_session_cancel, or on_text wanted no more
} mh_stop_reason;

/// One line, ending in NUL; longer ones are cut.
typedef struct mh_message {
  char text[512];  ///< in UTF-8 where names in it are
} mh_message;

typedef struct mh_model mh_model;      ///< weights, config and tokenizer; never changes
typedef struct mh_session mh_session;  ///< one text of a model, with its keys and values
typedef struct mh_cache mh_cache;      ///< keys and values of many sequences, in pages
typedef struct mh_plan mh_plan;        ///< attention of given shapes, with its scratch memory

/// The library's version, e.g. "0.1.0".
const char* mh_version(void);
/// MH_ABI_VERSION of the library that runs; compare it where the library is loaded by name.
int mh_abi_version(void);
/// E.g. "out of pages"; "?" for a number that is no status.
const char* mh_status_name(mh_status status);
/// The thread count that 0 stands for: CPUs this process may use, no more than its cgroup's quota.
int mh_default_threads(void);

/// A worker's part of a parallel step: an executor calls it as task(task_context, worker).
typedef void (*mh_executor_task)(void* task_context, int worker);
/// Calls task(task_context, i) once for each i of 0 .. num_workers - 1, from num_workers threads at
/// the same time, and returns when all these calls have returned. Called by every thread that uses
/// the library. ExecutorRun in threads.h says what becomes of a step where it does less.
typedef void (*mh_executor_run)(void* context, int num_workers, mh_executor_task task,
                                void* task_context);

/// Names the threads that parallel work uses; see ThreadsOptions in threads.h.
typedef struct mh_threads_options {
  size_t struct_size;   ///< set by mh_threads_options_init
  const char* team;     ///< "own", "openmp", "executor"; NULL = what MANYHEAD_TEAM names, or own
  mh_executor_run run;  ///< of the team "executor", and only there
  void* context;        ///< first argument of run
  int max_workers;      ///< threads that run has: never asked for more; 0 = unknown
  int64_t join_timeout_us;  ///< microseconds workers wait for all others to come; default 1000
} mh_threads_options;

/// The defaults.
void mh_threads_options_init(mh_threads_options* options);
/// Sets the team of the process. An executor and its context must last until another team is set;
/// while it runs a step none can be: MH_UNSUPPORTED. `options` and `message` may be NULL.
mh_status mh_set_threads(const mh_threads_options* options, mh_message* message);
/// The team of the calling thread's next step: "own", "openmp" or "executor"; "?" where
/// MANYHEAD_TEAM names none, which mh_model_load, mh_session_create and mh_plan_create report.
const char* mh_team_name(void);

/// How mh_model_load loads.
typedef struct mh_model_options {
  size_t struct_size;  ///< set by mh_model_options_init
  int mapped_weights;  ///< nonzero: low-bit weights stay in the file's pages, shared and slower
  int threads;         ///< that pack weights; 0 = mh_default_threads()
} mh_model_options;

/// The defaults; NULL is ignored, as by every init.
void mh_model_options_init(mh_model_options* options);
/// Reads a GGUF file. `options` and `message` may be NULL.
mh_status mh_model_load(const char* path, const mh_model_options* options, mh_model** model,
                        mh_message* message);
/// One handle more to the same weights, e.g. for another thread.
mh_status mh_model_share(mh_model* model, mh_model** other);
/// Takes the handle back. Its sessions go on.
void mh_model_free(mh_model** model);
/// Why the last call with this handle failed; "" if it did not.
const char* mh_model_message(const mh_model* model);

/// Sizes of a model; 0 for a NULL handle.
int64_t mh_model_vocab_size(const mh_model* model);
int64_t mh_model_context_length(const mh_model* model);  ///< tokens it was trained for
int64_t mh_model_num_layers(const mh_model* model);      ///< layers of the decoder
int64_t mh_model_weight_bytes(const mh_model* model);    ///< of all tensors, as they are stored
/// "llama", "qwen2", ...; "" for a NULL handle.
const char* mh_model_architecture(const mh_model* model);

/// Key/value heads of one layer, as of a cache.
typedef struct mh_layer_shape {
  int64_t num_kv_heads;  ///< K
  int64_t head_dim;      ///< D of keys, 1..1024
  int64_t head_dim_v;    ///< of values; 0 = head_dim
} mh_layer_shape;

/// Query heads and key/value heads of a model's layer; `num_heads` may be NULL.
mh_status mh_model_layer(mh_model* model, int64_t layer, mh_layer_shape* shape, int64_t* num_heads);

/// Token ids of a text. `*count` becomes their number; MH_BUFFER_TOO_SMALL when it is above
/// `capacity`, and `ids` is then untouched. add_special: begin and end tokens as the model asks
/// for. parse_special: control tokens in the text are read as such.
mh_status mh_model_encode(mh_model* model, const char* text, size_t text_bytes, int add_special,
                          int parse_special, int32_t* ids, size_t capacity, size_t* count);
/// The text of ids, without a NUL; `*text_bytes` and MH_BUFFER_TOO_SMALL as above.
mh_status mh_model_decode(mh_model* model, const int32_t* ids, size_t count, char* text,
                          size_t capacity, size_t* text_bytes);
/// Nonzero for ids that end a text.
int mh_model_is_end_token(const mh_model* model, int32_t id);

/// Bytes held: used_bytes + table_bytes never exceeds capacity_bytes.
typedef struct mh_kv_usage {
  int64_t capacity_bytes;  ///< the cap
  int64_t used_bytes;      ///< of pages; those that sequences share count once
  int64_t table_bytes;     ///< of page tables and lists
} mh_kv_usage;

/// What mh_session_create makes; see SessionOptions in session.h.
typedef struct mh_session_options {
  size_t struct_size;       ///< set by mh_session_options_init
  int64_t context;          ///< most tokens held; 0 = the smaller of the model's and 8192
  mh_kv_type k_type;        ///< default f16
  mh_kv_type v_type;        ///< default f16
  const char* kv_policy;    ///< e.g. "sink(4)+recent(256)", or JSON by head; NULL = every token
  int64_t kv_budget_bytes;  ///< cap on the cache with attention's scratch; 0 = what context takes
  int64_t prefix_bytes;     ///< for beginnings of prompts kept beside; 0 = the last text's alone
  int exact_math;           ///< nonzero: f32 activations for every product with low-bit weights
  int threads;              ///< 0 = mh_default_threads()
  const char* isa;          ///< "scalar", "avx2", "avx512", "amx"; NULL = the best
  int64_t chunk;            ///< most tokens of one prompt step; default 512
} mh_session_options;

/// The defaults.
void mh_session_options_init(mh_session_options* options);
/// `options` and `message` may be NULL. Generation leaves nothing to be allocated but its text.
mh_status mh_session_create(const mh_model* model, const mh_session_options* options,
                            mh_session** session, mh_message* message);
/// Takes the handle back.
void mh_session_free(mh_session** session);
/// Why the last call with this handle failed; "" if it did not.
const char* mh_session_message(const mh_session* session);

/// Appends ids, at least one. `*logits`, if `logits` is not NULL, leads to mh_model_vocab_size
/// numbers, valid until the next call with this session.
mh_status mh_session_append(mh_session* session, const int32_t* ids, size_t count,
                            const float** logits);
/// Says whether tokens are evaluated as a prompt or decode; see RowRole.
typedef enum mh_row_role MH_ANY_INT {
  MH_ROLE_PREFILL = 0,  ///< part of a prompt
  MH_ROLE_DECODE = 1    ///< generated, or drafts to be verified
} mh_row_role;
/// The same in a chosen role; mh_session_append decodes one id, and takes more as a prompt.
mh_status mh_session_append_as(mh_session* session, const int32_t* ids, size_t count,
                               mh_row_role role, const float** logits);
/// Keeps the first `length` tokens.
mh_status mh_session_truncate(mh_session* session, int64_t length);

/// What mh_session_generate does; see GenerateOptions and SamplingParams.
typedef struct mh_generate_options {
  size_t struct_size;       ///< set by mh_generate_options_init
  int64_t max_tokens;       ///< default 128
  float temperature;        ///< 0, the default: always the best token, the lowest id of equals
  int64_t top_k;            ///< 0 = off
  float top_p;              ///< 1 = off
  float min_p;              ///< 0 = off
  float repeat_penalty;     ///< 1 = off
  int64_t repeat_last_n;    ///< tokens the penalty looks back on; default 64
  uint64_t seed;            ///< gives the same text again
  const char* const* stop;  ///< [num_stop] strings that end the text
  size_t num_stop;          ///< may be 0
  /// Called with each piece of text as it is decided: whole characters, no NUL at the end. Nonzero
  /// ends the generation. It must return, and not use the session. NULL = none.
  int (*on_text)(void* user, const char* text, size_t text_bytes);
  void* user;  ///< for on_text
} mh_generate_options;

/// What was generated. Pointers are valid until the next call with the session.
typedef struct mh_generate_result {
  mh_stop_reason stop_reason;          ///< why there is no more
  const int32_t* ids;                  ///< [num_ids] without the end token
  size_t num_ids;                      ///< tokens generated
  const char* text;                    ///< ends in NUL
  size_t text_bytes;                   ///< without the NUL
  int64_t prefill_tokens;              ///< evaluated, without those that the session already held
  double prefill_seconds;              ///< for the prompt
  int64_t decode_tokens;               ///< steps after the prompt
  double decode_seconds;               ///< for the steps after it
  double time_to_first_token_seconds;  ///< from the call on
} mh_generate_result;

/// The defaults.
void mh_generate_options_init(mh_generate_options* options);
/// Continues `prompt`, which stands for the whole text: what the session holds of its beginning is
/// used, the rest dropped. `options` and `result` may be NULL. After an error the session holds a
/// beginning of prompt and text.
mh_status mh_session_generate(mh_session* session, const int32_t* prompt, size_t count,
                              const mh_generate_options* options, mh_generate_result* result);
/// Ends the generation under way after its present step, or, if there is none, the next.
void mh_session_cancel(mh_session* session);

/// Writes the session to a file, or makes it what it was when it was saved; see Session::Save and
/// Restore. convert_types: keys and values may have been saved in other types.
mh_status mh_session_save(mh_session* session, const char* path);
/// Makes the session what it was when it was saved; it is unchanged where the file is refused.
mh_status mh_session_restore(mh_session* session, const char* path, int convert_types);

/// Tokens held; `ids`, valid until the next call, may be NULL.
int64_t mh_session_length(const mh_session* session, const int32_t** ids);
/// Most tokens it can hold; 0 for a NULL handle.
int64_t mh_session_context(const mh_session* session);
/// Of its keys and values.
mh_status mh_session_get_kv_usage(mh_session* session, mh_kv_usage* usage);
/// Of activations and scratch.
int64_t mh_session_scratch_bytes(const mh_session* session);

/// What one query head did since mh_session_profile_heads; see HeadStats in heads.h.
typedef struct mh_head_stats {
  double seconds;          ///< of attention, over all threads
  double kv_bytes;         ///< of keys and values that had to be read
  int64_t rows;            ///< looked at; what follows are means over them
  double entropy;          ///< of the weights, nats
  double sink_mass;        ///< weight of the sequence's first 4 tokens
  double recent_mass;      ///< weight of the last 64
  double mean_distance;    ///< tokens back, by weight
  double median_distance;  ///< within which half of the weight lies
  double max_weight;       ///< the largest
  double output_norm;      ///< of what the head adds to the residual stream
} mh_head_stats;

/// Collects what every head does from now on, its weights at every `every`-th token; 0, as at
/// first, collects nothing and costs nothing. Results keep their bits.
mh_status mh_session_profile_heads(mh_session* session, int64_t every);
/// What head `head` of layer `layer` did.
mh_status mh_session_get_head_stats(mh_session* session, int64_t layer, int64_t head,
                                    mh_head_stats* stats);

/// Attention weights of one head and query.
typedef struct mh_captured_row {
  int64_t layer;         ///< of the head
  int64_t head;          ///< query head of the layer
  int64_t position;      ///< of the query
  const float* weights;  ///< [position + 1] by key position; 0 where hidden or evicted
  float lse;             ///< natural log of the softmax denominator; -inf where no key is seen
  float sink_share;      ///< of a sink logit: sum(weights) + sink_share = 1, 0 where no key is seen
} mh_captured_row;

/// Which rows a session shows; see CaptureOptions in heads.h.
typedef struct mh_capture_options {
  size_t struct_size;  ///< set by mh_capture_options_init
  int64_t layer;       ///< -1, the default: all
  int64_t head;        ///< of that layer; -1, the default: all
  int64_t first;       ///< of the query positions; default 0
  int64_t last;        ///< inclusive; -1, the default: to the end
  int64_t every;       ///< default 1
  /// Called in the middle of a step with each row, which is valid during the call. It must return,
  /// and not use the session.
  void (*on_row)(void* user, const mh_captured_row* row);
  void* user;  ///< for on_row
} mh_capture_options;

/// The defaults.
void mh_capture_options_init(mh_capture_options* options);
/// Shows attention weights from now on; NULL, as at first, shows none.
mh_status mh_session_capture(mh_session* session, const mh_capture_options* options);

/// Switches heads off or scales them, as "3.1,4.*=0.5" or JSON; NULL = none. Tokens held are
/// evaluated anew. See ParseAblation and Session::SetAblation; means cannot be set here.
mh_status mh_session_ablate(mh_session* session, const char* edits);

/// What mh_cache_create makes; see KvCacheParams in kv_cache.h.
typedef struct mh_cache_params {
  size_t struct_size;            ///< set by mh_cache_params_init
  const mh_layer_shape* layers;  ///< [num_layers]
  size_t num_layers;             ///< at least 1
  mh_kv_type k_type;             ///< default f16
  mh_kv_type v_type;             ///< default f16
  const char* heads;       ///< a policy for all heads, or JSON with types and policies; NULL = full
  int64_t page_size;       ///< tokens of a page, a multiple of 16; 0 = 64
  int64_t capacity_bytes;  ///< hard cap on all pages and tables
  int64_t max_tokens;      ///< most tokens of one sequence
  const char* isa;         ///< NULL = the best
} mh_cache_params;

/// What one head holds of a sequence.
typedef struct mh_head_usage {
  int64_t tokens;      ///< stored
  int64_t pages;       ///< that hold them
  int64_t page_bytes;  ///< of one page
} mh_head_usage;

/// The defaults; layers, capacity_bytes and max_tokens have none.
void mh_cache_params_init(mh_cache_params* params);
/// `message` may be NULL.
mh_status mh_cache_create(const mh_cache_params* params, mh_cache** cache, mh_message* message);
/// Takes the handle back, and all sequences with it.
void mh_cache_free(mh_cache** cache);
/// Why the last call with this handle failed; "" if it did not.
const char* mh_cache_message(const mh_cache* cache);

/// An empty sequence.
mh_status mh_cache_create_sequence(mh_cache* cache, int32_t* sequence);
/// Its id is invalid from then on, and freeing it again an error.
mh_status mh_cache_free_sequence(mh_cache* cache, int32_t sequence);
/// A sequence that holds the same, in the same pages until one of the two writes.
mh_status mh_cache_fork(mh_cache* cache, int32_t sequence, int32_t* fork);
/// Grows a sequence by `count` tokens on every layer, whose rows are then to be written.
mh_status mh_cache_reserve(mh_cache* cache, int32_t sequence, int64_t count);
/// Stores reserved rows of one layer: k [count, K, D], v [count, K, Dv], dense f32.
mh_status mh_cache_write(mh_cache* cache, int32_t sequence, int64_t layer, int64_t position,
                         int64_t count, const float* k, const float* v);
/// One stored row: k [D], v [Dv]; either may be NULL.
mh_status mh_cache_read(mh_cache* cache, int32_t sequence, int64_t layer, int64_t head,
                        int64_t position, float* k, float* v);
/// Drops all from position `length` on; `*exact`, if not NULL, tells whether the sequence is now as
/// if those tokens had never been there.
mh_status mh_cache_truncate(mh_cache* cache, int32_t sequence, int64_t length, int* exact);
/// Drops the tokens [begin, end); others keep their positions.
mh_status mh_cache_drop(mh_cache* cache, int32_t sequence, int64_t begin, int64_t end);
/// Gives back at once what policies no longer keep.
mh_status mh_cache_evict(mh_cache* cache, int32_t sequence);
/// Writes sequences to a file, which appears under its name when it is whole; see KvCache::Save.
/// `fingerprint` says where keys and values come from, e.g. which model; NULL = "".
mh_status mh_cache_save(mh_cache* cache, const char* path, const int32_t* sequences, size_t count,
                        const char* fingerprint);
/// Adds the sequences of a file with that fingerprint, in the order in which they were saved; see
/// KvCache::Restore. `*count` becomes their number; MH_BUFFER_TOO_SMALL when it is above
/// `capacity`.
mh_status mh_cache_restore(mh_cache* cache, const char* path, const char* fingerprint,
                           int convert_types, int32_t* sequences, size_t capacity, size_t* count);
/// Tokens of a sequence, held or not; -1 for an unknown one.
int64_t mh_cache_length(const mh_cache* cache, int32_t sequence);
/// Over all layers and heads; 0 for a NULL handle.
int64_t mh_cache_bytes_per_token(const mh_cache* cache);
/// Of the whole cache.
mh_status mh_cache_get_usage(mh_cache* cache, mh_kv_usage* usage);
/// Of one KV head.
mh_status mh_cache_get_head_usage(mh_cache* cache, int32_t sequence, int64_t layer, int64_t head,
                                  mh_head_usage* usage);

/// What mh_plan_create makes; see AttentionParams in attention.h.
typedef struct mh_plan_params {
  size_t struct_size;         ///< set by mh_plan_params_init
  int64_t num_heads;          ///< H, a multiple of num_kv_heads
  int64_t num_kv_heads;       ///< K
  int64_t head_dim;           ///< D, 1..1024
  int64_t head_dim_v;         ///< 0 = head_dim
  int64_t max_q_len;          ///< most query tokens of one run
  int64_t max_kv_len;         ///< most key/value tokens of one sequence
  float softmax_scale;        ///< 0 = 1/sqrt(head_dim)
  float logit_softcap;        ///< 0 = off
  int causal;                 ///< default 1; aligned to the last query and key
  int64_t window;             ///< tokens a query sees, itself included; 0 = all
  int64_t num_sink_tokens;    ///< first tokens that a window does not hide
  const float* alibi_slopes;  ///< [H] or NULL
  const float* sink_logits;   ///< [H] or NULL
  int threads;                ///< 0 = mh_default_threads()
  const char* isa;            ///< NULL = the best
  int strict;                 ///< nonzero: MH_UNSUPPORTED instead of a slower kernel
} mh_plan_params;

/// The defaults; heads, head_dim and lengths have none.
void mh_plan_params_init(mh_plan_params* params);
/// `message` may be NULL.
mh_status mh_plan_create(const mh_plan_params* params, mh_plan** plan, mh_message* message);
/// Takes the handle back.
void mh_plan_free(mh_plan** plan);
/// Why the last call with this handle failed; "" if it did not.
const char* mh_plan_message(const mh_plan* plan);

/// Attention of one request, all dense f32: q [q_len, H, D], k [kv_len, K, D], v [kv_len, K, Dv],
/// out [q_len, H, Dv], lse [q_len, H] (natural log) or NULL.
mh_status mh_plan_run(mh_plan* plan, int64_t q_len, int64_t kv_len, const float* q, const float* k,
                      const float* v, float* out, float* lse);
/// Over one layer of a cache, for `count` sequences: the queries [qo_indptr[b], qo_indptr[b + 1])
/// are the last tokens of sequences[b]; NULL stands for one query each. q [T, H, D], out
/// [T, H, Dv], lse [T, H] or NULL, dense.
mh_status mh_plan_run_cache(mh_plan* plan, const mh_cache* cache, int64_t layer,
                            const int32_t* sequences, size_t count, const int64_t* qo_indptr,
                            const float* q, float* out, float* lse);
/// Which kernel a run of these lengths gets, and why no faster one: lines of text in the handle,
/// valid until the next call with it.
mh_status mh_plan_explain(mh_plan* plan, mh_kv_type k_type, mh_kv_type v_type, int64_t q_len,
                          int64_t kv_len, const char** text);
/// Of its own memory; 0 for a NULL handle.
int64_t mh_plan_scratch_bytes(const mh_plan* plan);

// NOLINTEND(readability-identifier-naming)

#undef MH_ANY_INT
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif  // MANYHEAD_C_API_H_
