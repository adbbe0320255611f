// Streams, each a thread of its own, events on them, and copies through them.
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "stub.h"

namespace {

class Stream {
public:
    Stream() : worker_([this] { run(); }) {}

    void push(stub::Task task) {
        std::lock_guard<std::mutex> lock(mutex_);
        tasks_.push_back(std::move(task));
        wake_.notify_one();
    }

    bool is_idle() {
        std::lock_guard<std::mutex> lock(mutex_);
        return tasks_.empty() && !is_busy_;
    }

    bool wait(double limit_s = INFINITY) {
        std::unique_lock<std::mutex> lock(mutex_);
        auto done = [this] { return tasks_.empty() && !is_busy_; };
        if (std::isinf(limit_s)) return idle_.wait(lock, done), true;
        return idle_.wait_for(lock, std::chrono::duration<double>(limit_s), done);
    }

    void end() {
        push([this] { is_ending_ = true; });
        worker_.join();
    }

private:
    void run() {
        prctl(PR_SET_TIMERSLACK, 1);  // sleeps are as long as declared, to some microseconds
        std::unique_lock<std::mutex> lock(mutex_);
        while (!is_ending_) {
            wake_.wait(lock, [this] { return !tasks_.empty(); });
            stub::Task task = std::move(tasks_.front());
            tasks_.pop_front();
            is_busy_ = true;
            lock.unlock();
            task();
            lock.lock();
            is_busy_ = false;
            if (tasks_.empty()) idle_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, idle_;
    std::deque<stub::Task> tasks_;
    bool is_busy_ = false, is_ending_ = false;
    std::thread worker_;
};

class Event {
public:
    uint64_t request() {
        std::lock_guard<std::mutex> lock(mutex_);
        return ++requested_;
    }
    uint64_t requested() {
        std::lock_guard<std::mutex> lock(mutex_);
        return requested_;
    }
    void complete(uint64_t number) {
        std::lock_guard<std::mutex> lock(mutex_);
        completed_ = std::max(completed_, number);
        at_s_ = stub::now_s();
        changed_.notify_all();
    }
    void wait(uint64_t number) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return completed_ >= number; });
    }
    bool is_complete() {
        std::lock_guard<std::mutex> lock(mutex_);
        return completed_ >= requested_;
    }
    double at_s() {
        std::lock_guard<std::mutex> lock(mutex_);
        return at_s_;
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    uint64_t requested_ = 0, completed_ = 0;
    double at_s_ = 0;
};

using Shared = std::shared_ptr<Event>;
Shared& event_of(aclrtEvent handle) { return *static_cast<Shared*>(handle); }

std::mutex mutex;
std::mutex copy_engine;  // copies of several streams take turns
std::set<Stream*> streams;
std::map<int, Stream*> default_streams;

Stream* stream_of(aclrtStream handle) {
    if (handle) return static_cast<Stream*>(handle);
    std::lock_guard<std::mutex> lock(mutex);
    Stream*& found = default_streams[stub::current_device()];
    if (!found) streams.insert(found = new Stream);
    return found;
}

void hang_if_asked() {
    if (stub::fault("sync_hang"))
        for (;;) pause();
}

struct Copy { void* target; const void* source; size_t bytes; };

void run_copies(const std::vector<Copy>& copies) {
    size_t bytes = 0;
    for (const Copy& copy : copies) bytes += copy.bytes;
    std::lock_guard<std::mutex> lock(copy_engine);
    stub::pass_copy_time(bytes);
    for (const Copy& copy : copies) std::memcpy(copy.target, copy.source, copy.bytes);
}

aclError copy_faults(bool is_upload) {
    if (!is_upload) return ACL_SUCCESS;
    if (stub::fault("copy_error")) return stub::fail(ACL_ERROR_RT_COPY_DATA, "the copy failed");
    if (stub::fault("device_lost")) stub::lose_device();
    return stub::lost();
}

// Copies of one call. From or to pageable memory it is over when the call returns.
aclError copy(std::vector<Copy> copies, aclrtStream stream, bool waits) {
    bool is_upload = false, crosses = false;
    for (const Copy& c : copies) {
        bool to = stub::is_device_memory(c.target), from = stub::is_device_memory(c.source);
        is_upload |= to && !from;
        crosses |= to != from;
        waits |= to != from && !stub::is_pinned(to ? c.source : c.target);
    }
    if (is_upload) stub::count("copies_to_device");
    if (aclError error = copy_faults(is_upload)) return error;
    auto task = [copies = std::move(copies), crosses] {
        if (crosses) return run_copies(copies);
        for (const Copy& c : copies) std::memmove(c.target, c.source, c.bytes);
    };
    stream_of(stream)->push(std::move(task));
    if (waits) stream_of(stream)->wait();
    return ACL_SUCCESS;
}

aclError copy_batch(void** targets, size_t* room, void** sources, size_t* sizes, size_t count,
                    aclrtMemcpyBatchAttr* attrs, size_t* indexes, size_t attr_count,
                    aclrtStream stream, bool waits) {
    STUB_NEEDS_DEVICE;
    stub::count("batch_calls");
    if (stub::fault("batch_unsupported"))
        return stub::fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "no batch copy on this device");
    if (count == 0 || count > 4096 || attr_count == 0 || indexes[0] != 0)
        return stub::fail(ACL_ERROR_RT_PARAM_INVALID, "bad number of entries or indexes");
    for (size_t i = 0; i < attr_count; ++i) {
        for (uint8_t reserved : attrs[i].rsv)
            if (reserved) return stub::fail(ACL_ERROR_INVALID_PARAM, "rsv must be zero");
        if (attrs[i].dstLoc.type != attrs[0].dstLoc.type)
            return stub::fail(ACL_ERROR_RT_PARAM_INVALID, "two directions in one call");
    }
    std::vector<Copy> copies;
    for (size_t i = 0; i < count; ++i) {
        if (sizes[i] > room[i]) return stub::fail(ACL_ERROR_INVALID_PARAM, "size above destMax");
        copies.push_back({targets[i], sources[i], sizes[i]});
    }
    stub::count("batch_entries", static_cast<long>(count));
    return copy(std::move(copies), stream, waits);
}

}  // namespace

