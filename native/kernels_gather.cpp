// Blocks of items copied into rows: transposed by vectors, every second item, or runs. Compiled once per instruction
// set, each time with another GRAPHPROBE_ISA as namespace; as in kernels.cpp, no template of the standard library is.
#include <cstring>

#include "gather.h"

#if defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#endif

namespace graphprobe {
namespace GRAPHPROBE_ISA {
namespace {

// ---- vectors --------------------------------------------------------------------------------------------------------

// 16 bytes in each of `parts`. low and high interleave the items of the lower and the upper half of each part.
#if defined(__AVX2__)
constexpr int parts = 2;
struct Vector {
    __m256i v;
};
inline Vector load_parts(const char* first, const char* second) {
    const __m256i low = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first)));
    return {_mm256_inserti128_si256(low, _mm_loadu_si128(reinterpret_cast<const __m128i*>(second)), 1)};
}
inline void store(char* to, Vector x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x.v); }
template <size_t item>
inline Vector low(Vector a, Vector b) {
    if (item == 1) return {_mm256_unpacklo_epi8(a.v, b.v)};
    if (item == 2) return {_mm256_unpacklo_epi16(a.v, b.v)};
    if (item == 4) return {_mm256_unpacklo_epi32(a.v, b.v)};
    return {_mm256_unpacklo_epi64(a.v, b.v)};
}
template <size_t item>
inline Vector high(Vector a, Vector b) {
    if (item == 1) return {_mm256_unpackhi_epi8(a.v, b.v)};
    if (item == 2) return {_mm256_unpackhi_epi16(a.v, b.v)};
    if (item == 4) return {_mm256_unpackhi_epi32(a.v, b.v)};
    return {_mm256_unpackhi_epi64(a.v, b.v)};
}
template <size_t item>
inline Vector even(const char* from) {  // the items of even index of two vectors
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
    __m256i mixed;
    if (item == 1) {
        const __m256i keep = _mm256_set1_epi16(0xff);
        mixed = _mm256_packus_epi16(_mm256_and_si256(a, keep), _mm256_and_si256(b, keep));
    } else if (item == 2) {
        const __m256i keep = _mm256_set1_epi32(0xffff);
        mixed = _mm256_packus_epi32(_mm256_and_si256(a, keep), _mm256_and_si256(b, keep));
    } else if (item == 4) {
        mixed = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
    } else {
        mixed = _mm256_unpacklo_epi64(a, b);
    }
    return {_mm256_permute4x64_epi64(mixed, 0xd8)};
}
#elif defined(__SSE2__)
constexpr int parts = 1;
struct Vector {
    __m128i v;
};
inline Vector load_parts(const char* first, const char*) {
    return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(first))};
}
inline void store(char* to, Vector x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x.v); }
template <size_t item>
inline Vector low(Vector a, Vector b) {
    if (item == 1) return {_mm_unpacklo_epi8(a.v, b.v)};
    if (item == 2) return {_mm_unpacklo_epi16(a.v, b.v)};
    if (item == 4) return {_mm_unpacklo_epi32(a.v, b.v)};
    return {_mm_unpacklo_epi64(a.v, b.v)};
}
template <size_t item>
inline Vector high(Vector a, Vector b) {
    if (item == 1) return {_mm_unpackhi_epi8(a.v, b.v)};
    if (item == 2) return {_mm_unpackhi_epi16(a.v, b.v)};
    if (item == 4) return {_mm_unpackhi_epi32(a.v, b.v)};
    return {_mm_unpackhi_epi64(a.v, b.v)};
}
template <size_t item>
inline Vector even(const char* from) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16));
    if (item == 1) {
        const __m128i keep = _mm_set1_epi16(0xff);
        return {_mm_packus_epi16(_mm_and_si128(a, keep), _mm_and_si128(b, keep))};
    }
    if (item == 2)
        return {_mm_packs_epi32(_mm_srai_epi32(_mm_slli_epi32(a, 16), 16), _mm_srai_epi32(_mm_slli_epi32(b, 16), 16))};
    if (item == 4) return {_mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0x88))};
    return {_mm_unpacklo_epi64(a, b)};
}
#else
constexpr int parts = 1;
struct Vector {
    char v[16];
};
inline Vector load_parts(const char* first, const char*) {
    Vector x;
    memcpy(x.v, first, 16);
    return x;
}
inline void store(char* to, const Vector& x) { memcpy(to, x.v, 16); }
template <size_t item>
inline Vector interleaved(const char* a, const char* b) {
    Vector x;
    for (size_t i = 0; i < 8 / item; ++i) {
        memcpy(x.v + 2 * i * item, a + i * item, item);
        memcpy(x.v + (2 * i + 1) * item, b + i * item, item);
    }
    return x;
}
template <size_t item>
inline Vector low(const Vector& a, const Vector& b) {
    return interleaved<item>(a.v, b.v);
}
template <size_t item>
inline Vector high(const Vector& a, const Vector& b) {
    return interleaved<item>(a.v + 8, b.v + 8);
}
template <size_t item>
inline Vector even(const char* from) {
    Vector x;
    for (size_t i = 0; i < 16 / item; ++i) memcpy(x.v + i * item, from + 2 * i * item, item);
    return x;
}
#endif

