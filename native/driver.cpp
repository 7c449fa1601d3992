// From a tensor to chunks: strides, segments, threads, and the choice of the instruction set.
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

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
    if (!strcmp(name, "avx512_vnni")) return five && __builtin_cpu_supports("avx512vnni");
#endif
    return false;
}

constexpr Choice choices[] = {
#if GRAPHPROBE_X86
    {"avx512_vnni", avx512_vnni::chunk, avx512::pair},
    {"avx512", avx512::chunk, avx512::pair},
    {"avx2", avx2::chunk, avx2::pair},
#endif
    {"baseline", baseline::chunk, baseline::pair},
};

const Choice* best() {
    for (const Choice& choice : choices)
        if (available(choice.name)) return &choice;
    return nullptr;
}

const Choice* chosen = best();

// ---- strides --------------------------------------------------------------------------------------------------------

// A tensor without dimensions of one item, neighbours merged where the memory allows it.
struct Layout {
    std::vector<int64_t> sizes, strides;  // strides in bytes
    int64_t count = 1;

    Layout(int dims, const int64_t* size, const int64_t* stride, int64_t item) {
        for (int d = 0; d < dims; ++d) {
            count *= size[d];
            if (size[d] == 1) continue;
            const int64_t bytes = stride[d] * item;
            if (!sizes.empty() && strides.back() == bytes * size[d]) {
                sizes.back() *= size[d];
                strides.back() = bytes;
            } else {
                sizes.push_back(size[d]);
                strides.push_back(bytes);
            }
        }
    }

    bool contiguous(int64_t item) const { return sizes.empty() || (sizes.size() == 1 && strides[0] == item); }
};

template <size_t item>
void copy_run(char* to, const char* from, int64_t n, int64_t stride) {
    if (stride == static_cast<int64_t>(item)) {
        memcpy(to, from, static_cast<size_t>(n) * item);
        return;
    }
    for (int64_t i = 0; i < n; ++i) memcpy(to + static_cast<size_t>(i) * item, from + i * stride, item);
}

// Rows whose neighbours lie closer in memory than the items of a row: read in tiles of as many rows as a cache line
// holds, so that it is fetched once, by 8 items, because more lines at a distance of 4 KiB would evict each other.
template <size_t item>
void copy_rows(char* to, const char* from, int64_t rows, int64_t row_stride, int64_t n, int64_t stride) {
    constexpr int64_t tile_rows = 64 / item, tile_items = 8;
    for (int64_t first = 0; first < rows; first += tile_rows) {
        const int64_t last = first + tile_rows < rows ? first + tile_rows : rows;
        for (int64_t begin = 0; begin < n; begin += tile_items) {
            const int64_t end = begin + tile_items < n ? begin + tile_items : n;
            for (int64_t row = first; row < last; ++row) {
                const char* in = from + row * row_stride + begin * stride;
                char* out = to + static_cast<size_t>(row * n + begin) * item;
                for (int64_t i = begin; i < end; ++i, in += stride, out += item) memcpy(out, in, item);
            }
        }
    }
}

// Copies items first..first+n-1, counted in logical (row-major) order, to `to`.
template <size_t item>
void gather(const Layout& layout, const char* base, int64_t first, int64_t n, char* to) {
    const size_t dims = layout.sizes.size(), last = dims - 1;
    std::vector<int64_t> index(dims);
    const char* at = base;
    for (size_t d = dims; d-- > 0; first /= layout.sizes[d]) {
        index[d] = first % layout.sizes[d];
        at += index[d] * layout.strides[d];
    }
    while (n > 0) {
        const int64_t width = layout.sizes[last], room = width - index[last], run = n < room ? n : room;
        if (last > 0 && run == width && n >= 2 * width && layout.strides[last] > layout.strides[last - 1]) {
            const int64_t left = layout.sizes[last - 1] - index[last - 1], rows = n / width < left ? n / width : left;
            copy_rows<item>(to, at, rows, layout.strides[last - 1], width, layout.strides[last]);
            to += static_cast<size_t>(rows * width) * item;
            n -= rows * width;
            // To the end of the last of these rows, where the loop below goes on.
            at += (rows - 1) * layout.strides[last - 1] + width * layout.strides[last];
            index[last - 1] += rows - 1;
            index[last] = width;
        } else {
            copy_run<item>(to, at, run, layout.strides[last]);
            to += static_cast<size_t>(run) * item;
            n -= run;
            at += run * layout.strides[last];
            index[last] += run;
        }
        for (size_t d = last; index[d] == layout.sizes[d] && d > 0; --d) {
            at += layout.strides[d - 1] - index[d] * layout.strides[d];
            index[d] = 0;
            ++index[d - 1];
        }
    }
}

