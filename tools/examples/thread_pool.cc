// Serves requests with a pool of threads, each with a session of its own; the weights are shared.
// thread_pool MODEL.gguf PROMPT...
#include <manyhead/manyhead.h>

#include <atomic>
#include <iostream>
#include <thread>
#include <vector>

struct Request {
  std::string prompt;
  std::string answer;
};

/// Takes requests until none is left. A session on one thread is a pool's best use of a CPU.
void Serve(const manyhead::Model& model, std::vector<Request>& requests,
           std::atomic<std::size_t>& next) {
  manyhead::SessionOptions options;
  options.context = 512;
  options.threads = 1;
  auto session = manyhead::Session::Create(model, options);
  for (std::size_t i; (i = next++) < requests.size();) {
    Request& request = requests[i];
    const auto ids = model.tokenizer().Encode(request.prompt);
    if (!session.ok() || !ids.ok()) {
      request.answer = session.ok() ? ids.status().message() : session.status().message();
      continue;
    }
    manyhead::GenerateOptions generate;
    generate.max_tokens = 12;
    const auto result = session->Generate(*ids, generate);
    request.answer = result.ok() ? result->text : result.status().message();
  }
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const auto model = manyhead::Model::Load(argv[1]);
  if (!model.ok()) {
    std::cerr << model.status().message() << "\n";
    return 1;
  }
  std::vector<Request> requests;
  for (int i = 2; i < argc; ++i) requests.push_back({argv[i], ""});
  std::atomic<std::size_t> next = 0;
  {
    std::vector<std::jthread> pool;
    for (int i = 0; i < manyhead::DefaultThreads(); ++i)
      pool.emplace_back([&] { Serve(*model, requests, next); });
  }
  for (const Request& request : requests) std::cout << request.prompt << request.answer << "\n";
  return 0;
}
