#ifndef MANYHEAD_C_API_H_
#define MANYHEAD_C_API_H_

#include <stddef.h>
#include <stdint.h>

/// \file
/// The C interface of manyhead, for C and for languages that call C.
///
/// Handles   A `*_create` or `*_load` returns a handle; its `*_free` releases it and sets the
///           caller's pointer to NULL, so that freeing twice does nothing, and neither does freeing
///           NULL. Handles keep alive what they need: a model may be freed before its sessions.
/// Errors    Every function that can fail returns an mh_status, and then changes nothing unless its
///           comment says otherwise. One line that names the thing and both values is kept in the
///           handle for `*_message`, until the next call with it that returns an mh_status;
///           creators write it to the caller's mh_message. No exception or abort crosses this
///           interface; a NULL handle is MH_INVALID_ARGUMENT, and running out of memory is
///           MH_OUT_OF_MEMORY. A pointer that is neither NULL nor of this library is not detected.
/// Threads   One call at a time for each handle; different handles are independent, except for
///           mh_plan_run_cache, which reads a cache that no call may change meanwhile. Other
///           threads use a model by handles from mh_model_share. mh_session_cancel may be called by
///           any thread and by signal handlers.
/// Memory    Memory that pointers in arguments point to belongs to the caller, and is read or
///           written during the call only. Memory that returned pointers point to belongs to the
///           handle.
/// Structs   An `*_init` fills a struct with defaults; the caller then sets fields as needed. Where
///           an options pointer may be NULL, NULL stands for the defaults.
/// Numbers   Ids are int32_t, sizes int64_t in tokens or elements, or in bytes where the name says
///           so. Shapes are written outermost first: H query heads, K key/value heads, D head_dim.

/// Version of the binary interface; it changes when programs have to be compiled again.
#define MH_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
/// In C++ an enumeration without an underlying type holds only the range of its enumerators;
/// reading another value, which a program in C may pass, would be undefined.
#define MH_ANY_INT : int
#else
#define MH_ANY_INT
#endif
#pragma GCC visibility push(default)

// NOLINTBEGIN(readability-identifier-naming): the names follow the conventions of C.

/// The result of a call.
typedef enum mh_status MH_ANY_INT {
  MH_OK = 0,                ///< success
  MH_INVALID_ARGUMENT = 1,  ///< an argument, shape or option is out of range, or NULL
  MH_UNSUPPORTED = 2,       ///< valid, but this CPU, build or combination cannot serve it
  MH_OUT_OF_PAGES = 3,      ///< the cache's byte cap or token limit is reached; nothing was changed
  MH_IO_ERROR = 4,          ///< a file could not be read or written, or its contents are wrong
  MH_OUT_OF_MEMORY = 5,     ///< the system gave no memory
  /// The caller's array is too small; only the size that it needs was written.
  MH_BUFFER_TOO_SMALL = 6,
  MH_INTERNAL_ERROR = 7  ///< a fault of this library; the message says where
} mh_status;

/// Number types of keys and values; see KvType in types.h for what each costs in accuracy.
typedef enum mh_kv_type MH_ANY_INT {
  MH_KV_F32 = 0,   ///< 4 bytes a number
  MH_KV_F16 = 1,   ///< 2 bytes a number, the default
  MH_KV_BF16 = 2,  ///< 2 bytes a number
  MH_KV_INT8 = 3,  ///< 1 byte a number, and a scale for each token and head
  MH_KV_INT4 = 4   ///< 5 bits a number, scales included
} mh_kv_type;

/// The reason why a generation ended.
typedef enum mh_stop_reason MH_ANY_INT {
  MH_STOP_MAX_TOKENS = 0,  ///< max_tokens were generated
  MH_STOP_END_TOKEN = 1,   ///< the model ended the text
  MH_STOP_TEXT = 2,        ///< a stop string appeared; the text ends before it
  MH_STOP_CONTEXT = 3,     ///< the context is full
  MH_STOP_CANCELLED = 4    ///< mh_session_cancel was called, or on_text returned nonzero
} mh_stop_reason;

