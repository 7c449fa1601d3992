// Blocks of items copied into rows: transposed by vectors of the compiler (GCC and Clang), or runs. Compiled once per
// instruction set, each time with another GRAPHPROBE_ISA as namespace; as in kernels.cpp, no function of the standard
// library that is a template is.
#include <cstring>
#include <utility>

#include "gather.h"

namespace graphprobe {
namespace GRAPHPROBE_ISA {
namespace {

#if defined(__AVX512BW__)
constexpr int widest = 64;
#elif defined(__AVX2__)
constexpr int widest = 32;
#else
constexpr int widest = 16;
#endif

// ---- runs -----------------------------------------------------------------------------------------------------------

template <int step>
inline void copy_short(char* to, const char* from, int64_t bytes) {  // the last step overlaps the one before
    for (int64_t i = 0; i + step < bytes; i += step) memcpy(to + i, from + i, step);
    memcpy(to + bytes - step, from + bytes - step, step);
}

template <size_t item>
inline __attribute__((always_inline)) void copy_run(char* __restrict to, const char* __restrict from, int64_t n,
                                                    int64_t stride) {
    constexpr int64_t one = static_cast<int64_t>(item);
    const int64_t bytes = n * one;
    if (stride == one) {
        if (bytes < 16 || bytes > 128) {
            memcpy(to, from, static_cast<size_t>(bytes));
        } else if (bytes < 32) {
            copy_short<16>(to, from, bytes);
        } else {
            copy_short<32>(to, from, bytes);
        }
    } else if (stride == 0) {
        char value[item];
        memcpy(value, from, item);
        for (int64_t i = 0; i < bytes; i += one) memcpy(to + i, value, item);
    } else if (stride == 2 * one) {
        for (int64_t i = 0; i < bytes; i += one) memcpy(to + i, from + 2 * i, item);
    } else {
        int64_t i = 0;
        for (; i + 4 <= n; i += 4, to += 4 * one, from += 4 * stride) {  // a loop would become vectors of single items
            memcpy(to, from, item);
            memcpy(to + one, from + stride, item);
            memcpy(to + 2 * one, from + 2 * stride, item);
            memcpy(to + 3 * one, from + 3 * stride, item);
        }
        for (; i < n; ++i, to += one, from += stride) memcpy(to, from, item);
    }
}

// ---- transposed -----------------------------------------------------------------------------------------------------

template <size_t item> struct Number { using type = uint64_t; };
template <> struct Number<1> { using type = uint8_t; };
template <> struct Number<2> { using type = uint16_t; };
template <> struct Number<4> { using type = uint32_t; };

// Squares of as many rows and columns as a vector of `width` bytes holds items.
template <size_t item, int width>
struct Tile {
    using T = typename Number<item>::type;
    typedef T Vector __attribute__((vector_size(width)));
    static constexpr int side = width / item, square = 16 / item, parts = width / 16, lanes = width / sizeof(T);

    // The lower (0) or upper (1) halves of groups of `group` lanes, `unit` lanes of a and of b in turn.
    template <int upper, int unit, int group, int... i>
    static inline Vector interleaved(Vector a, Vector b, std::integer_sequence<int, i...>) {
        return Vector{(i / unit % 2 ? b : a)[i / group * group + upper * group / 2 + i % group / unit / 2 * unit + i % unit]...};
    }

    // Transposes the squares of `count` units that lie side by side in every `step`th of x. Each round interleaves the
    // first half with the second: log2(count) rounds are a transposition.
    template <int unit, int count, int step>
    static inline __attribute__((always_inline)) void transpose_squares(Vector* x) {
        if constexpr (count > 1) {
            constexpr std::make_integer_sequence<int, lanes> every;
#pragma GCC unroll 4
            for (int round = 1; round < count; round *= 2) {
                Vector y[count];
#pragma GCC unroll 8
                for (int i = 0; i < count / 2; ++i) {
                    const Vector a = x[i * step], b = x[(i + count / 2) * step];
                    y[2 * i] = interleaved<0, unit, unit * count>(a, b, every);
                    y[2 * i + 1] = interleaved<1, unit, unit * count>(a, b, every);
                }
#pragma GCC unroll 16
                for (int i = 0; i < count; ++i) x[i * step] = y[i];
            }
        }
    }

