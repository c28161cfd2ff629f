// One token of a memory: its gates, its turn, what it writes and what it reads   (eqs. 4 to 7).
//
//     p = sigmoid(gate logit)      dt = softplus(decay logit)      gamma = e^{-dt} (1 - p) + p
//     S <- gamma S + (1 - p) v (R k)^H      y = S R q / sqrt(D)     R: channel j turns by m theta_j
//
//   qkv [B, P, 3, H, D]   decay_logit [B, H]   gate_logit [B, H], or [B, H, D] with CHANNEL_GATES
//   phases [B, 2, W]      ids [B]   reset_token []: the id at which gamma is 0
//   state, new_state [B, H, P, D, D]   ->   y [B, P, H, D]      all float but the ids
//
// A simdgroup takes 4 rows of one head's state. LANES lanes share a row, each has COLUMNS of its D
// numbers; with fewer than 32, several such groups stand side by side. Grid: (1, D / 4, B H).

constexpr int COLUMNS = D / LANES;
constexpr int ROWS = 4 * LANES / 32;  // of such a group
constexpr int PLANE = 3 * H * D;      // numbers from qkv_re to qkv_im

const int lane = int(thread_index_in_simdgroup), seat = lane % LANES;
const int head = int(thread_position_in_grid.z), text = head / H;  // head of all B H
const int row = int(thread_position_in_grid.y) * 4 + lane / LANES * ROWS;
const int column = seat * COLUMNS;

// gamma and 1 - p, with CHANNEL_GATES in the mean over the head. Since e^{-dt} = sigmoid(-logit),
// the loss 1 - gamma = (1 - p) sigmoid(logit): nothing is subtracted that could cancel.
float opened, kept;  // 1 - p, p
if (CHANNEL_GATES) {
  opened = kept = 0.0f;
  for (int c = lane; c < D; c += 32) {
    opened += logistic(-gate_logit[head * D + c]);
    kept += logistic(gate_logit[head * D + c]);
  }
  opened = sum_over_lanes<32>(opened) / D;
  kept = sum_over_lanes<32>(kept) / D;
} else {
  opened = logistic(-gate_logit[head]);
  kept = logistic(gate_logit[head]);
}
const float loss = opened * logistic(decay_logit[head]);
// gamma S = rest S + change S: near 1 by the loss, which a rounded gamma would lose
float rest = 1.0f, change = -loss;
if (loss >= 0.5f) rest = 0.0f, change = opened * logistic(-decay_logit[head]) + kept;
if (ids[text] == reset_token) rest = change = 0.0f;

const device float* q = qkv + text * (PLANES * PLANE) + head % H * D;
const device float* k = q + H * D;
const device float* v = k + H * D;
const device float* turn = phases + text * 2 * (PLANES == 2 ? D : D / 2);
float q_re[COLUMNS], q_im[COLUMNS], k_re[COLUMNS], k_im[COLUMNS];
UNROLL for (int c = 0; c < COLUMNS; ++c) {
  const float2 turned_q = turned<PLANES, D>(q, PLANE, turn, column + c);
  const float2 turned_k = turned<PLANES, D>(k, PLANE, turn, column + c);
  q_re[c] = turned_q.x * metal::rsqrt(float(D));
  q_im[c] = turned_q.y * metal::rsqrt(float(D));
  k_re[c] = turned_k.x;
  k_im[c] = turned_k.y;
}

UNROLL for (int r = 0; r < ROWS; ++r) {
  const float written = CHANNEL_GATES ? logistic(-gate_logit[head * D + row + r]) : opened;
  const float v_re = v[row + r] * written;
  const float v_im = PLANES == 2 ? v[PLANE + row + r] * written : 0.0f;
  const int entry = head * (PLANES * D * D) + (row + r) * D + column;
  float y_re = 0.0f, y_im = 0.0f;
  UNROLL for (int c = 0; c < COLUMNS; ++c) {
    const float s_re = state[entry + c];
    const float re = rest * s_re + (change * s_re + (v_re * k_re[c] + v_im * k_im[c]));
    new_state[entry + c] = re;
    y_re += re * q_re[c];
    if (PLANES == 2) {
      const float s_im = state[entry + D * D + c];
      const float im = rest * s_im + (change * s_im + (v_im * k_re[c] - v_re * k_im[c]));
      new_state[entry + D * D + c] = im;
      y_re -= im * q_im[c];
      y_im += re * q_im[c] + im * q_re[c];
    }
  }
  y_re = sum_over_lanes<LANES>(y_re);
  if (PLANES == 2) y_im = sum_over_lanes<LANES>(y_im);
  if (seat == 0) {
    device float* to = y + text * (PLANES * H * D) + head % H * D + row + r;
    to[0] = y_re;
    if (PLANES == 2) to[H * D] = y_im;
  }
}
