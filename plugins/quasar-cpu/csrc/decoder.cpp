// One forward of a Llama-like decoder, and one linear layer alone: the C interface of the library. It is compiled once per
// instruction set, each into a library of its own: in one library the linker could mix up their inlined functions.
#include "attention.h"
#include "linear.h"
#include "team.h"

namespace {

enum Part { GEMM = 0, ATTENTION = 1, REST = 2 };

// Buffers of one forward; they grow and are kept, because a fresh one costs page faults on every call.
struct Scratch {
    std::vector<float> hidden, plain, paired, scale, q, k, v, attended, gate, up, sums;
    std::vector<int16_t> steps;
    std::vector<Partial> partial;
    template <class T>
    static T* take(std::vector<T>& buffer, int64_t size) {
        if (int64_t(buffer.size()) < size) buffer.resize(size);
        return buffer.data();
    }
};

struct Forward {
    const Model& model;
    const Call& call;
    Team& team;
    Clock& clock;
    int64_t rows;
    Input in;
    float *hidden, *q, *k, *v, *attended, *gate, *up;

    void lap(int thread, Part part) { if (thread == 0) clock.lap(part); }

    static void norm(const float* x, const float* weight, int n, float eps, float* out) {
        F8 squares = zero();
        float rest = 0.0f;
        int i = 0;
        for (; i + 8 <= n; i += 8) squares = fma(load(x + i), load(x + i), squares);
        for (int j = i; j < n; ++j) rest += x[j] * x[j];
        const float factor = 1.0f / std::sqrt((sum(squares) + rest) / float(n) + eps);
        for (i = 0; i + 8 <= n; i += 8) store(out + i, load(x + i) * splat(factor) * load(weight + i));
        for (; i < n; ++i) out[i] = x[i] * factor * weight[i];
    }

    void embed(int64_t row) {
        const Matrix& table = model.embedding;
        const int64_t at = call.token_ids[row] * table.stride;
        float* out = hidden + row * model.hidden;
        for (int i = 0; i < model.hidden; ++i) {
            float value;
            if (table.kind == FLOAT32) value = static_cast<const float*>(table.weights)[at + i];
            else {
                const uint32_t bits = uint32_t(static_cast<const uint16_t*>(table.weights)[at + i]) << 16;
                std::memcpy(&value, &bits, sizeof value);
            }
            out[i] = value * model.embedding_scale;
        }
    }

    // The input of a stage: hidden states after a norm, in the form that the next matrices read.
    void normed(int64_t row, const float* weight, std::initializer_list<const Matrix*> readers) {
        norm(hidden + row * model.hidden, weight, model.hidden, model.norm_eps, in.plain + row * in.stride);
        const Matrix* done = nullptr;
        for (const Matrix* w : readers)
            if (!done || w->kind != done->kind) prepare(in, row, model.hidden, *(done = w));
    }

    void rotate(float* x, const Layer& layer, int64_t position) const {
        const int half = model.head_dim / 2;
        const float *cos = layer.rope_cos + position * half, *sin = layer.rope_sin + position * half;
        for (int i = 0; i < half; ++i) {
            const float a = x[i], b = x[i + half];
            x[i] = a * cos[i] - b * sin[i];
            x[i + half] = b * cos[i] + a * sin[i];
        }
    }

    void keep(void* cache, int64_t row, int64_t kv, const float* x) const {
        const int64_t b = row / call.query, entry = call.lengths[b] + call.offsets[row];
        const int64_t at = ((b * model.kv_heads + kv) * call.capacity + entry) * model.head_dim;
        if (model.cache_kind == FLOAT32) std::copy_n(x, model.head_dim, static_cast<float*>(cache) + at);
        else for (int i = 0; i < model.head_dim; ++i) static_cast<uint16_t*>(cache)[at + i] = to_bf16(x[i]);
    }

    // Norm and rotate the heads of one row; write its key and value into the cache.
    void place(int64_t row, const Layer& layer, void* keys, void* values) const {
        const int dim = model.head_dim;
        const int64_t position = call.positions[row];
        for (int head = 0; head < model.heads; ++head) {
            float* x = q + (row * model.heads + head) * dim;
            if (layer.q_norm) norm(x, layer.q_norm, dim, model.norm_eps, x);
            rotate(x, layer, position);
        }
        for (int head = 0; head < model.kv_heads; ++head) {
            float* x = k + (row * model.kv_heads + head) * dim;
            if (layer.k_norm) norm(x, layer.k_norm, dim, model.norm_eps, x);
            rotate(x, layer, position);
            keep(keys, row, head, x);
            keep(values, row, head, v + (row * model.kv_heads + head) * dim);
        }
    }