void gather(const Layout& layout, const char* base, int64_t item, int64_t first, int64_t n, char* to) {
    switch (item) {
        case 1: return gather<1>(layout, base, first, n, to);
        case 2: return gather<2>(layout, base, first, n, to);
        case 4: return gather<4>(layout, base, first, n, to);
        case 8: return gather<8>(layout, base, first, n, to);
        default: return gather<16>(layout, base, first, n, to);
    }
}

// ---- segments -------------------------------------------------------------------------------------------------------

struct Work {
    Task task;
    const char* base;
    const Layout* layout;  // null: contiguous
    uint64_t bytes;
    int64_t item;
    ChunkFunction chunk;
    bool with_digest;
    std::vector<Partial> parts;
    Digest digest;
    std::mutex mutex;
};

void do_segment(Work& work, uint64_t segment, Partial& part, Digest* digest) {
    const WithSubnormals mode;
    const uint64_t begin = segment * segment_bytes;
    const uint64_t end = begin + segment_bytes < work.bytes ? begin + segment_bytes : work.bytes;
    const char* data = work.base + begin;
    if (work.layout) {
        // Kept by its thread: to allocate so much each time would cost page faults.
        thread_local const std::unique_ptr<char[]> buffer(new char[segment_bytes]);
        gather(*work.layout, work.base, work.item, static_cast<int64_t>(begin) / work.item,
               static_cast<int64_t>(end - begin) / work.item, buffer.get());
        data = buffer.get();
    }
    for (uint64_t at = begin; at < end; at += chunk_bytes) {
        const size_t here = end - at < chunk_bytes ? static_cast<size_t>(end - at) : chunk_bytes;
        work.chunk(work.task, data + (at - begin), here, at / block_bytes, part, digest);
    }
}

void threaded_segment(void* context, size_t segment) {
    Work& work = *static_cast<Work*>(context);
    Digest digest;
    do_segment(work, segment, work.parts[segment], work.with_digest ? &digest : nullptr);
    if (!work.with_digest) return;
    std::lock_guard<std::mutex> lock(work.mutex);
    for (int lane = 0; lane < lanes; ++lane) work.digest.lane[lane] += digest.lane[lane];
}

// Segments are merged in their order whatever the number of threads, so that it changes no bit of the result.
Partial run(Work& work, int threads) {
    const uint64_t segments = (work.bytes + segment_bytes - 1) / segment_bytes;
    Partial total;
    if (threads > 1 && segments > 1) {
        work.parts.assign(segments, Partial());
        parallel(segments, threads, threaded_segment, &work);
        for (const Partial& part : work.parts) merge(total, part);
        return total;
    }
    for (uint64_t segment = 0; segment < segments; ++segment) {
        Partial part;
        do_segment(work, segment, part, work.with_digest ? &work.digest : nullptr);
        merge(total, part);
    }
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
    work.with_digest = true;
    int64_t items = 1;
    for (int d = 0; d < dims; ++d) items *= sizes[d];
    work.bytes = static_cast<uint64_t>(items * item);
    work.layout = nullptr;
    std::vector<Layout> layout;
    if (strides && items > 0) {
        layout.emplace_back(dims, sizes, strides, item);
        if (!layout[0].contiguous(item)) work.layout = &layout[0];
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

bool set_instruction_set(const char* name) {
    for (const Choice& choice : choices)
        if (!strcmp(choice.name, name) && available(name)) {
            chosen = &choice;
            return true;
        }
    return false;
}

}  // namespace graphprobe