/// One line of text that ends in NUL; longer messages are truncated.
typedef struct mh_message {
  char text[512];  ///< UTF-8, as far as the names in it are
} mh_message;

typedef struct mh_model mh_model;      ///< weights, config and tokenizer; never changes
typedef struct mh_session mh_session;  ///< one sequence of a model, with its keys and values
typedef struct mh_cache mh_cache;      ///< keys and values of many sequences, in pages
typedef struct mh_plan mh_plan;        ///< attention of given shapes, with its scratch memory

/// Returns the library's version, e.g. "0.1.0".
const char* mh_version(void);
/// Returns MH_ABI_VERSION of the library that runs; compare it where the library is loaded by name.
int mh_abi_version(void);
/// Returns e.g. "out of pages"; "?" for a number that is no status.
const char* mh_status_name(mh_status status);
/// Returns the thread count that 0 stands for: CPUs that this process may use, no more than its
/// cgroup's quota.
int mh_default_threads(void);

/// A worker's part of a parallel step: an executor calls it as task(task_context, worker).
typedef void (*mh_executor_task)(void* task_context, int worker);
/// A function of the program that calls task(task_context, i) once for each i of 0 .. num_workers -
/// 1, from num_workers threads at the same time, and returns when all these calls have returned.
/// Every thread that uses the library calls it. ExecutorRun in threads.h says what happens to a
/// step where it does less.
typedef void (*mh_executor_run)(void* context, int num_workers, mh_executor_task task,
                                void* task_context);

/// Selects the threads of parallel work; see ThreadsOptions in threads.h.
typedef struct mh_threads_options {
  size_t struct_size;   ///< set by mh_threads_options_init
  const char* team;     ///< "own", "openmp", "executor"; NULL = what MANYHEAD_TEAM names, or own
  mh_executor_run run;  ///< function of the team "executor"; NULL for other teams
  void* context;        ///< first argument of run
  int max_workers;      ///< threads that run has, an upper bound for its workers; 0 = unknown
  int64_t join_timeout_us;  ///< time in microseconds that workers wait for all others; default 1000
} mh_threads_options;

/// Fills in the defaults.
void mh_threads_options_init(mh_threads_options* options);
/// Sets the team of the process. An executor and its context must last until another team is set;
/// while it runs a step, no team can be set: MH_UNSUPPORTED. `options` and `message` may be NULL.
mh_status mh_set_threads(const mh_threads_options* options, mh_message* message);
/// Returns the team of the calling thread's next step: "own", "openmp" or "executor"; "?" where
/// MANYHEAD_TEAM names none, which mh_model_load, mh_session_create and mh_plan_create report.
const char* mh_team_name(void);

/// Says how mh_model_load loads.
typedef struct mh_model_options {
  size_t struct_size;  ///< set by mh_model_options_init
  int mapped_weights;  ///< nonzero: low-bit weights stay in the file's pages, shared and slower
  int threads;         ///< threads that pack weights; 0 = mh_default_threads()
} mh_model_options;

/// Fills in the defaults; NULL is ignored, as by every init function.
void mh_model_options_init(mh_model_options* options);
/// Loads a GGUF file. `options` and `message` may be NULL.
mh_status mh_model_load(const char* path, const mh_model_options* options, mh_model** model,
                        mh_message* message);
/// Creates one more handle to the same weights, e.g. for another thread.
mh_status mh_model_share(mh_model* model, mh_model** other);
/// Releases the handle. Its sessions continue to work.
void mh_model_free(mh_model** model);
/// Returns why the last call with this handle failed; "" if it did not.
const char* mh_model_message(const mh_model* model);

