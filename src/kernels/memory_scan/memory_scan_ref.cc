// The recurrence of memory_scan.h, token by token, and its derivative by hand. Everything in double.

#include "kernels/memory_scan/memory_scan_ref.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "core/check.h"

namespace tensorcache {
namespace {

using Vector = std::vector<double>;

// Dk x Dv, row-major.
struct Matrix {
  Matrix(int64_t rows, int64_t cols) : rows(rows), cols(cols), data(static_cast<size_t>(rows * cols)) {}
  double& operator()(int64_t i, int64_t j) { return data[static_cast<size_t>(i * cols + j)]; }
  double operator()(int64_t i, int64_t j) const { return data[static_cast<size_t>(i * cols + j)]; }
  int64_t rows, cols;
  Vector data;
};

// x M and x M^T for row vectors x.
Vector Times(const Vector& x, const Matrix& m) {
  Vector y(static_cast<size_t>(m.cols));
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.cols; ++j) y[static_cast<size_t>(j)] += x[static_cast<size_t>(i)] * m(i, j);
  }
  return y;
}

Vector TimesTransposed(const Vector& x, const Matrix& m) {
  Vector y(static_cast<size_t>(m.rows));
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.cols; ++j) y[static_cast<size_t>(i)] += x[static_cast<size_t>(j)] * m(i, j);
  }
  return y;
}

// m += scale x^T y
void AddOuter(Matrix& m, double scale, const Vector& x, const Vector& y) {
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.cols; ++j) m(i, j) += scale * x[static_cast<size_t>(i)] * y[static_cast<size_t>(j)];
  }
}

void Scale(Matrix& m, double scale) {
  for (double& value : m.data) value *= scale;
}

double Dot(const Vector& x, const Vector& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// m - m^T
Matrix Antisymmetric(const Matrix& m) {
  Matrix result(m.rows, m.cols);
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.cols; ++j) result(i, j) = m(i, j) - m(j, i);
  }
  return result;
}

template <class Real>
Vector LoadRow(const Rows<Real>& rows, int64_t b, int64_t h, int64_t t, int64_t n) {
  const Real* row = rows.At(b, h, t);
  return Vector(row, row + n);
}

template <class Real>
void StoreRow(const Vector& x, const Rows<Real>& rows, int64_t b, int64_t h, int64_t t) {
  if (!rows) return;
  for (size_t i = 0; i < x.size(); ++i) rows.At(b, h, t)[i] = static_cast<Real>(x[i]);
}

template <class Real>
Matrix LoadState(const Rows<Real>& rows, int64_t b, int64_t g, int64_t Dk, int64_t Dv) {
  Matrix m(Dk, Dv);
  if (!rows) return m;
  for (int64_t i = 0; i < Dk; ++i) {
    for (int64_t j = 0; j < Dv; ++j) m(i, j) = rows.At(b, g, i)[j];
  }
  return m;
}

template <class Real>
void StoreState(const Matrix& m, const Rows<Real>& rows, int64_t b, int64_t g) {
  if (!rows) return;
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.cols; ++j) rows.At(b, g, i)[j] = static_cast<Real>(m(i, j));
  }
}

// One write: a token, or the mean of a chunk.
struct Write {
  Vector k, v;
  double g = 0, b = 0;
};

// Writes of ring and block under one numbering.
template <class Args>
Write TokenWrite(const Args& args, int64_t b, int64_t g, int64_t token) {
  const MemoryScanShape& s = args.shape;
  const auto load = [&](const auto& writes, int64_t row) {
    return Write{.k = LoadRow(writes.k, b, g, row, s.Dk),
                 .v = LoadRow(writes.v, b, g, row, s.Dv),
                 .g = *writes.log_decay.At(b, g, row),
                 .b = *writes.write_strength.At(b, g, row)};
  };
  if (token < s.past) return load(args.past, (args.past.start + token) % args.past.capacity);
  return load(args.writes, token - s.past);
}

template <class Real>
void StoreTokenGradient(const MemoryScanBackwardArgs<Real>& args, int64_t b, int64_t g, int64_t token,
                        const Write& gradient) {
  const bool in_past = token < args.shape.past;
  const MemoryWrites<Real>& to = in_past ? args.d_past : args.d_writes;
  const int64_t row = in_past ? token : token - args.shape.past;
  StoreRow(gradient.k, to.k, b, g, row);
  StoreRow(gradient.v, to.v, b, g, row);
  StoreRow({gradient.g}, to.log_decay, b, g, row);
  StoreRow({gradient.b}, to.write_strength, b, g, row);
}

