// The decayed sum of outer products at every border between chunks.
//
// left = v, right = k, first = S_0: states are S before each chunk, last is S_T.
//
//     S <- (gamma_1 ... gamma_C) S + sum_t (gamma_{t+1} ... gamma_C) v_t k_t^H
//
// REVERSE, left = dy, right = q, first = dS_T: states are G = dL/dS after each chunk, last is dS_0.
//
//     G <- (gamma_1 ... gamma_C) G + sum_t (gamma_1 ... gamma_t) dy_t q_t^H
//
//     left, right [B, T, H, P, D]   log_decay [B, T, H]   states [B, H, n, P, D, D] float
//
// A simdgroup keeps BLOCK x BLOCK numbers of one head's state and walks through the chunks; GROUP
// of them are a threadgroup. Grid: (blocks, H, B).

constexpr int TILES = BLOCK / 8;  // on a side of the block
constexpr int SIDE = D / BLOCK;   // blocks on a side of the state
constexpr int ENTRIES = PLANES * D * D;
threadgroup TileDecays decays[C / 8];

const int T = left_shape[1], H = left_shape[2];
const int n = (T + C - 1) / C;
const long batch = threadgroup_position_in_grid.z, head = threadgroup_position_in_grid.y;
const int block = int(threadgroup_position_in_grid.x * GROUP + simdgroup_index_in_threadgroup);
const int value = block / SIDE * BLOCK, key = block % SIDE * BLOCK;  // its first row and column
const Place at = place_of(thread_index_in_simdgroup);
const int token = H * PLANES * D;  // numbers from one token to the next

ComplexTile sum[TILES][TILES];
{
  const device float* from = first + (batch * H + head) * ENTRIES + value * D + key;
  UNROLL for (int a = 0; a < TILES; ++a) {
    UNROLL for (int b = 0; b < TILES; ++b) {
      sum[a][b] = load_tile<PLANES>(from + 8 * (a * D + b), D, 1, D * D, at);
    }
  }
}

for (int walked = 0; walked < n; ++walked) {
  const int chunk = REVERSE ? n - 1 - walked : walked;
  device float* border = states + ((batch * H + head) * n + chunk) * ENTRIES + value * D + key;
  UNROLL for (int a = 0; a < TILES; ++a) {
    UNROLL for (int b = 0; b < TILES; ++b) {
      store_tile<PLANES>(border + 8 * (a * D + b), D, D * D, sum[a][b], at);
    }
  }

  const int count = min(C, T - chunk * C);
  const long start = (batch * T + chunk * C) * H + head;
  threadgroup_barrier(mem_flags::mem_threadgroup);  // the last chunk's decays have been read
  add_up_decays<C>(
      decays, log_decay + start, H, count, thread_index_in_threadgroup, GROUP * 32);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // gamma_1 ... gamma_C
  float whole = 0.0f;
  for (int i = 0; i < C / 8; ++i) whole += decays[i].whole;
  const float2 gamma = step_factors(whole);
  UNROLL for (int a = 0; a < TILES; ++a) {
    UNROLL for (int b = 0; b < TILES; ++b) {
      UNROLL for (int j = 0; j < 2; ++j) {
        sum[a][b].re[j] = stepped(sum[a][b].re[j], gamma, 0.0f);
        sum[a][b].im[j] = stepped(sum[a][b].im[j], gamma, 0.0f);
      }
    }
  }

  // 8 tokens at a time, from the border that they decay to: `beyond` is what lies in between
  float beyond = 0.0f;
  for (int i = 0; i < C / 8; ++i) {
    const int tile = REVERSE ? i : C / 8 - 1 - i;
    const int there = count - 8 * tile;  // tokens of the tile that are there
    if (there <= 0) continue;
    float2 weight;
    for (int j = 0; j < 2; ++j) {
      const int t = at.column + j;
      weight[j] = metal::exp(beyond + (REVERSE ? decays[tile].since[t] : decays[tile].until[t]));
    }
    beyond += decays[tile].whole;

    const long tokens = (start + 8 * tile * H) * PLANES * D;
    ComplexTile factor[TILES];  // weighted, [value, token]
    UNROLL for (int a = 0; a < TILES; ++a) {
      factor[a] = scaled(
          load_tile<PLANES>(left + tokens + value + 8 * a, 1, token, D, at, 8, there), weight);
    }
    UNROLL for (int b = 0; b < TILES; ++b) {
      const ComplexTile other =  // [token, key]
          load_tile<PLANES>(right + tokens + key + 8 * b, token, 1, D, at, there, 8);
      UNROLL for (int a = 0; a < TILES; ++a) {
        sum[a][b] = add_product<PLANES, true>(sum[a][b], factor[a], other);
      }
    }
  }
}

device float* to = last + (batch * H + head) * ENTRIES + value * D + key;
UNROLL for (int a = 0; a < TILES; ++a) {
  UNROLL for (int b = 0; b < TILES; ++b) {
    store_tile<PLANES>(to + 8 * (a * D + b), D, D * D, sum[a][b], at);
  }
}