namespace stub {

void enqueue(aclrtStream stream, Task task) { stream_of(stream)->push(std::move(task)); }

aclError synchronize(aclrtStream stream) {
    hang_if_asked();
    if (aclError error = lost()) return error;
    stream_of(stream)->wait();
    return lost();
}

aclError synchronize_all() {
    hang_if_asked();
    std::vector<Stream*> all;
    {
        std::lock_guard<std::mutex> lock(mutex);
        all.assign(streams.begin(), streams.end());
    }
    for (Stream* stream : all) stream->wait();
    return lost();
}

void pass_copy_time(size_t bytes) {
    const Settings& s = settings();
    double time_s = s.copy_latency_s + (s.copy_bytes_per_s > 0 ? bytes / s.copy_bytes_per_s : 0);
    if (time_s <= 0) return;
    auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(time_s);
    std::this_thread::sleep_until(until);
}

}  // namespace stub

STUB_API aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
    STUB_NEEDS_DEVICE;
    std::lock_guard<std::mutex> lock(mutex);
    *stream = *streams.insert(new Stream).first;
    return ACL_SUCCESS;
}
STUB_API aclError aclrtCreateStream(aclrtStream* stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }
STUB_API aclError aclrtDestroyStream(aclrtStream stream) {
    auto* found = static_cast<Stream*>(stream);
    {
        std::lock_guard<std::mutex> lock(mutex);
        streams.erase(found);
    }
    found->end();
    delete found;
    return ACL_SUCCESS;
}
STUB_API aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }
STUB_API aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
    STUB_NEEDS_DEVICE;
    *status = stream_of(stream)->is_idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return ACL_SUCCESS;
}
STUB_API aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
    *id = static_cast<int32_t>(reinterpret_cast<uintptr_t>(stream_of(stream)) >> 4 & 0x7fffffff);
    return ACL_SUCCESS;
}
STUB_API aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }
STUB_API aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) { return ACL_SUCCESS; }
STUB_API aclError aclrtSetStreamAttribute(aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*) { return ACL_SUCCESS; }
STUB_API aclError aclrtSynchronizeStream(aclrtStream stream) {
    STUB_NEEDS_DEVICE;
    return stub::synchronize(stream);
}
STUB_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout_ms) {
    STUB_NEEDS_DEVICE;
    if (timeout_ms < 0) return stub::synchronize(stream);
    hang_if_asked();
    bool is_done = stream_of(stream)->wait(timeout_ms * 1e-3);
    return is_done ? stub::lost() : stub::fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "stream sync timeout");
}
STUB_API aclError aclrtSynchronizeDevice() {
    STUB_NEEDS_DEVICE;
    return stub::synchronize_all();
}
STUB_API aclError aclrtSynchronizeDeviceWithTimeout(int32_t) {
    STUB_NEEDS_DEVICE;
    return stub::synchronize_all();
}

