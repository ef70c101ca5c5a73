#include "client/cli/verbs/completion.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/cli/pages/help_page.h"
#include "client/cli/verbs/verbs.h"

namespace larder::cli {
namespace {

// The value of an option is one of several words, a path, or something that is not completed.
bool IsWords(const OptionText& option) { return absl::StrContains(option.value, "|"); }
bool IsPath(const OptionText& option) { return option.value == "FILE" || option.value == "DIR"; }
std::string WordsOf(const OptionText& option) {
  return absl::StrReplaceAll(option.value, {{"|", " "}});
}

// The verb's own options, then those that all verbs have.
std::vector<OptionText> AllOptions(const CommandTree& tree, const CommandTree::Verb& verb) {
  std::vector<OptionText> options = OptionsOf(*verb.app);
  for (OptionText& common : OptionsOf(tree.app())) options.push_back(std::move(common));
  return options;
}

std::vector<std::string> NamesOf(const OptionText& option) {
  return absl::StrSplit(option.names, ", ");
}

bool TakesFiles(const CommandTree::Verb& verb) {
  for (const OptionText& option : OptionsOf(*verb.app)) {
    if (option.is_argument() && option.names == "FILE") return true;
  }
  return false;
}

// Returns the first sentence, for a menu, without the characters that would end it in the scripts:
// single quotes, square brackets and colons.
std::string Brief(std::string_view help) {
  std::string brief(help.substr(0, help.find(". ")));
  while (brief.ends_with('.')) brief.pop_back();
  return absl::StrReplaceAll(brief, {{"'", ""}, {"[", "("}, {"]", ")"}, {":", ","}});
}

std::string VerbNames(const CommandTree& tree) {
  return absl::StrJoin(tree.verbs(), " ", [](std::string* out, const CommandTree::Verb& verb) {
    out->append(verb.page.name);
  });
}

}  // namespace

std::string BashCompletion(const CommandTree& tree) {
  std::string out = absl::StrCat(
      "# bash completion for larderctl; made by: larderctl completion bash\n"
      "_larderctl() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= word\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    case $word in ",
      absl::StrReplaceAll(VerbNames(tree), {{" ", "|"}}),
      ") verb=$word; break ;; esac\n  done\n  local options files=\n  case $verb in\n");
  for (const CommandTree::Verb& verb : tree.verbs()) {
    std::vector<std::string> names;
    std::string values;
    for (const OptionText& option : AllOptions(tree, verb)) {
      if (option.is_argument()) {
        // An argument that is one of several words is completed like the name of an option.
        if (absl::StrContains(option.names, "|"))
          names.push_back(absl::StrReplaceAll(option.names, {{"|", " "}}));
        continue;
      }
      names.push_back(absl::StrJoin(NamesOf(option), " "));
      const std::string pattern = absl::StrJoin(NamesOf(option), "|");
      if (IsWords(option)) {
        absl::StrAppend(&values, "        ", pattern, ") COMPREPLY=($(compgen -W \"",
                        WordsOf(option), "\" -- \"$cur\")); return ;;\n");
      } else if (IsPath(option)) {
        absl::StrAppend(&values, "        ", pattern,
                        ") COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n");
      } else if (!option.value.empty()) {
        absl::StrAppend(&values, "        ", pattern, ") return ;;\n");
      }
    }
    absl::StrAppend(&out, "    ", std::string(verb.page.name), ")\n      options=\"",
                    absl::StrJoin(names, " "), "\"\n", TakesFiles(verb) ? "      files=1\n" : "",
                    "      case $prev in\n", values, "      esac ;;\n");
  }
  std::vector<std::string> common;
  for (const OptionText& option : OptionsOf(tree.app()))
    common.push_back(absl::StrJoin(NamesOf(option), " "));
  absl::StrAppend(&out, "    *) options=\"", VerbNames(tree), " ", absl::StrJoin(common, " "),
                  "\" ;;\n  esac\n"
                  "  COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
                  "  [[ -n $files && $cur != -* ]] && COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
                  "}\ncomplete -F _larderctl larderctl\n");
  return out;
}

std::string ZshCompletion(const CommandTree& tree) {
  std::string out =
      "#compdef larderctl\n"
      "# zsh completion for larderctl; made by: larderctl completion zsh\n"
      "_larderctl() {\n  local -a verbs\n  verbs=(\n";
  for (const CommandTree::Verb& verb : tree.verbs())
    absl::StrAppend(&out, "    '", std::string(verb.page.name), ":", Brief(verb.page.summary),
                    "'\n");
  absl::StrAppend(&out,
                  "  )\n  local verb= word\n  for word in ${words[2,CURRENT-1]}; do\n"
                  "    if (( ${verbs[(I)$word:*]} )); then verb=$word; break; fi\n  done\n"
                  "  case $verb in\n");
  const auto specs = [&](const std::vector<OptionText>& options) {
    std::string lines;
    for (const OptionText& option : options) {
      if (option.is_argument()) continue;
      for (const std::string& name : NamesOf(option)) {
        absl::StrAppend(&lines, " \\\n        '*", name, "[", Brief(option.help), "]");
        if (IsWords(option)) {
          absl::StrAppend(&lines, ":value:(", WordsOf(option), ")");
        } else if (IsPath(option)) {
          absl::StrAppend(&lines, ":path:_files");
        } else if (!option.value.empty()) {
          absl::StrAppend(&lines, ":", option.value, ":");
        }
        lines += "'";
      }
    }
    return lines;
  };
  for (const CommandTree::Verb& verb : tree.verbs()) {
    std::string arguments = TakesFiles(verb) ? "'*:file:_files'" : "";
    for (const OptionText& option : OptionsOf(*verb.app)) {
      if (option.is_argument() && absl::StrContains(option.names, "|"))
        arguments =
            absl::StrCat("'*:word:(", absl::StrReplaceAll(option.names, {{"|", " "}}), ")'");
    }
    absl::StrAppend(&out, "    ", std::string(verb.page.name), ")\n      _arguments '1:verb:'",
                    specs(AllOptions(tree, verb)),
                    arguments.empty() ? "" : absl::StrCat(" \\\n        ", arguments), " ;;\n");
  }
  absl::StrAppend(&out, "    *)\n      _arguments '1:verb:{_describe verb verbs}'",
                  specs(OptionsOf(tree.app())), " ;;\n  esac\n}\n_larderctl \"$@\"\n");
  return out;
}

std::string FishCompletion(const CommandTree& tree) {
  std::string out =
      "# fish completion for larderctl; made by: larderctl completion fish\n"
      "complete -c larderctl -f\n";
  const auto add = [&](const std::string& when, const OptionText& option) {
    absl::StrAppend(&out, "complete -c larderctl", when);
    for (const std::string& name : NamesOf(option)) {
      absl::StrAppend(&out, name.starts_with("--") ? " -l " : " -s ",
                      name.substr(name.starts_with("--") ? 2 : 1));
    }
    if (IsWords(option)) {
      absl::StrAppend(&out, " -x -a '", WordsOf(option), "'");
    } else if (IsPath(option)) {
      out += " -r -F";
    } else if (!option.value.empty()) {
      out += " -x";
    }
    absl::StrAppend(&out, " -d '", Brief(option.help), "'\n");
  };
  for (const CommandTree::Verb& verb : tree.verbs()) {
    absl::StrAppend(&out, "complete -c larderctl -n __fish_use_subcommand -a ",
                    std::string(verb.page.name), " -d '", Brief(verb.page.summary), "'\n");
  }
  for (const OptionText& option : OptionsOf(tree.app())) add("", option);
  for (const CommandTree::Verb& verb : tree.verbs()) {
    const std::string when =
        absl::StrCat(" -n '__fish_seen_subcommand_from ", std::string(verb.page.name), "'");
    for (const OptionText& option : OptionsOf(*verb.app)) {
      if (!option.is_argument()) {
        add(when, option);
      } else if (option.names == "FILE") {
        absl::StrAppend(&out, "complete -c larderctl", when, " -F\n");
      } else if (absl::StrContains(option.names, "|")) {
        absl::StrAppend(&out, "complete -c larderctl", when, " -x -a '",
                        absl::StrReplaceAll(option.names, {{"|", " "}}), "'\n");
      }
    }
  }
  return out;
}

void AddCompletion(CommandTree& tree) {
  const auto print = [&tree](const std::string& name, Shell& shell) {
    if (name.empty()) {
      return shell.Fail(absl::InvalidArgumentError("name a shell: bash, zsh or fish"));
    }
    shell.Print(name == "bash"  ? BashCompletion(tree)
                : name == "zsh" ? ZshCompletion(tree)
                                : FishCompletion(tree));
    return ExitCode::kOk;
  };
  tree.Add({.name = "completion",
            .summary = "prints a completion script for a shell",
            .about = "Prints the script to standard output. An installed larderctl has it where "
                     "the shell looks for it.",
            .examples = {{"completion bash > ~/.local/share/bash-completion/completions/larderctl",
                          "For bash, for one user."}}},
           [print](VerbOptions& verb) -> RunVerb {
             const auto name = std::make_shared<std::string>();
             verb.AddWord("bash|zsh|fish", name.get(), {"bash", "zsh", "fish"}, "Which shell.");
             return [name, print](Shell& shell) { return print(*name, shell); };
           });
}

}  // namespace larder::cli
