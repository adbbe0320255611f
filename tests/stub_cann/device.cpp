// Devices, contexts, core limits, errors and versions.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <unistd.h>
#include <utility>

#include "stub.h"

namespace {

double number(const char* name, double otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::strtod(text, nullptr) : otherwise;
}

std::string text(const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return value && *value ? value : otherwise;
}

struct Fault {
    std::string kind;  // empty for none
    long at;           // from its n-th occasion on
};

// What STUB_CANN_FAULT says, or the file whose name follows its "@".
Fault fault_of_environment() {
    std::string words = text("STUB_CANN_FAULT", "");
    if (words[0] == '@') {
        std::ifstream file(words.substr(1));
        words.clear();
        file >> words;
    }
    size_t colon = words.find(':');
    long at = colon == std::string::npos ? 1 : std::strtol(words.c_str() + colon + 1, nullptr, 10);
    return {words == "none" ? "" : words.substr(0, colon), at};
}

std::mutex mutex;
std::map<std::string, long> counts;
std::map<std::string, long> occasions;
std::atomic<bool> is_lost{false};

struct Limits { unsigned cube, vector; };
std::map<int, Limits> device_limits;
std::map<void*, Limits> stream_limits;

thread_local int device = -1;
thread_local std::string last_error;
thread_local aclError last_code = ACL_SUCCESS;

constexpr char kCompileOption[] = "disable";  // of every option that can be asked for

int contexts[stub::kMaxDevices];  // their addresses stand for the contexts

Limits hardware() { return {stub::settings().cube, stub::settings().vector}; }

aclError set_limit(Limits& limits, aclrtDevResLimitType type, uint32_t value) {
    unsigned most = type == ACL_RT_DEV_RES_CUBE_CORE ? hardware().cube : hardware().vector;
    if (value > most)
        return stub::fail(ACL_ERROR_RT_PARAM_INVALID, "EE1003: limit " + std::to_string(value) +
                                                          " is above " + std::to_string(most));
    (type == ACL_RT_DEV_RES_CUBE_CORE ? limits.cube : limits.vector) = value;
    return ACL_SUCCESS;
}

aclError get_limit(const Limits& limits, aclrtDevResLimitType type, uint32_t* value) {
    Limits shown = stub::fault("limit_readback") ? hardware() : limits;
    *value = type == ACL_RT_DEV_RES_CUBE_CORE ? shown.cube : shown.vector;
    return ACL_SUCCESS;
}

template <class Map>
Limits& limits_of(Map& map, typename Map::key_type key, Limits otherwise) {
    return map.emplace(key, otherwise).first->second;
}

}  // namespace

namespace stub {

const Settings& settings() {
    static const Settings* made = [] {
        auto* s = new Settings;
        s->soc = text("STUB_CANN_SOC", "Ascend910B2");
        s->devices = std::min<int>(kMaxDevices, number("STUB_CANN_DEVICES", 1));
        s->memory_bytes = static_cast<size_t>(number("STUB_CANN_HBM_BYTES", 2.0 * (1ull << 30)));
        s->cube = number("STUB_CANN_CUBE", 24);
        s->vector = number("STUB_CANN_VECTOR", 48);
        s->copy_latency_s = number("STUB_CANN_COPY_LATENCY_US", 0) * 1e-6;
        s->copy_bytes_per_s = number("STUB_CANN_COPY_GB_PER_S", 0) * 1e9;
        return s;
    }();
    return *made;
}

bool fault(const char* kind) {
    static const Fault wanted = fault_of_environment();  // when one could first happen
    if (wanted.kind != kind) return false;
    std::lock_guard<std::mutex> lock(mutex);
    return ++occasions[kind] >= wanted.at;
}

aclError fail(aclError code, const std::string& text) {
    last_error = "stub CANN: " + text + " [error " + std::to_string(code) + "]";
    last_code = code;
    return code;
}

void lose_device() { is_lost = true; }

aclError lost() {
    return is_lost ? fail(ACL_ERROR_RT_LOST_HEARTBEAT, "the device is lost") : ACL_SUCCESS;
}

void count(const char* name, long by) {
    std::lock_guard<std::mutex> lock(mutex);
    counts[name] += by;
}

int current_device() { return device; }

}  // namespace stub

// For the tests: how often something was called in this process.
STUB_API long stub_count(const char* name) {
    std::lock_guard<std::mutex> lock(mutex);
    return counts[name];
}

// What every symbol ends in that this stub does not implement.
STUB_API int stub_missing(const char* name) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (counts[name]++ == 0) std::fprintf(stderr, "stub CANN: %s is not implemented\n", name);
    }
    return stub::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, std::string(name) + " is not implemented");
}

STUB_API aclError aclInit(const char*) { return ACL_SUCCESS; }
STUB_API aclError aclFinalize() { return ACL_SUCCESS; }
STUB_API void aclAppLog(aclLogLevel, const char*, const char*, uint32_t, const char*, ...) {}
STUB_API const char* aclGetRecentErrMsg() {
    static thread_local std::string handed_out;
    handed_out.swap(last_error);
    last_error.clear();
    return handed_out.c_str();
}
STUB_API aclError aclrtGetLastError(aclrtLastErrLevel) { return std::exchange(last_code, ACL_SUCCESS); }
STUB_API aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return last_code; }