    F8 activate(F8 x) const {
        if (model.activation == SILU) return x / (splat(1.0f) + exp(zero() - x));
        const F8 inner = splat(0.7978845608f) * fma(splat(0.044715f) * x * x, x, x);
        const F8 tanh = splat(1.0f) - splat(2.0f) / (exp(inner + inner) + splat(1.0f));
        return splat(0.5f) * x * (splat(1.0f) + tanh);
    }

    void gated(int64_t row, const Matrix& down) {
        const int n = model.intermediate;
        const float *g = gate + row * n, *u = up + row * n;
        float* out = in.plain + row * in.stride;
        int i = 0;
        for (; i + 8 <= n; i += 8) store(out + i, activate(load(g + i)) * load(u + i));
        if (i < n) {
            float rest[16] = {};
            std::copy_n(g + i, n - i, rest);
            std::copy_n(u + i, n - i, rest + 8);
            store(rest, activate(load(rest)) * load(rest + 8));
            std::copy_n(rest, n - i, out + i);
        }
        prepare(in, row, n, down);
    }

    // A projection back into the hidden states: added to them, after a norm of its own where the family has one.
    void residual(int thread, const Matrix& w, const float* post_norm) {
        if (!post_norm) {
            const Job job{&w, {hidden, model.hidden, true}};
            multiply(team, in, rows, &job, 1);
            return lap(thread, GEMM);
        }
        const Job job{&w, {gate, model.hidden, false}};
        multiply(team, in, rows, &job, 1);
        lap(thread, GEMM);
        each_row([&](int64_t row) {
            float *x = gate + row * model.hidden, *out = hidden + row * model.hidden;
            norm(x, post_norm, model.hidden, model.norm_eps, x);
            for (int i = 0; i < model.hidden; ++i) out[i] += x[i];
        });
        lap(thread, REST);
    }

    template <class Body>
    void each_row(Body body) {
        team.each(rows, 1, [&](int64_t begin, int64_t end) { for (; begin < end; ++begin) body(begin); });
    }

    void layer(int thread, const Layer& l, int index, const std::vector<View>& views, Scratch& scratch, int64_t chunks) {
        const int width = model.heads * model.head_dim, kv_width = model.kv_heads * model.head_dim;
        each_row([&](int64_t row) { normed(row, l.attention_norm, {&l.q, &l.k, &l.v}); });
        lap(thread, REST);
        const Job qkv[] = {{&l.q, {q, width, false}}, {&l.k, {k, kv_width, false}}, {&l.v, {v, kv_width, false}}};
        multiply(team, in, rows, qkv, 3);
        lap(thread, GEMM);
        each_row([&](int64_t row) { place(row, l, call.keys[index], call.values[index]); });
        const Attention attention{model, call, views, q, width, call.keys[index], call.values[index],
                                  scratch.sums.data(), scratch.partial.data(), chunks};
        attention.run(team);
        each_row([&](int64_t row) {
            for (int h = 0; h < model.heads; ++h)
                attention.combine(row, h, in.plain + row * in.stride + h * model.head_dim);
            prepare(in, row, width, l.o);
        });
        lap(thread, ATTENTION);
        residual(thread, l.o, l.attention_post_norm);
        each_row([&](int64_t row) { normed(row, l.mlp_norm, {&l.gate, &l.up}); });
        lap(thread, REST);
        const Job mlp[] = {{&l.gate, {gate, model.intermediate, false}}, {&l.up, {up, model.intermediate, false}}};
        multiply(team, in, rows, mlp, 2);
        lap(thread, GEMM);
        each_row([&](int64_t row) { gated(row, l.down); });
        lap(thread, REST);
        residual(thread, l.down, l.mlp_post_norm);
    }

    void head(int thread) {
        const int64_t wanted = call.num_logits, skipped = call.query - wanted;
        each_row([&](int64_t row) {
            if (row % call.query >= skipped) normed(row, model.final_norm, {&model.head});
        });
        lap(thread, REST);
        for (int64_t b = 0; b < call.batch; ++b) {  // the rows of one sequence are neighbours, those of two are not
            const int64_t at = b * call.query + skipped;
            const Input part{in.plain + at * in.stride, in.paired + at * in.stride, in.steps + at * in.stride,
                             in.scale + at, in.stride};
            const Job job{&model.head, {call.logits + b * wanted * model.head.rows, model.head.rows, false}};
            multiply(team, part, wanted, &job, 1);
        }
        lap(thread, GEMM);
    }
};

Input make_input(Scratch& s, int64_t rows, int64_t columns) {
    const int64_t stride = blocks(columns);
    return {Scratch::take(s.plain, rows * stride), Scratch::take(s.paired, rows * stride),
            Scratch::take(s.steps, rows * stride), Scratch::take(s.scale, rows), stride};
}

}  // namespace

