#include "graph/command_line.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <typeinfo>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"
#include "graph/printable.h"
#include "graph/text_table.h"

namespace pipewright {
namespace {

namespace po = boost::program_options;

void print_help(const ProgramDescription& program, std::ostream& out) {
  out << program.name << ": " << program.summary << "\n\n";
  const bool several = program.commands.size() > 1;
  out << "Usage: " << program.name << (several ? " [COMMAND]" : "") << " [--OPTION VALUE ...]\n";
  if (several) {
    size_t width = 0;
    for (const Command& command : program.commands) width = std::max(width, command.name.size());
    out << "\nCommands (without one: " << program.commands.front().name << ")\n";
    for (const Command& command : program.commands) {
      out << "  " << command.name << std::string(width - command.name.size() + 2, ' ') << command.summary
          << "\n";
    }
    out << "\n"
        << program.name
        << " COMMAND --help lists the options of a command; --version says what this is built of.\n";
  } else {
    out << "\n" << program.name << " " << program.commands.front().name << " --help lists the options.\n";
  }
  out << "\nExample\n  " << program.example << "\n";
}

const Command& find_command(const ProgramDescription& program, const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : program.commands) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  throw InputError("unknown command " + in_quotes(name) + suggestion(name, names),
                   "See: " + program.name + " --help");
}

void run_command(const ProgramDescription& program, std::vector<std::string> arguments) {
  if (arguments.empty() || arguments.front().rfind('-', 0) == 0) {
    if (!arguments.empty() && arguments.front() == "--help") {
      print_help(program, std::cout);
      return;
    }
    if (!arguments.empty() && arguments.front() == "--version") {
      std::cout << "Pipewright " << pipewright_version() << "\n";
      if (program.versions) {
        const std::string versions = program.versions();
        std::cout << versions << (versions.empty() || versions.back() == '\n' ? "" : "\n");
      }
      return;
    }
    program.commands.front().run(arguments);
    return;
  }
  const Command& command = find_command(program, arguments.front());
  arguments.erase(arguments.begin());
  command.run(arguments);
}

// What was printed has to arrive, unless its reader has gone (`| head`), which is its right.
void flush_output() {
  std::cout.flush();
  if (std::cout.good()) return;
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0) return;
  throw RunError("standard output: what was printed could not all be written", "Is the disk full?");
}

// The option as it was typed, without its value.
std::string option_word(const std::string& token) { return token.substr(0, token.find('=')); }

std::vector<std::string> long_names(const po::options_description& description) {
  std::vector<std::string> names;
  for (const auto& option : description.options()) names.push_back("--" + option->long_name());
  return names;
}

[[noreturn]] void fail_unknown_option(const std::string& word, const po::options_description& description) {
  throw InputError("unknown option " + in_quotes(word) + suggestion(word, long_names(description)),
                   "--help lists the options.");
}

// A value that is none of the option's kind.
[[noreturn]] void fail_value(const po::parsed_options& parsed, const std::string& name,
                             const po::options_description& description) {
  std::string got;
  for (const po::option& option : parsed.options)
    if ("--" + option.string_key == name && !option.value.empty()) got = option.value.back();
  const auto* kind = dynamic_cast<const po::typed_value_base*>(
      description.find(name.substr(2), /*approx=*/false).semantic().get());
  const bool whole = kind && kind->value_type() == typeid(int64_t);
  throw InputError(name + ": got " + in_quotes(got) + "; expected a " + (whole ? "whole " : "") + "number");
}

[[noreturn]] void fail_word(const std::string& word, const po::options_description& description) {
  if (word.size() > 1 && word.front() == '-') fail_unknown_option(word, description);
  const std::vector<std::string> names = long_names(description);
  const bool option = std::find(names.begin(), names.end(), "--" + word) != names.end();
  throw InputError("unexpected word " + in_quotes(word) + (option ? "; did you mean '--" + word + "'?" : ""),
                   "Options are written --NAME VALUE, and a value with blanks in it is put in quotes.");
}

void print_command_help(const CommandHelp& help, const po::options_description& description, bool all) {
  std::cout << help.usage << (help.usage.empty() || help.usage.back() == '\n' ? "" : "\n");
  if (!help.example.empty()) std::cout << "Example: " << help.example << "\n";
  std::cout << "\n";
  if (all) {
    std::cout << description;
    return;
  }
  po::options_description usual;
  size_t shown = 0;
  for (const std::string& name : help.usual) {
    for (const auto& option : description.options()) {
      if (option->long_name() != name) continue;
      usual.add(option);
      ++shown;
    }
  }
  PW_CHECK_EQ(shown, help.usual.size());
  std::cout << usual << "\n--help-all lists all " << description.options().size() << " options.\n";
}

// LibTorch's libraries make thousands of objects before main() begins; where memory is short (`ulimit -v`)
// that ends in terminate(). This is installed before them.
std::terminate_handler usual_terminate = nullptr;