STUB_API const char* aclrtGetSocName() { return stub::settings().soc.c_str(); }
STUB_API aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
    std::memset(version, 0, sizeof *version);
    std::strcpy(version->version, "8.5.0.stub");  // says what it is wherever a version is shown
    std::strcpy(version->majorVersion, "8");
    std::strcpy(version->minorVersion, "5");
    std::strcpy(version->releaseVersion, "0");
    return ACL_SUCCESS;
}
STUB_API aclError aclsysGetVersionStr(char*, char* version) {
    std::strcpy(version, "8.5.0.stub");
    return ACL_SUCCESS;
}

STUB_API aclError aclrtGetDeviceCount(uint32_t* count) {
    *count = stub::settings().devices;
    return ACL_SUCCESS;
}
STUB_API aclError aclrtSetDevice(int32_t id) {
    if (aclError error = stub::lost()) return error;
    if (id < 0 || id >= stub::settings().devices)
        return stub::fail(ACL_ERROR_RT_PARAM_INVALID, "no device " + std::to_string(id));
    device = id;
    return ACL_SUCCESS;
}
STUB_API aclError aclrtResetDevice(int32_t) { return ACL_SUCCESS; }
STUB_API aclError aclrtGetDevice(int32_t* id) {
    if (device < 0) return stub::fail(ACL_ERROR_RT_CONTEXT_NULL, "no device was set");
    *id = device;
    return ACL_SUCCESS;
}
STUB_API aclError aclrtGetCurrentContext(aclrtContext* context) {
    STUB_NEEDS_DEVICE;
    *context = &contexts[device];
    return ACL_SUCCESS;
}
STUB_API aclError aclrtSetCurrentContext(aclrtContext context) {
    device = static_cast<int>(static_cast<int*>(context) - contexts);
    return ACL_SUCCESS;
}
STUB_API aclError aclrtGetPrimaryCtxState(int32_t id, uint32_t* flags, int32_t* active) {
    if (flags) *flags = 0;
    *active = id == device;
    return ACL_SUCCESS;
}
STUB_API aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr attr, int64_t* value) {
    switch (attr) {
        case ACL_DEV_ATTR_AICORE_CORE_NUM:
        case ACL_DEV_ATTR_CUBE_CORE_NUM: *value = hardware().cube; break;
        case ACL_DEV_ATTR_VECTOR_CORE_NUM: *value = hardware().vector; break;
        case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE: *value = stub::settings().memory_bytes; break;
        default: *value = 0;
    }
    return ACL_SUCCESS;
}
STUB_API aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo info, int64_t* value) {
    *value = info == ACL_DEVICE_INFO_VECTOR_CORE_NUM ? hardware().vector : hardware().cube;
    return ACL_SUCCESS;
}
STUB_API aclError aclrtDeviceGetUuid(int32_t id, aclrtUuid* uuid) {
    std::memset(uuid, id, sizeof *uuid);
    return ACL_SUCCESS;
}
STUB_API aclError aclrtDeviceGetBareTgid(int32_t* pid) {
    *pid = getpid();
    return ACL_SUCCESS;
}
STUB_API aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
    *can = 0;
    return ACL_SUCCESS;
}

STUB_API aclError aclrtSetDeviceResLimit(int32_t id, aclrtDevResLimitType type, uint32_t value) {
    STUB_NEEDS_DEVICE;
    std::lock_guard<std::mutex> lock(mutex);
    return set_limit(limits_of(device_limits, id, hardware()), type, value);
}
STUB_API aclError aclrtGetDeviceResLimit(int32_t id, aclrtDevResLimitType type, uint32_t* value) {
    std::unique_lock<std::mutex> lock(mutex);
    Limits limits = limits_of(device_limits, id, hardware());
    lock.unlock();
    return get_limit(limits, type, value);
}
STUB_API aclError aclrtResetDeviceResLimit(int32_t id) {
    std::lock_guard<std::mutex> lock(mutex);
    device_limits.erase(id);
    return ACL_SUCCESS;
}
STUB_API aclError aclrtSetStreamResLimit(aclrtStream stream, aclrtDevResLimitType type, uint32_t value) {
    STUB_NEEDS_DEVICE;
    std::lock_guard<std::mutex> lock(mutex);
    return set_limit(limits_of(stream_limits, stream, hardware()), type, value);
}
STUB_API aclError aclrtGetStreamResLimit(aclrtStream stream, aclrtDevResLimitType type, uint32_t* value) {
    std::unique_lock<std::mutex> lock(mutex);
    Limits limits = limits_of(stream_limits, stream, limits_of(device_limits, device, hardware()));
    lock.unlock();
    return get_limit(limits, type, value);
}
STUB_API aclError aclrtResetStreamResLimit(aclrtStream stream) {
    std::lock_guard<std::mutex> lock(mutex);
    stream_limits.erase(stream);
    return ACL_SUCCESS;
}
STUB_API aclError aclrtUseStreamResInCurrentThread(aclrtStream) { return ACL_SUCCESS; }
STUB_API aclError aclrtUnuseStreamResInCurrentThread(aclrtStream) { return ACL_SUCCESS; }

// Settings that change nothing on a stand-in.
STUB_API aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }
STUB_API aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }
STUB_API aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }
STUB_API aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }
STUB_API size_t aclGetCompileoptSize(aclCompileOpt) { return sizeof kCompileOption; }
STUB_API aclError aclGetCompileopt(aclCompileOpt, char* value, size_t size) {
    std::snprintf(value, size, "%s", kCompileOption);
    return ACL_SUCCESS;
}
STUB_API aclError aclrtCtxSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_SUCCESS; }
STUB_API aclError aclrtSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_SUCCESS; }
STUB_API aclError aclrtGetSysParamOpt(aclSysParamOpt, int64_t* value) {
    *value = 0;
    return ACL_SUCCESS;
}
