// Device and pinned host memory, both in host memory; what a device has is shared by processes.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

#include "stub.h"

namespace {

constexpr int kSlots = 256;
constexpr size_t kAlign = 512;

// One process's share of the devices' memory, in the file STUB_CANN_STATE if there is one.
struct Slot {
    std::atomic<int> pid;
    std::atomic<long> used[stub::kMaxDevices];
};

Slot* slots() {
    static Slot* table = [] {
        size_t size = sizeof(Slot) * kSlots;
        const char* path = std::getenv("STUB_CANN_STATE");
        int fd = path && *path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
        bool is_shared = fd >= 0 && ftruncate(fd, static_cast<off_t>(size)) == 0;
        int flags = is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
        void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, is_shared ? fd : -1, 0);
        if (fd >= 0) close(fd);
        return memory == MAP_FAILED ? nullptr : static_cast<Slot*>(memory);
    }();
    return table;
}

bool is_dead(int pid) { return pid != getpid() && kill(pid, 0) != 0; }

Slot* own_slot() {
    static Slot* own = nullptr;
    if (own && own->pid == getpid()) return own;  // not so after a fork
    for (int i = 0; i < kSlots; ++i) {
        int holder = slots()[i].pid;
        if ((holder == 0 || is_dead(holder)) && slots()[i].pid.compare_exchange_strong(holder, getpid())) {
            for (auto& used : slots()[i].used) used = 0;
            return own = &slots()[i];
        }
    }
    std::abort();  // more processes than a test can mean to have
}

long used_bytes(int device) {
    long sum = 0;
    for (int i = 0; i < kSlots; ++i) {
        int pid = slots()[i].pid;
        if (pid != 0 && !is_dead(pid)) sum += slots()[i].used[device];
    }
    return sum;
}

std::mutex mutex;
std::map<uintptr_t, std::pair<size_t, int>> on_device;  // start -> size, device
std::map<uintptr_t, size_t> pinned;

template <class Map, class Size>
bool is_inside(const Map& map, const void* pointer, Size size_of) {
    auto address = reinterpret_cast<uintptr_t>(pointer);
    std::lock_guard<std::mutex> lock(mutex);
    auto after = map.upper_bound(address);
    if (after == map.begin()) return false;
    auto found = std::prev(after);
    return address < found->first + size_of(found->second);
}

size_t rounded(size_t size) { return (std::max<size_t>(size, 1) + kAlign - 1) / kAlign * kAlign; }

}  // namespace

namespace stub {

bool is_device_memory(const void* pointer) {
    return is_inside(on_device, pointer, [](const auto& entry) { return entry.first; });
}

bool is_pinned(const void* pointer) {
    return is_inside(pinned, pointer, [](size_t size) { return size; });
}

}  // namespace stub

STUB_API aclError aclrtMalloc(void** pointer, size_t size, aclrtMemMallocPolicy) {
    STUB_NEEDS_DEVICE;
    stub::count("malloc");
    int device = stub::current_device();
    long before = used_bytes(device);
    size = rounded(size);
    if (stub::fault("oom") || before + size > stub::settings().memory_bytes)
        return stub::fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "EL0004: Failed to allocate memory");
    *pointer = std::aligned_alloc(kAlign, size);
    if (!*pointer) return stub::fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host has no memory left");
    own_slot()->used[device] += size;
    std::lock_guard<std::mutex> lock(mutex);
    on_device[reinterpret_cast<uintptr_t>(*pointer)] = {size, device};
    return ACL_SUCCESS;
}
STUB_API aclError aclrtMallocAlign32(void** pointer, size_t size, aclrtMemMallocPolicy policy) {
    return aclrtMalloc(pointer, size, policy);
}
STUB_API aclError aclrtFree(void* pointer) {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = on_device.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == on_device.end()) return stub::fail(ACL_ERROR_RT_PARAM_INVALID, "not device memory");
    own_slot()->used[found->second.second] -= found->second.first;
    on_device.erase(found);
    std::free(pointer);
    return ACL_SUCCESS;
}
STUB_API aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
    STUB_NEEDS_DEVICE;
    *total = stub::settings().memory_bytes;
    *free = *total - std::min<size_t>(*total, used_bytes(stub::current_device()));
    return ACL_SUCCESS;
}

STUB_API aclError aclrtMallocHost(void** pointer, size_t size) {
    size = rounded(size);
    *pointer = std::aligned_alloc(kAlign, size);
    if (!*pointer) return stub::fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no pinned memory");
    std::lock_guard<std::mutex> lock(mutex);
    pinned[reinterpret_cast<uintptr_t>(*pointer)] = size;
    return ACL_SUCCESS;
}
STUB_API aclError aclrtMallocHostWithCfg(void** pointer, uint64_t size, aclrtMallocConfig*) {
    return aclrtMallocHost(pointer, size);
}
STUB_API aclError aclrtFreeHost(void* pointer) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!pinned.erase(reinterpret_cast<uintptr_t>(pointer)))
        return stub::fail(ACL_ERROR_RT_PARAM_INVALID, "not pinned memory");
    std::free(pointer);
    return ACL_SUCCESS;
}
STUB_API aclError aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* attributes) {
    std::memset(attributes, 0, sizeof *attributes);
    attributes->location.type = stub::is_device_memory(pointer) ? ACL_MEM_LOCATION_TYPE_DEVICE
                                : stub::is_pinned(pointer)      ? ACL_MEM_LOCATION_TYPE_HOST
                                                                : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    return ACL_SUCCESS;
}
