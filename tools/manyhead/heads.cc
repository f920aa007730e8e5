#include <vector>

#include "tools/manyhead/commands.h"
#include "tools/manyhead/output.h"

namespace manyhead::cli {

Command AddHeads(CLI::App& parent) {
  CLI::App* app =
      parent.add_subcommand("heads", "See what each attention head of a model does, and change it");
  app->require_subcommand(1);
  const std::vector<Command> commands = {AddHeadsProfile(*app)};
  return {app, [commands] {
            for (const Command& command : commands)
              if (command.app->parsed()) return command.run();
            return kExitUsage;
          }};
}

}  // namespace manyhead::cli
