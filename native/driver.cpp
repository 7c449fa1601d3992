// From a tensor to chunks: segments, threads, and the choice of the instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <mutex>
#include <optional>
#include <vector>

#include "gather.h"
#include "pair.h"
#include "pool.h"
#include "stats.h"
#include "subnormals.h"

namespace graphprobe {
namespace {

// ---- instruction sets -----------------------------------------------------------------------------------------------

struct Choice {
    const char* name;
    ChunkFunction chunk;
    PairFunction pair;
    BlockFunction copy;
};

bool available(const char* name) {
    if (!strcmp(name, "baseline")) return true;
#if GRAPHPROBE_X86
    __builtin_cpu_init();
    const bool two = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool five = two && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (!strcmp(name, "avx2")) return two;
    if (!strcmp(name, "avx512")) return five;
#endif
    return false;
}

constexpr Choice choices[] = {
#if GRAPHPROBE_X86
    {"avx512", avx512::chunk, avx2::pair, avx512::copy_block},  // wider, a comparison of two tensors is hardly faster
    {"avx2", avx2::chunk, avx2::pair, avx2::copy_block},
#endif
    {"baseline", baseline::chunk, baseline::pair, baseline::copy_block},
};

const Choice* best() {
    for (const Choice& choice : choices)
        if (available(choice.name)) return &choice;
    return nullptr;
}

const Choice* chosen = best();

// ---- segments -------------------------------------------------------------------------------------------------------

struct Work {
    Task task;
    const char* base;
    const Layout* layout;  // null: contiguous
    uint64_t bytes;
    uint64_t span;  // bytes that a thread takes at a time: whole segments
    int64_t item;
    ChunkFunction chunk;
    BlockFunction copy;
    bool with_digest;
    std::vector<Partial> parts;
    Digest digest;
    std::mutex mutex;
};

// Calls each(number of the segment, its statistics) in the order of the segments.
template <class Each>
void do_span(const Work& work, uint64_t span, Digest* digest, Each each) {
    const WithSubnormals mode;
    const uint64_t begin = span * work.span, end = std::min(begin + work.span, work.bytes);
    std::optional<Reader> reader;
    if (work.layout) reader.emplace(*work.layout, work.copy, work.base, begin, end);
    for (uint64_t at = begin; at < end;) {
        Partial part;
        const uint64_t segment = at / segment_bytes, stop = std::min(at + segment_bytes, end);
        while (at < stop) {
            const size_t here = std::min(chunk_bytes, static_cast<size_t>(stop - at));
            const char* data = reader ? reader->take(here) : work.base + at;
            work.chunk(work.task, data, here, at / block_bytes, part, digest);
            at += here;
        }
        each(segment, part);
    }
}
static_assert(chunk_bytes <= Reader::most_bytes, "a chunk is what a reader gives at a time");

void threaded_span(void* context, size_t span) {
    Work& work = *static_cast<Work*>(context);
    Digest digest;
    do_span(work, span, work.with_digest ? &digest : nullptr,
            [&](uint64_t segment, const Partial& part) { work.parts[segment] = part; });
    if (!work.with_digest) return;
    std::lock_guard<std::mutex> lock(work.mutex);
    for (int lane = 0; lane < lanes; ++lane) work.digest.lane[lane] += digest.lane[lane];
}

// Segments are merged in their order whatever the number of threads, so that it changes no bit of the result.
Partial run(Work& work, int threads) {
    const uint64_t segments = (work.bytes + segment_bytes - 1) / segment_bytes;
    const uint64_t share = (segments + static_cast<uint64_t>(threads) - 1) / static_cast<uint64_t>(threads);
    uint64_t some = 1;
    if (work.layout) {
        const uint64_t stretch = static_cast<uint64_t>(work.layout->stretch() * work.item);
        some = threads == 1 ? segments : std::max<uint64_t>(1, std::min(share, stretch / segment_bytes));
    }
    work.span = some * segment_bytes;
    const uint64_t spans = (work.bytes + work.span - 1) / work.span;
    Partial total;
    if (threads > 1 && spans > 1) {
        work.parts.assign(segments, Partial());
        parallel(spans, threads, threaded_span, &work);
        for (const Partial& part : work.parts) merge(total, part);
        return total;
    }
    for (uint64_t span = 0; span < spans; ++span)
        do_span(work, span, work.with_digest ? &work.digest : nullptr,
                [&](uint64_t, const Partial& part) { merge(total, part); });
    return total;
}

}  // namespace

Result stats(const void* address, Kind kind, const double* table, int dims, const int64_t* sizes,
             const int64_t* strides, int threads) {
    const int64_t item = item_size(kind);
    Result result;
    Work work;
    work.task.kind = kind;
    work.task.table = table;
    work.base = static_cast<const char*>(address);
    work.item = item;
    work.chunk = chosen->chunk;
    work.copy = chosen->copy;
    work.with_digest = true;
    int64_t items = 1;
    for (int d = 0; d < dims; ++d) items *= sizes[d];
    work.bytes = static_cast<uint64_t>(items * item);
    work.layout = nullptr;
    std::vector<Layout> layout;
    if (strides && items > 0) {
        layout.emplace_back(dims, sizes, strides, item);
        if (!layout[0].contiguous()) work.layout = &layout[0];
    }
    result.partial = run(work, threads);
    result.digest = finish_digest(work.digest, work.bytes);
    result.count = kind == Kind::table2 ? 2 * items : items;
    Partial& found = result.partial;
    const double magnitude = std::fmax(std::fabs(found.min), std::fabs(found.max));
    const bool wide = kind == Kind::f64 || kind == Kind::c128;
    if (wide && found.finite && magnitude > 0 && (magnitude > 0x1p450 || magnitude < 0x1p-450)) {
        // Squares overflow or underflow: once more, scaled by a power of two. Rare enough to pay with a second pass.
        const int exponent = std::ilogb(magnitude);
        const double low = found.min, high = found.max;
        // 2^-exponent may itself not be a double; 2^1022 is enough for the smallest ones.
        work.task.scale = std::ldexp(1.0, exponent < -1022 ? 1022 : -exponent);
        work.task.careful = true;
        work.with_digest = false;
        found = run(work, threads);
        found.min = low;
        found.max = high;
        result.unscale = std::ldexp(1.0, exponent < -1022 ? -1022 : exponent);
    }
    found.min += 0.0;  // -0 becomes 0
    found.max += 0.0;
    return result;
}

PairFunction pair_function() { return chosen->pair; }

const char* instruction_set() { return chosen->name; }

const char* instruction_set_at(size_t number) { return number < std::size(choices) ? choices[number].name : nullptr; }

bool set_instruction_set(const char* name) {
    for (const Choice& choice : choices)
        if (!strcmp(choice.name, name) && available(name)) {
            chosen = &choice;
            return true;
        }
    return false;
}

}  // namespace graphprobe
