// Logits of the tied head: Re <E, x> of every row of the table, x = s z / RMS(z).
//
//   z [B, P, N]   scale [N]   table [V, P, N]   eps   ->   logits [B, V]
//
// A simdgroup takes ROWS tokens of the vocabulary, for all texts. Grid: (1, V / ROWS).

const int lane = int(thread_index_in_simdgroup);
const int row = int(thread_position_in_grid.y) * ROWS;

Sums<ROWS * B> sums = no_sums<ROWS * B>();
float squares[B] = {0.0f};
for (int channel = SHARE * lane; channel < N; channel += STRIDE) {
  Channels<B> x = take<N, PLANES, B>(z, channel);
  scale_channels<N>(x, squares, scale, channel);
  UNROLL for (int r = 0; r < ROWS; ++r) {
    const device Element* one = table + long(min(row + r, V - 1)) * (PLANES * N);
    add_real_row<N, PLANES>(sums, r * B, x, one, channel);
  }
}

// From here on a lane has one token of one text.
const int own = row + lane / B, text = lane % B;
const float inverse = own_inverse_rms<N>(squares, eps, lane);
const float sum = own_sum(sums.re, lane);
if (lane < ROWS * B && own < V) logits[text * V + own] = sum * inverse;
