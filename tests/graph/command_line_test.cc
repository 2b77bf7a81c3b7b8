#include "graph/command_line.h"

#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "graph/error.h"
#include "graph/text_table.h"
#include "tests/support/error_of.h"

namespace pipewright {
namespace {

using testing::error_of;
namespace po = boost::program_options;

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

class Redirect {
 public:
  Redirect(std::ostream& stream, std::ostream& to) : stream_(stream), old_(stream.rdbuf(to.rdbuf())) {}
  ~Redirect() { stream_.rdbuf(old_); }

 private:
  std::ostream& stream_;
  std::streambuf* old_;
};

po::options_description options() {
  po::options_description description("Options");
  description.add_options()("batch-size", po::value<int>()->default_value(64), "samples in a minibatch")(
      "output", po::value<std::string>(), "file to write")("json", po::bool_switch(), "machine-readable")(
      "output-format", po::value<std::string>(), "suffix");
  return description;
}

std::vector<std::string> last_arguments;

ProgramDescription program() {
  ProgramDescription description;
  description.name = "pipewright-tester";
  description.summary = "tests its own command line.";
  description.example = "pipewright-tester plan --batch-size 3";
  const auto record = [](const std::vector<std::string>& arguments) { last_arguments = arguments; };
  description.commands = {
      {"plan", "makes a plan", record},
      {"parse", "parses options",
       [](const std::vector<std::string>& arguments) {
         const po::variables_map values =
             parse_options(arguments, options(), "Usage: parse [--OPTION VALUE ...]");
         std::cout << values["batch-size"].as<int>() << (values["json"].as<bool>() ? " json" : "") << "\n";
       }},
      {"bad-input", "", [](const auto&) { throw InputError("x.json: no", "Try another."); }},
      {"bad-plan", "", [](const auto&) { throw PlanError("no"); }},
      {"defect", "", [](const auto&) { PW_CHECK_EQ(1, 2); }},
      {"library", "", [](const auto&) { throw std::runtime_error("library said\nstack\nstack"); }},
      {"memory", "", [](const auto&) { throw std::bad_alloc(); }},
      {"odd", "", [](const auto&) { throw 3; }},
      {"chatter", "",
       [](const auto&) {
         for (int i = 0; i < 100000; ++i) std::cout << "line " << i << "\n";
       }},
  };
  description.versions = [] { return std::string("Boost 1.74"); };
  return description;
}

Outcome run(std::vector<std::string> words) {
  words.insert(words.begin(), "pipewright-tester");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::ostringstream out;
  std::ostringstream err;
  Outcome outcome;
  {
    const Redirect redirect_out(std::cout, out);
    const Redirect redirect_err(std::cerr, err);
    outcome.code = run_program(program(), static_cast<int>(words.size()), argv.data());
  }
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

// In a child whose standard output goes to `fd`.
int run_child(const std::vector<std::string>& words, int fd) {
  std::cout.flush();
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(fd, STDOUT_FILENO);
    std::vector<std::string> all = words;
    all.insert(all.begin(), "pipewright-tester");
    std::vector<char*> argv;
    for (std::string& word : all) argv.push_back(word.data());
    std::ostringstream err;
    const Redirect redirect_err(std::cerr, err);
    ::_exit(run_program(program(), static_cast<int>(argv.size()), argv.data()));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));  // not killed by SIGPIPE
  return WEXITSTATUS(status);
}

TEST_CASE("the first word is the command, or the default runs") {
  CHECK(run({"plan", "--x", "1"}).code == 0);
  CHECK(last_arguments == std::vector<std::string>{"--x", "1"});
  CHECK(run({"--x", "1"}).code == 0);
  CHECK(last_arguments == std::vector<std::string>{"--x", "1"});
  CHECK(run({}).code == 0);
  CHECK(last_arguments.empty());
  const Outcome wrong = run({"pln"});
  CHECK(wrong.code == 2);
  CHECK(wrong.err ==
        "pipewright-tester: error: unknown command \"pln\"; did you mean 'plan'?\n  See: pipewright-tester "
        "--help\n");
  CHECK(run({"zebra"}).err.find("known: plan, parse") != std::string::npos);
  CHECK(run({""}).code == 2);
}

TEST_CASE("help fits a screen and shows commands and an example") {
  const Outcome help = run({"--help"});
  CHECK(help.code == 0);
  CHECK(help.err.empty());
  CHECK(std::count(help.out.begin(), help.out.end(), '\n') <= 24);
  CHECK(help.out.find("tests its own command line.") != std::string::npos);
  CHECK(help.out.find("  plan       makes a plan\n") != std::string::npos);
  CHECK(help.out.find("pipewright-tester plan --batch-size 3") != std::string::npos);
  const Outcome command = run({"parse", "--help"});
  CHECK(command.code == 0);
  CHECK(command.out.find("Usage: parse") == 0);
  CHECK(command.out.find("--batch-size") != std::string::npos);
  CHECK(command.out.find("--help") != std::string::npos);
  CHECK(run({"parse", "--batch-size", "x", "--help"}).code == 0);  // help wins over errors
}

TEST_CASE(
    "the width of a line: of the terminal, 80 if it does not say, any in a file, and COLUMNS and --wide") {
  ::unsetenv("COLUMNS");
  int terminal = -1;
  int other = -1;
  REQUIRE(::openpty(&other, &terminal, nullptr, nullptr, nullptr) == 0);
  const auto make = [&](unsigned short columns) {
    const winsize size{24, columns, 0, 0};
    REQUIRE(::ioctl(terminal, TIOCSWINSZ, &size) == 0);
  };
  make(132);
  CHECK(width_of(terminal) == 132);
  make(0);
  CHECK(width_of(terminal) == 80);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  CHECK(width_of(ends[1]) == kAnyWidth);
  ::setenv("COLUMNS", "66", 1);
  CHECK(width_of(terminal) == 66);
  CHECK(width_of(ends[1]) == 66);
  po::options_description description("Options");
  add_wide_option(&description);
  CHECK(output_width(parse_options({}, description, "")) == 66);
  CHECK(output_width(parse_options({"--wide"}, description, "")) == kAnyWidth);
  for (const char* odd : {"", "0", "-5", "80x", "many", "99999999999999999999"}) {
    ::setenv("COLUMNS", odd, 1);
    CHECK(width_of(ends[1]) == kAnyWidth);
  }
  ::unsetenv("COLUMNS");
  for (const int descriptor : {terminal, other, ends[0], ends[1]}) ::close(descriptor);
}

TEST_CASE("version") {
  const Outcome version = run({"--version"});
  CHECK(version.code == 0);
  CHECK(version.out == "Pipewright " + pipewright_version() + "\nBoost 1.74\n");
}

TEST_CASE("exceptions become exit codes and lines") {
  CHECK(run({"bad-input"}).code == 2);
  CHECK(run({"bad-input"}).err == "pipewright-tester: error: x.json: no\n  Try another.\n");
  CHECK(run({"bad-plan"}).code == 3);
  CHECK(run({"bad-plan"}).err == "pipewright-tester: error: no\n");
  const Outcome defect = run({"defect"});
  CHECK(defect.code == 1);
  CHECK(defect.err.find("check failed: 1 == 2 (1 against 2)") != std::string::npos);
  CHECK(defect.err.find("Please report it") != std::string::npos);
  const Outcome library = run({"library"});
  CHECK(library.code == 1);
  CHECK(library.err.find("error: library said\n  This is a defect") != std::string::npos);
  CHECK(library.err.find("stack") == std::string::npos);
  CHECK(run({"memory"}).err.find("error: out of memory") != std::string::npos);
  CHECK(run({"odd"}).code == 1);
  CHECK(exit_code_of(InfeasibleError("x")) == 4);
  CHECK(exit_code_of(PeerError("x")) == 5);
  CHECK(exit_code_of(NumericalError("x")) == 6);
  CHECK(exit_code_of(Error(ExitCode::kInterrupted, "x")) == 130);
  CHECK(exit_code_of(std::logic_error("x")) == 1);
}

std::string parse_error(const std::vector<std::string>& arguments) {
  return error_of<InputError>([&] { parse_options(arguments, options(), ""); });
}

TEST_CASE("options are parsed strictly") {
  CHECK(run({"parse", "--batch-size", "3", "--json"}).out == "3 json\n");
  CHECK(run({"parse", "--batch-size=3"}).out == "3\n");
  CHECK(run({"parse"}).out == "64\n");
  CHECK(parse_error({"--batch_size", "3"}) ==
        "unknown option \"--batch_size\"; did you mean '--batch-size'?");
  CHECK(parse_error({"--batchsize=3"}) == "unknown option \"--batchsize\"; did you mean '--batch-size'?");
  CHECK(parse_error({"--zebra"}).rfind("unknown option \"--zebra\"; known: --batch-size, ", 0) == 0);
  CHECK(parse_error({"--batch", "3"}).rfind("unknown option \"--batch\"", 0) == 0);  // no abbreviations
  CHECK(parse_error({"--out", "x"}).rfind("unknown option \"--out\"", 0) == 0);
  CHECK(parse_error({"-b", "3"}).rfind("unknown option \"-b\"", 0) == 0);  // no single dash
  CHECK(parse_error({"-json"}) == "unknown option \"-json\"; did you mean '--json'?");
  CHECK(parse_error({"--batch-size", "--json"}) ==
        "option --batch-size needs a value; behind it comes \"--json\"");
  CHECK(parse_error({"plan.json"}) == "unexpected word \"plan.json\"");
  CHECK(parse_error({"json"}) == "unexpected word \"json\"; did you mean '--json'?");
  CHECK(parse_error({"--batch-size", "3", "4"}) == "unexpected word \"4\"");
  CHECK(parse_error({"--batch-size", "3", "--batch-size", "4"}).find("more than once") != std::string::npos);
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{"--batch-size"},
                                             {"--batch-size", "x"},
                                             {"--batch-size", "3.5"},
                                             {"--batch-size="},
                                             {"--batch-size", "--json"},
                                             {"--json=yes"},

                                             {"-"},
                                             {"--="},
                                             {""},
                                             {"--batch-size", "99999999999"}}) {
    CAPTURE(bad.size() > 0 ? bad.back() : "");
    const std::string error = parse_error(bad);
    CAPTURE(error);
    CHECK(error.front() != '<');
    CHECK(error.find('\n') == std::string::npos);
  }
  CHECK(parse_error({"--batch-size", "x"}).find("--batch-size") != std::string::npos);
  CHECK(parse_error({"--output"}).find("--output") != std::string::npos);
}

TEST_CASE("required options are asked for by name") {
  po::options_description description("Options");
  description.add_options()("profile", po::value<std::string>()->required(), "");
  CHECK(error_of<InputError>([&] { parse_options({}, description, ""); }) == "option --profile is missing");
}

TEST_CASE("a reader that goes away is no error, a full disk is one") {
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  ::close(pipe_ends[0]);
  CHECK(run_child({"chatter"}, pipe_ends[1]) == 0);
  ::close(pipe_ends[1]);
  FILE* full = std::fopen("/dev/full", "w");
  REQUIRE(full != nullptr);
  CHECK(run_child({"chatter"}, ::fileno(full)) == 1);
  std::fclose(full);
}

}  // namespace
}  // namespace pipewright
