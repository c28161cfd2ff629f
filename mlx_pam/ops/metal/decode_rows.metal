// Rows of W x for few vectors x: what the kernels of a decoded token share.
//
//   B texts   N channels of x   PLANES 2 complex, 1 real   Element type of the weights
//
//     x [B, PLANES, N] float      W [PLANES, rows, N] Element
//
// A simdgroup takes a few rows, and for each the whole sum over the channels: a lane has 4 that lie
// side by side of every 128. So each weight is read once, next to what its neighbours read, and
// meets the vectors of all texts in registers. Where the last simdgroup would take rows that are
// not there, it takes the last one again and writes nothing: a branch would make the loads wait for
// one another. Sums are float, and of one order: a lane's own, then pairs of lanes.

// Arrays stay in registers only if every index is known to the compiler.
#define UNROLL _Pragma("clang loop unroll(full)")

constant constexpr int SHARE = 4;           // channels that a lane takes at once
constant constexpr int STRIDE = 32 * SHARE;  // and all lanes

// |z|^2 up to here counts as 0, as in mlx_pam/ops/complex.py.
constant constexpr float TINY_SQUARE = 1e-24f;

// A lane's channels of each text; of real ones only re counts.
template <int B>
struct Channels {
  float re[B][SHARE];
  float im[B][SHARE];
};

// A lane's parts of COUNT complex sums; of real ones only re counts.
template <int COUNT>
struct Sums {
  float re[COUNT];
  float im[COUNT];
};

template <int COUNT>
METAL_FUNC Sums<COUNT> no_sums() {
  Sums<COUNT> sums;
  UNROLL for (int i = 0; i < COUNT; ++i) sums.re[i] = sums.im[i] = 0.0f;
  return sums;
}

// Whether channel + c is one of the N; lanes begin at multiples of 4.
template <int N>
METAL_FUNC bool is_there(int channel, int c) {
  return N % SHARE == 0 || channel + c < N;
}

// x from `channel` on; 0 past its end.
template <int N, int PLANES, int B>
METAL_FUNC Channels<B> take(const device float* x, int channel) {
  Channels<B> z;
  UNROLL for (int b = 0; b < B; ++b) {
    const device float* from = x + b * (PLANES * N) + channel;
    UNROLL for (int c = 0; c < SHARE; ++c) {
      z.re[b][c] = is_there<N>(channel, c) ? from[c] : 0.0f;
      z.im[b][c] = PLANES == 2 && is_there<N>(channel, c) ? from[c + N] : 0.0f;
    }
  }
  return z;
}

// The norm s z / RMS(z): z becomes s z, and what |z|^2 sums up to tells the rest, which is one
// factor for all channels and can wait until the rows are summed up.
template <int N, int B, typename Pointer>
METAL_FUNC void scale_channels(
    thread Channels<B>& z, thread float (&squares)[B], Pointer scale, int channel) {
  UNROLL for (int c = 0; c < SHARE; ++c) {
    const float s = is_there<N>(channel, c) ? static_cast<float>(scale[channel + c]) : 0.0f;
    UNROLL for (int b = 0; b < B; ++b) {
      squares[b] += z.re[b][c] * z.re[b][c] + z.im[b][c] * z.im[b][c];
      z.re[b][c] *= s;
      z.im[b][c] *= s;
    }
  }
}

// Adds to sums[first + b] what these channels are in one row of W x, complex or real:
//
//     y_re += W_re x_re - W_im x_im        y_im += W_im x_re + W_re x_im
//
// plane: numbers from W_re to W_im
template <int N, int PLANES, int B, int COUNT, typename Element>
METAL_FUNC void add_row(
    thread Sums<COUNT>& sums, int first, thread const Channels<B>& x, const device Element* row,
    int plane, int channel) {
  UNROLL for (int c = 0; c < SHARE; ++c) {
    const bool there = is_there<N>(channel, c);
    const float re = there ? static_cast<float>(row[channel + c]) : 0.0f;
    const float im =
        PLANES == 2 && there ? static_cast<float>(row[plane + channel + c]) : 0.0f;
    UNROLL for (int b = 0; b < B; ++b) {
      sums.re[first + b] += re * x.re[b][c];
      if (PLANES == 2) {
        sums.re[first + b] -= im * x.im[b][c];
        sums.im[first + b] += im * x.re[b][c] + re * x.im[b][c];
      }
    }
  }
}

// The same of a real row over all planes, which lie side by side: y += W_re x_re + W_im x_im.
template <int N, int PLANES, int B, int COUNT, typename Element>
METAL_FUNC void add_real_row(
    thread Sums<COUNT>& sums, int first, thread const Channels<B>& x, const device Element* row,
    int channel) {
  UNROLL for (int c = 0; c < SHARE; ++c) {
    const bool there = is_there<N>(channel, c);
    const float re = there ? static_cast<float>(row[channel + c]) : 0.0f;
    const float im = PLANES == 2 && there ? static_cast<float>(row[N + channel + c]) : 0.0f;
    UNROLL for (int b = 0; b < B; ++b) {
      sums.re[first + b] += re * x.re[b][c] + im * x.im[b][c];
    }
  }
}

// Sum over groups of LANES neighbouring lanes, a power of 2: each has the same bits.
template <int LANES>
METAL_FUNC float sum_over_lanes(float x) {
  UNROLL for (int width = LANES / 2; width > 0; width /= 2) x += simd_shuffle_xor(x, width);
  return x;
}

// For each lane the sum of its own number: sums[lane % COUNT] over all lanes.
template <int COUNT>
METAL_FUNC float own_sum(thread const float (&sums)[COUNT], int lane) {
  float own = 0.0f;
  UNROLL for (int i = 0; i < COUNT; ++i) {
    const float sum = sum_over_lanes<32>(sums[i]);
    if (lane % COUNT == i) own = sum;
  }
  return own;
}

// 1 / RMS(z) of the lane's text, lane % B.
template <int N, int B>
METAL_FUNC float own_inverse_rms(thread const float (&squares)[B], float eps, int lane) {
  return metal::rsqrt(own_sum(squares, lane) / N + eps);
}

// sigmoid, which is exact where it is small.
METAL_FUNC float logistic(float x) { return 1.0f / (1.0f + metal::exp(-x)); }

// |z|, 0 where it is as good as that.
METAL_FUNC float magnitude(float re, float im) {
  const float square = re * re + im * im;
  return square > TINY_SQUARE ? metal::sqrt(square) : 0.0f;
}

// x of one head, turned by its position, at one channel: x_j e^{i m theta_j}. In real arithmetic
// channels j and j + D/2 are the planes of one such number, and the result lies in .x.
//
// x: the head's first number   plane: numbers from re to im   phases: cosines, then sines
template <int PLANES, int D>
METAL_FUNC float2 turned(
    const device float* x, int plane, const device float* phases, int channel) {
  constexpr int W = PLANES == 2 ? D : D / 2;
  const int j = channel % W;
  const float re = x[j], im = x[j + (PLANES == 2 ? plane : W)];
  const float cosine = phases[j], sine = phases[j + W];
  const float2 z = float2(re * cosine - im * sine, re * sine + im * cosine);
  return PLANES == 2 || channel < W ? z : float2(z.y, z.x);
}