/// Returns the number of tokens in the vocabulary; these functions return 0 for a NULL handle.
int64_t mh_model_vocab_size(const mh_model* model);
int64_t mh_model_context_length(const mh_model* model);  ///< tokens that it was trained for
int64_t mh_model_num_layers(const mh_model* model);      ///< layers of the decoder
int64_t mh_model_weight_bytes(const mh_model* model);    ///< bytes of all tensors, as stored
/// Returns "llama", "qwen2", ...; "" for a NULL handle.
const char* mh_model_architecture(const mh_model* model);

/// Key/value heads of one layer, of a model or a cache.
typedef struct mh_layer_shape {
  int64_t num_kv_heads;  ///< K
  int64_t head_dim;      ///< D, elements of a key, 1..1024
  int64_t head_dim_v;    ///< elements of a value; 0 = head_dim
} mh_layer_shape;

/// Writes the query heads and key/value heads of a model's layer; `num_heads` may be NULL.
mh_status mh_model_layer(mh_model* model, int64_t layer, mh_layer_shape* shape, int64_t* num_heads);

/// Writes the token ids of a text. `*count` becomes their number; MH_BUFFER_TOO_SMALL when it is
/// above `capacity`, and `ids` is then unchanged. add_special: adds begin and end tokens as the
/// model asks for. parse_special: reads control tokens in the text as tokens.
mh_status mh_model_encode(mh_model* model, const char* text, size_t text_bytes, int add_special,
                          int parse_special, int32_t* ids, size_t capacity, size_t* count);
/// Writes the text of ids, without a NUL; `*text_bytes` and MH_BUFFER_TOO_SMALL as above.
mh_status mh_model_decode(mh_model* model, const int32_t* ids, size_t count, char* text,
                          size_t capacity, size_t* text_bytes);
/// Returns nonzero for ids that end a sequence.
int mh_model_is_end_token(const mh_model* model, int32_t id);

/// Bytes held by a cache; used_bytes + table_bytes never exceeds capacity_bytes.
typedef struct mh_kv_usage {
  int64_t capacity_bytes;  ///< the cap
  int64_t used_bytes;      ///< bytes of pages; those that sequences share count once
  int64_t table_bytes;     ///< bytes of page tables and lists
} mh_kv_usage;

/// Limits and options of mh_session_create; see SessionOptions in session.h.
typedef struct mh_session_options {
  size_t struct_size;     ///< set by mh_session_options_init
  int64_t context;        ///< most tokens held; 0 = the smaller of the model's context and 8192
  mh_kv_type k_type;      ///< default f16
  mh_kv_type v_type;      ///< default f16
  const char* kv_policy;  ///< e.g. "sink(4)+recent(256)", or JSON by head; NULL = every token
  /// Cap on the cache with attention's scratch; 0 = the bytes that context needs.
  int64_t kv_budget_bytes;
  int64_t prefix_bytes;  ///< bytes for cached prefixes; 0 = none besides the sequence itself
  int exact_math;        ///< nonzero: f32 activations for every product with low-bit weights
  int threads;           ///< 0 = mh_default_threads()
  const char* isa;       ///< "scalar", "avx2", "avx512", "amx"; NULL = the best
  int64_t chunk;         ///< most tokens of one prefill chunk; default 512
} mh_session_options;

/// Fills in the defaults.
void mh_session_options_init(mh_session_options* options);
/// Creates a session; `options` and `message` may be NULL. Generation then allocates only its text.
mh_status mh_session_create(const mh_model* model, const mh_session_options* options,
                            mh_session** session, mh_message* message);
/// Releases the handle.
void mh_session_free(mh_session** session);
/// Returns why the last call with this handle failed; "" if it did not.
const char* mh_session_message(const mh_session* session);

/// Appends ids, at least one. `*logits`, if `logits` is not NULL, points to mh_model_vocab_size
/// numbers, valid until the next call with this session.
mh_status mh_session_append(mh_session* session, const int32_t* ids, size_t count,
                            const float** logits);
