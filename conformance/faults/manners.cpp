// SPDX-License-Identifier: Apache-2.0
// Faults of manners: what a plugin does to the process that it is a guest of. Each acts once, when
// its device is opened, and leaves what it did.
#include "fault_list.hpp"

#include <cfenv>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xmmintrin.h>

namespace kvspan::faults {
namespace {

void on_open(Layer& layer, void (*act)()) {
  layer.calls.open = [&layer, act, next = layer.calls.open](
                         void* self, uint32_t index, kvspan_device_t** out, kvspan_error_t* error) {
    const kvspan_result_t result = next(self, index, out, error);
    if (result == KVSPAN_OK) {
      act();
      layer.ran();
    }
    return result;
  };
}

void write_to(int descriptor, std::string_view text) {
  static_cast<void>(!::write(descriptor, text.data(), text.size()));
}

void prints_to_stdout(Layer& layer) {
  on_open(layer, [] { write_to(STDOUT_FILENO, "found 1 device\n"); });
}

void prints_to_stderr(Layer& layer) {
  on_open(layer, [] { write_to(STDERR_FILENO, "warning: using default settings\n"); });
}

/// Numerics by an environment variable.
void reads_the_environment(Layer& layer) {
  on_open(layer, [] { static_cast<void>(std::getenv("KVSPAN_FAST_MATH")); });
}

void sets_the_environment(Layer& layer) {
  on_open(layer, [] { setenv("OMP_NUM_THREADS", "1", 1); });
}

void flushes_subnormals_of_the_caller(Layer& layer) {
  on_open(layer, [] { _mm_setcsr(_mm_getcsr() | 0x8040u); });
}

void changes_the_rounding_mode(Layer& layer) {
  on_open(layer, [] { std::fesetround(FE_TOWARDZERO); });
}

void changes_the_signal_mask(Layer& layer) {
  on_open(layer, [] {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  });
}

void replaces_a_signal_handler(Layer& layer) {
  on_open(layer, [] { std::signal(SIGUSR2, SIG_IGN); });
}

void leaks_a_descriptor(Layer& layer) {
  on_open(layer, [] { static_cast<void>(::open("/dev/null", O_RDONLY | O_CLOEXEC)); });
}

void leaks_a_mapping(Layer& layer) {
  on_open(layer, [] {
    static_cast<void>(mmap(nullptr,
                           std::size_t{16} << 20,
                           PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS,
                           -1,
                           0));
  });
}

void registers_an_exit_handler(Layer& layer) {
  on_open(layer, [] { std::atexit([] {}); });
}

void changes_the_directory(Layer& layer) {
  on_open(layer, [] { static_cast<void>(!chdir("/")); });
}

void changes_the_file_mode_mask(Layer& layer) {
  on_open(layer, [] { umask(0077); });
}

void changes_the_locale(Layer& layer) {
  on_open(layer, [] { static_cast<void>(std::setlocale(LC_NUMERIC, "C.UTF-8")); });
}

void replaces_the_terminate_handler(Layer& layer) {
  on_open(layer, [] { std::set_terminate([] { std::abort(); }); });
}

/// Ends the process where an error would do.
void exits_when_out_of_memory(Layer& layer) {
  layer.calls.alloc = [&layer, next = layer.calls.alloc](
                          auto* device, auto kind, auto bytes, auto** out, auto* error) {
    const kvspan_result_t result = next(device, kind, bytes, out, error);
    if (result == KVSPAN_E_DEVICE_MEMORY || result == KVSPAN_E_HOST_MEMORY) {
      layer.ran();
      ::_exit(1);
    }
    return result;
  };
}

void aborts_on_a_refusal(Layer& layer) {
  layer.calls.alloc = [&layer, next = layer.calls.alloc](
                          auto* device, auto kind, auto bytes, auto** out, auto* error) {
    const kvspan_result_t result = next(device, kind, bytes, out, error);
    if (result == KVSPAN_E_INVALID_ARG) {
      layer.ran();
      std::abort();
    }
    return result;
  };
}

/// Writes lines of the log with their line ends.
void logs_with_a_line_end(Layer& layer) {
  layer.calls.close_plugin = [&layer, next = layer.calls.close_plugin](kvspan_error_t* error) {
    constexpr std::string_view kText = "closing\n";
    layer.host->log(
        layer.host->self, KVSPAN_LOG_ERROR, kText.data(), static_cast<uint32_t>(kText.size()));
    layer.ran();
    return next(error);
  };
}

constexpr Fault kFaults[] = {
    {"prints_to_stdout", prints_to_stdout},
    {"prints_to_stderr", prints_to_stderr},
    {"reads_the_environment", reads_the_environment},
    {"sets_the_environment", sets_the_environment},
    {"flushes_subnormals_of_the_caller", flushes_subnormals_of_the_caller},
    {"changes_the_rounding_mode", changes_the_rounding_mode},
    {"changes_the_signal_mask", changes_the_signal_mask},
    {"replaces_a_signal_handler", replaces_a_signal_handler},
    {"leaks_a_descriptor", leaks_a_descriptor},
    {"leaks_a_mapping", leaks_a_mapping},
    {"registers_an_exit_handler", registers_an_exit_handler},
    {"changes_the_directory", changes_the_directory},
    {"changes_the_file_mode_mask", changes_the_file_mode_mask},
    {"changes_the_locale", changes_the_locale},
    {"replaces_the_terminate_handler", replaces_the_terminate_handler},
    {"exits_when_out_of_memory", exits_when_out_of_memory},
    {"aborts_on_a_refusal", aborts_on_a_refusal},
    {"logs_with_a_line_end", logs_with_a_line_end},
};

}  // namespace

std::span<const Fault> manners_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
