// dump: lists the records of a file, without a daemon.
#include "absl/strings/str_cat.h"
#include "client/cli/verbs/record_dump.h"
#include "client/cli/verbs/verbs.h"

namespace larder::cli {
namespace {

ExitCode Dump(const std::string& path, Shell& shell) {
  if (path.empty())
    return shell.Fail(absl::InvalidArgumentError("no file is named"), "larderctl dump --help");
  const absl::StatusOr<RecordDump> dump = DumpRecords(path);
  if (!dump.ok()) {
    const bool usage = absl::IsNotFound(dump.status()) || absl::IsInvalidArgument(dump.status());
    return shell.Fail(dump.status(), usage ? "larderctl dump --help"
                                           : "the same command as the user that runs larderd");
  }
  if (shell.json()) {
    shell.PrintJson(dump->json);
  } else {
    shell.PrintLines(dump->text);
  }
  if (dump->not_whole == 0) return ExitCode::kOk;
  shell.Say(absl::StrCat(dump->not_whole, " of ", dump->records,
                         dump->of_disk
                             ? " records are not whole: damaged, or erased and partly overwritten"
                             : " records are damaged"));
  if (dump->of_disk) shell.SayNext("larderctl verify --tier disk checks the records in use");
  return ExitCode::kIncomplete;
}

}  // namespace

void AddDump(CommandTree& tree) {
  tree.Add({.name = "dump",
            .summary = "lists the records of a file, and whether they are whole",
            .about = "Needs no daemon. A data file of the disk (.kv) also has erased records, and "
                     "only the catalog knows which records are in use. So a record there that is "
                     "not whole is damaged, or erased and partly overwritten, and one with a "
                     "damaged header is not found. Exits with 1 if a record is not whole.",
            .examples = {{"dump /var/lib/larder/shard-00/00000000.kv", "A data file of a disk."},
                         {"dump -o json block.rec", "JSON, for a program."}}},
           [](VerbOptions& verb) -> RunVerb {
             const auto path = std::make_shared<std::string>();
             verb.AddText("FILE", path.get(), "",
                          "Regular file with one or more records, or a data file (.kv) of the "
                          "disk.");
             return [path](Shell& shell) { return Dump(*path, shell); };
           });
}

}  // namespace larder::cli