#if defined(__AVX512BW__)
template <size_t item>
inline __m512i low(__m512i a, __m512i b) {
    if (item == 1) return _mm512_unpacklo_epi8(a, b);
    if (item == 2) return _mm512_unpacklo_epi16(a, b);
    if (item == 4) return _mm512_unpacklo_epi32(a, b);
    return _mm512_unpacklo_epi64(a, b);
}
template <size_t item>
inline __m512i high(__m512i a, __m512i b) {
    if (item == 1) return _mm512_unpackhi_epi8(a, b);
    if (item == 2) return _mm512_unpackhi_epi16(a, b);
    if (item == 4) return _mm512_unpackhi_epi32(a, b);
    return _mm512_unpackhi_epi64(a, b);
}
#endif

// ---- runs -----------------------------------------------------------------------------------------------------------

template <size_t bytes>
inline void move(char* to, const char* from) {
    memcpy(to, from, bytes);
}

inline void copy_bytes(char* to, const char* from, int64_t n) {
    if (n > 1024) {
        memcpy(to, from, static_cast<size_t>(n));
        return;
    }
    if (n < 32) {  // from both ends, which may overlap
        if (n >= 16) return move<16>(to, from), move<16>(to + n - 16, from + n - 16);
        if (n >= 8) return move<8>(to, from), move<8>(to + n - 8, from + n - 8);
        if (n >= 4) return move<4>(to, from), move<4>(to + n - 4, from + n - 4);
        for (int64_t i = 0; i < n; ++i) to[i] = from[i];
        return;
    }
    for (int64_t i = 0; i + 32 < n; i += 32) move<32>(to + i, from + i);
    move<32>(to + n - 32, from + n - 32);
}

template <size_t item>
inline void copy_run(char* to, const char* from, int64_t n, int64_t stride) {
    if (stride == static_cast<int64_t>(item)) return copy_bytes(to, from, n * static_cast<int64_t>(item));
    if (stride == 0) {  // one item again and again, twice as many each time
        const int64_t bytes = n * static_cast<int64_t>(item);
        move<item>(to, from);
        for (int64_t done = item; done < bytes; done *= 2)
            copy_bytes(to + done, to, done < bytes - done ? done : bytes - done);
        return;
    }
    int64_t i = 0;
    if (item < 16 && stride == 2 * static_cast<int64_t>(item)) {
        constexpr int64_t step = static_cast<int64_t>(sizeof(Vector) / item);
        for (; i + step < n; i += step)  // not the last one: after it the memory may end
            store(to + i * static_cast<int64_t>(item), even<item < 16 ? item : 8>(from + i * stride));
    }
    from += i * stride;
    to += i * static_cast<int64_t>(item);
    for (; i + 4 <= n; i += 4, to += 4 * item, from += 4 * stride) {
        move<item>(to, from);
        move<item>(to + item, from + stride);
        move<item>(to + 2 * item, from + 2 * stride);
        move<item>(to + 3 * item, from + 3 * stride);
    }
    for (; i < n; ++i, to += item, from += stride) move<item>(to, from);
}

