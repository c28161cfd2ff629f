// What the tokens of one chunk of one head read, S being the state before it.
//
//     y_t = sum_{i<=t} (gamma_{i+1} ... gamma_t) <k_i, q_t> v_i + (gamma_1 ... gamma_t) S q_t
//
//     q, k, v, y [B, T, H, P, D]   log_decay [B, T, H]   states [B, H, n, P, D, D] float
//
// A threadgroup takes a chunk, each simdgroup 8 of its C tokens. The scores, 8 x C a simdgroup,
// stay in registers; k, then v, pass through threadgroup memory, SLAB channels at a time.
// Grid: (n, H, B).

constexpr int TILES = C / 8;
constexpr int STAGED = PLANES * SLAB + PADDING;  // numbers of a staged token
threadgroup Element staged[C * STAGED];
threadgroup TileDecays decays[TILES];

const int T = q_shape[1], H = q_shape[2], n = (T + C - 1) / C;
const long batch = threadgroup_position_in_grid.z, head = threadgroup_position_in_grid.y;
const int chunk = int(threadgroup_position_in_grid.x);
const int tile = int(simdgroup_index_in_threadgroup);  // of 8 tokens, t
const Place at = place_of(thread_index_in_simdgroup);
const uint thread_index = thread_index_in_threadgroup;
constexpr uint THREADS = TILES * 32;

const int token = H * PLANES * D;  // numbers from one token to the next
const int count = min(C, T - chunk * C);
const int there = count - 8 * tile;  // tokens of this tile
const long start = (batch * T + chunk * C) * H + head;
const long tokens = start * PLANES * D;
const device Element* queries = q + tokens + 8 * tile * token;
const device float* state = states + ((batch * H + head) * n + chunk) * (PLANES * D * D);

add_up_decays<C>(decays, log_decay + start, H, count, thread_index, THREADS);

// Q K^H
ComplexTile weights[TILES];  // [t, i], of the tiles up to this one
UNROLL for (int i = 0; i < TILES; ++i) weights[i] = zero_tile();
add_scores<C, D, SLAB, PLANES>(
    weights, queries, k + tokens, token, count, tile, at, staged, thread_index);

// (Q K^H) * D
float between = 0.0f;
UNROLL for (int i = TILES - 1; i >= 0; --i) {
  if (i <= tile) weights[i] = scaled(weights[i], decay_tile(decays, tile, i, between, at));
  if (i < tile) between += decays[i].whole;
}
const float from_start = metal::exp(between + decays[tile].since[at.row]);  // gamma_1 ... gamma_t

for (int channel = 0; channel < D; channel += SLAB) {
  threadgroup_barrier(mem_flags::mem_threadgroup);  // what was staged has been read
  stage_tokens<C, D, SLAB, PLANES>(
      staged, v + tokens + channel, token, count, thread_index, THREADS);

  // (gamma_1 ... gamma_t) S q_t, while v is on its way
  ComplexTile sum[SLAB / 8];  // [t, channel]
  read_state<D, SLAB, PLANES, false>(sum, state, queries, channel, token, there, at);
  UNROLL for (int j = 0; j < SLAB / 8; ++j) sum[j] = scaled(sum[j], from_start);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // + ((Q K^H) * D) V
  UNROLL for (int i = 0; i < TILES; ++i) {
    if (i <= tile) add_staged<SLAB, PLANES>(sum, weights[i], staged + 8 * i * STAGED, at);
  }
  device Element* out = y + tokens + 8 * tile * token + channel;
  UNROLL for (int j = 0; j < SLAB / 8; ++j) {
    store_tile<PLANES>(out + 8 * j, token, D, sum[j], at, there);
  }
}
