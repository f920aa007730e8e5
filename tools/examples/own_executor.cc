// Runs parallel work on the program's own pool of threads instead of the library's.
// own_executor MODEL.gguf PROMPT
#include <manyhead/manyhead.h>

#include <iostream>

#include "tools/examples/pool_executor.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  manyhead::examples::PoolExecutor pool(2);
  if (const manyhead::Status status = manyhead::SetThreads(pool.Options()); !status.ok()) {
    std::cerr << status.message() << "\n";
    return 1;
  }
  const auto model = manyhead::Model::Load(argv[1]);  // packs its weights on the pool's threads
  if (!model.ok()) {
    std::cerr << model.status().message() << "\n";
    return 1;
  }
  manyhead::SessionOptions options;
  options.context = 256;
  options.threads = 3;  // the calling thread is one of them
  auto session = manyhead::Session::Create(*model, options);
  const auto ids = model->tokenizer().Encode(argv[2]);
  if (!session.ok() || !ids.ok()) return 1;
  manyhead::GenerateOptions generate;
  generate.max_tokens = 24;
  const auto result = session->Generate(*ids, generate);
  if (!result.ok()) return 1;
  const manyhead::ExecutorUse use = manyhead::GetExecutorUse();
  std::cout << result->text << "\n"
            << (use.calls > 0 ? "the pool was called, " : "the pool was not called, ")
            << use.failed_calls << " times in vain\n";
  return manyhead::SetThreads({}).ok() ? 0 : 1;  // before the pool ends
}
