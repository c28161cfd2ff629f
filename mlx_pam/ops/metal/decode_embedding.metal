// The vector of each text's token, normed: z = s E[id] / RMS(E[id]).
//
//   ids [B]   table [V, P, N]   scale [N]   eps   ->   z [B, P, N]
//
// A simdgroup for each text. Grid: (1, B).

const int lane = int(thread_index_in_simdgroup), text = int(thread_position_in_grid.y);
const device Element* row = table + long(ids[text]) * (PLANES * N);

float square = 0.0f;
for (int i = lane; i < PLANES * N; i += 32) {
  const float number = static_cast<float>(row[i]);
  square += number * number;
}
const float inverse = metal::rsqrt(sum_over_lanes<32>(square) / N + eps);

for (int i = lane; i < PLANES * N; i += 32) {
  const float number = static_cast<float>(row[i]);
  z[text * (PLANES * N) + i] = number * static_cast<float>(scale[i % N]) * inverse;
}
