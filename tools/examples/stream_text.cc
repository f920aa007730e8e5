// Streams the text that a model generates: stream_text MODEL.gguf PROMPT
#include <manyhead/manyhead.h>

#include <iostream>

int Fail(const manyhead::Status& status) {
  std::cerr << status.message() << "\n";
  return 1;
}

int Continue(const std::string& path, const std::string& prompt) {
  const auto model = manyhead::Model::Load(path);
  if (!model.ok()) return Fail(model.status());
  auto session = manyhead::Session::Create(*model, {});
  if (!session.ok()) return Fail(session.status());
  const auto ids = model->tokenizer().Encode(prompt);
  if (!ids.ok()) return Fail(ids.status());

  manyhead::GenerateOptions options;
  options.max_tokens = 32;
  options.on_text = [](std::string_view text) { std::cout << text << std::flush; };
  const auto result = session->Generate(*ids, options);
  if (!result.ok()) return Fail(result.status());
  std::cout << "\n" << result->timings.decode_rate() << " tokens/s\n";
  return 0;
}

int main(int argc, char** argv) { return argc == 3 ? Continue(argv[1], argv[2]) : 2; }
