// What the three programs share in front of Boost.Program_options: commands, messages, exit codes.
#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pipewright {

struct Command {
  std::string name;
  std::string summary;  ///< one line for --help
  std::function<void(const std::vector<std::string>& arguments)> run;
};

struct ProgramDescription {
  std::string name;               ///< "pipewright-optimizer"
  std::string summary;            ///< one sentence
  std::string example;            ///< a command that works
  std::vector<Command> commands;  ///< [0] is the default, used when the first word is an option or absent
  std::function<std::string()> versions;  ///< for --version: Pipewright's line is added before it
};

/// The whole of main(): picks the command, runs it, turns exceptions into one line on standard error (and the
/// remedy on the next), returns the exit code. A CheckError or unknown exception gives 1 and asks for a
/// report. A first word that is no command is an InputError with the nearest. Ignores SIGPIPE; output that
/// could not be written for another reason than a reader that has gone is an error (1).
int run_program(const ProgramDescription& program, int argc, char** argv);

/// What --help says of a command.
struct CommandHelp {
  CommandHelp(const char* usage)
      : usage(usage) {}  // NOLINT: a command of few options has nothing else to say
  CommandHelp(std::string usage, std::string example, std::vector<std::string> usual)
      : usage(std::move(usage)), example(std::move(example)), usual(std::move(usual)) {}

  std::string usage;
  std::string example;             ///< works as it stands, behind those of the commands before; "": none
  std::vector<std::string> usual;  ///< the options that people use; the rest is for --help-all. Empty: all
};

/// Strict parse: long options only, unknown option -> InputError with the nearest, missing or malformed value
/// -> InputError. Words that are neither options nor their values are errors. Adds --help and --help-all,
/// which print `help` with its usual options, or with all, on standard output and throw HelpShown.
boost::program_options::variables_map parse_options(const std::vector<std::string>& arguments,
                                                    boost::program_options::options_description description,
                                                    const CommandHelp& help);
struct HelpShown {};

/// --wide, for commands that print tables.
void add_wide_option(boost::program_options::options_description* options);
/// Characters of a line on standard output: kAnyWidth with --wide, else width_of(1).
int64_t output_width(const boost::program_options::variables_map& values);
/// COLUMNS if that is a positive number; else, of a terminal, its width, 80 if it does not say; kAnyWidth of
/// anything else (a file, a pipe).
int64_t width_of(int descriptor);

/// Pipewright's own version: "0.1.0".
std::string pipewright_version();

/// Prints an error the way all programs do: "NAME: error: WHAT" and, on the next line, "  REMEDY".
void print_error(const std::string& program, const std::exception& error);
int exit_code_of(const std::exception& error);

}  // namespace pipewright
