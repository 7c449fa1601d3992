// One-pass statistics and digest of a tensor in memory; the definitions are in docs/metrics.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace graphprobe {

// What one item of memory is. The numbers are shared with graphprobe/numerics/stats.py.
enum class Kind : int {
    f32 = 0,
    f64 = 1,
    f16 = 2,
    bf16 = 3,
    c32 = 4,  // two float16
    c64 = 5,
    c128 = 6,
    i8 = 7,
    i16 = 8,
    i32 = 9,
    i64 = 10,
    u8 = 11,
    u16 = 12,
    u32 = 13,
    u64 = 14,
    table = 15,   // one byte, its value in a table of 256 doubles: bool and the 8-bit floats
    table2 = 16,  // one byte holds two values, in a table of 512 doubles: packed 4-bit floats
};
constexpr int kind_count = 17;

constexpr int item_size(Kind kind) {
    constexpr int sizes[kind_count] = {4, 8, 2, 2, 4, 8, 16, 1, 2, 4, 8, 1, 2, 4, 8, 1, 1};
    return sizes[static_cast<int>(kind)];
}

// The digest keeps 16 lanes of 32 bits per block, and 16 lanes of 64 bits for the whole.
constexpr int lanes = 16;
constexpr size_t stripe_bytes = 64;
constexpr size_t block_bytes = 8192;
constexpr size_t block_stripes = block_bytes / stripe_bytes;

// A chunk is what one call of a kernel takes: it fits the second-level cache, so that reading it again is cheap.
constexpr size_t chunk_bytes = 4 * block_bytes;

// A segment is what one thread takes at a time. Its size is fixed, so that the number of threads changes no result.
constexpr size_t segment_bytes = 4 * chunk_bytes;

struct Partial {
    int64_t finite = 0, nan = 0, positive_inf = 0, negative_inf = 0, zeros = 0;
    double min = std::numeric_limits<double>::infinity();
    double max = -std::numeric_limits<double>::infinity();
    double sum = 0;
    double sum_squares = 0;
    double deviation = 0;  // sum of (x - mean)^2
};

struct Digest {
    uint64_t lane[lanes] = {};
};

struct Task {
    Kind kind;
    const double* table = nullptr;  // for Kind::table and Kind::table2
    double scale = 1;               // multiplies every value before it is summed; min and max stay unscaled
    bool careful = false;           // no fast path
};

// Reads `bytes` bytes (at most chunk_bytes, whole items). Block number `first_block` begins at `data`.
// `digest` is null when only the statistics are wanted.
using ChunkFunction = void (*)(const Task&, const char* data, size_t bytes, uint64_t first_block, Partial&, Digest*);

namespace baseline { void chunk(const Task&, const char*, size_t, uint64_t, Partial&, Digest*); }
namespace avx2 { void chunk(const Task&, const char*, size_t, uint64_t, Partial&, Digest*); }
namespace avx512 { void chunk(const Task&, const char*, size_t, uint64_t, Partial&, Digest*); }

// Keys of one block, in the order of its 16-bit words, and the odd multiplier of each block.
extern int16_t block_keys[block_bytes / 2];
void make_block_keys();
uint64_t finish_digest(const Digest&, uint64_t total_bytes);

static inline uint64_t splitmix(uint64_t x) {  // Steele, Lea and Flood, "Fast splittable pseudorandom number generators"
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Pairwise update of Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983).
static inline void merge(Partial& into, const Partial& part) {
    into.nan += part.nan;
    into.positive_inf += part.positive_inf;
    into.negative_inf += part.negative_inf;
    into.zeros += part.zeros;
    if (part.finite == 0) return;
    into.min = part.min < into.min ? part.min : into.min;
    into.max = part.max > into.max ? part.max : into.max;
    into.sum_squares += part.sum_squares;
    if (into.finite == 0) {
        into.finite = part.finite;
        into.sum = part.sum;
        into.deviation = part.deviation;
        return;
    }
    const double a = static_cast<double>(into.finite), b = static_cast<double>(part.finite);
    const double gap = part.sum / b - into.sum / a;
    into.deviation += part.deviation + gap * gap * (a / (a + b)) * b;
    into.sum += part.sum;
    into.finite += part.finite;
}

// The whole tensor. `strides` (in items) may be null for contiguous memory; then `dims` is 1 and `sizes` the item count.
struct Result {
    Partial partial;
    double unscale = 1;  // sum, root of deviation and of sum_squares times this are the true ones
    uint64_t digest = 0;
    int64_t count = 0;
};
Result stats(const void* address, Kind kind, const double* table, int dims, const int64_t* sizes,
             const int64_t* strides, int threads);

const char* instruction_set();
const char* instruction_set_at(size_t number);  // the fastest first, whatever this processor has; null after the last
bool set_instruction_set(const char* name);  // for tests; false if this processor lacks it

}  // namespace graphprobe