/// Says whether tokens are evaluated as a prompt or as decode steps; see RowRole.
typedef enum mh_row_role MH_ANY_INT {
  MH_ROLE_PREFILL = 0,  ///< tokens of a prompt
  MH_ROLE_DECODE = 1    ///< generated tokens, or drafts to be verified
} mh_row_role;
/// Appends ids in a chosen role; mh_session_append decodes a single id, and evaluates more as a
/// prompt.
mh_status mh_session_append_as(mh_session* session, const int32_t* ids, size_t count,
                               mh_row_role role, const float** logits);
/// Appends ids as a prompt and writes the logits after each, [count, vocab_size].
mh_status mh_session_append_logits(mh_session* session, const int32_t* ids, size_t count,
                                   float* logits);
/// Appends ids as a prompt and writes the losses [count - 1] of all but the first, in nats.
mh_status mh_session_score(mh_session* session, const int32_t* ids, size_t count, double* losses);
/// Keeps the first `length` tokens.
mh_status mh_session_truncate(mh_session* session, int64_t length);

/// Says how mh_session_generate continues; see GenerateOptions and SamplingParams.
typedef struct mh_generate_options {
  size_t struct_size;       ///< set by mh_generate_options_init
  int64_t max_tokens;       ///< default 128
  float temperature;        ///< 0, the default: always the best token, the lowest id of equals
  int64_t top_k;            ///< 0 = off
  float top_p;              ///< 1 = off
  float min_p;              ///< 0 = off
  float repeat_penalty;     ///< 1 = off
  int64_t repeat_last_n;    ///< latest tokens that the penalty considers; default 64
  uint64_t seed;            ///< seed of the random numbers; the same seed gives the same text
  const char* const* stop;  ///< [num_stop] strings that end the generation
  size_t num_stop;          ///< number of stop strings; may be 0
  /// Called with each piece of text once it is final: whole characters, without a NUL at the end.
  /// Nonzero ends the generation. It must return, and must not use the session. NULL = no function.
  int (*on_text)(void* user, const char* text, size_t text_bytes);
  void* user;  ///< first argument of on_text
} mh_generate_options;

/// The result of a generation. Pointers are valid until the next call with the session.
typedef struct mh_generate_result {
  mh_stop_reason stop_reason;  ///< reason why the generation ended
  const int32_t* ids;          ///< [num_ids] generated ids, without the end token
  size_t num_ids;              ///< number of generated tokens
  const char* text;            ///< text of the ids; ends in NUL
  size_t text_bytes;           ///< length of the text without the NUL
  int64_t prefill_tokens;      ///< tokens evaluated, without those that the session already held
  double prefill_seconds;      ///< time for the prompt
  int64_t decode_tokens;       ///< decode steps after the prompt
  double decode_seconds;       ///< time for these steps
  double time_to_first_token_seconds;  ///< time since the call
} mh_generate_result;

/// Fills in the defaults.
void mh_generate_options_init(mh_generate_options* options);
/// Continues `prompt`, which is the whole sequence: tokens at its beginning that the session holds
/// are reused, all others are dropped. `options` and `result` may be NULL. After an error the
/// session holds the first tokens of the prompt and the generated ones.
mh_status mh_session_generate(mh_session* session, const int32_t* prompt, size_t count,
                              const mh_generate_options* options, mh_generate_result* result);
/// Ends the current generation after its current step; where there is none, ends the next one.
void mh_session_cancel(mh_session* session);

/// Saves the session to a file; see Session::Save.
mh_status mh_session_save(mh_session* session, const char* path);
/// Restores a saved session; it is unchanged where the file is refused. convert_types: the file may
/// hold keys and values in other types. See Session::Restore.
mh_status mh_session_restore(mh_session* session, const char* path, int convert_types);

/// Returns the number of tokens held; `ids`, valid until the next call, may be NULL.
int64_t mh_session_length(const mh_session* session, const int32_t** ids);
/// Returns the largest number of tokens that it can hold; 0 for a NULL handle.
int64_t mh_session_context(const mh_session* session);
/// Writes the usage of its keys and values.
mh_status mh_session_get_kv_usage(mh_session* session, mh_kv_usage* usage);
/// Returns the bytes of activations and scratch.
int64_t mh_session_scratch_bytes(const mh_session* session);

