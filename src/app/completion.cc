#include "app/completion.h"

#include <algorithm>
#include <cstdio>

#include "app/commands.h"
#include "app/option_list.h"
#include "base/text.h"

namespace orthant {
namespace {

// The commands that take a run file and its keys, joined for a pattern of the shell.
std::string commands_with_keys(std::string_view separator) {
  std::vector<std::string> names;
  for (const CommandEntry& entry : commands()) {
    if (entry.takes_run_file) names.push_back(entry.name);
  }
  return join(names, separator);
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Quotes text in single quotes, for bash and zsh.
std::string quoted(const std::string& text) { return "'" + replace_all(text, "'", "'\\''") + "'"; }

// The options of a command with their names alone: "-h, --help" is listed as "--help".
std::vector<ListedOption> named_options(const CommandEntry& entry) {
  std::vector<ListedOption> options = list_options(entry);
  std::erase_if(options, [](const ListedOption& option) { return option.is_argument(); });
  for (ListedOption& option : options) option.name.erase(0, option.name.find("--"));
  return options;
}

// The values of all arguments without a name.
ValueChoices argument_choices(const CommandEntry& entry) {
  ValueChoices all;
  for (const ListedOption& option : list_options(entry)) {
    if (!option.is_argument()) continue;
    all.words.insert(all.words.end(), option.choices.words.begin(), option.choices.words.end());
    all.files = all.files || option.choices.files;
    all.folders = all.folders || option.choices.folders;
  }
  return all;
}

// The call of a function of the bash script that offers these values.
std::string bash_call(const ValueChoices& choices) {
  const char* function = choices.files ? "_orthant_files" : choices.folders ? "_orthant_folders" : "_orthant_words";
  return fmt::format("{}{} {}", function, choices.is_list && !choices.files ? "_joined" : "",
                     quoted(join(choices.words, " ")));
}

// `case` lines for the options that have values. An option without completions offers nothing.
std::string bash_cases(const std::vector<ListedOption>& options, const std::string& prefix) {
  std::string text;
  for (const ListedOption& option : options) {
    if (option.value.empty()) continue;
    text += fmt::format("    {}) {} ;;\n", quoted(prefix + option.name),
                        option.choices.empty() ? ":" : bash_call(option.choices));
  }
  return text;
}

std::string bash_words(const std::vector<ListedOption>& options) {
  std::vector<std::string> names;
  for (const ListedOption& option : options) names.push_back(option.name);
  return join(names, " ");
}

std::string bash_script() {
  std::vector<std::string> names = {"--help", "--help-all", "--version"};
  std::string values, listed, arguments;
  for (const CommandEntry& entry : commands()) {
    names.push_back(entry.name);
    const auto options = named_options(entry);
    values += bash_cases(options, entry.name + " ");
    listed += fmt::format("    {}) _orthant_words {} ;;\n", entry.name, quoted(bash_words(options)));
    if (const ValueChoices choices = argument_choices(entry); !choices.empty()) {
      arguments += fmt::format("    {}) {} ;;\n", entry.name, bash_call(choices));
    }
  }
  std::vector<ListedOption> keys = list_keys();
  const std::string key_words = bash_words(keys), key_cases = bash_cases(keys, "");
  const std::string settings = replace_all(key_words + " ", " ", "= ");
  return fmt::format(
      R"(# Completes orthant in bash. Written by `orthant completion bash`.

# Each of these functions adds to COMPREPLY: words that begin with $current, or files or folders.
_orthant_words() {{ COMPREPLY+=($(compgen -W "$1" -- "$current")); }}
_orthant_words_joined() {{
  local head=
  [[ $current == *,* ]] && head=${{current%,*}},
  COMPREPLY+=($(compgen -P "$head" -W "$1" -- "${{current##*,}}"))
}}
_orthant_files() {{
  _orthant_words "$1"
  compopt -o filenames 2>/dev/null
  local IFS=$'\n'
  COMPREPLY+=($(compgen -f -- "$current"))
}}
_orthant_folders() {{
  _orthant_words "$1"
  compopt -o filenames 2>/dev/null
  local IFS=$'\n'
  COMPREPLY+=($(compgen -d -- "$current"))
}}

# Offers the values of option $2 of command $1. Fails if the option has no value.
_orthant_option_values() {{
  case "$1 $2" in
{}    *) return 1 ;;
  esac
}}

# The same for a key of the run file, such as --training.dtype or training.dtype.
_orthant_key_values() {{
  local key=${{1#--}}
  case "--${{key//-/_}}" in
{}    *) return 1 ;;
  esac
}}

_orthant_options() {{
  case $1 in
{}  esac
}}

_orthant_arguments() {{
  case $1 in
{}  esac
}}

_orthant() {{
  COMPREPLY=()
  local command=${{COMP_WORDS[1]}} current=${{COMP_WORDS[COMP_CWORD]}} option=${{COMP_WORDS[COMP_CWORD - 1]}}
  local takes_keys= head=
  if ((COMP_CWORD == 1)); then
    _orthant_words {}
    return
  fi
  [[ $command == @({}) ]] && takes_keys=1
  # Bash splits OPTION=VALUE into three words, unless COMP_WORDBREAKS lacks the '='.
  if [[ $current == = ]]; then
    current=
  elif [[ $option == = ]]; then
    option=${{COMP_WORDS[COMP_CWORD - 2]}}
  elif [[ $current == [-a-z]*=* ]]; then
    option=${{current%%=*}} head=${{current%%=*}}= current=${{current#*=}}
  elif [[ $current == -* || $option != -* ]]; then
    option=
  fi
  if [[ $option ]]; then
    if _orthant_option_values "$command" "$option" || {{ [[ $takes_keys ]] && _orthant_key_values "$option"; }}; then
      COMPREPLY=("${{COMPREPLY[@]/#/$head}}")
      return
    fi
  fi
  if [[ $current == -* ]]; then
    _orthant_options "$command"
    [[ $takes_keys && $current == --* ]] && _orthant_words {}
  else
    _orthant_arguments "$command"
    if [[ $takes_keys && $current == *.* ]]; then
      compopt -o nospace 2>/dev/null
      _orthant_words {}
    fi
  fi
}}
complete -F _orthant orthant
)",
      values, key_cases, listed, arguments, quoted(join(names, " ")), commands_with_keys("|"), quoted(key_words),
      quoted(replace_all(settings, "--", "")));
}

// An item "NAME:help" of zsh's _describe.
std::string zsh_item(const std::string& name, const std::string& help) {
  return quoted(replace_all(name, ":", "\\:") + ":" + help);
}

std::string zsh_action(const ValueChoices& choices) {
  const std::string words = join(choices.words, " ");
  const std::string paths = choices.files ? "_files" : choices.folders ? "_files -/" : "";
  if (!paths.empty()) return words.empty() ? paths : fmt::format("{{ compadd -- {}; {} }}", words, paths);
  if (choices.is_list && !words.empty()) return fmt::format("{{ _values -s , value {} }}", words);
  return words.empty() ? " " : fmt::format("({})", words);
}

// An option in the form of zsh's _arguments: "--name=[help]:value:action".
std::string zsh_option(const ListedOption& option) {
  std::string help = option.help;
  for (const char* special : {"\\", "[", "]", ":"}) help = replace_all(help, special, std::string("\\") + special);
  if (option.value.empty()) return quoted(fmt::format("{}[{}]", option.name, help));
  return quoted(
      fmt::format("{}=[{}]:{}:{}", option.name, help, replace_all(option.value, ":", ""), zsh_action(option.choices)));
}

std::string zsh_script() {
  std::string names, cases, keys, settings;
  for (const ListedOption& key : list_keys()) {
    keys += "    " + zsh_option(key) + "\n";
    settings += " " + key.name.substr(2);
  }
  for (const CommandEntry& entry : commands()) {
    names += "      " + zsh_item(entry.name, entry.summary) + "\n";
    cases += fmt::format("    {})\n      _arguments", entry.name);
    for (const ListedOption& option : named_options(entry)) cases += " \\\n        " + zsh_option(option);
    const ValueChoices choices = argument_choices(entry);
    if (entry.takes_run_file) cases += " \\\n        $keys '*:run file or setting:_orthant_settings'";
    if (!entry.takes_run_file && !choices.empty()) {
      cases += " \\\n        " + quoted("*:argument:" + zsh_action(choices));
    }
    cases += "\n      ;;\n";
  }
  return fmt::format(R"(#compdef orthant
# Completes orthant in zsh. Written by `orthant completion zsh`.

# Offers files, and after a section the keys of the run file as section.key=VALUE.
_orthant_settings() {{
  _files
  [[ $PREFIX == *.* ]] && compadd -S = --{}
}}

_orthant() {{
  local -a commands keys
  if (( CURRENT == 2 )); then
    commands=(
{}    )
    _describe command commands
    return
  fi
  keys=(
{}  )
  shift words
  (( CURRENT-- ))
  case $words[1] in
{}  esac
}}

if [[ $funcstack[1] == _orthant ]]; then
  _orthant "$@"
else
  compdef _orthant orthant
fi
)",
                     settings, names, keys, cases);
}

// One `complete` line of fish for an option of the given commands.
std::string fish_option(const ListedOption& option, const std::string& commands) {
  std::string line =
      fmt::format("complete -c orthant -n '__fish_seen_subcommand_from {}' -l {}", commands, option.name.substr(2));
  if (!option.value.empty()) line += option.choices.files ? " -r -F" : " -x";
  const std::string words = join(option.choices.words, " ");
  if (option.choices.is_list && !words.empty()) line += fmt::format(" -a '(__fish_append , {})'", words);
  if (!option.choices.is_list && !words.empty()) line += fmt::format(" -a {}", quoted(words));
  return line + " -d " + quoted(option.help) + "\n";
}

std::string fish_script() {
  std::string text = "# Completes orthant in fish. Written by `orthant completion fish`.\ncomplete -c orthant -f\n";
  for (const CommandEntry& entry : commands()) {
    text +=
        fmt::format("complete -c orthant -n __fish_use_subcommand -a {} -d {}\n", entry.name, quoted(entry.summary));
    for (const ListedOption& option : named_options(entry)) text += fish_option(option, entry.name);
    const ValueChoices choices = argument_choices(entry);
    if (choices.empty()) continue;
    std::vector<std::string> words = choices.words;
    if (choices.folders && !choices.files) words.push_back("(__fish_complete_directories)");
    const std::string values = words.empty() ? "" : " -a " + quoted(join(words, " "));
    text += fmt::format("complete -c orthant -n '__fish_seen_subcommand_from {}'{}{}\n", entry.name,
                        choices.files ? " -F" : "", values);
  }
  for (const ListedOption& key : list_keys()) text += fish_option(key, commands_with_keys(" "));
  return text;
}

}  // namespace

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return bash_script();
  if (shell == "zsh") return zsh_script();
  ORTHANT_CHECK(shell == "fish", shell);
  return fish_script();
}

int completion(const CompletionArguments& arguments) {
  std::fputs(completion_script(arguments.shell).c_str(), stdout);
  return kDone;
}

}  // namespace orthant
