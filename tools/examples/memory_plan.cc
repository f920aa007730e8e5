// Computes how long a context fits, before loading: memory_plan MODEL.gguf MEBIBYTES
#include <manyhead/manyhead.h>

#include <cstdlib>
#include <iostream>

int Fail(const manyhead::Status& status) {
  std::cerr << status.message() << "\n";
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto shape = manyhead::ReadModelShape(argv[1]);  // or ParseModelShape of a config.json
  if (!shape.ok()) return Fail(shape.status());
  const std::int64_t limit = std::atoll(argv[2]) << 20;
  for (const manyhead::KvType type : {manyhead::KvType::kF16, manyhead::KvType::kInt8}) {
    std::int64_t fits = 0;
    for (std::int64_t context = 256; context <= 1 << 17; context *= 2) {
      manyhead::MemoryOptions options;
      options.session.context = context;
      options.session.k_type = options.session.v_type = type;
      const auto plan = manyhead::PlanMemory(*shape, options);
      if (!plan.ok()) return Fail(plan.status());
      if (plan->total_bytes <= limit) fits = context;
    }
    std::cout << manyhead::KvTypeName(type) << ": " << fits << " tokens fit into " << argv[2]
              << " MiB\n";
  }
  return 0;
}
