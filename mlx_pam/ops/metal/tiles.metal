// Tiles of split-real matrices, and the decays of a chunk: what all kernels of this folder share.
//
//   C tokens of a chunk   D head width   PLANES 2 complex, 1 real   Element type of q, k, v
//
// A tile is 8 x 8 numbers of a matrix, spread over the 32 lanes of a simdgroup so that each lane
// holds two neighbours of one row. simdgroup_multiply_accumulate has them lie like this:
//
//             columns 0 1   2 3   4 5   6 7
//     row 0   lane     0     1     8     9
//     row 1            2     3    10    11
//     row 2            4     5    12    13
//     row 3            6     7    14    15
//     rows 4 to 7      the same lanes + 16
//
// so bits 1, 2 and 4 of a lane's number are its row, and bits 0 and 3 its pair of columns.
//
// A complex tile is two real ones, re and im. In real arithmetic only re counts: im is there so
// that one text serves both, and what nothing reads is not computed.
//
// What is multiplied is float whatever Element is: Apple's GPUs multiply halves no faster.

#include <metal_simdgroup>
#include <metal_simdgroup_matrix>

// Arrays of tiles stay in registers only if every index is known to the compiler.
#define UNROLL _Pragma("clang loop unroll(full)")

// Unused numbers at the end of each row in threadgroup memory, for which the rows of a tile, and
// its columns, begin in different banks.
constant constexpr int PADDING = 4;

struct ComplexTile {
  float2 re;
  float2 im;
};

METAL_FUNC ComplexTile zero_tile() {
  return ComplexTile{float2(0.0f, 0.0f), float2(0.0f, 0.0f)};
}

// Row and column of the first of a lane's two numbers.
struct Place {
  int row;
  int column;
};

METAL_FUNC Place place_of(uint lane) {
  const int bits = int(lane);
  return Place{((bits >> 1) & 3) + ((bits >> 2) & 4), ((bits & 1) << 1) + ((bits >> 1) & 4)};
}

// The tile whose number (r, c) lies at p[r * row_step + c * column_step], with `plane` numbers from
// re to im. Rows and columns from the given ones on are 0, and not read.
template <int PLANES, typename Pointer>
METAL_FUNC ComplexTile load_tile(
    Pointer p, int row_step, int column_step, int plane, Place at, int rows = 8, int columns = 8) {
  ComplexTile z = zero_tile();
  for (int j = 0; j < 2; ++j) {
    if (at.row < rows && at.column + j < columns) {
      const int offset = at.row * row_step + (at.column + j) * column_step;
      z.re[j] = static_cast<float>(p[offset]);
      if (PLANES == 2) z.im[j] = static_cast<float>(p[offset + plane]);
    }
  }
  return z;
}

// Its converse, rounded to the type of the array; neighbours of a row lie side by side.
template <int PLANES, typename Number>
METAL_FUNC void store_tile(
    device Number* p, int row_step, int plane, ComplexTile z, Place at, int rows = 8) {
  if (at.row >= rows) return;
  for (int j = 0; j < 2; ++j) {
    const int offset = at.row * row_step + at.column + j;
    p[offset] = static_cast<Number>(z.re[j]);
    if (PLANES == 2) p[offset + plane] = static_cast<Number>(z.im[j]);
  }
}

// sum + a b, real.
METAL_FUNC float2 add_real_product(float2 sum, float2 a, float2 b) {
  simdgroup_matrix<float, 8, 8> x, y, z;
  x.thread_elements()[0] = a[0];
  x.thread_elements()[1] = a[1];
  y.thread_elements()[0] = b[0];
  y.thread_elements()[1] = b[1];
  z.thread_elements()[0] = sum[0];
  z.thread_elements()[1] = sum[1];
  simdgroup_multiply_accumulate(z, x, y, z);
  return float2(z.thread_elements()[0], z.thread_elements()[1]);
}

// sum + a b, or sum + a conj(b).
template <int PLANES, bool CONJUGATE>
METAL_FUNC ComplexTile add_product(ComplexTile sum, ComplexTile a, ComplexTile b) {
  sum.re = add_real_product(sum.re, a.re, b.re);
  if (PLANES == 2) {
    sum.re = add_real_product(sum.re, a.im, CONJUGATE ? b.im : -b.im);
    sum.im = add_real_product(sum.im, a.im, b.re);
    sum.im = add_real_product(sum.im, a.re, CONJUGATE ? -b.im : b.im);
  }
  return sum;
}

METAL_FUNC ComplexTile scaled(ComplexTile z, float2 factor) {
  return ComplexTile{z.re * factor, z.im * factor};
}

