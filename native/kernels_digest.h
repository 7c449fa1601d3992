// The digest of contiguous bytes; docs/metrics.md says how it is made.
// Part of kernels.cpp, inside its namespaces.
#pragma once

// Each 32-bit word x becomes x ^ (x >> 15): otherwise flipped signs, which are the top bits of a half, would all be
// multiples of 2^15 in the sums. Then low*key + high*key' of its two 16-bit halves is added to its lane, modulo 2^32.
inline uint32_t digest_word(const char* at, const int16_t* key) {
    uint32_t word = load<uint32_t>(at);
    word ^= word >> 15;
    const int32_t low = static_cast<int16_t>(word), high = static_cast<int16_t>(word >> 16);
    return static_cast<uint32_t>(low * key[0]) + static_cast<uint32_t>(high * key[1]);
}

#if defined(__AVX512BW__)
inline __m512i digest_step(__m512i sum, __m512i x, const int16_t* key) {
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, x, _mm512_load_si512(key));
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(x, _mm512_load_si512(key)));
#endif
}
#endif

#if defined(__AVX2__) && !defined(__AVX512BW__)
// The lanes of one block, vector by vector, so that a loop can feed them with what it has loaded for itself.
struct DigestLanes {
    __m256i half[2] = {};
    const int16_t* key = block_keys;

    // `v` is vector number `at` since the last advance; `side` is `at % 2`, known to the compiler.
    template <class Vector>
    inline __attribute__((always_inline)) void add(Vector v, int at, int side) {
        const __m256i x = (__m256i)v;
        const __m256i keys = _mm256_load_si256((const __m256i*)(key + at * 16));
        const __m256i product = _mm256_madd_epi16(_mm256_xor_si256(x, _mm256_srli_epi32(x, 15)), keys);
        half[side] = _mm256_add_epi32(half[side], product);
    }
    void advance(size_t stripes) { key += stripes * 32; }
    void add_stripes(const void* data, size_t stripes) {
        const __m256i* from = static_cast<const __m256i*>(data);
        for (int i = 0; i < static_cast<int>(2 * stripes); i += 2) {
            add(_mm256_loadu_si256(from + i), i, 0);
            add(_mm256_loadu_si256(from + i + 1), i + 1, 1);
        }
        advance(stripes);
    }
    void store(uint32_t* state) const {
        _mm256_storeu_si256((__m256i*)state, half[0]);
        _mm256_storeu_si256((__m256i*)(state + 8), half[1]);
    }
};
#endif

inline void digest_stripes(const char* data, size_t stripes, uint32_t* state) {
#if defined(__AVX512BW__)
    __m512i a = _mm512_setzero_si512(), b = a;
    size_t i = 0;
    auto step = [&](__m512i& sum, size_t at) {
        sum = digest_step(sum, _mm512_loadu_si512(data + at * 64), block_keys + at * 32);
    };
    for (; i + 2 <= stripes; i += 2) step(a, i), step(b, i + 1);
    if (i < stripes) step(a, i);
    _mm512_storeu_si512(state, _mm512_add_epi32(a, b));
#elif defined(__AVX2__)
    DigestLanes sums;
    sums.add_stripes(data, stripes);
    sums.store(state);
#elif defined(__SSE2__)
    __m128i sum[4] = {_mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128()};
    for (size_t i = 0; i < stripes; ++i)
        for (int quarter = 0; quarter < 4; ++quarter) {
            const __m128i x = _mm_loadu_si128((const __m128i*)(data + i * 64 + quarter * 16));
            const __m128i key = _mm_load_si128((const __m128i*)(block_keys + i * 32 + quarter * 8));
            sum[quarter] = _mm_add_epi32(sum[quarter], _mm_madd_epi16(_mm_xor_si128(x, _mm_srli_epi32(x, 15)), key));
        }
    for (int quarter = 0; quarter < 4; ++quarter) _mm_storeu_si128((__m128i*)(state + quarter * 4), sum[quarter]);
#else
    for (int lane = 0; lane < lanes; ++lane) state[lane] = 0;
    for (size_t i = 0; i < stripes; ++i)
        for (int lane = 0; lane < lanes; ++lane)
            state[lane] += digest_word(data + i * 64 + lane * 4, block_keys + i * 32 + lane * 2);
#endif
}

inline void fold(const uint32_t* state, uint64_t block, Digest& digest) {
    const uint64_t multiplier = splitmix(block) | 1;
    for (int lane = 0; lane < lanes; ++lane) digest.lane[lane] += state[lane] * multiplier;
}

// The bytes after the last whole stripe, as if zeros followed; always folded apart from the stripes before.
inline void digest_rest(const char* data, size_t bytes, size_t stripe, uint64_t block, Digest& digest) {
    char padded[stripe_bytes] = {};
    uint32_t state[lanes];
    memcpy(padded, data, bytes);
    for (int lane = 0; lane < lanes; ++lane)
        state[lane] = digest_word(padded + lane * 4, block_keys + stripe * 32 + lane * 2);
    fold(state, block, digest);
}

void digest_chunk(const char* data, size_t bytes, uint64_t block, Digest& digest) {
    for (; bytes; ++block) {
        const size_t here = bytes < block_bytes ? bytes : block_bytes, stripes = here / stripe_bytes;
        uint32_t state[lanes];
        digest_stripes(data, stripes, state);
        fold(state, block, digest);
        if (here % stripe_bytes) digest_rest(data + stripes * stripe_bytes, here % stripe_bytes, stripes, block, digest);
        data += here;
        bytes -= here;
    }
}
