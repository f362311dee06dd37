// What Python hands over: plain structs of pointers, mirrored field by field in quasar_cpu/library.py.
// Nothing here owns memory; tensors on the Python side outlive every call.
#pragma once
#include <cstdint>

enum Kind : int32_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };
enum Activation : int32_t { SILU = 0, GELU_TANH = 1 };

// One weight [rows, cols], row-major. INT8 has one scale a row, and rows padded with zeros to a stride of whole blocks.
struct Matrix {
    const void* weights;  // null: there is no such matrix
    const float* scale;   // [rows], INT8 only
    const float* bias;    // [rows] or null
    int32_t rows, cols, stride, kind;
    int32_t steps, unused;  // INT8: whole steps of an input on either side of zero, 127 or more
};

struct Layer {
    Matrix q, k, v, o, gate, up, down;
    const float *attention_norm, *attention_post_norm;  // [hidden]; the post norms are null outside Gemma
    const float *mlp_norm, *mlp_post_norm;
    const float *q_norm, *k_norm;        // [head_dim] or null
    const float *rope_cos, *rope_sin;    // [positions, head_dim / 2]
    int32_t window, unused;              // positions that a query sees, itself included; 0 for all
};

struct Model {
    const Layer* layers;
    Matrix embedding, head;
    const float* final_norm;
    int32_t num_layers, hidden, heads, kv_heads, head_dim, intermediate, activation, cache_kind;
    float norm_eps, attention_scale, embedding_scale, unused;
};

// One block of columns over a cache; the meaning of every tensor is that of quasar.core.models.Block.
struct Call {
    const int64_t *token_ids, *positions, *offsets;  // [batch, query]
    const uint8_t* visible;                          // [batch, query, query]
    const int64_t* lengths;                          // [batch]
    void* const* keys;                               // per layer [batch, kv_heads, capacity, head_dim]
    void* const* values;
    float* logits;                                   // [batch, num_logits, vocab]
    double* seconds;                                 // [3] GEMM, attention, rest are added to; or null
    int32_t batch, query, num_logits, capacity, threads;
    int32_t positions_held;                          // in the tables of angles
};

// Some consecutive layers of a forward; with num_logits 0 the head is not run.
struct Range {
    const float* before;  // [batch, query, hidden] what the first of them reads; null: the embeddings
    float* after;         // the same, what the last of them wrote; or null
    int32_t begin, end;   // numbers of layers
};
