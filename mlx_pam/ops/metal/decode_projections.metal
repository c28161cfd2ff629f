// All that a memory takes of the normed residual stream x = s z / RMS(z):
//
//     q, k, v = W_qkv x      decay logit = W_dt [x_re, x_im] + b_dt      gate logit = W_p |x| + b_p
//
//   z [B, P, N]   scale [N]   qkv_weight [P, M, N]   decay_weight [H, P N]   decay_bias [H]
//   gate_weight [GATES, N]   gate_bias [GATES]   eps
//   ->   qkv [B, P, M]   decay_logit [B, H]   gate_logit [B, GATES]
//
// A simdgroup takes ROWS rows of one of the three maps, for all texts.
// Grid: (1, M / ROWS + H / ROWS + GATES / ROWS), each rounded up.

constexpr int MAPS = (M + ROWS - 1) / ROWS, DECAYS = (H + ROWS - 1) / ROWS;  // simdgroups of each

const int lane = int(thread_index_in_simdgroup), group = int(thread_position_in_grid.y);
const bool is_map = group < MAPS, is_decay = !is_map && group < MAPS + DECAYS;
const int rows = is_map ? M : is_decay ? H : GATES;
const int row = ROWS * (group - (is_map ? 0 : is_decay ? MAPS : MAPS + DECAYS));

Sums<ROWS * B> sums = no_sums<ROWS * B>();
float squares[B] = {0.0f};
for (int channel = SHARE * lane; channel < N; channel += STRIDE) {
  Channels<B> x = take<N, PLANES, B>(z, channel);
  scale_channels<N>(x, squares, scale, channel);
  if (is_map) {
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const device Element* one = qkv_weight + min(row + r, M - 1) * N;
      add_row<N, PLANES>(sums, r * B, x, one, M * N, channel);
    }
  } else if (is_decay) {
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const device Element* one = decay_weight + min(row + r, H - 1) * (PLANES * N);
      add_real_row<N, PLANES>(sums, r * B, x, one, channel);
    }
  } else {
    UNROLL for (int i = 0; i < B * SHARE; ++i) {
      thread float& re = x.re[i / SHARE][i % SHARE];
      re = PLANES == 2 ? magnitude(re, x.im[i / SHARE][i % SHARE]) : metal::fabs(re);
    }
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const device Element* one = gate_weight + min(row + r, GATES - 1) * N;
      add_real_row<N, 1>(sums, r * B, x, one, channel);
    }
  }
}

// From here on a lane has one row of one text.
const int own = row + lane / B, text = lane % B;
const float inverse = own_inverse_rms<N>(squares, eps, lane);
const float re = own_sum(sums.re, lane) * inverse;
const float im = PLANES == 2 ? own_sum(sums.im, lane) * inverse : 0.0f;
if (lane < ROWS * B && own < rows) {
  if (is_map) {
    qkv[text * (PLANES * M) + own] = re;
    if (PLANES == 2) qkv[text * (PLANES * M) + M + own] = im;
  } else if (is_decay) {
    decay_logit[text * H + own] = re + static_cast<float>(decay_bias[own]);
  } else {
    gate_logit[text * GATES + own] = re + static_cast<float>(gate_bias[own]);
  }
}
