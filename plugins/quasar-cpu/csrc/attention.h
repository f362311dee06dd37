// Attention of a block over cached keys. Every row has a list of the entries it sees, in order of position; the list is
// cut into chunks of a fixed size by place in the list, which is absolute position. A row therefore adds up the same
// numbers in the same order whether its ancestors are drafts beside it or were committed long ago.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "linear.h"

constexpr int CHUNK = 128;   // places of a list that are summed together before chunks are combined
constexpr int TILE = 16;     // keys that are widened and transposed at once
constexpr int QUERIES = 24;  // query vectors of one piece of work
constexpr int LARGEST = 512; // of a head

// What a row sees: places first..count of its list. Places below `length` are that cache entry; the others are in `tail`.
struct View {
    int64_t first, count, length;
    const int32_t* tail;
    bool in_order;  // the tail is length, length + 1, …: the list is the cache itself
    inline int64_t entry(int64_t place) const { return in_order || place < length ? place : tail[place - length]; }
};

// The views of all rows of a block.
struct Views {
    std::vector<View> rows;
    std::vector<int32_t> tails;

    Views(const Call& call, int window) : rows(call.batch * call.query), tails(rows.size() * call.query) {
        std::vector<int64_t> position(call.query), order(call.query);
        for (int64_t b = 0; b < call.batch; ++b) {
            for (int64_t c = 0; c < call.query; ++c)
                position[call.offsets[b * call.query + c]] = call.positions[b * call.query + c];
            for (int64_t c = 0; c < call.query; ++c) order[c] = c;
            std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t z) { return position[a] < position[z]; });
            for (int64_t i = 0; i < call.query; ++i) {
                const int64_t m = b * call.query + i, length = call.lengths[b], own = call.positions[m];
                const uint8_t* visible = call.visible + m * call.query;
                int32_t* tail = tails.data() + m * call.query;
                int64_t seen = 0, hidden = 0;
                bool in_order = true;
                for (int64_t j : order) {
                    if (!visible[j]) continue;
                    in_order &= j == seen;
                    hidden += window && own - position[j] >= window;
                    tail[seen++] = int32_t(length + j);
                }
                const int64_t cut = window ? std::max<int64_t>(0, own - window + 1) : 0;
                rows[m] = {hidden ? length + hidden : std::min(cut, length), length + seen, length, tail, in_order};
            }
        }
    }
};

struct Partial { float top, total; };  // largest score of a chunk, sum of e^(score - top); beside it the weighted values

// One layer's attention.
struct Attention {
    const Model& model;
    const Call& call;
    const std::vector<View>& views;
    const float* queries;  // [rows, heads * head_dim], rotated
    int64_t pitch;         // from one row of queries to the next
    const void *keys, *values;
    float* sums;       // [rows, heads, chunks, head_dim]
    Partial* partial;  // [rows, heads, chunks]
    int64_t chunks;

    // Keys or values of one head of one sequence, widened 8 numbers at a time.
    struct Store {
        const void* at;
        int dim;
        bool wide;
        inline F8 load8(int64_t entry, int d) const {
            const int64_t place = entry * dim + d;
            return wide ? load(static_cast<const float*>(at) + place)
                        : load_bf16(static_cast<const uint16_t*>(at) + place);
        }
    };
    Store store_of(const void* cache, int64_t sequence, int64_t kv) const {
        const int64_t place = (sequence * model.kv_heads + kv) * call.capacity * model.head_dim;
        const bool wide = model.cache_kind == FLOAT32;
        return {static_cast<const char*>(cache) + place * (wide ? 4 : 2), model.head_dim, wide};
    }

    // Keys of `count` entries as columns of out [dim, TILE], zeros behind them.
    template <class Entry>
    static void columns(const Store& k, int64_t count, Entry entry, float* out) {
        for (int half = 0; half < TILE; half += 8)
            for (int d = 0; d < k.dim; d += 8) {
                F8 rows[8];
                for (int j = 0; j < 8; ++j) rows[j] = half + j < count ? k.load8(entry(half + j), d) : zero();
                transpose(rows);
                for (int j = 0; j < 8; ++j) store(out + (d + j) * TILE + half, rows[j]);
            }
    }

