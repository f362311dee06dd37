// Matrix products of a few rows. An output is one sum over the columns in one order, in 8 lanes and then `sum`,
// whatever the number of rows beside it: that is what makes a row's bits independent of its block.
#pragma once
#include <algorithm>

#include "model.h"
#include "simd.h"

constexpr int BLOCK = 16;  // columns that one step of a kernel takes
constexpr int MAX_ROWS = 6;   // rows that share a weight in registers
constexpr int PANEL = 48;     // rows that share a piece of the weights in the cache
constexpr int PIECE = 48;     // outputs in one piece of work: a multiple of every N below

constexpr int AHEAD = 2;      // groups of outputs whose weights are fetched while one is multiplied

// Fetch the line at `p` of each of N rows: weights come from memory once a forward, and rows are too short for the
// processor to see a stream in them.
template <int N>
static inline void prefetch(const void* p, int64_t bytes) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) __builtin_prefetch(static_cast<const char*>(p) + (AHEAD * N + n) * bytes);
}

// The rows of an input in each of the forms that kernels read; only those that are needed are filled.
struct Input {
    float* plain;     // [rows, stride] in order, zeros behind the last column
    float* paired;    // the same, each 16 as 8 even and 8 odd places: as bfloat16 is read
    int16_t* steps;   // [rows, stride] whole steps of `scale`
    float* scale;     // [rows] size of a step
    int64_t stride;   // a multiple of BLOCK
};

static inline int64_t blocks(int64_t columns) { return (columns + BLOCK - 1) / BLOCK * BLOCK; }

// Fill the forms that `w` reads from `plain`. The scale is that of quasar.core.quantization.
static void prepare(const Input& in, int64_t row, int columns, const Matrix& w) {
    float* x = in.plain + row * in.stride;
    const int64_t padded = blocks(columns);
    for (int64_t i = columns; i < padded; ++i) x[i] = 0.0f;
    if (w.kind == BFLOAT16) {
        float* out = in.paired + row * in.stride;
        for (int64_t i = 0; i < padded; i += BLOCK)
            for (int j = 0; j < BLOCK / 2; ++j) {
                out[i + j] = x[i + 2 * j];
                out[i + BLOCK / 2 + j] = x[i + 2 * j + 1];
            }
    } else if (w.kind == INT8) {
        F8 top = zero();
        for (int64_t i = 0; i < padded; i += 8) top = max(top, abs(load(x + i)));
        const float scale = std::max(largest(top) / float(w.steps), 1.17549435e-38f);
        in.scale[row] = scale;
        int16_t* out = in.steps + row * in.stride;
        const F8 divisor = splat(scale);
        for (int64_t i = 0; i < padded; i += BLOCK)
            store_i16(out + i, round(load(x + i) / divisor), round(load(x + i + 8) / divisor));
    }
}

struct Bfloat16 {
    using Weight = uint16_t;
    static const float* rows(const Input& in) { return in.paired; }
    static inline F8 first(const Weight* p) { return load_even(p); }
    static inline F8 second(const Weight* p) { return load_odd(p); }
};
struct Float32 {
    using Weight = float;
    static const float* rows(const Input& in) { return in.plain; }
    static inline F8 first(const Weight* p) { return load(p); }
    static inline F8 second(const Weight* p) { return load(p + 8); }
};

// out[m * N + n] = row m of x times row n of w, for M rows and N outputs held in registers
template <class W, int M, int N>
static inline void tile(const float* x, int64_t stride, const typename W::Weight* w, int64_t columns, float* out) {
    F8 acc[M][N];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) acc[m][n] = zero();
    auto step = [&](const typename W::Weight* p, int64_t pitch, int64_t k) __attribute__((always_inline)) {
        // One half after the other: both halves of N weights beside the sums would not fit in 16 registers.
        F8 a[N];
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) a[n] = W::first(p + n * pitch);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const F8 row = held(load(x + m * stride + k));
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) acc[m][n] = held(fma(row, a[n], acc[m][n]));
        }
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) a[n] = W::second(p + n * pitch);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const F8 row = held(load(x + m * stride + k + 8));
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) acc[m][n] = held(fma(row, a[n], acc[m][n]));
        }
    };
    int64_t k = 0;
    constexpr int LINE = 64 / sizeof(typename W::Weight);
    for (; k + LINE <= columns; k += LINE) {
        prefetch<N>(w + k, columns * sizeof(typename W::Weight));
#pragma GCC unroll 4
        for (int i = 0; i < LINE; i += BLOCK) step(w + k + i, columns, k + i);
    }
    for (; k + BLOCK <= columns; k += BLOCK) step(w + k, columns, k);
    if (k < columns) {  // the weights are torch's and end here; what lies behind them is not ours to read
        typename W::Weight rest[N * BLOCK] = {};
        for (int n = 0; n < N; ++n) std::copy(w + n * columns + k, w + (n + 1) * columns, rest + n * BLOCK);
        step(rest, BLOCK, k);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) out[m * N + n] = sum(acc[m][n]);
}

