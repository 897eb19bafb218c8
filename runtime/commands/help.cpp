// See help.h. A command's rows are what it throws when it is asked for help.
#include "runtime/commands/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/commands/build_info.h"

namespace outrider {
namespace {

constexpr size_t kWidestCell = 120;  // characters

struct Page {
  std::string name;
  std::string help;
  HelpAsked rows;
};

Page page_of(const std::string& before, const Command& command) {
  CommandLine line;
  line.arguments.push_back("--help");
  try {
    command.run(line);
  } catch (const HelpAsked& asked) {
    return {before + command.name, command.help, asked};
  }
  throw Error(fmt::format("{}{} has no help", before, command.name));
}

std::vector<Page> all_pages() {
  std::vector<Page> pages;
  for (const Command& command : commands()) pages.push_back(page_of("", command));
  for (const Command& kind : bench_kinds()) pages.push_back(page_of("bench ", kind));
  return pages;
}

std::vector<OptionHelp> common_rows() { return page_of("", commands().front()).rows.common; }

std::string replaced(std::string text, char old, std::string_view by) {
  for (size_t at = text.find(old); at != std::string::npos; at = text.find(old, at + by.size()))
    text.replace(at, 1, by);
  return text;
}

// The text, what may be chosen, and the default.
std::string meaning(const OptionHelp& row) {
  std::string text = row.text;
  if (!row.choices.empty()) text += fmt::format(" ({})", fmt::join(row.choices, ", "));
  if (!row.default_value.empty()) text += fmt::format(" [{}]", row.default_value);
  return text;
}

// Calls `heading` with each new group's name, `print` with each row.
template <typename Heading, typename Print>
void for_each_row(const std::vector<OptionHelp>& rows, Heading heading, Print print) {
  std::string group;
  for (const OptionHelp& row : rows) {
    if (row.group != group) heading(row.group);
    group = row.group;
    print(row);
  }
}

std::string text_of(const std::vector<OptionHelp>& rows) {
  std::string text;
  for_each_row(
      rows,
      [&](const std::string& group) { text += fmt::format("\n{}:\n", group); },
      [&](const OptionHelp& row) {
        const std::string flag = fmt::format("{} {}", fmt::join(row.names, ", "), row.value);
        text += fmt::format("  {:<52} {}\n", flag, meaning(row));
      });
  return text;
}

std::string text_of(const Page& page) {
  std::string text =
      fmt::format("outrider {}: {}\n\n{}", page.name, page.help, text_of(page.rows.own));
  if (!page.rows.common.empty())
    text += (page.rows.own.empty() ? "" : "\n") + std::string("Options of all commands:\n");
  return text + text_of(page.rows.common);
}

// Pieces that fit into a cell, cut between words.
std::vector<std::string> cell_lines(std::string text) {
  std::vector<std::string> lines;
  while (text.size() > kWidestCell) {
    const size_t end = std::min(text.rfind(' ', kWidestCell), text.size());
    lines.push_back(text.substr(0, end));
    text.erase(0, end + 1);
  }
  lines.push_back(std::move(text));
  return lines;
}

std::string code(const std::string& text) {
  return text.empty() ? "" : fmt::format("`{}`", replaced(text, '|', "\\|"));
}

// A row of cells; where one has more than fits, the row goes on below.
std::string markdown_row(const OptionHelp& row) {
  std::vector<std::vector<std::string>> cells;
  const std::vector<std::string>& values =
      row.choices.empty() ? std::vector<std::string>{row.value} : row.choices;
  for (const std::vector<std::string>* words : {&row.names, &values}) {
    std::string cell;
    for (const std::string& word : *words) cell += (cell.empty() ? "" : ", ") + code(word);
    cells.push_back(cell_lines(cell));
  }
  cells.push_back({code(row.default_value)});
  cells.push_back(cell_lines(replaced(replaced(row.text, '|', "\\|"), '*', "\\*")));
  size_t num_lines = 0;
  for (const auto& lines : cells) num_lines = std::max(num_lines, lines.size());
  std::string text;
  for (size_t i = 0; i < num_lines; ++i) {
    text += "|";
    for (const auto& lines : cells) text += fmt::format(" {} |", i < lines.size() ? lines[i] : "");
    text += "\n";
  }
  return text;
}

constexpr const char* kTableHead = "\n| option | value | default | meaning |\n|---|---|---|---|\n";

std::string markdown() {
  std::string text =
      "# Options\n\n"
      "Made by `build/outrider help markdown > docs/options.md`; do not edit. Sources other than "
      "the\ncommand line, and notes: [config.md](config.md).\n\n"
      "## Options of all commands\n\n"
      "In YAML `--max-model-len` is the key `max_model_len`, in the environment "
      "`OUTRIDER_MAX_MODEL_LEN`.\n";
  for_each_row(
      common_rows(),
      [&](const std::string& group) { text += fmt::format("\n### {}\n{}", group, kTableHead); },
      [&](const OptionHelp& row) { text += markdown_row(row); });
  text += "\n## Commands and their own options\n";
  for (const Page& page : all_pages()) {
    text += fmt::format("\n### `outrider {}`\n\n{}\n", page.name, page.help);
    if (!page.rows.own.empty()) text += kTableHead;
    for (const OptionHelp& row : page.rows.own) text += markdown_row(row);
  }
  return text;
}

// A line of roff that is no request, with the hyphens that can be typed again.
std::string roff(const std::string& text) {
  return "\\&" + replaced(replaced(text, '\\', "\\e"), '-', "\\-");
}

std::string man() {
  std::string text = fmt::format(
      ".TH OUTRIDER 1 \"\" \"outrider {}\"\n"
      ".SH NAME\noutrider \\- language model server with speculative decoding over MPI\n"
      ".SH SYNOPSIS\n.B outrider\n.I COMMAND\n.RI [ options ]\n.br\n"
      ".B mpirun \\-np\n.I R+1\n.B outrider\n.I COMMAND\n.RI [ options ]\n"
      ".SH DESCRIPTION\nA small draft model works ahead of a large tensor-parallel target. Options "
      "of all commands may\nalso come from OUTRIDER_NAME variables and from a YAML file.\n",
      kBuildVersion);
  const auto heading = [&](const std::string& name) { text += fmt::format(".SS \"{}\"\n", name); };
  const auto print = [&](const OptionHelp& row) {
    text += fmt::format(".TP\n\\fB{}\\fR \\fI{}\\fR\n{}\n",
                        roff(fmt::format("{}", fmt::join(row.names, ", "))),
                        roff(row.value),
                        roff(meaning(row)));
  };
  text += ".SH OPTIONS OF ALL COMMANDS\n";
  for_each_row(common_rows(), heading, print);
  text += ".SH COMMANDS AND THEIR OWN OPTIONS\n";
  for (const Page& page : all_pages()) {
    heading(page.name);
    text += roff(page.help) + "\n";
    for_each_row(page.rows.own, heading, print);
  }
  return text;
}

// What bash offers for an option's value, as a branch of "case COMMAND:OPTION". command: "*" for
// the options of all.
std::string value_branch(const std::string& command, const OptionHelp& row) {
  if (row.value.empty()) return "";
  std::string pattern;
  for (const std::string& name : row.names)
    pattern += fmt::format("{}{}':{}'", pattern.empty() ? "" : " | ", command, name);
  return fmt::format("    {}) list='{}' files={} ;;\n",
                     pattern,
                     fmt::join(row.choices, " "),
                     row.value == "PATH" ? "-f" : "");
}

std::string words_of(const std::vector<OptionHelp>& rows) {
  std::string words;
  for (const OptionHelp& row : rows) words += fmt::format("{} ", fmt::join(row.names, " "));
  return words;
}

std::string completion() {
  const std::vector<OptionHelp> common = common_rows();
  std::string values;
  std::string lists = fmt::format("      '') list='{}' ;;\n", words_of(help_of(commands())));
  for (const Page& page : all_pages()) {
    for (const OptionHelp& row : page.rows.own)
      values += value_branch(fmt::format("'{}'", page.name), row);
    lists += fmt::format("      '{}') list='{}'{} ;;\n",
                         page.name,
                         words_of(page.rows.own),
                         page.rows.common.empty() ? "" : "$common");
  }
  for (const OptionHelp& row : common) values += value_branch("*", row);
  return fmt::format(
      R"(# bash's completion for outrider, made by "outrider help completion".
_outrider() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command= list= files=
  local common='{}--help'
  # bash takes "--option=value" for three words.
  [[ $before == = ]] && before=${{COMP_WORDS[COMP_CWORD - 2]}}
  [[ $word == = ]] && word=
  ((COMP_CWORD > 1)) && command=${{COMP_WORDS[1]}}
  [[ $command == bench ]] && ((COMP_CWORD > 2)) && command="bench ${{COMP_WORDS[2]}}"
  case $command:$before in
{}    *) case $command in
{}      esac
      # A word that is no option is a model, or another file.
      [[ $word == -* || $list != -* ]] || list= files=-f ;;
  esac
  [[ $files ]] && compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen $files -W "$list" -- "$word")
}}
complete -F _outrider outrider
)",
      words_of(common),
      values,
      lists);
}