// Re(conj(a) b), number by number.
template <int PLANES>
METAL_FUNC float2 real_inner(ComplexTile a, ComplexTile b) {
  return PLANES == 2 ? a.re * b.re + a.im * b.im : a.re * b.re;
}

// Sums over the four lanes of each row, and over the eight of each pair of columns: all have them.
METAL_FUNC float sum_of_row(float x) {
  x += simd_shuffle_xor(x, 1);
  return x + simd_shuffle_xor(x, 8);
}

METAL_FUNC float2 sums_of_columns(float2 x) {
  x += simd_shuffle_xor(x, 2);
  x += simd_shuffle_xor(x, 4);
  return x + simd_shuffle_xor(x, 16);
}

// a and b of exp(x) S = a S + b S, x <= 0, for what a state meets again and again, in every chunk
// or at every token: (1, exp(x) - 1) near 1, where a rounded exp is off the same way each time
// and decays pile that up, and (0, exp(x)) elsewhere, which forgets exactly at x = -inf.
METAL_FUNC float2 step_factors(float x) {
  const float tail = 1.0f / 24 + x * (1.0f / 120 + x * (1.0f / 720 + x * (1.0f / 5040)));
  const float series = x * (1.0f + x * (1.0f / 2 + x * (1.0f / 6 + x * tail)));
  return x > -0.25f ? float2(1.0f, series) : float2(0.0f, metal::exp(x));  // the series: to 2e-9
}

// gamma S + w, number by number, with the factors of gamma.
METAL_FUNC float stepped(float s, float2 factors, float w) {
  return factors.x * s + (factors.y * s + w);
}

// Log decays of 8 tokens that follow one another. All longer sums are put together from these: each
// is added up over the very steps that it spans, never a difference of two longer ones, which would
// lose a small decay beside a large one and be NaN beside -inf.
struct TileDecays {
  float step[8];   // log gamma_t
  float since[8];  // of the tile's first token up to t
  float until[8];  // of what follows t in the tile
  float whole;     // of all 8
};

// Fills those of a chunk, of which the first `count` tokens are there; those after do not decay.
template <int C, typename Pointer>
METAL_FUNC void add_up_decays(
    threadgroup TileDecays* decays, Pointer log_decay, int heads, int count, uint thread_index,
    uint threads) {
  for (int t = int(thread_index); t < C; t += int(threads)) {
    threadgroup TileDecays& tile = decays[t / 8];
    float since = 0.0f, until = 0.0f;
    for (int other = t / 8 * 8; other < t / 8 * 8 + 8; ++other) {
      const float step = other < count ? float(log_decay[other * heads]) : 0.0f;
      if (other == t) tile.step[t % 8] = step;
      if (other <= t) since += step;
      if (other > t) until += step;
    }
    tile.since[t % 8] = since;
    tile.until[t % 8] = until;
    if (t % 8 == 7) tile.whole = since;
  }
}

// D[t, i] = gamma_{i+1} ... gamma_t for i <= t, else 0: t of tile `row`, i of tile `column` <= row.
// between: the log decay of all tiles between the two.
METAL_FUNC float2 decay_tile(
    const threadgroup TileDecays* decays, int row, int column, float between, Place at) {
  float2 sums;
  for (int j = 0; j < 2; ++j) {
    if (row == column) {
      sums[j] = 0.0f;
      for (int s = 0; s < 8; ++s) {
        sums[j] += s > at.column + j && s <= at.row ? decays[row].step[s] : 0.0f;
      }
      if (at.column + j > at.row) sums[j] = -INFINITY;
    } else {
      sums[j] = decays[column].until[at.column + j] + between + decays[row].since[at.row];
    }
  }
  return float2(metal::exp(sums[0]), metal::exp(sums[1]));
}

// Copies SLAB channels of the tokens of a chunk, [C][PLANES * SLAB + PADDING]; past `count` they
// are 0. `token` numbers lie between one token and the next.
template <int C, int D, int SLAB, int PLANES, typename Element>
METAL_FUNC void stage_tokens(
    threadgroup Element* staged, const device Element* x, int token, int count, uint thread_index,
    uint threads) {
  constexpr int NUMBERS = PLANES * SLAB;
  for (int i = int(thread_index); i < C * NUMBERS; i += int(threads)) {
    const int t = i / NUMBERS, number = i % NUMBERS;
    const int offset = t * token + number / SLAB * D + number % SLAB;
    staged[t * (NUMBERS + PADDING) + number] = t < count ? x[offset] : Element(0.0f);
  }
}

