// SPDX-License-Identifier: Apache-2.0
// kvspan-scripted-suite: the real parent over a worker that plays a script. Each case of it does
// one thing that a plugin can do to a worker; the plugin's file is only named, never opened.
// Options of the "plugin" choose how the probe behaves. Read next: runner_test.py, which drives it.
#include "parent.hpp"

#include <nlohmann/json.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

using kvspan::runner::Suite;
using kvspan::runner::SuiteCase;

struct Script {
  int records = 3;
  bool probe = false;
  std::vector<std::string> cases;
  std::string seed;
  std::map<std::string, std::string> options;
  bool after_trouble = false;  // Order.MakesTrouble ran in this worker
};

void write_text(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(descriptor, text.data(), text.size());
    if (wrote <= 0) {
      return;
    }
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

void say(const Script& script, const std::string& line) {
  write_text(script.records, line + "\n");
}

[[noreturn]] void wait_for_ever() {
  for (;;) {
    ::pause();
  }
}

[[noreturn]] void die_by(int signal) {
  std::signal(signal, SIG_DFL);
  std::raise(signal);
  wait_for_ever();
}

void fail(const Script& script, const std::string& id, const char* expected, const char* actual) {
  nlohmann::json record = {{"record", "failure"},
                           {"case", id},
                           {"file", "conformance/cases/scripted_test.cpp"},
                           {"line", 42},
                           {"message", "the copied bytes differ at <offset> & \"length\""},
                           {"expected", expected},
                           {"actual", actual},
                           {"rule", "KV-COPY-1"}};
  say(script, record.dump());
}

// A process that the plugin forgot: it holds every descriptor of the worker.
void leave_a_child() {
  if (::fork() == 0) {
    ::setsid();
    ::alarm(20);  // not for ever, should the parent forget it
    wait_for_ever();
  }
}

using Play = std::string (*)(Script&, const std::string& id);  // returns the result of the end

struct Scene {
  const char* id;
  const char* rules;
  const char* profile;
  bool needs_attention;
  Play play;
  bool runs_alone = false;
};

// Whether another case is at work: each leaves a file in the folder `meeting` while it is.
std::string meets_nobody(Script& script, const std::string& id) {
  if (script.options.count("meeting") == 0) {
    return "pass";
  }
  for (const auto& entry : std::filesystem::directory_iterator(script.options["meeting"])) {
    if (entry.path().filename() != id) {
      fail(script, id, "nobody else", entry.path().filename().c_str());
      return "fail";
    }
  }
  return "pass";
}

std::string passes(Script&, const std::string&) {
  return "pass";
}

std::string fails(Script& script, const std::string& id) {
  fail(script, id, "0x2a 0x2b", "<script>document.title='owned'</script> 0x2a 0x00");
  return "fail";
}

std::string segfaults(Script&, const std::string&) {
  die_by(SIGSEGV);
}

std::string exits(Script&, const std::string&) {
  ::_exit(0);
}

std::string hangs(Script&, const std::string&) {
  wait_for_ever();
}

std::string prints(Script&, const std::string&) {
  write_text(STDOUT_FILENO, "hello from the plugin\n");
  return "pass";
}

std::string garbage(Script& script, const std::string&) {
  say(script, "no record \x01\xff at all");
  return "pass";
}

std::string half_line(Script& script, const std::string&) {
  write_text(script.records, "{\"record\": \"end\", \"ca");
  ::_exit(0);
}

std::string leaves_a_child(Script&, const std::string&) {
  leave_a_child();
  return "pass";
}

std::string inconclusive(Script&, const std::string&) {
  return "inconclusive";
}

std::string skips_itself(Script&, const std::string&) {
  return "error";
}

std::string makes_trouble(Script& script, const std::string&) {
  script.after_trouble = true;
  return "pass";
}

std::string suffers(Script& script, const std::string&) {
  if (script.after_trouble) {
    die_by(SIGABRT);
  }
  return "pass";
}

std::string fails_from_seed_three(Script& script, const std::string& id) {
  if (std::atoi(script.seed.c_str()) < 3) {
    return "pass";
  }
  fail(script, id, "a seed below 3", script.seed.c_str());
  return "fail";
}

constexpr Scene kScenes[] = {
    {"Good.Passes", "KV-COPY-1", "copy", false, passes},
    {"Good.PassesToo", "KV-COPY-2 KV-HOST-1", "copy", false, passes},
    {"Good.Attends", "KV-ATTN-1", "attention", true, passes},
    {"Bad.Fails", "KV-COPY-1", "copy", false, fails},
    {"Bad.Segfaults", "KV-COPY-3", "copy", false, segfaults},
    {"Bad.Exits", "KV-COPY-3", "copy", false, exits},
    {"Bad.Hangs", "KV-FENCE-4", "core", false, hangs},
    {"Bad.Passes", "KV-FENCE-4", "core", false, passes},
    {"Loud.Passes", "KV-HOST-1", "core", false, passes},
    {"Loud.Prints", "KV-HOST-1", "core", false, prints},
    {"Loud.PassesToo", "KV-HOST-1", "core", false, passes},
    {"Stream.Garbage", "KV-HOST-1", "core", false, garbage},
    {"Stream.HalfLine", "KV-HOST-1", "core", false, half_line},
    {"Stream.LeavesAChild", "KV-CLOSE-1", "core", false, leaves_a_child},
    {"Odd.Inconclusive", "KV-FENCE-2", "core", false, inconclusive},
    {"Odd.SkipsItself", "KV-FENCE-2", "core", false, skips_itself},
    {"Order.MakesTrouble", "KV-QUEUE-1", "core", false, makes_trouble},
    {"Order.Suffers", "KV-QUEUE-1", "core", false, suffers},
    {"Shared.Passes", "KV-FENCE-7", "core", false, passes},
    {"Shared.MeetsNobody", "KV-FENCE-7", "core", false, meets_nobody, true},
    {"Seed.FailsFromThree", "KV-FENCE-7", "core", false, fails_from_seed_three},
};

void play_case(Script& script, const std::string& id) {
  for (const Scene& scene : kScenes) {
    if (scene.id == id) {
      say(script, R"({"record":"begin","index":0,"case":")" + id + "\"}");
      const std::string met = script.options.count("meeting") == 0
                                  ? std::string()
                                  : script.options["meeting"] + "/" + id;
      ::close(::open(met.c_str(), O_CREAT | O_WRONLY, 0600));
      if (script.options.count("naps") != 0) {
        ::usleep(150'000);  // longer than a budget of 100 ms
      }
      const std::string result = scene.play(script, id);
      ::unlink(met.c_str());
      say(script,
          R"({"record":"end","duration_ns":1000,"reason":"as scripted","result":")" + result +
              R"(","case":")" + id + "\"}");
    }
  }
}

