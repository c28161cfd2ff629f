// The gated unit up to its last map, of the normed residual stream x = s z / RMS(z)   (eq. 1):
//
//     complex   h = modReLU(W_up x) e^{i arg g} sigmoid(|g|),  g = W_g x
//     real      h = ReLU(W_up x + b) sigmoid(g), or as SwiGLU  h = W_up x g sigmoid(g)
//
//   z [B, P, N]   scale [N]   weight [P, 2 M, N], W_up above W_g   bias [M]   eps
//   ->   h [B, P, M]
//
// A simdgroup takes ROWS channels of h, for all texts. Grid: (1, M / ROWS).

const int lane = int(thread_index_in_simdgroup);
const int row = int(thread_position_in_grid.y) * ROWS;
const int plane = 2 * M * N;  // from W_re to W_im

Sums<ROWS * B> up_sums = no_sums<ROWS * B>(), gate_sums = no_sums<ROWS * B>();
float squares[B] = {0.0f};
for (int channel = SHARE * lane; channel < N; channel += STRIDE) {
  Channels<B> x = take<N, PLANES, B>(z, channel);
  scale_channels<N>(x, squares, scale, channel);
  UNROLL for (int r = 0; r < ROWS; ++r) {
    const device Element* up = weight + min(row + r, M - 1) * N;
    add_row<N, PLANES>(up_sums, r * B, x, up, plane, channel);
    add_row<N, PLANES>(gate_sums, r * B, x, up + M * N, plane, channel);
  }
}

// From here on a lane has one channel of one text.
const int own = row + lane / B, text = lane % B;
const float inverse = own_inverse_rms<N>(squares, eps, lane);
const float up_re = own_sum(up_sums.re, lane) * inverse;
const float gate_re = own_sum(gate_sums.re, lane) * inverse;
const float up_im = PLANES == 2 ? own_sum(up_sums.im, lane) * inverse : 0.0f;
const float gate_im = PLANES == 2 ? own_sum(gate_sums.im, lane) * inverse : 0.0f;

if (lane < ROWS * B && own < M) {
  device float* to = h + text * (PLANES * M) + own;
  if (PLANES == 2) {
    const float up = magnitude(up_re, up_im), gate = magnitude(gate_re, gate_im);
    // modReLU scales up, sigmoid scales gate to its length; both keep their phases, which add up
    const float active = max(up + static_cast<float>(bias[own]), 0.0f);
    const float gain = up > 0.0f && gate > 0.0f ? active / up * (logistic(gate) / gate) : 0.0f;
    to[0] = (gate_re * up_re - gate_im * up_im) * gain;
    to[M] = (gate_re * up_im + gate_im * up_re) * gain;
  } else if (SWIGLU) {
    to[0] = up_re * (gate_re * logistic(gate_re));
  } else {
    to[0] = max(up_re + static_cast<float>(bias[own]), 0.0f) * logistic(gate_re);
  }
}
