#include "tools/python/src/kv_cache.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <tuple>
#include <vector>

#include "tools/python/src/binding.h"

namespace manyhead::python {
namespace {

/// The values (num_kv_heads, head_dim, head_dim_v) of each layer.
using LayerShapes = std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>;

KvCacheParams Params(const LayerShapes& layers, const std::string& k_type,
                     const std::string& v_type, const std::string& heads, std::int64_t page_size,
                     const std::optional<std::string>& isa) {
  KvCacheParams params;
  for (const auto& [num_kv_heads, head_dim, head_dim_v] : layers)
    params.layers.push_back({num_kv_heads, head_dim, head_dim_v});
  params.k_type = ParseKvTypeOrRaise(k_type);
  params.v_type = ParseKvTypeOrRaise(v_type);
  params.page_size = page_size;
  params.isa = ParseIsaOrRaise(isa);
  if (!heads.empty()) params.heads = Take(ParseKvHeads(heads, params));
  return params;
}

/// Calls `function` with the library's cache, while no other thread uses it.
template <class Function>
auto Change(Cache& self, Function&& function) {
  return WithoutGil([&] {
    const std::lock_guard lock(self.mutex);
    return function(self.cache);
  });
}

/// Calls `function` with the library's cache, while no other thread changes it.
template <class Function>
auto Look(const Cache& self, Function&& function) {
  return WithoutGil([&] {
    const std::shared_lock lock(self.mutex);
    return function(self.cache);
  });
}

KvLayerShape LayerShape(const Cache& self, std::int64_t layer) {
  const std::vector<KvLayerShape>& layers = self.cache.params().layers;
  if (layer < 0 || layer >= static_cast<std::int64_t>(layers.size()))
    Raise({StatusCode::kInvalidArgument, "KvCache: layer = " + std::to_string(layer) +
                                             "; expected 0.." + std::to_string(layers.size() - 1)});
  return layers[static_cast<std::size_t>(layer)];
}

std::int64_t HeadDimV(const KvLayerShape& shape) {
  return shape.head_dim_v != 0 ? shape.head_dim_v : shape.head_dim;
}

using Rows = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu>;

/// Returns the stride between tokens of [n, K, D] rows, whose heads are dense.
std::int64_t TokenStride(const Rows& rows, const char* name) {
  if (rows.size() == 0) return 0;
  const auto head_dim = static_cast<std::int64_t>(rows.shape(2));
  const std::int64_t row = static_cast<std::int64_t>(rows.shape(1)) * head_dim;
  const bool dense =
      (head_dim == 1 || rows.stride(2) == 1) && (rows.shape(1) == 1 || rows.stride(1) == head_dim);
  if (!dense || (rows.shape(0) > 1 && rows.stride(0) < row))
    Raise({StatusCode::kInvalidArgument, std::string(name) + " has rows that are not dense"});
  return rows.shape(0) > 1 ? rows.stride(0) : 0;
}

void Write(Cache& self, std::int32_t sequence, std::int64_t layer, std::int64_t position,
           const Rows& k, const Rows& v) {
  const KvLayerShape shape = LayerShape(self, layer);
  const auto n = static_cast<std::int64_t>(k.shape(0));
  CheckShape(k, "k", "[n, K, D]", {n, shape.num_kv_heads, shape.head_dim});
  CheckShape(v, "v", "[n, K, Dv]", {n, shape.num_kv_heads, HeadDimV(shape)});
  const std::int64_t k_stride = TokenStride(k, "k"), v_stride = TokenStride(v, "v");
  Check(Change(self, [&](KvCache& cache) {
    return cache.Write(SequenceId{sequence}, layer, position, n, k.data(), v.data(), k_stride,
                       v_stride);
  }));
}

/// Reads the rows [position, position + n) of one layer into k [K, n, D] and v [K, n, Dv].
void Read(const Cache& self, std::int32_t sequence, std::int64_t layer, std::int64_t position,
          const DenseArray<float, 3>& k, const DenseArray<float, 3>& v) {
  const KvLayerShape shape = LayerShape(self, layer);
  const auto n = static_cast<std::int64_t>(k.shape(1));
  CheckShape(k, "k", "[K, n, D]", {shape.num_kv_heads, n, shape.head_dim});
  CheckShape(v, "v", "[K, n, Dv]", {shape.num_kv_heads, n, HeadDimV(shape)});
  Check(Look(self, [&](const KvCache& cache) {
    for (std::int64_t head = 0; head < shape.num_kv_heads; ++head)
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t row = head * n + i;
        if (Status status =
                cache.Read(SequenceId{sequence}, layer, head, position + i,
                           k.data() + row * shape.head_dim, v.data() + row * HeadDimV(shape));
            !status.ok())
          return status;
      }
    return Status();
  }));
}

void BindUsage(nb::module_& module) {
  nb::class_<KvUsage>(module, "KvUsage", "Bytes held.")
      .def_ro("capacity_bytes", &KvUsage::capacity_bytes, "The cache's hard cap.")
      .def_ro("used_bytes", &KvUsage::used_bytes, "Of pages.")
      .def_ro("head_bytes", &KvUsage::head_bytes, "[layer][KV head]; the sum is used_bytes.")
      .def_ro("table_bytes", &KvUsage::table_bytes, "Of page tables and lists.")
      .def("__repr__", [](const KvUsage& self) {
        return "KvUsage(used_bytes=" + std::to_string(self.used_bytes) +
               ", table_bytes=" + std::to_string(self.table_bytes) +
               ", capacity_bytes=" + std::to_string(self.capacity_bytes) + ")";
      });
  nb::class_<KvHeadUsage>(module, "KvHeadUsage", "What one KV head holds of a sequence.")
      .def_ro("tokens", &KvHeadUsage::tokens, "Stored.")
      .def_ro("pages", &KvHeadUsage::pages)
      .def_ro("page_bytes", &KvHeadUsage::page_bytes, "Of one page.")
      .def("__repr__", [](const KvHeadUsage& self) {
        return "KvHeadUsage(tokens=" + std::to_string(self.tokens) +
               ", pages=" + std::to_string(self.pages) +
               ", page_bytes=" + std::to_string(self.page_bytes) + ")";
      });
  nb::class_<KvHeadParams>(module, "KvHeadParams", "How one KV head is stored, and what of it.")
      .def_prop_ro("k_type", [](const KvHeadParams& self) { return KvTypeName(self.k_type); })
      .def_prop_ro("v_type", [](const KvHeadParams& self) { return KvTypeName(self.v_type); })
      .def_prop_ro("policy", [](const KvHeadParams& self) { return FormatKvPolicy(self.policy); })
      .def("__repr__", [](const KvHeadParams& self) {
        return std::string("KvHeadParams(k_type='")
            .append(KvTypeName(self.k_type))
            .append("', v_type='")
            .append(KvTypeName(self.v_type))
            .append("', policy='")
            .append(FormatKvPolicy(self.policy))
            .append("')");
      });
}

using CacheClass = nb::class_<Cache>;

/// Binds the methods that create, extend and free sequences.
void BindSequences(CacheClass& type) {
  using nb::arg;
  type.def("create_sequence",
           [](Cache& self) {
             return static_cast<std::int32_t>(
                 Take(Change(self, [](KvCache& cache) { return cache.CreateSequence(); })));
           })
      .def(
          "free_sequence",
          [](Cache& self, std::int32_t sequence) {
            Check(Change(self,
                         [&](KvCache& cache) { return cache.FreeSequence(SequenceId{sequence}); }));
          },
          arg("sequence"))
      .def(
          "fork",
          [](Cache& self, std::int32_t sequence) {
            return static_cast<std::int32_t>(Take(
                Change(self, [&](KvCache& cache) { return cache.Fork(SequenceId{sequence}); })));
          },
          arg("sequence"))
      .def(
          "reserve",
          [](Cache& self, std::int32_t sequence, std::int64_t count) {
            Check(Change(
                self, [&](KvCache& cache) { return cache.Reserve(SequenceId{sequence}, count); }));
          },
          arg("sequence"), arg("count"))
      .def(
          "evict",
          [](Cache& self, std::int32_t sequence) {
            Check(Change(self, [&](KvCache& cache) { return cache.Evict(SequenceId{sequence}); }));
          },
          arg("sequence"));
}

/// Binds the methods that shorten sequences, and that copy from one to another.
void BindCuts(CacheClass& type) {
  using nb::arg;
  type.def(
          "truncate",
          [](Cache& self, std::int32_t sequence, std::int64_t length) {
            return Take(Change(self, [&](KvCache& cache) {
              return cache.Truncate(SequenceId{sequence}, length);
            }));
          },
          arg("sequence"), arg("length"))
      .def(
          "rollback",
          [](Cache& self, std::int32_t sequence, std::int64_t count) {
            Check(Change(
                self, [&](KvCache& cache) { return cache.Rollback(SequenceId{sequence}, count); }));
          },
          arg("sequence"), arg("count"))
      .def(
          "copy",
          [](Cache& self, std::int32_t source, std::int64_t begin, std::int64_t end,
             std::int32_t sequence) {
            Check(Change(self, [&](KvCache& cache) {
              return cache.Copy(SequenceId{source}, begin, end, SequenceId{sequence});
            }));
          },
          arg("source"), arg("begin"), arg("end"), arg("sequence"))
      .def(
          "drop",
          [](Cache& self, std::int32_t sequence, std::int64_t begin, std::int64_t end) {
            Check(Change(self, [&](KvCache& cache) {
              return cache.Drop(SequenceId{sequence}, begin, end);
            }));
          },
          arg("sequence"), arg("begin"), arg("end"));
}

/// Binds the methods that read and write the contents of sequences.
void BindContents(CacheClass& type) {
  using nb::arg;
  type.def("write", &Write, arg("sequence"), arg("layer"), arg("position"), arg("k").noconvert(),
           arg("v").noconvert())
      .def("read", &Read, arg("sequence"), arg("layer"), arg("position"), arg("k").noconvert(),
           arg("v").noconvert())
      .def(
          "length",
          [](const Cache& self, std::int32_t sequence) {
            return Look(self,
                        [&](const KvCache& cache) { return cache.length(SequenceId{sequence}); });
          },
          arg("sequence"))
      .def(
          "exact_length",
          [](const Cache& self, std::int32_t sequence, std::int64_t length) {
            return Take(Look(self, [&](const KvCache& cache) {
              return cache.ExactLength(SequenceId{sequence}, length);
            }));
          },
          arg("sequence"), arg("length"))
      .def(
          "holds",
          [](const Cache& self, std::int32_t sequence, std::int64_t layer, std::int64_t head,
             std::int64_t position) {
            return Look(self, [&](const KvCache& cache) {
              return cache.Holds(SequenceId{sequence}, layer, head, position);
            });
          },
          arg("sequence"), arg("layer"), arg("head"), arg("position"))
      .def(
          "usage",
          [](const Cache& self, std::optional<std::int32_t> sequence) {
            return Take(Look(self, [&](const KvCache& cache) {
              return sequence ? cache.usage(SequenceId{*sequence}) : Result<KvUsage>(cache.usage());
            }));
          },
          arg("sequence").none())
      .def(
          "head_usage",
          [](const Cache& self, std::int32_t sequence) {
            return Take(Look(self, [&](const KvCache& cache) {
              return cache.head_usage(SequenceId{sequence});
            }));
          },
          arg("sequence"));
}

/// Files that hold sequences. Paths are bytes, as the system has them.
void BindSnapshots(CacheClass& type) {
  using nb::arg;
  type.def(
          "save",
          [](const Cache& self, const nb::bytes& path, const std::vector<std::int32_t>& sequences,
             const std::string& fingerprint) {
            const std::string name(static_cast<const char*>(path.data()), path.size());
            std::vector<SequenceId> ids;
            for (const std::int32_t sequence : sequences) ids.push_back(SequenceId{sequence});
            Check(Look(self, [&](const KvCache& cache) {
              return cache.Save(name, ids, {.fingerprint = fingerprint});
            }));
          },
          arg("path"), arg("sequences"), arg("fingerprint"))
      .def(
          "restore",
          [](Cache& self, const nb::bytes& path, const std::string& fingerprint,
             bool convert_types) {
            const std::string name(static_cast<const char*>(path.data()), path.size());
            const KvRestored restored = Take(Change(self, [&](KvCache& cache) {
              return cache.Restore(name, {fingerprint, convert_types});
            }));
            std::vector<std::int32_t> ids;
            for (const SequenceId id : restored.sequences)
              ids.push_back(static_cast<std::int32_t>(id));
            return ids;
          },
          arg("path"), arg("fingerprint"), arg("convert_types"))
      .def("sequences", [](const Cache& self) {
        std::vector<std::int32_t> ids;
        for (const SequenceId id :
             Look(self, [](const KvCache& cache) { return cache.sequences(); }))
          ids.push_back(static_cast<std::int32_t>(id));
        return ids;
      });
}

void BindCache(nb::module_& module) {
  using nb::arg;
  CacheClass cache(module, "KvCache");
  cache
      .def(
          "__init__",
          [](Cache* self, const LayerShapes& layers, const std::string& k_type,
             const std::string& v_type, const std::string& heads, std::int64_t page_size,
             std::int64_t capacity_bytes, std::int64_t max_tokens,
             const std::optional<std::string>& isa) {
            KvCacheParams params = Params(layers, k_type, v_type, heads, page_size, isa);
            params.capacity_bytes = capacity_bytes;
            params.max_tokens = max_tokens;
            new (self) Cache{.cache = Take(KvCache::Create(params)), .mutex = {}};
          },
          nb::kw_only(), arg("layers"), arg("k_type"), arg("v_type"), arg("heads"),
          arg("page_size"), arg("capacity_bytes"), arg("max_tokens"), arg("isa").none())
      .def(
          "layer_shape",
          [](const Cache& self, std::int64_t layer) {
            const KvLayerShape shape = LayerShape(self, layer);
            return std::tuple(shape.num_kv_heads, shape.head_dim, HeadDimV(shape));
          },
          arg("layer"))
      .def_prop_ro("num_layers",
                   [](const Cache& self) { return self.cache.params().layers.size(); })
      .def_prop_ro("k_type",
                   [](const Cache& self) { return KvTypeName(self.cache.params().k_type); })
      .def_prop_ro("v_type",
                   [](const Cache& self) { return KvTypeName(self.cache.params().v_type); })
      .def_prop_ro("heads", [](const Cache& self) { return self.cache.params().heads; })
      .def_prop_ro("page_size", [](const Cache& self) { return self.cache.params().page_size; })
      .def_prop_ro("max_tokens", [](const Cache& self) { return self.cache.params().max_tokens; })
      .def_prop_ro("bytes_per_token",
                   [](const Cache& self) { return self.cache.bytes_per_token(); });
  BindSequences(cache);
  BindCuts(cache);
  BindContents(cache);
  BindSnapshots(cache);
}

}  // namespace

void BindKvCache(nb::module_& module) {
  using nb::arg;
  BindUsage(module);
  BindCache(module);
  module.def(
      "kv_capacity_bytes",
      [](const LayerShapes& layers, const std::string& k_type, const std::string& v_type,
         const std::string& heads, std::int64_t page_size, std::int64_t sequences,
         std::int64_t tokens, std::int64_t step) {
        return Take(KvCapacityBytes(Params(layers, k_type, v_type, heads, page_size, std::nullopt),
                                    sequences, tokens, step));
      },
      arg("layers"), arg("k_type"), arg("v_type"), arg("heads"), arg("page_size"), arg("sequences"),
      arg("tokens"), arg("step"));
}

}  // namespace manyhead::python