template <int M, int N>
static inline void tile_int8(const int16_t* x, int64_t stride, const int8_t* w, int64_t pitch, int32_t* out) {
    I8 acc[M][N];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) acc[m][n] = zero_i();
    auto step = [&](int64_t k) __attribute__((always_inline)) {
        S16 a[N];
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) a[n] = widen(w + n * pitch + k);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const S16 row = held(load_i16(x + m * stride + k));
#pragma GCC unroll 8
            for (int n = 0; n < N; ++n) acc[m][n] = dot(row, a[n], acc[m][n]);
        }
    };
    constexpr int LINE = 64;
    int64_t k = 0;
    for (; k + LINE <= pitch; k += LINE) {
        prefetch<N>(w + k, pitch);
#pragma GCC unroll 4
        for (int i = 0; i < LINE; i += BLOCK) step(k + i);
    }
    for (; k < pitch; k += BLOCK) step(k);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) out[m * N + n] = sum(acc[m][n]);
}

// What becomes of an output: stored, or added to what is there (a residual).
struct Output {
    float* rows;
    int64_t stride;
    bool add;
    inline void put(int64_t row, int64_t column, float value) const {
        float& place = rows[row * stride + column];
        place = add ? place + value : value;
    }
};

template <class W, int M, int N>
static inline void finish(const Matrix& w, const Input& in, int64_t m, int64_t n, const Output& y) {
    float out[M * N];
    tile<W, M, N>(W::rows(in) + m * in.stride, in.stride,
                  static_cast<const typename W::Weight*>(w.weights) + n * w.stride, w.cols, out);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) y.put(m + i, n + j, w.bias ? out[i * N + j] + w.bias[n + j] : out[i * N + j]);
}

template <int M, int N>
static inline void finish_int8(const Matrix& w, const Input& in, int64_t m, int64_t n, const Output& y) {
    int32_t out[M * N];
    tile_int8<M, N>(in.steps + m * in.stride, in.stride, static_cast<const int8_t*>(w.weights) + n * w.stride, w.stride,
                    out);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            const float value = float(out[i * N + j]) * in.scale[m + i] * w.scale[n + j];
            y.put(m + i, n + j, w.bias ? value + w.bias[n + j] : value);
        }
}

template <int M, int N>
static inline void finish_any(const Matrix& w, const Input& in, int64_t m, int64_t n, const Output& y) {
    if (w.kind == INT8) finish_int8<M, N>(w, in, m, n, y);
    else if (w.kind == BFLOAT16) finish<Bfloat16, M, N>(w, in, m, n, y);
    else finish<Float32, M, N>(w, in, m, n, y);
}

// Few rows leave registers for more outputs at once: M * N sums, N weights and a row have to fit in 16, and there should
// be 8 sums or more, to hide the latency of one.
template <int M>
static void group(const Matrix& w, const Input& in, int64_t m, int64_t n, int64_t end, const Output& y) {
    constexpr int N = M <= 2 ? 4 : M == 3 ? 3 : 2;
    for (; n + N <= end; n += N) finish_any<M, N>(w, in, m, n, y);
    for (; n < end; ++n) finish_any<M, 1>(w, in, m, n, y);
}

// Outputs n..end of rows first..last. The rows are cut into groups as even as possible.
static void product(const Matrix& w, const Input& in, int64_t first, int64_t last, int64_t n, int64_t end,
                    const Output& y) {
    constexpr int64_t STRIP = 12;  // outputs whose weights stay in the nearest cache while all groups use them
    const int64_t rows = last - first, groups = (rows + MAX_ROWS - 1) / MAX_ROWS;
    const int64_t strip = groups == 1 ? end - n : STRIP;
    for (; n < end; n += strip) {
        const int64_t stop = std::min(n + strip, end);
        for (int64_t g = 0, m = first; g < groups; ++g) {
            const int64_t count = (rows - (m - first) + (groups - g) - 1) / (groups - g);
            switch (count) {
                case 1: group<1>(w, in, m, n, stop, y); break;
                case 2: group<2>(w, in, m, n, stop, y); break;
                case 3: group<3>(w, in, m, n, stop, y); break;
                case 4: group<4>(w, in, m, n, stop, y); break;
                case 5: group<5>(w, in, m, n, stop, y); break;
                default: group<6>(w, in, m, n, stop, y); break;
            }
            m += count;
        }
    }
}

// One product of a stage; several of them may share an input.
struct Job {
    const Matrix* w;
    Output y;
};

template <class Workers>
static void multiply(Workers& team, const Input& in, int64_t rows, const Job* jobs, int count) {
    int64_t pieces[3] = {}, total = 0;
    for (int j = 0; j < count; ++j) total += pieces[j] = (jobs[j].w->rows + PIECE - 1) / PIECE;
    const int64_t panels = (rows + PANEL - 1) / PANEL;
    team.each(total * panels, 1, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            const int64_t panel = task / total;
            int64_t piece = task % total;
            int j = 0;
            while (piece >= pieces[j]) piece -= pieces[j++];
            const Matrix& w = *jobs[j].w;
            product(w, in, panel * PANEL, std::min(rows, (panel + 1) * PANEL), piece * PIECE,
                    std::min<int64_t>(w.rows, (piece + 1) * PIECE), jobs[j].y);
        }
    });
}