constexpr const char* kProbe =
    R"({"record":"probe","ok":true,"devices":1,"tables":{"copy":true,"attention":ATTENTION},)"
    R"("attention":[{"k":"q8_0","v":"q4_0","head_size_k":128,"head_size_v":128,"level":"native"},)"
    R"({"k":"f16","v":"f16","head_size_k":128,"head_size_v":128,"level":"unsupported"}],)"
    R"("attention_options":{"window":"native"},"device":{"name":"scripted <one>"}})";

int play_probe(Script& script) {
  const std::string how = script.options["probe"];
  const std::string state = script.options["state"];
  const bool first = state.empty() || ::access(state.c_str(), F_OK) != 0;
  if (!state.empty()) {
    ::close(::open(state.c_str(), O_CREAT | O_WRONLY, 0600));
  }
  if (how == "hang" || (how == "once" && !first)) {
    wait_for_ever();
  }
  if (how == "segfault") {
    die_by(SIGSEGV);
  }
  if (how == "exit") {
    return 0;
  }
  if (how == "garbage") {
    say(script, "{{{");
    wait_for_ever();
  }
  if (how == "print") {
    write_text(STDERR_FILENO, "a greeting\n");
  }
  if (how == "refuse") {
    say(script,
        R"({"record":"probe","ok":false,"stage":"open","code":-1,"where":"open",)"
        R"("message":"the moon is in the wrong house"})");
    return 3;
  }
  std::string probe = kProbe;
  const std::string_view place = "ATTENTION";
  probe.replace(probe.find(place), place.size(), how == "no_attention" ? "false" : "true");
  say(script, probe);
  return 0;
}

Script read_script(int count, char** arguments) {
  Script script;
  for (int i = 2; i < count; ++i) {
    const std::string_view word = arguments[i];
    const std::string value = i + 1 < count ? arguments[i + 1] : "";
    if (word == "--probe") {
      script.probe = true;
    } else if (word == "--seed") {
      script.seed = value;
    } else if (word == "--option") {
      script.options[value.substr(0, value.find('='))] = value.substr(value.find('=') + 1);
    } else if (word == "--cases") {
      std::istringstream ids(value);
      for (std::string id; std::getline(ids, id, ':');) {
        script.cases.push_back(id);
      }
    }
  }
  return script;
}

int worker(int count, char** arguments) {
  Script script = read_script(count, arguments);
  if (script.options.count("unknown") != 0) {
    write_text(STDERR_FILENO, "kvspan-conformance --worker: nobody knows this option\n");
    return 64;
  }
  say(script, R"({"record":"start","schema":1})");
  if (script.probe) {
    return play_probe(script);
  }
  if (script.options.count("silent") != 0) {
    return 0;
  }
  for (const std::string& id : script.cases) {
    play_case(script, id);
  }
  say(script, R"({"record":"done","executed":0})");
  return 0;
}

SuiteCase suite_case(const Scene& scene) {
  SuiteCase one;
  one.id = scene.id;
  std::istringstream rules(scene.rules);
  for (std::string rule; rules >> rule;) {
    one.rules.push_back(rule);
  }
  one.profile = scene.profile;
  one.takes_tuple = one.profile == "attention";
  one.runs_alone = scene.runs_alone;
  if (scene.needs_attention) {
    one.needs = {"attention"};
    one.unmet = [](const nlohmann::json& probe) -> std::string {
      const auto tables = probe.value("tables", nlohmann::json::object());
      return tables.value("attention", false) ? "" : "the plugin offers no attention table";
    };
  }
  return one;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--worker") {
    return worker(argc, argv);
  }
  Suite suite;
  for (const Scene& scene : kScenes) {
    suite.cases.push_back(suite_case(scene));
  }
  suite.worker = {"/proc/self/exe", {"--worker"}};
  return kvspan::runner::parent_main(suite, argc, argv);
}