/// Measurements of one query head since mh_session_profile_heads; see HeadStats in heads.h.
typedef struct mh_head_stats {
  double seconds;          ///< time in attention, over all threads
  double kv_bytes;         ///< least bytes of keys and values that had to be read
  int64_t rows;            ///< measured rows; the following members are means over them
  double entropy;          ///< entropy of the weights, nats
  double sink_mass;        ///< weight of the sequence's first 4 tokens
  double recent_mass;      ///< weight of the last 64 tokens
  double mean_distance;    ///< mean distance to the keys in tokens, by weight
  double median_distance;  ///< distance within which half of the weight lies
  double max_weight;       ///< the largest weight
  double output_norm;      ///< norm of what the head adds to the residual stream
} mh_head_stats;

/// Collects measurements of every head from now on, of its weights at every `every`-th token; 0,
/// the default, collects nothing and costs nothing. Results keep their bits.
mh_status mh_session_profile_heads(mh_session* session, int64_t every);
/// Writes the measurements of head `head` of layer `layer`.
mh_status mh_session_get_head_stats(mh_session* session, int64_t layer, int64_t head,
                                    mh_head_stats* stats);

/// The attention weights of one head and query.
typedef struct mh_captured_row {
  int64_t layer;         ///< layer of the head
  int64_t head;          ///< index of the query head in the layer
  int64_t position;      ///< position of the query
  const float* weights;  ///< [position + 1] by key position; 0 where hidden or evicted
  float lse;             ///< natural log of the softmax denominator; -inf where no key is seen
  /// Share of a sink logit: sum(weights) + sink_share = 1, or 0 where no key is seen.
  float sink_share;
  const float* output;  ///< [head_dim_v]: what W_O reads of the head, with edits and patches
  int64_t head_dim_v;   ///< numbers of output
} mh_captured_row;

/// Selects the rows that a session captures; see CaptureOptions in heads.h.
typedef struct mh_capture_options {
  size_t struct_size;  ///< set by mh_capture_options_init
  int64_t layer;       ///< layer; -1, the default: all
  int64_t head;        ///< head of that layer; -1, the default: all
  int64_t first;       ///< first query position; default 0
  int64_t last;        ///< last query position, inclusive; -1, the default: to the end
  int64_t every;       ///< step between query positions; default 1
  /// Called in the middle of a step with each row, which is valid during the call. It must return,
  /// and must not use the session.
  void (*on_row)(void* user, const mh_captured_row* row);
  void* user;  ///< first argument of on_row
} mh_capture_options;

/// Fills in the defaults.
void mh_capture_options_init(mh_capture_options* options);
/// Captures attention weights from now on; NULL, the default, captures none.
mh_status mh_session_capture(mh_session* session, const mh_capture_options* options);

/// Switches heads off or scales them, as "3.1,4.*=0.5" or JSON; NULL = no changes. Tokens held are
/// evaluated again. See ParseAblation and Session::SetAblation; means cannot be set here.
mh_status mh_session_ablate(mh_session* session, const char* edits);

/// Values that one query head has at consecutive positions in place of its own; see HeadPatch.
typedef struct mh_head_patch {
  int64_t layer;        ///< layer of the head
  int64_t head;         ///< query head of the layer
  int64_t position;     ///< first position, counted in the whole sequence
  int64_t count;        ///< number of positions, at least 1
  const float* values;  ///< [count, head_dim_v]
} mh_head_patch;

/// Sets the patches in place of those before; the edits of mh_session_ablate stay. Zero patches
/// remove them. The tokens held are evaluated again.
mh_status mh_session_patch(mh_session* session, const mh_head_patch* patches, size_t count);

