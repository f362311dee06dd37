// Forwards of tiny random decoders, for the sanitizers: every tensor is an allocation of its exact size, so that a read
// behind its end is seen. Each block (ragged batch, tree, windows) is run in two ranges of layers, and compared bit for bit
// with its rows alone, run in one.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <vector>

#include "model.h"

extern "C" int32_t quasar_forward_layers(const Model*, const Call*, const Range*);
extern "C" void quasar_linear(const Matrix*, const float*, float*, int64_t, int32_t);

struct Random {
    uint64_t state;
    uint32_t bits() { return uint32_t((state = state * 6364136223846793005u + 1442695040888963407u) >> 33); }
    int below(int n) { return int(bits() % uint32_t(n)); }
    float near(float middle, float width) { return middle + width * (float(bits()) / 1073741824.0f - 1.0f); }
};

struct Shape {
    const char* name;
    int hidden, heads, kv_heads, head_dim, intermediate, windows[2];
    bool gemma, head_norms, bias;
    int length;  // committed tokens of the longest row
};

constexpr int VOCAB = 53, LAYERS = 2;

struct Decoder {
    Model model{};
    Layer layers[LAYERS]{};
    Random random{12345};
    int positions = 0;  // in the tables of angles
    std::deque<std::vector<char>> kept;

    void* make(size_t bytes) { return kept.emplace_back(bytes).data(); }
    const float* floats(int count, float middle, float width) {
        float* made = static_cast<float*>(make(count * sizeof(float)));
        for (int i = 0; i < count; ++i) made[i] = random.near(middle, width);
        return made;
    }
    Matrix matrix(int rows, int cols, int kind, bool bias) {
        const int stride = kind == INT8 ? (cols + 15) / 16 * 16 : cols;
        void* weights = make(size_t(rows) * stride * (kind == FLOAT32 ? 4 : kind == BFLOAT16 ? 2 : 1));
        if (kind == INT8) std::memset(weights, 0, size_t(rows) * stride);
        for (int r = 0; r < rows; ++r)
            for (int c = 0; c < cols; ++c) {
                const size_t at = size_t(r) * stride + c;
                const float value = random.near(0.0f, 0.5f);
                uint32_t bits;
                std::memcpy(&bits, &value, sizeof bits);
                if (kind == FLOAT32) static_cast<float*>(weights)[at] = value;
                else if (kind == BFLOAT16) static_cast<uint16_t*>(weights)[at] = uint16_t(bits >> 16);
                else static_cast<int8_t*>(weights)[at] = int8_t(random.below(255) - 127);
            }
        return {weights, kind == INT8 ? floats(rows, 0.005f, 0.001f) : nullptr, bias ? floats(rows, 0.0f, 0.3f) : nullptr,
                rows, cols, stride, kind, random.below(2) ? 127 : 2047, 0};
    }
    Decoder(const Shape& s, int kind, int base) {
        const int width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim;
        positions = s.length + 64;
        for (int i = 0; i < LAYERS; ++i) {
            Layer& l = layers[i];
            l.q = matrix(width, s.hidden, kind, s.bias);
            l.k = matrix(kv_width, s.hidden, kind, s.bias);
            l.v = matrix(kv_width, s.hidden, kind, s.bias);
            l.o = matrix(s.hidden, width, kind, false);
            l.gate = matrix(s.intermediate, s.hidden, kind, false);
            l.up = matrix(s.intermediate, s.hidden, kind, false);
            l.down = matrix(s.hidden, s.intermediate, kind, false);
            l.attention_norm = floats(s.hidden, 1.0f, 0.2f);
            l.mlp_norm = floats(s.hidden, 1.0f, 0.2f);
            if (s.gemma) l.attention_post_norm = floats(s.hidden, 1.0f, 0.2f);
            if (s.gemma) l.mlp_post_norm = floats(s.hidden, 1.0f, 0.2f);
            if (s.head_norms) l.q_norm = floats(s.head_dim, 1.0f, 0.2f);
            if (s.head_norms) l.k_norm = floats(s.head_dim, 1.0f, 0.2f);
            l.rope_cos = floats(positions * s.head_dim / 2, 0.0f, 1.0f);
            l.rope_sin = floats(positions * s.head_dim / 2, 0.0f, 1.0f);
            l.window = s.windows[i];
        }
        model.layers = layers;
        model.embedding = matrix(VOCAB, s.hidden, base, false);
        model.head = matrix(VOCAB, s.hidden, base, false);
        model.final_norm = floats(s.hidden, 1.0f, 0.2f);
        model.num_layers = LAYERS, model.hidden = s.hidden, model.heads = s.heads, model.kv_heads = s.kv_heads;
        model.head_dim = s.head_dim, model.intermediate = s.intermediate, model.activation = s.gemma ? GELU_TANH : SILU;
        model.cache_kind = base, model.norm_eps = 1e-5f, model.attention_scale = 0.3f;
        model.embedding_scale = s.gemma ? 4.5f : 1.0f;
    }
};