// Returns 0, or 1 for a token or a position outside the tables: then nothing was done.
extern "C" int32_t quasar_forward_layers(const Model* model, const Call* call, const Range* range) {
    static thread_local Scratch s;
    const Model& m = *model;
    const int64_t rows = int64_t(call->batch) * call->query;
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t token = call->token_ids[i], position = call->positions[i];
        if (token < 0 || token >= m.embedding.rows || position < 0 || position >= call->positions_held) return 1;
    }
    const int64_t width = int64_t(m.heads) * m.head_dim;
    const int64_t kv_width = int64_t(m.kv_heads) * m.head_dim;
    Team team;
    Clock clock(call->seconds);
    std::vector<int> windows;  // layers differ in their window only, and there are two kinds at most
    std::vector<Views> views;
    std::vector<int> kind(m.num_layers);
    int64_t longest = 0;
    for (int i = 0; i < m.num_layers; ++i) {
        const int window = m.layers[i].window;
        kind[i] = int(std::find(windows.begin(), windows.end(), window) - windows.begin());
        if (kind[i] < int(windows.size())) continue;
        windows.push_back(window);
        views.emplace_back(*call, window);
    }
    for (const View& view : views[0].rows) longest = std::max(longest, view.count);
    const int64_t chunks = (longest + CHUNK - 1) / CHUNK;
    Scratch::take(s.sums, rows * m.heads * chunks * m.head_dim);
    Scratch::take(s.partial, rows * m.heads * chunks);
    const int64_t columns = std::max({int64_t(m.hidden), int64_t(m.intermediate), width});
    const int64_t wide = std::max(m.intermediate, m.hidden);
    Forward f{m, *call, team, clock, rows, make_input(s, rows, columns),
              Scratch::take(s.hidden, rows * m.hidden), Scratch::take(s.q, rows * width),
              Scratch::take(s.k, rows * kv_width), Scratch::take(s.v, rows * kv_width),
              nullptr, Scratch::take(s.gate, rows * wide), Scratch::take(s.up, rows * wide)};
    Scratch& scratch = s;
#pragma omp parallel num_threads(call->threads)
    {
        team.gather();
        const int thread = omp_get_thread_num();
        f.each_row([&](int64_t row) {
            if (range->before) std::copy_n(range->before + row * m.hidden, m.hidden, f.hidden + row * m.hidden);
            else f.embed(row);
        });
        for (int i = range->begin; i < range->end; ++i)
            f.layer(thread, m.layers[i], i, views[kind[i]].rows, scratch, chunks);
        if (call->num_logits) f.head(thread);
        if (range->after)
            f.each_row([&](int64_t row) { std::copy_n(f.hidden + row * m.hidden, m.hidden, range->after + row * m.hidden); });
    }
    return 0;
}

// y [rows, w.rows] = x [rows, w.cols] times w, as a layer of some other model
extern "C" void quasar_linear(const Matrix* w, const float* x, float* y, int64_t rows, int32_t threads) {
    static thread_local Scratch s;
    Team team;
    const Input in = make_input(s, rows, w->cols);
    const Job job{w, {y, w->rows, false}};
#pragma omp parallel num_threads(threads)
    {
        team.gather();
        team.each(rows, 1, [&](int64_t row, int64_t end) {
            for (; row < end; ++row) {
                std::copy_n(x + row * w->cols, w->cols, in.plain + row * in.stride);
                prepare(in, row, w->cols, *w);
            }
        });
        multiply(team, in, rows, &job, 1);
    }
}

// Bytes of a struct of model.h, for Python to compare with its mirror of it; 0 for a name that is none of them.
extern "C" int64_t quasar_size_of(const char* name) {
    const struct { const char* name; size_t bytes; } structs[] = {
        {"Matrix", sizeof(Matrix)}, {"Layer", sizeof(Layer)}, {"Model", sizeof(Model)},
        {"Call", sizeof(Call)}, {"Range", sizeof(Range)}};
    for (const auto& each : structs) if (!std::strcmp(each.name, name)) return int64_t(each.bytes);
    return 0;
}

// The best instruction set here for which there is a library.
extern "C" const char* quasar_best_isa() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return "portable";
    const bool vnni = __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vnni");
    return vnni ? "avx512" : "avx2";
#else
    return "portable";
#endif
}