// X Y^H: scores of 8 tokens, tile `tile` of a chunk, with those of all tiles up to it, [8, 8] each.
template <int C, int D, int SLAB, int PLANES, typename Element>
METAL_FUNC void add_scores(
    thread ComplexTile (&scores)[C / 8], const device Element* x, const device Element* y,
    int token, int count, int tile, Place at, threadgroup Element* staged, uint thread_index) {
  constexpr int STAGED = PLANES * SLAB + PADDING;
  for (int channel = 0; channel < D; channel += SLAB) {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // what was staged has been read
    stage_tokens<C, D, SLAB, PLANES>(staged, y + channel, token, count, thread_index, C / 8 * 32);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int j = 0; j < SLAB; j += 8) {
      const ComplexTile rows =  // [token of x, channel]
          load_tile<PLANES>(x + channel + j, token, 1, D, at, count - 8 * tile, 8);
      UNROLL for (int i = 0; i < C / 8; ++i) {
        if (i <= tile) {
          const ComplexTile columns =  // [channel, token of y]
              load_tile<PLANES>(staged + 8 * i * STAGED + j, 1, STAGED, SLAB, at);
          scores[i] = add_product<PLANES, true>(scores[i], rows, columns);
        }
      }
    }
  }
}

// SLAB channels from `channel` on of S x_t, or of S^H x_t, for 8 tokens: [t, channel]. In rows,
// that is X S^T or X conj(S).
template <int D, int SLAB, int PLANES, bool HERMITIAN, typename Element>
METAL_FUNC void read_state(
    thread ComplexTile (&sum)[SLAB / 8], const device float* state, const device Element* x,
    int channel, int token, int there, Place at) {
  constexpr int INTO = HERMITIAN ? 1 : D, OUT_OF = HERMITIAN ? D : 1;  // steps in the state
  UNROLL for (int j = 0; j < SLAB / 8; ++j) sum[j] = zero_tile();
  for (int i = 0; i < D; i += 8) {
    const ComplexTile rows = load_tile<PLANES>(x + i, token, 1, D, at, there, 8);
    UNROLL for (int j = 0; j < SLAB / 8; ++j) {
      const device float* from = state + i * OUT_OF + (channel + 8 * j) * INTO;
      sum[j] = add_product<PLANES, HERMITIAN>(
          sum[j], rows, load_tile<PLANES>(from, OUT_OF, INTO, D * D, at));
    }
  }
}

// sum + W X: weights of 8 tokens by 8 others, [8, 8], and what is staged of those others.
template <int SLAB, int PLANES, typename Element>
METAL_FUNC void add_staged(
    thread ComplexTile (&sum)[SLAB / 8], ComplexTile weights, const threadgroup Element* staged,
    Place at) {
  UNROLL for (int j = 0; j < SLAB / 8; ++j) {
    sum[j] = add_product<PLANES, false>(
        sum[j], weights,
        load_tile<PLANES>(staged + 8 * j, PLANES * SLAB + PADDING, 1, SLAB, at));
  }
}

// Puts conj(W), 8 tokens t of tile `tile` by those of all tiles up to it, where all can read it:
// shared[plane][t][i].
template <int C, int PLANES>
METAL_FUNC void share_conjugates(
    threadgroup float* shared, thread ComplexTile (&weights)[C / 8], int tile, Place at) {
  constexpr int SHARED = C + PADDING;
  UNROLL for (int i = 0; i < C / 8; ++i) {
    if (i > tile) continue;
    threadgroup float* to = shared + (8 * tile + at.row) * SHARED + 8 * i + at.column;
    for (int j = 0; j < 2; ++j) {
      to[j] = weights[i].re[j];
      if (PLANES == 2) to[j + C * SHARED] = -weights[i].im[j];
    }
  }
}

// sum + the shared weights of all t from this tile on, with what is staged of those t.
template <int C, int SLAB, int PLANES, typename Element>
METAL_FUNC void add_later(
    thread ComplexTile (&sum)[SLAB / 8], const threadgroup float* shared,
    const threadgroup Element* staged, int tile, Place at) {
  constexpr int SHARED = C + PADDING;
  for (int t = tile; t < C / 8; ++t) {
    const ComplexTile weights =  // [i, t]
        load_tile<PLANES>(shared + 8 * t * SHARED + 8 * tile, 1, SHARED, C * SHARED, at);
    add_staged<SLAB, PLANES>(sum, weights, staged + 8 * t * (PLANES * SLAB + PADDING), at);
  }
}
