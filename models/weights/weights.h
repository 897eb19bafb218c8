// One rank's weights, packed for the kernels, and the one loader that fills them from any source of
// tensors: a checkpoint on disk or the synthetic generator. Built once at start, constant
// afterwards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoint/model_config.h"
#include "models/checkpoint/shard.h"
#include "models/weights/quantized_tensors.h"
#include "models/weights/weight_reader.h"
#include "runtime/ops/tensor.h"

namespace outrider {

// Sizes of this rank's shard; heads, kv and ffn below are the shard's counts. Biases are empty
// where the model has none; those of o and down, whose products are summed over the ranks, are
// there on rank 0 only.
struct NormWeights {
  std::vector<float> weight;  // [hidden]; empty: there is no such norm
  std::vector<float> bias;    // [hidden] or empty
  bool operator==(const NormWeights&) const = default;
};

// Null where the model has no such vector.
inline const float* data_or_null(const std::vector<float>& vector) {
  return vector.empty() ? nullptr : vector.data();
}

struct LayerWeights {
  NormWeights attn_norm;
  // [(heads + 2 kv) * head_dim, hidden]: q, then k, then v; q and k where values are keys; or q
  // alone. Latent: q_a, or all of q, then kv_a.
  ops::PackedMatrix qkv;
  ops::PackedMatrix v;  // [kv * head_dim, hidden] where its integers have another form; else in qkv
  std::vector<float> qkv_bias;  // [(heads + 2 kv) * head_dim]
  std::vector<float> q_norm;    // [head_dim], or [heads * head_dim]: each head its own
  std::vector<float> k_norm;
  std::vector<float> v_norm;  // [head_dim] ones: it has no weights
  std::vector<float> sinks;   // [heads] or empty
  // Of latent attention, whose norms above are those of q_a and kv_a.
  ops::PackedMatrix q_b;        // [heads * query_dim, q_rank]
  ops::PackedMatrix kv_b_keys;  // of each head (ops::ExpertMatrix) [kv_rank, nope_dim], turned over
  ops::PackedMatrix kv_b_values;  // of each head [value_dim, kv_rank]
  ops::PackedMatrix o;            // [hidden, heads * value_dim]
  std::vector<float> o_bias;      // [hidden]
  NormWeights attn_post_norm;     // of what attention adds
  NormWeights mlp_norm;
  // [2 ffn, hidden]: gate, then up; [ffn, hidden]: up alone; of experts see ops::ExpertMatrix.
  ops::PackedMatrix gate_up;
  std::vector<float> gate_up_bias;  // [2 ffn] or [ffn]; of experts [experts, 2 ffn]
  ops::PackedMatrix down;           // [hidden, ffn], or of experts
  std::vector<float> down_bias;     // [hidden]; of experts [experts, hidden]
  NormWeights mlp_post_norm;
  // Of a layer with experts. In float32, whole on every rank: all choose alike.
  ops::PackedMatrix router;              // [experts, hidden], and a row for the shared one's gate
  std::vector<float> router_bias;        // [experts] or empty
  std::vector<float> router_correction;  // the same
  // Of the shared expert, or of the MLP that experts stand beside.
  ops::PackedMatrix shared_gate_up;  // [2 shared ffn, hidden]
  ops::PackedMatrix shared_down;     // [hidden, shared ffn]
  // Of experts beside an MLP: norms of the router's input, of theirs, of what they and the MLP add.
  std::vector<float> router_norm;   // [hidden]
  std::vector<float> expert_scale;  // [experts] on the weights of the chosen
  NormWeights experts_norm;
  NormWeights experts_post_norm;
  NormWeights dense_post_norm;
  // Of per-layer inputs, whole on every rank.
  ops::PackedMatrix per_layer_gate;        // [per_layer_dim, hidden]
  ops::PackedMatrix per_layer_projection;  // [hidden, per_layer_dim]
  NormWeights per_layer_norm;
  float scalar = 1.0f;  // on the residual stream, at the layer's end
  bool has_experts() const { return router.n_out() > 0; }
};

struct Weights {
  // [vocab of the shard, hidden], row-major; null when a packed matrix holds the same values.
  ops::AlignedBytes embedding;
  ops::DType embedding_dtype = ops::DType::kF32;
  ops::PackedMatrix embedding_integers;  // the same where a GGUF file has blocks; else empty
  // Where the rows are while `embedding` is null: in integers of their own, or in a tied head.
  const ops::PackedMatrix& packed_embedding() const {
    return embedding_integers.n_out() > 0 ? embedding_integers : head;
  }
  std::vector<float> positions;  // learned ones, [positions, hidden], or empty
  // Per-layer inputs: of each token a vector of every layer, and what the embedding adds to it.
  ops::AlignedBytes per_layer_embedding;  // [vocab of the shard, layers * per_layer_dim]
  ops::DType per_layer_dtype = ops::DType::kF32;
  ops::PackedMatrix per_layer_projection;  // [layers * per_layer_dim, hidden], whole on every rank
  std::vector<float> per_layer_norm;       // [per_layer_dim]
  std::vector<LayerWeights> layers;
  NormWeights final_norm;
  ops::PackedMatrix head;  // [vocab of the shard, hidden]
  // Bytes the products of one step read: all packed matrices, not the embedding rows.
  size_t matrix_bytes() const;
  size_t embedding_bytes = 0;  // of `embedding`
  size_t per_layer_embedding_bytes = 0;
  size_t num_bytes() const;   // everything
  size_t num_bytes_read = 0;  // from the source, to build this
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // Element type of a tensor; throws Error with one sentence unless it is there in this shape.
  virtual ops::DType expect(const std::string& name, const std::vector<int64_t>& shape) const = 0;
  // The part's elements, dense and row-major, in the tensor's own type. Called from several
  // threads.
  virtual void read(const TensorPart& part, std::byte* out) const = 0;
  // Projections kept in integers that can be run as they are: in which form. expect() and read()
  // give the floats they stand for, of any projection.
  virtual std::optional<ops::QuantFormat> integer_format(const Projection&) const { return {}; }
  // Whether read_integers() can fill a matrix of a wider form: more bits, shorter groups, offsets.
  virtual bool widens_integers() const { return false; }
  // The part of such a projection, into rows [first_row, ...) of a matrix of that form that begins
  // with the part's first column. Called from several threads.
  virtual void read_integers(const TensorPart&, int64_t first_row, ops::PackedMatrix&) const;
  // Whether the tensor's rows are columns of its file, so that few of them are many short reads.
  virtual bool lies_by_columns(const std::string&) const { return false; }
  // A hint that read() will want this part in a moment. Called from several threads.
  virtual void expect_soon(const TensorPart&) const {}
  // Throws Error when a file is not the one that was opened any more.
  virtual void check_unchanged() const {}
};

// The tensors of a Hugging Face folder, or of a GGUF file. Throws Error when config.json leaves out
// some that change the numbers (unused_tensors.h). vocab: the rows of embedding and head that will
// be read.
std::unique_ptr<TensorSource> make_checkpoint_source(const std::filesystem::path& model_dir,
                                                     const ModelConfig& config,
                                                     Range vocab);
// Of a GGUF file (gguf_source.cpp); throws Error for a tensor that the config leaves out.
std::unique_ptr<TensorSource> make_gguf_source(const std::filesystem::path& file,
                                               const ModelConfig& config);

// progress: bytes done, bytes in all; called on the calling thread. 0 threads: the host's cores, at
// most 16.
std::unique_ptr<Weights> build_weights(const ModelConfig& config,
                                       const ModelShard& shard,
                                       const TensorSource& source,
                                       const std::function<void(size_t, size_t)>& progress = {},
                                       const ops::ThreadPlan& threads = 0);

}  // namespace outrider