STUB_API aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) {
    *event = new Shared(std::make_shared<Event>());
    return ACL_SUCCESS;
}
STUB_API aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) { return aclrtCreateEventExWithFlag(event, flag); }
STUB_API aclError aclrtDestroyEvent(aclrtEvent event) {
    delete &event_of(event);
    return ACL_SUCCESS;
}
STUB_API aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
    STUB_NEEDS_DEVICE;
    Shared shared = event_of(event);
    uint64_t number = shared->request();
    stream_of(stream)->push([shared, number] { shared->complete(number); });
    return ACL_SUCCESS;
}
STUB_API aclError aclrtResetEvent(aclrtEvent, aclrtStream) { return ACL_SUCCESS; }
STUB_API aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
    STUB_NEEDS_DEVICE;
    Shared shared = event_of(event);
    uint64_t number = shared->requested();
    stream_of(stream)->push([shared, number] { shared->wait(number); });
    return ACL_SUCCESS;
}
STUB_API aclError aclrtSynchronizeEvent(aclrtEvent event) {
    STUB_NEEDS_DEVICE;
    hang_if_asked();
    event_of(event)->wait(event_of(event)->requested());
    return stub::lost();
}
STUB_API aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
    *status = event_of(event)->is_complete() ? ACL_EVENT_RECORDED_STATUS_COMPLETE
                                             : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return ACL_SUCCESS;
}
STUB_API aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
    *status = event_of(event)->is_complete() ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
    return ACL_SUCCESS;
}
STUB_API aclError aclrtEventElapsedTime(float* ms, aclrtEvent start, aclrtEvent end) {
    if (!event_of(start)->is_complete() || !event_of(end)->is_complete())
        return stub::fail(ACL_ERROR_RT_EVENT_NOT_COMPLETE, "the events are not complete");
    *ms = static_cast<float>((event_of(end)->at_s() - event_of(start)->at_s()) * 1e3);
    return ACL_SUCCESS;
}
STUB_API aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* timestamp) {
    *timestamp = static_cast<uint64_t>(event_of(event)->at_s() * 1e6);
    return ACL_SUCCESS;
}

STUB_API aclError aclrtMemcpyAsync(void* target, size_t room, const void* source, size_t bytes,
                                   aclrtMemcpyKind, aclrtStream stream) {
    STUB_NEEDS_DEVICE;
    if (bytes > room) return stub::fail(ACL_ERROR_INVALID_PARAM, "size above destMax");
    return copy({{target, source, bytes}}, stream, false);
}
STUB_API aclError aclrtMemcpy(void* target, size_t room, const void* source, size_t bytes, aclrtMemcpyKind kind) {
    STUB_NEEDS_DEVICE;
    if (bytes > room) return stub::fail(ACL_ERROR_INVALID_PARAM, "size above destMax");
    if (aclError error = stub::synchronize_all()) return error;
    return copy({{target, source, bytes}}, nullptr, true);
}
STUB_API aclError aclrtMemcpyBatch(void** targets, size_t* room, void** sources, size_t* sizes, size_t count,
                                   aclrtMemcpyBatchAttr* attrs, size_t* indexes, size_t attr_count, size_t*) {
    return copy_batch(targets, room, sources, sizes, count, attrs, indexes, attr_count, nullptr, true);
}
STUB_API aclError aclrtMemcpyBatchAsync(void** targets, size_t* room, void** sources, size_t* sizes, size_t count,
                                        aclrtMemcpyBatchAttr* attrs, size_t* indexes, size_t attr_count,
                                        size_t*, aclrtStream stream) {
    return copy_batch(targets, room, sources, sizes, count, attrs, indexes, attr_count, stream, false);
}
STUB_API aclError aclrtMemset(void* pointer, size_t room, int32_t value, size_t bytes) {
    if (bytes > room) return stub::fail(ACL_ERROR_INVALID_PARAM, "size above destMax");
    std::memset(pointer, value, bytes);
    return ACL_SUCCESS;
}
STUB_API aclError aclrtMemsetAsync(void* pointer, size_t room, int32_t value, size_t bytes, aclrtStream stream) {
    STUB_NEEDS_DEVICE;
    if (bytes > room) return stub::fail(ACL_ERROR_INVALID_PARAM, "size above destMax");
    stub::enqueue(stream, [=] { std::memset(pointer, value, bytes); });
    return ACL_SUCCESS;
}
