// Gradients of q, k, v and log decay for one chunk of one head.
//
// With S the state before the chunk and G = dL/dS after it, A = Q K^H, Z = dY V^H, D the decays:
//
//     dv_i = sum_{t>=i} conj(A * D)[t, i] dy_t + (gamma_{i+1} ... gamma_C) G k_i
//     dk_i = sum_{t>=i} conj(Z * D)[t, i] q_t  + (gamma_{i+1} ... gamma_C) G^H v_i
//     dq_t = sum_{i<=t} (Z * D)[t, i] k_i      + (gamma_1 ... gamma_t) S^H dy_t
//
// gamma_s counts in whatever is written before step s and read at it or after:
//
//     dlog gamma_s = sum_{i<s<=t} D[t, i] Re(conj(Z) A)[t, i]              both in the chunk
//                  + sum_{t>=s} (gamma_1 ... gamma_t) Re<dy_t, S q_t>      written before the chunk
//                  + sum_{i<s} (gamma_{i+1} ... gamma_C) Re<G k_i, v_i>    read after the chunk
//                  + (gamma_1 ... gamma_C) Re<G, S>                        both outside
//
// No sum here has a term without gamma_s in it, to be subtracted again: at gamma_s = 0 all are 0.
//
//     q, k, v, dy and their gradients [B, T, H, P, D]   log_decay, dlog_decay [B, T, H] float
//     states, adjoints [B, H, n, P, D, D] float: S before, G after each chunk
//
// A threadgroup takes a chunk, each simdgroup 8 of its C tokens, first as t, then as i and as t.
// Grid: (n, H, B).

constexpr int TILES = C / 8;
constexpr int STAGED = PLANES * SLAB + PADDING;  // numbers of a staged token
constexpr int SHARED = C + PADDING;              // from one row of shared weights to the next
constexpr int ENTRIES = PLANES * D * D;
threadgroup Element staged[C * STAGED];
threadgroup float shared[PLANES * C * SHARED];  // conj(A * D), then conj(Z * D), [t, i]
threadgroup TileDecays decays[TILES];
threadgroup float pairs[TILES * C];  // of the t of each tile: sum over i < s <= t, [tile, s]
threadgroup float reads[C];          // (gamma_1 ... gamma_t) Re<dy_t, S q_t>
threadgroup float writes[C];         // (gamma_{i+1} ... gamma_C) Re<G k_i, v_i>
threadgroup float outside[TILES];    // parts of Re<G, S>

const int T = q_shape[1], H = q_shape[2], n = (T + C - 1) / C;
const long batch = threadgroup_position_in_grid.z, head = threadgroup_position_in_grid.y;
const int chunk = int(threadgroup_position_in_grid.x);
const int tile = int(simdgroup_index_in_threadgroup);
const uint lane = thread_index_in_simdgroup, thread_index = thread_index_in_threadgroup;
const Place at = place_of(lane);
constexpr uint THREADS = TILES * 32;

const int token = H * PLANES * D;  // numbers from one token to the next
const int count = min(C, T - chunk * C);
const int there = count - 8 * tile;  // tokens of this tile
const long start = (batch * T + chunk * C) * H + head;
const long tokens = start * PLANES * D;
const long mine = tokens + 8 * tile * token;  // of this tile
const device float* state = states + ((batch * H + head) * n + chunk) * ENTRIES;
const device float* adjoint = adjoints + ((batch * H + head) * n + chunk) * ENTRIES;

add_up_decays<C>(decays, log_decay + start, H, count, thread_index, THREADS);

// A and Z of this tile's t and the i of all tiles up to it
ComplexTile a[TILES], z[TILES];
UNROLL for (int i = 0; i < TILES; ++i) a[i] = z[i] = zero_tile();
add_scores<C, D, SLAB, PLANES>(
    a, q + mine, k + tokens, token, count, tile, at, staged, thread_index);
add_scores<C, D, SLAB, PLANES>(
    z, dy + mine, v + tokens, token, count, tile, at, staged, thread_index);

// a = A * D, z = Z * D, pair = D Re(conj(Z) A)
float2 pair[TILES];
float between = 0.0f;
UNROLL for (int i = TILES - 1; i >= 0; --i) {
  pair[i] = 0.0f;
  if (i <= tile) {
    const float2 decay = decay_tile(decays, tile, i, between, at);
    a[i] = scaled(a[i], decay);
    pair[i] = real_inner<PLANES>(z[i], a[i]);
    z[i] = scaled(z[i], decay);
  }
  if (i < tile) between += decays[i].whole;
}
const float from_start = metal::exp(between + decays[tile].since[at.row]);  // gamma_1 ... gamma_t
float after = decays[tile].until[at.row];
for (int i = tile + 1; i < TILES; ++i) after += decays[i].whole;
const float to_end = metal::exp(after);  // gamma_{i+1} ... gamma_C