    // A row begins each `pitch` bytes, a column each `stride` bytes. First the squares of 16 bytes, then their places.
    static inline __attribute__((always_inline)) void transpose(char* to, int64_t pitch, const char* from,
                                                                int64_t stride) {
        Vector x[side];
#pragma GCC unroll 4
        for (int q = 0; q < parts; ++q) {
#pragma GCC unroll 16
            for (int i = 0; i < square; ++i) memcpy(&x[q * square + i], from + (q * square + i) * stride, width);
            transpose_squares<lanes / parts / square, square, 1>(x + q * square);
        }
#pragma GCC unroll 16
        for (int i = 0; i < square; ++i) {
            transpose_squares<lanes / parts, parts, square>(x + i);
#pragma GCC unroll 4
            for (int p = 0; p < parts; ++p) memcpy(to + (p * square + i) * pitch, &x[p * square + i], width);
        }
    }
};

template <size_t item, int width>
void copy_tiles(char* to, int64_t pitch, const Block block) {
    constexpr int64_t side = width / item, one = static_cast<int64_t>(item);
    constexpr int64_t page = 4096;  // what the processor fetches ahead by itself ends with a page
    for (int64_t c = 0; c < block.n; c += side) {
        // The last tile is moved back, so that it is whole: what it writes again is the same.
        const int64_t column = c + side <= block.n ? c : block.n - side;
        for (int64_t r = 0; r < block.rows; r += side) {
            const int64_t row = r + side <= block.rows ? r : block.rows - side;
            const char* from = block.from + row * one + column * block.stride;
            if (4 * block.stride > page && c + 2 * side <= block.n)
                for (int64_t i = side; i < 2 * side; ++i) __builtin_prefetch(from + i * block.stride);
            Tile<item, width>::transpose(to + row * pitch + column * one, pitch, from, block.stride);
        }
    }
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

template <size_t item>
void copy_items(char* to, int64_t pitch, const Block block) {  // a copy of its own, which no item can be written over
    constexpr int64_t one = static_cast<int64_t>(item);
    int64_t rows = block.rows, columns = block.n;  // that are copied together
    if (block.rows > 4 && block.row_stride > 0 && block.row_stride < block.stride) {
        const int64_t least = block.row_stride != one ? 0 : one * (block.rows < block.n ? block.rows : block.n);
        if (least >= widest) return copy_tiles<item, widest>(to, pitch, block);
        if (least >= 16) return copy_tiles<item, 16>(to, pitch, block);
        if (block.n * one < 16) {  // column by column, some rows at a time
            constexpr int64_t some = 64;
            for (int64_t r = 0; r < block.rows; r += some)
                for (int64_t column = 0; column < block.n; ++column) {
                    const char* from = block.from + r * block.row_stride + column * block.stride;
                    char* out = to + r * pitch + column * one;
                    const int64_t here = block.rows - r < some ? block.rows - r : some;
                    for (int64_t i = 0; i < here; ++i) memcpy(out + i * pitch, from + i * block.row_stride, item);
                }
            return;
        }
        rows = columns = 64 / one;
    }
    for (int64_t c = 0; c < block.n; c += columns)
        for (int64_t r = 0; r < block.rows; r += rows)
            for (int64_t row = r; row < block.rows && row < r + rows; ++row)
                copy_run<item>(to + row * pitch + c * one, block.from + row * block.row_stride + c * block.stride,
                               block.n - c < columns ? block.n - c : columns, block.stride);
}

}  // namespace

void copy_block(int64_t item, char* to, int64_t pitch, const Block& block) {
    switch (item) {
        case 1: return copy_items<1>(to, pitch, block);
        case 2: return copy_items<2>(to, pitch, block);
        case 4: return copy_items<4>(to, pitch, block);
        case 8: return copy_items<8>(to, pitch, block);
        default: return copy_items<16>(to, pitch, block);
    }
}

}  // namespace GRAPHPROBE_ISA
}  // namespace graphprobe
