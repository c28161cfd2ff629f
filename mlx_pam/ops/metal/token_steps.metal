// Token by token: the state decays, takes the token in and is read, in one pass over it.
//
//     S <- gamma_t S + v_t k_t^H        y_t = S q_t
//
//     q, k, v, y [B, T, H, P, D]   log_decay [B, T, H]   state, new_state [B, H, P, D, D] float
//
// A simdgroup keeps 4 rows of one head's state for all T tokens. LANES lanes share a row, each has
// SHARE of its D numbers; with fewer than 32, several such groups stand side by side, with ROWS
// rows each. Grid: (1, D / 4, B H).

constexpr int SHARE = D / LANES;
constexpr int ROWS = 4 * LANES / 32;
constexpr int SUMS = PLANES * ROWS;  // numbers of y that the lanes of a group find together

const int T = q_shape[1], H = q_shape[2];
const int lane = int(thread_index_in_simdgroup), seat = lane % LANES;
const long head = thread_position_in_grid.z;  // of all B H
const int row = int(thread_position_in_grid.y) * 4 + lane / LANES * ROWS;  // its group's first
const int column = seat * SHARE;                                        // its own first

float re[ROWS][SHARE], im[ROWS][SHARE];
const long entry = head * (PLANES * D * D) + row * D + column;
UNROLL for (int r = 0; r < ROWS; ++r) {
  UNROLL for (int c = 0; c < SHARE; ++c) {
    re[r][c] = state[entry + r * D + c];
    im[r][c] = PLANES == 2 ? state[entry + r * D + c + D * D] : 0.0f;
  }
}

for (int t = 0; t < T; ++t) {
  const long place = (head / H * T + t) * H + head % H;  // of this token and head
  const long number = place * (PLANES * D);
  const float2 gamma = step_factors(log_decay[place]);
  float k_re[SHARE], k_im[SHARE], q_re[SHARE], q_im[SHARE];
  UNROLL for (int c = 0; c < SHARE; ++c) {
    k_re[c] = static_cast<float>(k[number + column + c]);
    q_re[c] = static_cast<float>(q[number + column + c]);
    k_im[c] = PLANES == 2 ? static_cast<float>(k[number + D + column + c]) : 0.0f;
    q_im[c] = PLANES == 2 ? static_cast<float>(q[number + D + column + c]) : 0.0f;
  }

  float sums[SUMS];  // a lane's parts of y: re of each row, then im of each row
  UNROLL for (int r = 0; r < ROWS; ++r) {
    const float v_re = static_cast<float>(v[number + row + r]);
    float y_re = 0.0f, y_im = 0.0f;
    if (PLANES == 2) {
      const float v_im = static_cast<float>(v[number + D + row + r]);
      UNROLL for (int c = 0; c < SHARE; ++c) {
        re[r][c] = stepped(re[r][c], gamma, v_re * k_re[c] + v_im * k_im[c]);
        im[r][c] = stepped(im[r][c], gamma, v_im * k_re[c] - v_re * k_im[c]);
        y_re += re[r][c] * q_re[c] - im[r][c] * q_im[c];
        y_im += re[r][c] * q_im[c] + im[r][c] * q_re[c];
      }
      sums[SUMS - ROWS + r] = y_im;
    } else {
      UNROLL for (int c = 0; c < SHARE; ++c) {
        re[r][c] = stepped(re[r][c], gamma, v_re * k_re[c]);
        y_re += re[r][c] * q_re[c];
      }
    }
    sums[r] = y_re;
  }

  // Two lanes trade halves of their sums, so that each goes on with half as many, over two lanes;
  // when one is left to each, what is left of the group adds up its parts of that one.
  int width = LANES / 2;
  UNROLL for (int left = SUMS; left > 1; left /= 2, width /= 2) {
    const bool upper = (lane & width) != 0;
    UNROLL for (int i = 0; i < left / 2; ++i) {
      const float kept = upper ? sums[i + left / 2] : sums[i];
      const float given = upper ? sums[i] : sums[i + left / 2];
      sums[i] = kept + simd_shuffle_xor(given, width);
    }
  }
  for (; width > 0; width /= 2) sums[0] += simd_shuffle_xor(sums[0], width);

  if (seat % (LANES / SUMS) == 0) {
    const int sum = seat / (LANES / SUMS);
    y[number + sum / ROWS * D + row + sum % ROWS] = static_cast<Element>(sums[0]);
  }
}

UNROLL for (int r = 0; r < ROWS; ++r) {
  UNROLL for (int c = 0; c < SHARE; ++c) {
    new_state[entry + r * D + c] = re[r][c];
    if (PLANES == 2) new_state[entry + r * D + c + D * D] = im[r][c];
  }
}