/// Shapes, types and limits of mh_cache_create; see KvCacheParams in kv_cache.h.
typedef struct mh_cache_params {
  size_t struct_size;            ///< set by mh_cache_params_init
  const mh_layer_shape* layers;  ///< [num_layers]
  size_t num_layers;             ///< at least 1
  mh_kv_type k_type;             ///< default f16
  mh_kv_type v_type;             ///< default f16
  const char* heads;       ///< a policy for all heads, or JSON with types and policies; NULL = full
  int64_t page_size;       ///< tokens of a page, a multiple of 16; 0 = 64
  int64_t capacity_bytes;  ///< hard cap on all pages and tables
  int64_t max_tokens;      ///< largest number of tokens of one sequence
  const char* isa;         ///< NULL = the best
} mh_cache_params;

/// The tokens and pages that one head holds of a sequence.
typedef struct mh_head_usage {
  int64_t tokens;      ///< tokens stored
  int64_t pages;       ///< pages that hold them
  int64_t page_bytes;  ///< bytes of one page
} mh_head_usage;

/// Fills in the defaults; layers, capacity_bytes and max_tokens have none.
void mh_cache_params_init(mh_cache_params* params);
/// Creates a cache; `message` may be NULL.
mh_status mh_cache_create(const mh_cache_params* params, mh_cache** cache, mh_message* message);
/// Releases the cache with all its sequences.
void mh_cache_free(mh_cache** cache);
/// Returns why the last call with this handle failed; "" if it did not.
const char* mh_cache_message(const mh_cache* cache);

/// Adds an empty sequence.
mh_status mh_cache_create_sequence(mh_cache* cache, int32_t* sequence);
/// Frees a sequence. Its id is invalid afterwards, and freeing it again is an error.
mh_status mh_cache_free_sequence(mh_cache* cache, int32_t sequence);
/// Creates a sequence with the same tokens, in the same pages until one of the two writes.
mh_status mh_cache_fork(mh_cache* cache, int32_t sequence, int32_t* fork);
/// Extends a sequence by `count` tokens on every layer; their rows are then to be written.
mh_status mh_cache_reserve(mh_cache* cache, int32_t sequence, int64_t count);
/// Stores reserved rows of one layer: k [count, K, D], v [count, K, Dv], dense f32.
mh_status mh_cache_write(mh_cache* cache, int32_t sequence, int64_t layer, int64_t position,
                         int64_t count, const float* k, const float* v);
/// Reads one stored row: k [D], v [Dv]; either may be NULL.
mh_status mh_cache_read(mh_cache* cache, int32_t sequence, int64_t layer, int64_t head,
                        int64_t position, float* k, float* v);
/// Drops all tokens from position `length` on; `*exact`, if not NULL, tells whether the sequence is
/// now as if those tokens had never been there.
mh_status mh_cache_truncate(mh_cache* cache, int32_t sequence, int64_t length, int* exact);
/// Drops the last `count` tokens if the sequence is then as if they had never been there; otherwise
/// it fails, with nothing changed. See KvCache::Rollback.
mh_status mh_cache_rollback(mh_cache* cache, int32_t sequence, int64_t count);
/// Drops the tokens [begin, end); others keep their positions.
mh_status mh_cache_drop(mh_cache* cache, int32_t sequence, int64_t begin, int64_t end);
/// Evicts at once the tokens that policies no longer keep.
mh_status mh_cache_evict(mh_cache* cache, int32_t sequence);
/// Writes sequences to a file, which appears under its name when it is complete; see KvCache::Save.
/// `fingerprint` says where keys and values come from, e.g. which model; NULL = "".
mh_status mh_cache_save(mh_cache* cache, const char* path, const int32_t* sequences, size_t count,
                        const char* fingerprint);
/// Adds the sequences of a file with that fingerprint, in the order in which they were saved; see
/// KvCache::Restore. `*count` becomes their number; MH_BUFFER_TOO_SMALL when it is above
/// `capacity`.
mh_status mh_cache_restore(mh_cache* cache, const char* path, const char* fingerprint,
                           int convert_types, int32_t* sequences, size_t capacity, size_t* count);
