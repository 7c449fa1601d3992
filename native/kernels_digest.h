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

#if defined(__AVX2__) || defined(__SSE2__)
inline Words keyed(Words x, const int16_t* key) {
    x ^= x >> 15;
#if defined(__AVX512BW__)
    return (Words)_mm512_madd_epi16((__m512i)x, _mm512_load_si512(key));
#elif defined(__AVX2__)
    return (Words)_mm256_madd_epi16((__m256i)x, _mm256_load_si256((const __m256i*)key));
#else
    return (Words)_mm_madd_epi16((__m128i)x, _mm_load_si128((const __m128i*)key));
#endif
}

// The lanes of one block, vector by vector, so that a loop can feed them with what it has loaded for itself.
struct DigestLanes {
    static constexpr int vectors = stripe_bytes / width;  // of a stripe
    Words sum[vectors] = {};
    const int16_t* key = block_keys;

    // `v` is vector number `at` since the last advance; `side` is that modulo 2 at least, known to the compiler.
    template <class Vector>
    inline __attribute__((always_inline)) void add(Vector v, int at, int side) {
        sum[side % vectors] += keyed((Words)v, key + at * (width / 2));
    }
    void advance(size_t stripes) { key += stripes * 32; }
    void add_stripes(const void* data, size_t stripes) {
        const char* from = static_cast<const char*>(data);
        for (size_t i = 0; i < stripes; ++i)
#pragma GCC unroll 4
            for (int side = 0; side < vectors; ++side) {
                Words v;
                memcpy(&v, from + i * stripe_bytes + side * width, width);
                add(v, static_cast<int>(i) * vectors + side, side);
            }
        advance(stripes);
    }
    void store(uint32_t* state) const { memcpy(state, sum, stripe_bytes); }
};
#endif

inline void digest_stripes(const char* data, size_t stripes, uint32_t* state) {
#if defined(__AVX2__) || defined(__SSE2__)
    DigestLanes sums;
    sums.add_stripes(data, stripes);
    sums.store(state);
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
