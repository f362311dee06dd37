// One vocabulary of vectors for every instruction set; the kernels are written in it once and compiled several times.
// A sum over lanes always goes through `sum`, one fixed tree, so that no result depends on how a loop was cut.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>

struct F8 { __m256 v; };   // 8 floats
struct I8 { __m256i v; };  // 8 int32
struct S16 { __m256i v; }; // 16 int16

static inline F8 zero() { return {_mm256_setzero_ps()}; }
static inline F8 splat(float x) { return {_mm256_set1_ps(x)}; }
static inline F8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline void store(float* p, F8 a) { _mm256_storeu_ps(p, a.v); }
static inline F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline F8 operator-(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline F8 operator/(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline F8 fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
static inline F8 max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline F8 min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
static inline F8 abs(F8 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
static inline F8 round(F8 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2 to the power of whole numbers in -126..127
static inline F8 power_of_two(F8 n) {
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23);
    return {_mm256_castsi256_ps(bits)};
}
static inline float sum(F8 a) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float largest(F8 a) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
// In a register from here on: a value that several sums use is otherwise read again for each, and reads are the limit.
static inline F8 held(F8 a) { asm("" : "+x"(a.v)); return a; }

// 8 bfloat16 in order
static inline F8 load_bf16(const uint16_t* p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
// Of 16 bfloat16 the 8 at even and the 8 at odd places: cheaper than two widening loads
static inline F8 load_even(const uint16_t* p) {
    __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(raw, 16))};
}
static inline F8 load_odd(const uint16_t* p) {
    __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32(int(0xffff0000u))))};
}

// 8 rows of 8 to 8 columns
static inline void transpose(F8 r[8]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i].v, r[i + 1].v);
        t[i + 1] = _mm256_unpackhi_ps(r[i].v, r[i + 1].v);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            u[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0x44);
            u[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0xee);
        }
    for (int i = 0; i < 4; ++i) {
        r[i] = {_mm256_permute2f128_ps(u[i], u[i + 4], 0x20)};
        r[i + 4] = {_mm256_permute2f128_ps(u[i], u[i + 4], 0x31)};
    }
}

static inline I8 zero_i() { return {_mm256_setzero_si256()}; }
static inline S16 load_i16(const int16_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
static inline S16 held(S16 a) { asm("" : "+x"(a.v)); return a; }
static inline S16 widen(const int8_t* p) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// c + the sums of products of neighbouring pairs: int16 products of values up to 127 cannot saturate in int32
static inline I8 dot(S16 a, S16 b, I8 c) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return {_mm256_dpwssd_epi32(c.v, a.v, b.v)};
#else
    I8 sums{_mm256_add_epi32(c.v, _mm256_madd_epi16(a.v, b.v))};
    asm("" : "+x"(sums.v));  // or GCC reorders whole integer sums, for which it needs more registers than there are
    return sums;
#endif
}
static inline int32_t sum(I8 a) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
    __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}
static inline void store_i16(int16_t* p, F8 a, F8 b) {
    __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a.v), _mm256_cvtps_epi32(b.v));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

#else  // plain C++ that is right on every processor; the compiler vectorises what it can

struct F8 { float v[8]; };
struct I8 { int32_t v[8]; };
struct S16 { int16_t v[16]; };