// ---- transposed -----------------------------------------------------------------------------------------------------

// A tile is as many rows as a cache line of the source holds items, and as many columns as one of the rows does.
template <size_t item>
struct Tile {
    static constexpr int side = 64 / item;       // rows and columns
    static constexpr int square = 16 / item;     // rows and columns of a part of a vector
    static constexpr int wide = square * parts;  // columns of a vector

    // Transposes the squares that lie side by side in x. Each round interleaves the first half with the second:
    // log2(square) rounds are a transposition.
    template <class Any>
    static inline __attribute__((always_inline)) void squares(Any* x) {
        if constexpr (square == 1) return;
#pragma GCC unroll 4
        for (int round = 1; round < square; round *= 2) {
            Any y[square];
#pragma GCC unroll 8
            for (int i = 0; i < square / 2; ++i) {
                y[2 * i] = low<item>(x[i], x[i + square / 2]);
                y[2 * i + 1] = high<item>(x[i], x[i + square / 2]);
            }
#pragma GCC unroll 16
            for (int i = 0; i < square; ++i) x[i] = y[i];
        }
    }

#if defined(__AVX512BW__)
    // A whole tile by whole cache lines: to read or write them in parts is slower, more so where they evict each other.
    static inline __attribute__((always_inline)) void transpose_lines(char* to, int64_t pitch, const char* from,
                                                                      int64_t stride) {
        __m512i x[side];  // x[square * q + i] has, in quarter p, square i of the columns of q and the rows of p
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
#pragma GCC unroll 16
            for (int i = 0; i < square; ++i) x[q * square + i] = _mm512_loadu_si512(from + (q * square + i) * stride);
            squares(x + q * square);
        }
#pragma GCC unroll 16
        for (int i = 0; i < square; ++i) {
            const __m512i a = x[i], b = x[square + i], c = x[2 * square + i], d = x[3 * square + i];
            const __m512i ab = _mm512_shuffle_i32x4(a, b, 0x44), cd = _mm512_shuffle_i32x4(c, d, 0x44);
            const __m512i ab2 = _mm512_shuffle_i32x4(a, b, 0xee), cd2 = _mm512_shuffle_i32x4(c, d, 0xee);
            char* out = to + i * pitch;
            _mm512_storeu_si512(out, _mm512_shuffle_i32x4(ab, cd, 0x88));
            _mm512_storeu_si512(out + square * pitch, _mm512_shuffle_i32x4(ab, cd, 0xdd));
            _mm512_storeu_si512(out + 2 * square * pitch, _mm512_shuffle_i32x4(ab2, cd2, 0x88));
            _mm512_storeu_si512(out + 3 * square * pitch, _mm512_shuffle_i32x4(ab2, cd2, 0xdd));
        }
    }
#else
    static void transpose_lines(char* to, int64_t pitch, const char* from, int64_t stride) {
        transpose(to, pitch, from, stride, side, side);
    }
