// Evaluates a long sequence in little memory: each head keeps a limited number of tokens, and the
// whole cache has a hard cap. budgeted_context MODEL.gguf
#include <manyhead/manyhead.h>

#include <iostream>

/// Bytes of keys and values after a text of `tokens` tokens, with a policy.
manyhead::Result<std::int64_t> Run(const manyhead::Model& model, const std::string& policy,
                                   std::int64_t budget_bytes, std::int64_t tokens) {
  manyhead::SessionOptions options;
  options.context = 4096;
  options.kv_policy = policy;
  options.kv_budget_bytes = budget_bytes;
  options.chunk = 64;
  auto session = manyhead::Session::Create(model, options);
  if (!session.ok()) return session.status();
  std::string text;
  while (static_cast<std::int64_t>(text.size()) < tokens) text += "the small bird sang and ";
  auto ids = model.tokenizer().Encode(text);
  if (!ids.ok()) return ids.status();
  ids->resize(static_cast<std::size_t>(tokens));
  const auto logits = session->Append(*ids);
  if (!logits.ok()) return logits.status();
  return session->cache().usage().used_bytes;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto model = manyhead::Model::Load(argv[1]);
  if (!model.ok()) return 1;
  const auto full = Run(*model, "full", 0, 3000);
  // Head by head works too: {"heads": [{"kv_heads": [0], "policy": "window(64)"}]}
  const auto kept = Run(*model, "budget(256)+recent(64)", 0, 3000);
  const auto refused = Run(*model, "full", std::int64_t{1} << 20, 3000);
  if (!full.ok() || !kept.ok()) return 1;
  std::cout << "every token:           " << *full / 1024 << " KiB\n"
            << "256 tokens of a head:  " << *kept / 1024 << " KiB\n"
            << "every token in 1 MiB:  " << refused.status().message() << "\n";
  return *kept * 4 < *full && !refused.ok() ? 0 : 1;
}