/// Returns the number of tokens of a sequence, held or not; -1 for an unknown id.
int64_t mh_cache_length(const mh_cache* cache, int32_t sequence);
/// Returns the bytes of a token over all layers and heads; 0 for a NULL handle.
int64_t mh_cache_bytes_per_token(const mh_cache* cache);
/// Writes the usage of the whole cache.
mh_status mh_cache_get_usage(mh_cache* cache, mh_kv_usage* usage);
/// Writes the usage of one KV head.
mh_status mh_cache_get_head_usage(mh_cache* cache, int32_t sequence, int64_t layer, int64_t head,
                                  mh_head_usage* usage);

/// Shapes and options of mh_plan_create; see AttentionParams in attention.h.
typedef struct mh_plan_params {
  size_t struct_size;         ///< set by mh_plan_params_init
  int64_t num_heads;          ///< H, a multiple of num_kv_heads
  int64_t num_kv_heads;       ///< K
  int64_t head_dim;           ///< D, 1..1024
  int64_t head_dim_v;         ///< 0 = head_dim
  int64_t max_q_len;          ///< largest number of query tokens of one run
  int64_t max_kv_len;         ///< largest number of key/value tokens of one sequence
  float softmax_scale;        ///< 0 = 1/sqrt(head_dim)
  float logit_softcap;        ///< 0 = off
  int causal;                 ///< default 1; query and key positions are aligned at their ends
  int64_t window;             ///< tokens that a query sees, itself included; 0 = all
  int64_t num_sink_tokens;    ///< first tokens that a window does not hide
  const float* alibi_slopes;  ///< [H] or NULL
  const float* sink_logits;   ///< [H] or NULL
  int threads;                ///< 0 = mh_default_threads()
  const char* isa;            ///< NULL = the best
  int strict;                 ///< nonzero: MH_UNSUPPORTED instead of a slower kernel
} mh_plan_params;

/// Fills in the defaults; heads, head_dim and lengths have none.
void mh_plan_params_init(mh_plan_params* params);
/// Creates a plan; `message` may be NULL.
mh_status mh_plan_create(const mh_plan_params* params, mh_plan** plan, mh_message* message);
/// Releases the handle.
void mh_plan_free(mh_plan** plan);
/// Returns why the last call with this handle failed; "" if it did not.
const char* mh_plan_message(const mh_plan* plan);

/// Computes attention of one request, all dense f32: q [q_len, H, D], k [kv_len, K, D], v [kv_len,
/// K, Dv], out [q_len, H, Dv], lse [q_len, H] (natural log) or NULL.
mh_status mh_plan_run(mh_plan* plan, int64_t q_len, int64_t kv_len, const float* q, const float* k,
                      const float* v, float* out, float* lse);
/// Computes attention over one layer of a cache, for `count` sequences: the queries [qo_indptr[b],
/// qo_indptr[b + 1]) are the last tokens of sequences[b]; NULL stands for one query each. q [T, H,
/// D], out [T, H, Dv], lse [T, H] or NULL, dense.
mh_status mh_plan_run_cache(mh_plan* plan, const mh_cache* cache, int64_t layer,
                            const int32_t* sequences, size_t count, const int64_t* qo_indptr,
                            const float* q, float* out, float* lse);
/// Writes which kernel a run of these lengths uses, and why no faster one: lines of text in the
/// handle, valid until the next call with it.
mh_status mh_plan_explain(mh_plan* plan, mh_kv_type k_type, mh_kv_type v_type, int64_t q_len,
                          int64_t kv_len, const char** text);
/// Returns the bytes of its own memory; 0 for a NULL handle.
int64_t mh_plan_scratch_bytes(const mh_plan* plan);

// NOLINTEND(readability-identifier-naming)

#undef MH_ANY_INT
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif  // MANYHEAD_C_API_H_
