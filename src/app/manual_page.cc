#include "app/manual_page.h"

#include <cctype>
#include <map>

#include "app/commands.h"
#include "app/option_list.h"
#include "config/table.h"

namespace orthant {
namespace {

// Escapes characters that roff would replace, and a control character that begins a line.
std::string roff(std::string_view text) {
  static const std::map<char, std::string> escapes = {{'\\', "\\e"},  {'-', "\\-"},   {'\'', "\\(aq"}, {'"', "\\(dq"},
                                                      {'~', "\\(ti"}, {'^', "\\(ha"}, {'`', "\\(ga"}};
  std::string out = text.starts_with(".") || text.starts_with("'") ? "\\&" : "";
  for (const char letter : text) {
    const auto escape = escapes.find(letter);
    out += escape == escapes.end() ? std::string(1, letter) : escape->second;
  }
  return out;
}

// A tagged paragraph: the name in bold, the name of the value in italics, and the help as the text.
std::string item(const std::string& name, const std::string& value, const std::string& help) {
  const std::string italic = value.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(value));
  return fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", roff(name), italic, roff(help));
}

std::string example(const std::string& line) { return fmt::format(".PP\n.nf\n    {}\n.fi\n", roff(line)); }

std::string command_text(const CommandEntry& entry) {
  std::string help = entry.summary;
  help[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(help[0])));
  std::string text = fmt::format(".SS {}\n\\fBorthant {}\\fR {}\n.PP\n{}.\n", roff("orthant " + entry.name),
                                 roff(entry.name), roff(entry.usage), roff(help));
  for (const ListedOption& option : list_options(entry)) text += item(option.name, option.value, option.help);
  text += ".PP\nExamples:\n";
  for (const std::string& line : entry.examples) text += example(line);
  return text;
}

std::string settings_text() {
  std::string text =
      ".SH SETTINGS\n"
      "A run file is TOML: each section below is a table, and each key has a default.\n"
      "The commands that take a run file also take its keys as options,\n"
      "\\fB\\-\\-section.key\\fR \\fIVALUE\\fR or \\fBsection.key=\\fR\\fIVALUE\\fR.\n"
      "These have precedence over the file.\n"
      "In keys, \\- and _ are the same. Lists are written \\fIa,b\\fR.\n"
      "\\fB\\-\\-section.no\\-key\\fR sets a key of type bool to false.\n";
  for (const std::string& section : config_sections()) {
    text += fmt::format(".SS [{}]\n{}\n", roff(section), roff(section_help(section)));
    for (const Key& key : config_table()) {
      if (key.section == section) text += item("--" + key.full_name(), type_name(key), full_help(key));
    }
  }
  return text;
}

}  // namespace

std::string manual_page() {
  std::string text = fmt::format(
      ".\\\" Written by `orthant manual`.\n"
      ".TH ORTHANT 1 \"\" \"Orthant {}\" \"User Commands\"\n"
      ".SH NAME\northant \\- trains transformers across many devices\n"
      ".SH SYNOPSIS\n\\fBorthant\\fR \\fICOMMAND\\fR ...\n"
      ".SH DESCRIPTION\n"
      "Orthant trains one transformer over an n\\-dimensional mesh of devices.\n"
      "Data, sequence, tensor and pipeline parallelism are axes of one mesh.\n"
      "One TOML file, the run file, describes a run.\n"
      ".SH COMMANDS\n",
      version());
  for (const CommandEntry& entry : commands()) text += command_text(entry);
  text += settings_text();
  text += ".SH EXIT STATUS\n";
  text += item("0", "", "The command is done. For train, also after it was stopped by SIGTERM.");
  text += item("1", "", "The command has failed.");
  text += item("2", "", "The command line is wrong.");
  text += item("130", "", "The command was interrupted by SIGINT.");
  text += ".SH FILES\n";
  text += item("DUMP/config.toml", "", "The effective run file. DUMP is the folder of the run, job.dump_folder.");
  text += item("DUMP/checkpoints/latest", "", "A link to the newest checkpoint, a directory in Hugging Face's form.");
  text += item("DUMP/metrics.jsonl", "", "Loss, throughput and memory of each step.");
  return text;
}

}  // namespace orthant
