// Generates many answers to one long prefix, which is evaluated once; its pages are shared.
// fork_prefix MODEL.gguf
#include <manyhead/manyhead.h>

#include <iostream>

int Fail(const manyhead::Status& status) {
  std::cerr << status.message() << "\n";
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto model = manyhead::Model::Load(argv[1]);
  if (!model.ok()) return Fail(model.status());
  manyhead::SessionOptions options;
  options.prefix_bytes = std::int64_t{16} << 20;  // memory for cached prefixes
  auto session = manyhead::Session::Create(*model, options);
  if (!session.ok()) return Fail(session.status());

  std::string document;
  while (document.size() < 200) document += "x7k2qz ";
  for (const char* question : {"x7", "x7k", "x7k2q"}) {
    const auto ids = model->tokenizer().Encode(document + question);
    if (!ids.ok()) return Fail(ids.status());
    manyhead::GenerateOptions generate;
    generate.max_tokens = 16;
    const auto result = session->Generate(*ids, generate);
    if (!result.ok()) return Fail(result.status());
    std::cout << result->timings.prefill_tokens << " of " << ids->size()
              << " tokens evaluated: " << question << result->text << "\n";
  }
  return 0;
}