struct Cache {
    int capacity;
    std::vector<std::vector<char>> stores;
    std::vector<void*> keys, values;
    Cache(const Model& m, int batch, int capacity) : capacity(capacity) {
        const size_t bytes = size_t(batch) * m.kv_heads * capacity * m.head_dim * (m.cache_kind == FLOAT32 ? 4 : 2);
        stores.assign(2 * LAYERS, std::vector<char>(bytes));
        for (int i = 0; i < LAYERS; ++i) keys.push_back(stores[2 * i].data()), values.push_back(stores[2 * i + 1].data());
    }
};

struct Block {
    int batch, query, num_logits;
    std::vector<int64_t> ids, positions, offsets, lengths;
    std::vector<uint8_t> visible;
};

static std::vector<float> forward(const Decoder& d, Cache& cache, const Block& b, int threads) {
    std::vector<float> logits(size_t(b.batch) * b.num_logits * VOCAB);
    double seconds[3] = {};
    const Call call{b.ids.data(), b.positions.data(), b.offsets.data(), b.visible.data(), b.lengths.data(),
                    cache.keys.data(), cache.values.data(), logits.data(), threads > 1 ? seconds : nullptr,
                    b.batch, b.query, b.num_logits, cache.capacity, threads, d.positions};
    const Range whole{nullptr, nullptr, 0, LAYERS};
    if (b.query == 1) quasar_forward_layers(&d.model, &call, &whole);
    else {
        std::vector<float> states(size_t(b.batch) * b.query * d.model.hidden);
        const Range below{nullptr, states.data(), 0, 1}, above{states.data(), nullptr, 1, LAYERS};
        Call silent = call;
        silent.num_logits = 0, silent.logits = nullptr;
        quasar_forward_layers(&d.model, &silent, &below);
        quasar_forward_layers(&d.model, &call, &above);
    }
    return logits;
}

struct Row {
    std::vector<int64_t> text, nodes;
    std::vector<int> parents;  // slots; slot 0 is the last token of the text
    int depth(int slot) const { return slot ? 1 + depth(parents[slot - 1]) : 0; }
    bool sees(int slot, int other) const { return slot == other || (slot > other && slot && sees(parents[slot - 1], other)); }
};

// The block of pending tokens and nodes over `cached` entries a row, laid out as quasar.core.session does it.
static Block block_of(const std::vector<Row>& rows, const std::vector<int>& cached) {
    int width = 0, nodes = 0;
    for (size_t b = 0; b < rows.size(); ++b) {
        width = std::max(width, int(rows[b].text.size()) - cached[b]);
        nodes = std::max(nodes, int(rows[b].nodes.size()));
    }
    const int query = width + nodes, batch = int(rows.size());
    Block block{batch, query, nodes + 1, {}, {}, {}, {}, std::vector<uint8_t>(size_t(batch) * query * query)};
    for (int b = 0; b < batch; ++b) {
        const Row& row = rows[b];
        const int length = cached[b], pad = width - (int(row.text.size()) - length), last = int(row.text.size()) - 1;
        block.lengths.push_back(length);
        for (int c = 0; c < query; ++c) {
            const int slot = c - width + 1, place = (c - pad + query) % query;
            const bool node = slot > 0, used = c >= pad && slot <= int(row.nodes.size());
            block.ids.push_back(!used ? 0 : node ? row.nodes[slot - 1] : row.text[length + c - pad]);
            block.positions.push_back(!used ? 0 : node ? last + row.depth(slot) : length + c - pad);
            block.offsets.push_back(place);
            for (int other = 0; other < query; ++other) {
                const int seen = other - width + 1;
                bool sees = other == c;
                if (used && other >= pad && other < c) sees = seen <= 0 || (node && row.sees(slot, seen));
                block.visible[(size_t(b) * query + c) * query + (other - pad + query) % query] = sees;
            }
        }
    }
    return block;
}

static std::vector<float> alone(const Decoder& d, Cache& cache, int64_t token, int64_t length) {
    return forward(d, cache, {1, 1, 1, {token}, {length}, {0}, {length}, {1}}, 1);
}