#endif

    // The first `rows` rows of as many whole vectors as cover `columns` columns. A column begins each `stride` bytes.
    static inline __attribute__((always_inline)) void transpose(char* to, int64_t pitch, const char* from,
                                                                int64_t stride, int rows, int columns) {
        for (int r = 0; r < rows; r += square)
            for (int c = 0; c < columns; c += wide) {
                Vector x[square];
                const char* at = from + c * stride + r * static_cast<int>(item);
#pragma GCC unroll 16
                for (int i = 0; i < square; ++i) x[i] = load_parts(at + i * stride, at + (square + i) * stride);
                squares(x);
                char* out = to + r * pitch + c * static_cast<int>(item);
#pragma GCC unroll 16
                for (int i = 0; i < square; ++i)
                    if (r + i < rows) store(out + i * pitch, x[i]);
            }
    }

    // A tile that is not whole, or whose rows are not neighbours in memory: through a copy of the columns.
    static void staged(char* to, int64_t pitch, const Block& block, int64_t row, int64_t column, int rows,
                       int columns) {
        alignas(64) char stage[side * 64];
        const char* from = block.from + row * block.row_stride + column * block.stride;
        if (block.row_stride != static_cast<int64_t>(item)) {
            for (int c = 0; c < columns; ++c)
                copy_run<item>(stage + c * 64, from + c * block.stride, rows, block.row_stride);
        } else if (rows == side) {
#pragma GCC unroll 8
            for (int c = 0; c < columns; ++c) memcpy(stage + c * 64, from + c * block.stride, 64);
        } else {
            const int64_t bytes = static_cast<int64_t>(rows) * static_cast<int64_t>(item);
            for (int c = 0; c < columns; ++c) copy_bytes(stage + c * 64, from + c * block.stride, bytes);
        }
        char* out = to + row * pitch + column * static_cast<int>(item);
        if (rows == side && columns == side) return transpose_lines(out, pitch, stage, 64);
        const bool dense = pitch == block.n * static_cast<int64_t>(item);
        if (columns % wide == 0 || (dense && columns < wide)) return transpose(out, pitch, stage, 64, rows, columns);
        // Here a vector after the first of a row would spoil the begin of the next one, written with the first.
        alignas(64) char turned[side * 64];
        transpose(turned, 64, stage, 64, rows, columns);
        if (dense) {
            for (int r = 0; r < rows; ++r) memcpy(out + r * pitch, turned + r * 64, 64);
        } else {
            const int64_t bytes = columns * static_cast<int64_t>(item);
            for (int r = 0; r < rows; ++r) copy_bytes(out + r * pitch, turned + r * 64, bytes);
        }
    }

    // What the processor fetches ahead by itself ends with a page, so it helps only where one holds several columns.
    static constexpr int64_t page = 4096;

    static void all(char* to, int64_t pitch, const Block& block) {
        // The last tile is moved back, so that it is whole: what it writes again is the same.
        const int rows = block.rows < side ? static_cast<int>(block.rows) : side;
        const int columns = block.n < side ? static_cast<int>(block.n) : side;
        const bool whole = rows == side && columns == side && block.row_stride == static_cast<int64_t>(item);
        for (int64_t c = 0; c < block.n; c += side) {
            const int64_t column = c + columns <= block.n ? c : block.n - columns;
            for (int64_t r = 0; r < block.rows; r += side) {
                const int64_t row = r + rows <= block.rows ? r : block.rows - rows;
                if (!whole) {
                    staged(to, pitch, block, row, column, rows, columns);
                    continue;
                }
                const char* from = block.from + row * static_cast<int64_t>(item) + column * block.stride;
                if (4 * block.stride > page && c + 2 * side <= block.n)
                    for (int i = side; i < 2 * side; ++i) __builtin_prefetch(from + i * block.stride);
                transpose_lines(to + row * pitch + column * static_cast<int64_t>(item), pitch, from, block.stride);
            }
        }
    }
};

// ---- blocks ---------------------------------------------------------------------------------------------------------

template <size_t item>
void copy_items(char* to, int64_t pitch, const Block& block) {
    if (block.rows > 1 && block.row_stride > 0 && block.row_stride < block.stride) {
        if (block.rows > 4 || block.n < 64) return Tile<item>::all(to, pitch, block);
        constexpr int64_t some = 256;  // columns, which stay in the first-level cache for the next row
        for (int64_t column = 0; column < block.n; column += some)
            for (int64_t row = 0; row < block.rows; ++row)
                copy_run<item>(to + row * pitch + column * static_cast<int64_t>(item),
                               block.from + row * block.row_stride + column * block.stride,
                               block.n - column < some ? block.n - column : some, block.stride);
        return;
    }
    for (int64_t row = 0; row < block.rows; ++row)
        copy_run<item>(to + row * pitch, block.from + row * block.row_stride, block.n, block.stride);
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