// What `base` returns for the write's key, decayed if the rule says so.
Vector Predicted(WriteRule rule, const Write& w, const Matrix& base) {
  Vector predicted = Times(w.k, base);
  if (rule == WriteRule::kGatedDelta) {
    for (double& x : predicted) x *= std::exp(w.g);
  }
  return predicted;
}

Vector Residual(WriteRule rule, const Write& w, const Matrix& base) {
  Vector u = w.v;
  if (!IsDelta(rule)) return u;
  const Vector predicted = Predicted(rule, w, base);
  for (size_t j = 0; j < u.size(); ++j) u[j] -= predicted[j];
  return u;
}

// A' = exp(g) A + b (...), with delta residuals taken against `base`: A itself, or the chunk-start state.
void Apply(WriteRule rule, const Write& w, const Matrix& base, Matrix& A) {
  const Vector u = Residual(rule, w, base);
  Scale(A, std::exp(w.g));
  AddOuter(A, w.b, w.k, u);
  if (rule == WriteRule::kWedge) AddOuter(A, -w.b, w.v, w.k);
}

// The derivative of Apply: A_before and base as they went in, dA the gradient of A', replaced by that of A; the gradient of
// base is added to d_base (which may be dA itself).
Write ApplyBackward(WriteRule rule, const Write& w, const Matrix& A_before, const Matrix& base, Matrix& dA,
                    Matrix& d_base) {
  Write d;
  double dot_A = 0;
  for (size_t i = 0; i < dA.data.size(); ++i) dot_A += A_before.data[i] * dA.data[i];
  d.g = std::exp(w.g) * dot_A;
  const Matrix dM = rule == WriteRule::kWedge ? Antisymmetric(dA) : dA;
  const Vector u = Residual(rule, w, base);
  const Vector k_dM = Times(w.k, dM);
  d.b = Dot(k_dM, u);
  d.k = TimesTransposed(u, dM);
  d.v = k_dM;
  for (double& x : d.k) x *= w.b;
  for (double& x : d.v) x *= w.b;
  Scale(dA, std::exp(w.g));
  if (IsDelta(rule)) {
    const bool gated = rule == WriteRule::kGatedDelta;
    const double decay = gated ? std::exp(w.g) : 1.0;
    const Vector back = TimesTransposed(d.v, base);
    for (size_t i = 0; i < back.size(); ++i) d.k[i] -= decay * back[i];
    if (gated) d.g -= Dot(Predicted(rule, w, base), d.v);
    AddOuter(d_base, -decay, w.k, d.v);
  }
  return d;
}

// The writes of one chunk in chunk modes: its tokens, or their mean.
template <class Args>
std::vector<Write> ChunkWrites(const Args& args, int64_t b, int64_t g, int64_t begin, int64_t end) {
  std::vector<Write> writes;
  for (int64_t i = begin; i < end; ++i) writes.push_back(TokenWrite(args, b, g, i));
  if (args.shape.mode != ScanMode::kChunkMean) return writes;
  Write mean = writes[0];
  const double n = static_cast<double>(end - begin);
  for (size_t i = 1; i < writes.size(); ++i) {
    for (size_t d = 0; d < mean.k.size(); ++d) mean.k[d] += writes[i].k[d];
    for (size_t d = 0; d < mean.v.size(); ++d) mean.v[d] += writes[i].v[d];
    mean.g += writes[i].g;
    mean.b += writes[i].b;
  }
  for (double& x : mean.k) x /= n;
  for (double& x : mean.v) x /= n;
  mean.g /= n;
  mean.b /= n;
  return {mean};
}

// The forward recurrence of one item. Calls on_read(t, A) for each query, and on_write(A) before each write.
template <class Args, class OnRead, class OnWrite>
Matrix Recur(const Args& args, int64_t b, int64_t g, OnRead on_read, OnWrite on_write) {
  const MemoryScanShape& s = args.shape;
  Matrix A = LoadState(args.initial, b, g, s.Dk, s.Dv);
  if (s.mode == ScanMode::kExact) {
    for (int64_t t = 0; t < s.T; ++t) {
      if (const int64_t token = s.past + t - s.lag; token >= 0) {
        on_write(A);
        Apply(s.rule, TokenWrite(args, b, g, token), Matrix(A), A);
      }
      on_read(t, A);
    }
    return A;
  }
  for (int64_t begin = 0; begin < s.T; begin += s.chunk) {
    const int64_t end = std::min(begin + s.chunk, s.T);
    for (int64_t t = begin; t < end; ++t) on_read(t, A);
    const Matrix start = A;
    for (const Write& w : ChunkWrites(args, b, g, begin, end)) {
      on_write(A);
      Apply(s.rule, w, start, A);
    }
  }
  return A;
}