static int check(const Shape& shape, int kind, int base, int threads) {
    Decoder d(shape, kind, base);
    std::vector<Row> rows(3);
    const int lengths[] = {shape.length, 1, shape.length / 2 + 1}, nodes[] = {9, 0, 5};
    std::vector<int> cached;
    for (int b = 0; b < 3; ++b) {
        for (int i = 0; i < lengths[b]; ++i) rows[b].text.push_back(d.random.below(VOCAB));
        for (int i = 0; i < nodes[b]; ++i) {
            rows[b].nodes.push_back(d.random.below(VOCAB));
            rows[b].parents.push_back(b == 2 ? i : d.random.below(i + 1));  // a tree, nothing, a chain
        }
        cached.push_back(std::max(0, lengths[b] - 4 + b));
    }
    std::vector<Row> before = rows;
    for (int b = 0; b < 3; ++b) before[b].text.resize(std::max(1, cached[b])), before[b].nodes.clear();
    Cache together(d.model, 3, shape.length + 16);
    forward(d, together, block_of(before, {0, 0, 0}), threads);
    const Block block = block_of(rows, cached);
    const std::vector<float> got = forward(d, together, block, threads);
    int wrong = 0;
    for (int b = 0; b < 3; ++b) {
        Cache single(d.model, 1, lengths[b] + nodes[b]);
        std::vector<float> want;
        for (int i = 0; i < lengths[b]; ++i) want = alone(d, single, rows[b].text[i], i);
        for (int slot = 0; slot <= nodes[b]; ++slot) {
            std::vector<int> path;
            for (int at = slot; at; at = rows[b].parents[at - 1]) path.insert(path.begin(), at);
            for (size_t i = 0; i < path.size(); ++i)
                want = alone(d, single, rows[b].nodes[path[i] - 1], lengths[b] + int64_t(i));
            const float* place = got.data() + (size_t(b) * block.num_logits + slot) * VOCAB;
            wrong += std::memcmp(place, want.data(), VOCAB * sizeof(float)) != 0;
        }
    }
    if (wrong) std::printf("%s, weights %d, cache %d, %d threads: %d slots differ\n", shape.name, kind, base, threads, wrong);
    return wrong;
}

static int check_linear(int kind, int rows, int outputs, int inputs) {
    Decoder d({"linear", 8, 1, 1, 8, 8, {0, 0}, false, false, false, 1}, FLOAT32, FLOAT32);
    const Matrix w = d.matrix(outputs, inputs, kind, true);
    const float* x = d.floats(rows * inputs, 0.0f, 2.0f);
    std::vector<float> y(size_t(rows) * outputs), one(outputs);
    quasar_linear(&w, x, y.data(), rows, 2);
    int wrong = 0;
    for (int r = 0; r < rows; ++r) {
        quasar_linear(&w, x + size_t(r) * inputs, one.data(), 1, 1);
        wrong += std::memcmp(y.data() + size_t(r) * outputs, one.data(), outputs * sizeof(float)) != 0;
    }
    if (wrong) std::printf("linear %d x %d, weights %d: %d of %d rows differ\n", outputs, inputs, kind, wrong, rows);
    return wrong;
}

int main() {
    const Shape shapes[] = {
        {"plain", 20, 4, 2, 8, 22, {0, 0}, false, false, true, 21},
        {"past a chunk", 16, 2, 2, 16, 24, {0, 0}, false, true, false, 131},
        {"short window", 13, 3, 1, 8, 19, {5, 0}, true, true, false, 30},
        {"long window", 16, 4, 1, 8, 16, {130, 3}, false, false, true, 134},
        {"largest group", 24, 24, 1, 8, 16, {0, 7}, false, false, false, 12},
        {"largest head", 12, 2, 1, 512, 16, {0, 0}, false, true, false, 12},
    };
    int wrong = 0, checks = 0;
    for (const Shape& shape : shapes)
        for (int base : {FLOAT32, BFLOAT16})
            for (int kind : {base, int(INT8)}) wrong += check(shape, kind, base, 1 + checks++ % 2);
    for (int kind : {FLOAT32, BFLOAT16, INT8})
        for (int rows : {1, 5, 7, 70})
            for (int inputs : {1, 16, 33, 64, 81}) wrong += check_linear(kind, rows, 1 + (rows * inputs) % 60, inputs), ++checks;
    std::printf("%d checks, %d differences\n", checks, wrong);
    return wrong != 0;
}
