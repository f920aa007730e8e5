#pragma once

/// Everything: attention, the per-head KV cache, models, tokenizers, generation.

#include "manyhead/ablation.h"
#include "manyhead/attention.h"
#include "manyhead/calibrate.h"
#include "manyhead/circuits.h"
#include "manyhead/head_classes.h"
#include "manyhead/heads.h"
#include "manyhead/isa.h"
#include "manyhead/kv_cache.h"
#include "manyhead/memory.h"
#include "manyhead/model.h"
#include "manyhead/multi_head_attention.h"
#include "manyhead/rope.h"
#include "manyhead/sampling.h"
#include "manyhead/session.h"
#include "manyhead/status.h"
#include "manyhead/threads.h"
#include "manyhead/tokenizer.h"
#include "manyhead/types.h"
#include "manyhead/version.h"