[[noreturn]] void on_terminate() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    constexpr char text[] =
        "error: out of memory\n"
        "  Likely cause: a limit of the address space (ulimit -v); programs with LibTorch need 1 GB to "
        "start.\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, sizeof(text) - 1);
    ::_exit(static_cast<int>(ExitCode::kFailed));
  } catch (...) {
  }
  usual_terminate();
  std::abort();
}

void install_terminate() { usual_terminate = std::set_terminate(on_terminate); }

// Of the program itself: it runs before the initialisers of all libraries.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)() = install_terminate;

}  // namespace

std::string pipewright_version() { return PIPEWRIGHT_VERSION; }

po::variables_map parse_options(const std::vector<std::string>& arguments,
                                po::options_description description, const CommandHelp& help) {
  if (description.find_nothrow("help", false) == nullptr) {
    description.add_options()("help", "print this and exit");
    if (!help.usual.empty()) description.add_options()("help-all", "print all options and exit");
  }
  const auto asks = [&](const char* word) {
    return std::find(arguments.begin(), arguments.end(), word) != arguments.end();
  };
  const bool all = asks("--help-all");
  if (asks("--help") || all) {
    print_command_help(help, description, all || help.usual.empty());
    throw HelpShown{};
  }
  namespace style = po::command_line_style;
  po::variables_map values;
  po::parsed_options parsed(&description);
  try {
    parsed = po::command_line_parser(arguments)
                 .options(description)
                 .style(style::allow_long | style::long_allow_adjacent | style::long_allow_next)
                 .run();
    const std::vector<std::string> names = long_names(description);
    for (const po::option& option : parsed.options) {
      // The option behind one that was left without its value.
      const bool took_next = option.position_key == -1 && option.value.size() == 1 &&
                             std::find(names.begin(), names.end(), option.value[0]) != names.end();
      if (took_next)
        throw InputError(
            "option --" + option.string_key + " needs a value; behind it comes " + in_quotes(option.value[0]),
            "Options are written --NAME VALUE; --help says what it takes.");
      if (option.position_key != -1) fail_word(option.value.empty() ? "" : option.value.front(), description);
    }
    po::store(parsed, values);
    po::notify(values);
  } catch (const po::unknown_option& error) {
    fail_unknown_option(option_word(error.get_option_name()), description);
  } catch (const po::required_option& error) {
    throw InputError("option " + error.get_option_name() + " is missing", "--help lists the options.");
  } catch (const po::multiple_occurrences& error) {
    throw InputError("option " + error.get_option_name() + " is given more than once");
  } catch (const po::invalid_option_value& error) {
    fail_value(parsed, error.get_option_name(), description);
  } catch (const po::error& error) {  // a missing or extra value: Boost's text names the option
    throw InputError(error.what(), "--help lists the options.");
  }
  return values;
}

void add_wide_option(po::options_description* options) {
  options->add_options()("wide", po::bool_switch(), "tables whole, however wide");
}

int64_t output_width(const po::variables_map& values) {
  return values["wide"].as<bool>() ? kAnyWidth : width_of(STDOUT_FILENO);
}

int64_t width_of(int descriptor) {
  constexpr int64_t kUsual = 80;
  if (const char* text = std::getenv("COLUMNS")) {
    int64_t columns = 0;
    const char* const end = text + std::strlen(text);
    const auto [rest, error] = std::from_chars(text, end, columns);
    if (error == std::errc() && rest == end && columns > 0) return columns;
  }
  if (isatty(descriptor) == 0) return kAnyWidth;
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
  return size.ws_col;
}

int exit_code_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return static_cast<int>(ours == nullptr ? ExitCode::kFailed : ours->code());
}

void print_error(const std::string& program, const std::exception& error) {
  std::string text = error.what();
  std::string remedy;
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    remedy = ours->remedy();
  } else if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    text = "out of memory";
    remedy = "Free memory on this machine, or make the input smaller.";
  } else {
    text = text.substr(0, text.find('\n'));  // what follows in errors of libraries is their call stack
    remedy = "This is a defect of Pipewright. Please report it with the command, its inputs and this line.";
  }
  std::string lines = program + ": error: " + printable(text) + "\n";
  if (!remedy.empty()) lines += "  " + printable(remedy) + "\n";
  std::cerr << lines << std::flush;  // at once: other ranks write to the same terminal
}

int run_program(const ProgramDescription& program, int argc, char** argv) {
  PW_CHECK(!program.commands.empty(), program.name);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    try {
      run_command(program, std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
    } catch (const HelpShown&) {
    }
    flush_output();
    return static_cast<int>(ExitCode::kDone);
  } catch (const std::exception& error) {
    std::cout.flush();
    print_error(program.name, error);
    return exit_code_of(error);
  } catch (...) {
    std::cout.flush();
    print_error(program.name, std::runtime_error("an exception of unknown type"));
    return static_cast<int>(ExitCode::kFailed);
  }
}

}  // namespace pipewright