// s of earlier tiles: all 8 tokens t come later, and the i < s are added up from left to right
float earlier = 0.0f, pairs_of_row = 0.0f;
UNROLL for (int i = 0; i < TILES; ++i) {
  if (i < tile) {
    pairs_of_row += pair[i][0] + pair[i][1];
    const float2 columns = sums_of_columns(pair[i]);
    const float two = columns[0] + columns[1];
    const float beside = simd_shuffle_xor(two, 1);
    const float four = two + beside;
    const float opposite = simd_shuffle_xor(four, 8);
    const float before = (at.column & 2 ? beside : 0.0f) + (at.column & 4 ? opposite : 0.0f);
    if (at.row == 0) {
      pairs[tile * C + 8 * i + at.column] = earlier + before;
      pairs[tile * C + 8 * i + at.column + 1] = earlier + before + columns[0];
    }
    earlier += four + opposite;
  }
}
// s of this tile: its tokens t >= s, with the i of earlier tiles and those of its own before s
float2 own = 0.0f;
UNROLL for (int i = 0; i < TILES; ++i) own = i == tile ? pair[i] : own;
for (int s = 0; s < 8; ++s) {
  const float before = (at.column < s ? own[0] : 0.0f) + (at.column + 1 < s ? own[1] : 0.0f);
  const float later = simd_sum(at.row >= s ? pairs_of_row + before : 0.0f);
  if (lane == 0) pairs[tile * C + 8 * tile + s] = later;
}

// dv: weights conj(A * D) from the tokens t of this tile and of those after it
share_conjugates<C, PLANES>(shared, a, tile, at);
for (int channel = 0; channel < D; channel += SLAB) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  stage_tokens<C, D, SLAB, PLANES>(
      staged, dy + tokens + channel, token, count, thread_index, THREADS);
  ComplexTile sum[SLAB / 8];  // [i, channel]
  read_state<D, SLAB, PLANES, false>(sum, adjoint, k + mine, channel, token, there, at);
  UNROLL for (int j = 0; j < SLAB / 8; ++j) sum[j] = scaled(sum[j], to_end);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  add_later<C, SLAB, PLANES>(sum, shared, staged, tile, at);
  UNROLL for (int j = 0; j < SLAB / 8; ++j) {
    store_tile<PLANES>(dv + mine + channel + 8 * j, token, D, sum[j], at, there);
  }
}

// dk: weights conj(Z * D) likewise
threadgroup_barrier(mem_flags::mem_threadgroup);  // conj(A * D) has been read
share_conjugates<C, PLANES>(shared, z, tile, at);
float write = 0.0f;
for (int channel = 0; channel < D; channel += SLAB) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  stage_tokens<C, D, SLAB, PLANES>(
      staged, q + tokens + channel, token, count, thread_index, THREADS);
  ComplexTile sum[SLAB / 8];  // [i, channel]
  read_state<D, SLAB, PLANES, true>(sum, adjoint, v + mine, channel, token, there, at);
  UNROLL for (int j = 0; j < SLAB / 8; ++j) {
    sum[j] = scaled(sum[j], to_end);
    const float2 inner = real_inner<PLANES>(
        sum[j], load_tile<PLANES>(k + mine + channel + 8 * j, token, 1, D, at, there, 8));
    write += inner[0] + inner[1];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  add_later<C, SLAB, PLANES>(sum, shared, staged, tile, at);
  UNROLL for (int j = 0; j < SLAB / 8; ++j) {
    store_tile<PLANES>(dk + mine + channel + 8 * j, token, D, sum[j], at, there);
  }
}
write = sum_of_row(write);
if (at.column == 0) writes[8 * tile + at.row] = write;

// dq: weights Z * D, as y has Q K^H * D
float read = 0.0f;
for (int channel = 0; channel < D; channel += SLAB) {
  threadgroup_barrier(mem_flags::mem_threadgroup);
  stage_tokens<C, D, SLAB, PLANES>(
      staged, k + tokens + channel, token, count, thread_index, THREADS);
  ComplexTile sum[SLAB / 8];  // [t, channel]
  read_state<D, SLAB, PLANES, true>(sum, state, dy + mine, channel, token, there, at);
  UNROLL for (int j = 0; j < SLAB / 8; ++j) {
    sum[j] = scaled(sum[j], from_start);
    const float2 inner = real_inner<PLANES>(
        sum[j], load_tile<PLANES>(q + mine + channel + 8 * j, token, 1, D, at, there, 8));
    read += inner[0] + inner[1];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  UNROLL for (int i = 0; i < TILES; ++i) {
    if (i <= tile) add_staged<SLAB, PLANES>(sum, z[i], staged + 8 * i * STAGED, at);
  }
  UNROLL for (int j = 0; j < SLAB / 8; ++j) {
    store_tile<PLANES>(dq + mine + channel + 8 * j, token, D, sum[j], at, there);
  }
}
read = sum_of_row(read);
if (at.column == 0) reads[8 * tile + at.row] = read;

// dlog gamma
float part = 0.0f;
for (int i = int(thread_index); i < ENTRIES; i += int(THREADS)) part += adjoint[i] * state[i];
part = simd_sum(part);
if (lane == 0) outside[tile] = part;
threadgroup_barrier(mem_flags::mem_threadgroup);
const int s = int(thread_index);
if (s < count) {
  float both = 0.0f, whole = 0.0f;
  for (int i = 0; i < TILES; ++i) {
    both += outside[i];
    whole += decays[i].whole;
  }
  float gradient = metal::exp(whole) * both;
  for (int i = s / 8; i < TILES; ++i) gradient += pairs[i * C + s];
  for (int t = s; t < count; ++t) gradient += reads[t];
  for (int i = 0; i < s; ++i) gradient += writes[i];
  dlog_decay[start + s * H] = gradient;
}