    // Scores of Q queries for a tile of keys: sums over the dimensions in order, one key a lane.
    template <int Q>
    static void scores(const float* queries, int dim, const float* tile, float* out) {
        F8 low[Q], high[Q];
#pragma GCC unroll 8
        for (int q = 0; q < Q; ++q) low[q] = high[q] = zero();
        for (int d = 0; d < dim; ++d) {
            const F8 a = load(tile + d * TILE), b = load(tile + d * TILE + 8);
#pragma GCC unroll 8
            for (int q = 0; q < Q; ++q) {
                const F8 x = held(splat(queries[q * dim + d]));
                low[q] = fma(x, a, low[q]);
                high[q] = fma(x, b, high[q]);
            }
        }
#pragma GCC unroll 8
        for (int q = 0; q < Q; ++q) store(out + q * CHUNK, low[q]), store(out + q * CHUNK + 8, high[q]);
    }

    // Add weight times value to out [Q, dim] for `count` entries in order. A weight of 0 changes no bit of a sum.
    template <int Q, class Entry>
    static void weigh(const Store& v, int64_t count, Entry entry, const float* weights, float* out, int64_t pitch) {
        for (int d = 0; d < v.dim; d += 8) {
            F8 acc[Q];
#pragma GCC unroll 8
            for (int q = 0; q < Q; ++q) acc[q] = load(out + q * pitch + d);
            for (int64_t j = 0; j < count; ++j) {
                const F8 value = held(v.load8(entry(j), d));
#pragma GCC unroll 8
                for (int q = 0; q < Q; ++q) acc[q] = fma(splat(weights[q * CHUNK + j]), value, acc[q]);
            }
#pragma GCC unroll 8
            for (int q = 0; q < Q; ++q) store(out + q * pitch + d, acc[q]);
        }
    }

    // Cut queries into groups that fit in registers; body is called with the size as a constant.
    template <class Body>
    static void grouped(int64_t count, Body body) {
        for (int64_t q = 0; q < count;) {
            const int64_t left = count - q;
            if (left >= 6) body(std::integral_constant<int, 6>(), q), q += 6;
            else if (left >= 3) body(std::integral_constant<int, 3>(), q), q += 3;
            else if (left == 2) body(std::integral_constant<int, 2>(), q), q += 2;
            else body(std::integral_constant<int, 1>(), q), q += 1;
        }
    }

    // Rows first..last of one sequence, one key-value head, one chunk of places.
    void chunk(int64_t sequence, int64_t kv, int64_t first, int64_t last, int64_t c) const {
        const int dim = model.head_dim;
        const int64_t group = model.heads / model.kv_heads, count = (last - first) * group, start = c * CHUNK;
        const Store k = store_of(keys, sequence, kv), v = store_of(values, sequence, kv);
        alignas(32) float tile[LARGEST * TILE], own[QUERIES * LARGEST], sum[QUERIES * LARGEST];
        alignas(32) float weights[QUERIES][CHUNK], shared[QUERIES][CHUNK];
        int64_t end = start;  // places that rows share: those of the cache itself
        for (int64_t m = first; m < last; ++m) {
            end = std::max(end, std::min(shared_to(views[m]), start + CHUNK));
            for (int64_t g = 0; g < group; ++g)
                for (int d = 0; d < dim; ++d)
                    own[((m - first) * group + g) * dim + d] =
                        queries[m * pitch + (kv * group + g) * dim + d] * model.attention_scale;
        }
        for (int64_t base = start; base < end; base += TILE) {
            columns(k, std::min<int64_t>(TILE, end - base), [&](int64_t j) { return base + j; }, tile);
            grouped(count, [&](auto size, int64_t q) {
                scores<size()>(own + q * dim, dim, tile, weights[q] + (base - start));
            });
        }
        each_tail(first, last, start, [&](int64_t m, int64_t from, int64_t to) {
            const View& view = views[m];
            const int64_t q = (m - first) * group;
            for (int64_t base = from; base < to; base += TILE) {
                alignas(32) float some[QUERIES][CHUNK];
                const int64_t width = std::min<int64_t>(TILE, to - base);
                columns(k, width, [&](int64_t j) { return view.entry(base + j); }, tile);
                grouped(group, [&](auto size, int64_t g) { scores<size()>(own + (q + g) * dim, dim, tile, some[g]); });
                for (int64_t g = 0; g < group; ++g) std::copy_n(some[g], width, weights[q + g] + (base - start));
            }
        });
        for (int64_t m = first; m < last; ++m)
            for (int64_t g = 0; g < group; ++g) {
                const int64_t q = (m - first) * group + g, common = std::clamp<int64_t>(shared_to(views[m]) - start, 0, CHUNK);
                partial[(m * model.heads + kv * group + g) * chunks + c] =
                    softmax(weights[q], views[m].first - start, views[m].count - start);
                std::copy_n(weights[q], common, shared[q]);
                std::fill(shared[q] + common, shared[q] + CHUNK, 0.0f);
            }
        std::fill_n(sum, count * dim, 0.0f);
        grouped(count, [&](auto size, int64_t q) {
            weigh<size()>(v, end - start, [&](int64_t j) { return start + j; }, shared[q], sum + q * dim, dim);
        });
        each_tail(first, last, start, [&](int64_t m, int64_t from, int64_t to) {
            const int64_t q = (m - first) * group;
            grouped(group, [&](auto size, int64_t g) {
                weigh<size()>(v, to - from, [&](int64_t j) { return views[m].entry(from + j); },
                              weights[q + g] + (from - start), sum + (q + g) * dim, dim);
            });
        });
        for (int64_t m = first; m < last; ++m)
            for (int64_t g = 0; g < group; ++g)
                std::copy_n(sum + ((m - first) * group + g) * dim, dim,
                            sums + ((m * model.heads + kv * group + g) * chunks + c) * dim);
    }

