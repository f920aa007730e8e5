#include <vector>

#include "tools/manyhead/commands.h"
#include "tools/manyhead/output.h"

namespace manyhead::cli {

Command AddHeads(App parent) {
  const App app =
      parent.AddSubcommand("heads", "See what each attention head of a model does, and change it");
  app.RequireSubcommands(1, 1);
  app.Footer(
      "Examples:\n"
      "  manyhead heads profile -m gemma3-270m -f book.txt\n"
      "  manyhead heads classify -m gemma3-270m\n"
      "  manyhead heads circuits -m gemma3-270m --layer 5\n"
      "  manyhead heads ablate -m gemma3-270m -f book.txt --each\n"
      "  manyhead heads report -m gemma3-270m -f book.txt -o report.html\n"
      "  manyhead heads export -m gemma3-270m -f book.txt -c 512 -o heads.npz");
  const std::vector<Command> commands = {
      AddHeadsProfile(app), AddHeadsClassify(app), AddHeadsCircuits(app), AddHeadsAblate(app),
      AddHeadsPrune(app),   AddHeadsReport(app),   AddHeadsExport(app)};
  return {app, [commands] {
            for (const Command& command : commands)
              if (command.app.Parsed()) return command.run();
            return kExitUsage;
          }};
}

}  // namespace manyhead::cli
