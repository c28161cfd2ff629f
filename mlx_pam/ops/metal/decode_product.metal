// y = W x, or what it adds to the residual stream: y = base + alpha W x   (eqs. 2 and 3).
//
//   x [B, P, N]   weight [P, M, N]   alpha []   base [B, P, M]   ->   y [B, P, M]
//
// A simdgroup takes ROWS rows, for all texts. Grid: (1, M / ROWS).

const int lane = int(thread_index_in_simdgroup);
const int row = int(thread_position_in_grid.y) * ROWS;

Sums<ROWS * B> sums = no_sums<ROWS * B>();
for (int channel = SHARE * lane; channel < N; channel += STRIDE) {
  const Channels<B> taken = take<N, PLANES, B>(x, channel);
  UNROLL for (int r = 0; r < ROWS; ++r) {
    const device Element* one = weight + min(row + r, M - 1) * N;
    add_row<N, PLANES>(sums, r * B, taken, one, M * N, channel);
  }
}

// From here on a lane has one row of one text.
const int own = row + lane / B, text = lane % B;
const float re = own_sum(sums.re, lane);
const float im = PLANES == 2 ? own_sum(sums.im, lane) : 0.0f;
if (lane < ROWS * B && own < M) {
  const int place = text * (PLANES * M) + own;
  const float factor = static_cast<float>(alpha);
  y[place] = RESIDUAL ? base[place] + factor * re : re;
  if (PLANES == 2) y[place + M] = RESIDUAL ? base[place + M] + factor * im : im;
}
