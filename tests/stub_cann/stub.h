// A stand-in for the CANN runtime: "device" memory is host memory, streams are threads.
// What it declares about itself comes from STUB_CANN_* variables; see README.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "acl/acl.h"
#include "acl/acl_op_compiler.h"
#include "acl/acl_rt.h"

namespace stub {

constexpr int kMaxDevices = 8;

struct Settings {
    std::string soc;
    int devices;
    size_t memory_bytes;
    unsigned cube, vector;
    double copy_latency_s, copy_bytes_per_s;
};

const Settings& settings();

/** Count an occasion on which a fault of this kind could happen; true if it happens now. */
bool fault(const char* kind);

/** Remember the thread's last error; returns `code`. */
aclError fail(aclError code, const std::string& text);

/** The error of a device that has been lost, ACL_SUCCESS while it is there. */
aclError lost();
void lose_device();

/** Count a call under a name, for the tests: see stub_count in device.cpp. */
void count(const char* name, long by = 1);

int current_device();  // of the calling thread, -1 before any was set

// Memory
bool is_device_memory(const void* pointer);
bool is_pinned(const void* pointer);

// Streams
using Task = std::function<void()>;
void enqueue(aclrtStream stream, Task task);
aclError synchronize(aclrtStream stream);
aclError synchronize_all();

/** Let the time of one copy call pass. */
void pass_copy_time(size_t bytes);

inline double now_s() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace stub

#define STUB_API extern "C" __attribute__((visibility("default")))
#define STUB_NEEDS_DEVICE                              \
    if (aclError error_ = stub::lost()) return error_; \
    if (stub::current_device() < 0) return stub::fail(ACL_ERROR_RT_CONTEXT_NULL, "no device was set")