#define EACH(n) for (int i = 0; i < n; ++i)
static inline F8 splat(float x) { F8 r; EACH(8) r.v[i] = x; return r; }
static inline F8 zero() { return splat(0.0f); }
static inline F8 load(const float* p) { F8 r; std::memcpy(r.v, p, sizeof r.v); return r; }
static inline void store(float* p, F8 a) { std::memcpy(p, a.v, sizeof a.v); }
static inline F8 operator+(F8 a, F8 b) { EACH(8) a.v[i] += b.v[i]; return a; }
static inline F8 operator-(F8 a, F8 b) { EACH(8) a.v[i] -= b.v[i]; return a; }
static inline F8 operator*(F8 a, F8 b) { EACH(8) a.v[i] *= b.v[i]; return a; }
static inline F8 operator/(F8 a, F8 b) { EACH(8) a.v[i] /= b.v[i]; return a; }
static inline F8 fma(F8 a, F8 b, F8 c) { return a * b + c; }
static inline F8 max(F8 a, F8 b) { EACH(8) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
static inline F8 min(F8 a, F8 b) { EACH(8) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
static inline F8 abs(F8 a) { EACH(8) a.v[i] = std::fabs(a.v[i]); return a; }
static inline F8 round(F8 a) { EACH(8) a.v[i] = std::nearbyintf(a.v[i]); return a; }
static inline F8 power_of_two(F8 n) { EACH(8) n.v[i] = std::ldexp(1.0f, int(n.v[i])); return n; }
static inline float sum(F8 a) {
    return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
static inline float largest(F8 a) { float m = a.v[0]; EACH(8) m = m > a.v[i] ? m : a.v[i]; return m; }
static inline F8 held(F8 a) { return a; }
static inline S16 held(S16 a) { return a; }
static inline float widen_bf16(uint16_t x) {
    uint32_t bits = uint32_t(x) << 16;
    float r;
    std::memcpy(&r, &bits, sizeof r);
    return r;
}
static inline F8 load_bf16(const uint16_t* p) { F8 r; EACH(8) r.v[i] = widen_bf16(p[i]); return r; }
static inline F8 load_even(const uint16_t* p) { F8 r; EACH(8) r.v[i] = widen_bf16(p[2 * i]); return r; }
static inline F8 load_odd(const uint16_t* p) { F8 r; EACH(8) r.v[i] = widen_bf16(p[2 * i + 1]); return r; }
static inline void transpose(F8 r[8]) {
    F8 t[8];
    EACH(8) for (int j = 0; j < 8; ++j) t[i].v[j] = r[j].v[i];
    EACH(8) r[i] = t[i];
}
static inline I8 zero_i() { I8 r; EACH(8) r.v[i] = 0; return r; }
static inline S16 load_i16(const int16_t* p) { S16 r; std::memcpy(r.v, p, sizeof r.v); return r; }
static inline S16 widen(const int8_t* p) { S16 r; EACH(16) r.v[i] = p[i]; return r; }
static inline I8 dot(S16 a, S16 b, I8 c) {
    EACH(8) c.v[i] += int32_t(a.v[2 * i]) * b.v[2 * i] + int32_t(a.v[2 * i + 1]) * b.v[2 * i + 1];
    return c;
}
static inline int32_t sum(I8 a) { int32_t s = 0; EACH(8) s += a.v[i]; return s; }
static inline void store_i16(int16_t* p, F8 a, F8 b) {
    EACH(8) { p[i] = int16_t(std::nearbyintf(a.v[i])); p[8 + i] = int16_t(std::nearbyintf(b.v[i])); }
}
#undef EACH
#endif

static inline uint16_t to_bf16(float x) {  // round to nearest, ties to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// e to the power of x for -87 ≤ x ≤ 88, to within 3 units in the last place; outside, the value at that bound.
static inline F8 exp(F8 x) {
    x = min(max(x, splat(-87.0f)), splat(88.0f));
    F8 n = round(x * splat(1.44269504f));
    F8 r = fma(n, splat(-0x1.62e4p-1f), x);
    r = fma(n, splat(-1.42860677e-6f), r);  // ln 2 in two parts: n times the first is exact
    F8 p = splat(1.0f / 5040);              // the series up to r^7: |r| ≤ 0.35 leaves 6e-9
    p = fma(p, r, splat(1.0f / 720));
    p = fma(p, r, splat(1.0f / 120));
    p = fma(p, r, splat(1.0f / 24));
    p = fma(p, r, splat(1.0f / 6));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    return fma(p, r, splat(1.0f)) * power_of_two(n);
}