template <class Real>
void BackwardItem(const MemoryScanBackwardArgs<Real>& args, int64_t b, int64_t g) {
  const MemoryScanShape& s = args.shape;
  const int64_t R = s.H / s.G;
  std::vector<Matrix> read_states, write_states;
  Recur(
      args, b, g, [&](int64_t, const Matrix& A) { read_states.push_back(A); },
      [&](const Matrix& A) { write_states.push_back(A); });
  const Write zero{.k = Vector(static_cast<size_t>(s.Dk)), .v = Vector(static_cast<size_t>(s.Dv))};
  for (int64_t token = 0; token < s.past + s.T; ++token) StoreTokenGradient(args, b, g, token, zero);

  Matrix dA = LoadState(args.d_final, b, g, s.Dk, s.Dv);
  const auto read_backward = [&](int64_t t) {
    for (int64_t h = g * R; h < (g + 1) * R; ++h) {
      const Vector q = LoadRow(args.q, b, h, t, s.Dk), dr = LoadRow(args.d_reads, b, h, t, s.Dv);
      StoreRow(TimesTransposed(dr, read_states[static_cast<size_t>(t)]), args.d_q, b, h, t);
      AddOuter(dA, 1.0, q, dr);
    }
  };
  if (s.mode == ScanMode::kExact) {
    for (int64_t t = s.T - 1; t >= 0; --t) {
      read_backward(t);
      const int64_t token = s.past + t - s.lag;
      if (token < 0) continue;
      const Matrix before = write_states.back();
      write_states.pop_back();
      const Write w = TokenWrite(args, b, g, token);
      StoreTokenGradient(args, b, g, token, ApplyBackward(s.rule, w, before, before, dA, dA));
    }
  } else {
    for (int64_t begin = s.T == 0 ? -1 : (s.T - 1) / s.chunk * s.chunk; begin >= 0; begin -= s.chunk) {
      const int64_t end = std::min(begin + s.chunk, s.T);
      const Matrix& start = read_states[static_cast<size_t>(begin)];
      const std::vector<Write> writes = ChunkWrites(args, b, g, begin, end);
      Matrix d_start(s.Dk, s.Dv);
      for (size_t i = writes.size(); i-- > 0;) {
        const Matrix before = write_states.back();
        write_states.pop_back();
        Write d = ApplyBackward(s.rule, writes[i], before, start, dA, d_start);
        if (s.mode == ScanMode::kChunkStart) {
          StoreTokenGradient(args, b, g, begin + static_cast<int64_t>(i), d);
        } else {
          const double n = static_cast<double>(end - begin);
          for (double& x : d.k) x /= n;
          for (double& x : d.v) x /= n;
          d.g /= n;
          d.b /= n;
          for (int64_t t = begin; t < end; ++t) StoreTokenGradient(args, b, g, t, d);
        }
      }
      for (size_t i = 0; i < dA.data.size(); ++i) dA.data[i] += d_start.data[i];
      for (int64_t t = end - 1; t >= begin; --t) read_backward(t);
    }
  }
  StoreState(dA, args.d_initial, b, g);
}

}  // namespace

template <class Real>
void MemoryScanForwardReference(const MemoryScanForwardArgs<Real>& args) {
  const MemoryScanShape& s = args.shape;
  TC_CHECK(ValidateMemoryScan(s).ok());
  const int64_t R = s.H / s.G;
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t g = 0; g < s.G; ++g) {
      const Matrix A = Recur(
          args, b, g,
          [&](int64_t t, const Matrix& state) {
            for (int64_t h = g * R; h < (g + 1) * R; ++h) {
              StoreRow(Times(LoadRow(args.q, b, h, t, s.Dk), state), args.reads, b, h, t);
            }
          },
          [](const Matrix&) {});
      StoreState(A, args.final_state, b, g);
    }
  }
}

template <class Real>
void MemoryScanBackwardReference(const MemoryScanBackwardArgs<Real>& args) {
  TC_CHECK(ValidateMemoryScan(args.shape).ok());
  for (int64_t b = 0; b < args.shape.B; ++b) {
    for (int64_t g = 0; g < args.shape.G; ++g) BackwardItem(args, b, g);
  }
}

template void MemoryScanForwardReference(const MemoryScanForwardArgs<float>&);
template void MemoryScanForwardReference(const MemoryScanForwardArgs<double>&);
template void MemoryScanBackwardReference(const MemoryScanBackwardArgs<float>&);
template void MemoryScanBackwardReference(const MemoryScanBackwardArgs<double>&);

}  // namespace tensorcache