    static int64_t shared_to(const View& view) { return view.in_order ? view.count : std::min(view.count, view.length); }

    // Apply body(row, from, to) to the places of this chunk that a row of a tree sees and its neighbours do not share.
    template <class Body>
    void each_tail(int64_t first, int64_t last, int64_t start, Body body) const {
        for (int64_t m = first; m < last; ++m) {
            const int64_t from = std::max({start, views[m].first, views[m].length});
            const int64_t to = std::min(views[m].count, start + CHUNK);
            if (!views[m].in_order && from < to) body(m, from, to);
        }
    }

    // Turn the scores at places from..to of a chunk into weights, all others into 0.
    static Partial softmax(float* scores, int64_t from, int64_t to) {
        from = std::clamp<int64_t>(from, 0, CHUNK);
        to = std::clamp<int64_t>(to, 0, CHUNK);
        if (from >= to) return {-INFINITY, 0.0f};
        float top = scores[from];
        for (int64_t j = from + 1; j < to; ++j) top = std::max(top, scores[j]);
        std::fill(scores, scores + from, top);
        std::fill(scores + to, scores + CHUNK, top);
        F8 total = zero();
        for (int64_t j = 0; j < CHUNK; j += 8) store(scores + j, exp(load(scores + j) - splat(top)));
        std::fill(scores, scores + from, 0.0f);
        std::fill(scores + to, scores + CHUNK, 0.0f);
        for (int64_t j = 0; j < CHUNK; j += 8) total = total + load(scores + j);
        return {top, sum(total)};
    }

    // Add up the chunks of one head of one row, in order.
    void combine(int64_t m, int64_t head, float* out) const {
        const int dim = model.head_dim;
        const Partial* parts = partial + (m * model.heads + head) * chunks;
        const float* own = sums + (m * model.heads + head) * chunks * dim;
        const int64_t c0 = views[m].first / CHUNK, c1 = (views[m].count + CHUNK - 1) / CHUNK;
        float top = -INFINITY, total = 0.0f;
        for (int64_t c = c0; c < c1; ++c) top = std::max(top, parts[c].top);
        std::fill_n(out, dim, 0.0f);
        for (int64_t c = c0; c < c1; ++c) {
            const F8 factor = exp(splat(parts[c].top - top));
            float one[8];
            store(one, factor);
            total += parts[c].total * one[0];
            for (int d = 0; d < dim; d += 8) store(out + d, fma(factor, load(own + c * dim + d), load(out + d)));
        }
        const F8 divisor = splat(total);
        for (int d = 0; d < dim; d += 8) store(out + d, load(out + d) / divisor);
    }

    template <class Workers>
    void run(Workers& team) const {
        const int64_t group = model.heads / model.kv_heads, rows = std::max<int64_t>(1, QUERIES / group);
        const int64_t tiles = (call.query + rows - 1) / rows;
        team.each(call.batch * tiles * model.kv_heads * chunks, 1, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                const int64_t c = task % chunks, kv = task / chunks % model.kv_heads;
                const int64_t t = task / chunks / model.kv_heads % tiles, b = task / chunks / model.kv_heads / tiles;
                const int64_t first = b * call.query + t * rows, last = std::min(first + rows, (b + 1) * call.query);
                bool seen = false;
                for (int64_t m = first; m < last; ++m)
                    seen |= views[m].first < (c + 1) * CHUNK && views[m].count > c * CHUNK;
                if (seen) chunk(b, kv, first, last, c);
            }
        });
    }
};