std::vector<OptionHelp> own_rows() {
  std::vector<OptionHelp> rows = {
      {.names = {"markdown"}, .text = "docs/options.md: all commands and their options"},
      {.names = {"man"}, .text = "the man page"},
      {.names = {"completion"}, .text = "bash's completion, to be sourced"}};
  for (OptionHelp& row : help_of(commands())) rows.push_back(std::move(row));
  return rows;
}

}  // namespace

std::vector<OptionHelp> help_of(const std::vector<Command>& commands) {
  std::vector<OptionHelp> rows;
  for (const Command& command : commands)
    rows.push_back({.names = {command.name}, .text = command.help});
  return rows;
}

std::string usage() {
  return "usage: outrider COMMAND [options]\n       mpirun -np R+1 outrider COMMAND [options]\n\n" +
         text_of(help_of(commands())) +
         "\nOptions may also come from OUTRIDER_NAME variables and --config file.yaml:\n" +
         text_of(common_rows());
}

int run_or_help(const std::string& before, const Command& command, const CommandLine& line) {
  try {
    return command.run(line);
  } catch (const HelpAsked& asked) {
    std::fputs(text_of(Page{before + command.name, command.help, asked}).c_str(), stdout);
    return 0;
  }
}

int help_command(const CommandLine& line) {
  if (asks_for_help(line.arguments)) throw HelpAsked{.own = own_rows(), .common = {}};
  const std::string asked = fmt::format("{}", fmt::join(line.arguments, " "));
  const auto print = [](const std::string& text) {
    std::fputs(text.c_str(), stdout);
    return 0;
  };
  if (asked.empty()) return print(usage());
  if (asked == "markdown") return print(markdown());
  if (asked == "man") return print(man());
  if (asked == "completion") return print(completion());
  for (const Page& page : all_pages()) {
    if (page.name == asked) return print(text_of(page));
  }
  throw Error(fmt::format("there is no command '{}'; see outrider --help", asked));
}

}  // namespace outrider
