// See policy.h.
#include "client/restore/policy.h"

namespace larder {
namespace {

constexpr double kPatience = 100;

class FinishFirstPolicy final : public Policy {
 public:
  explicit FinishFirstPolicy(double age_weight) : age_weight_(age_weight) {}
  const char* name() const override { return "finish first"; }
  double ComputeKey(const RequestView& request) const override {
    const double left_s = request.remaining_s, waited_s = request.waited_s;
    if (waited_s >= kPatience * left_s) return -waited_s;
    return left_s / (1 + age_weight_ * waited_s / left_s);
  }
  double LoadKey(const RequestView& request) const override { return ComputeKey(request); }

 private:
  const double age_weight_;
};

class AlgorithmOnePolicy final : public Policy {
 public:
  const char* name() const override { return "Algorithm 1"; }
  bool weighs_loads() const override { return true; }
  double ComputeKey(const RequestView& request) const override {
    return static_cast<double>(request.computed_turn);
  }
  double LoadKey(const RequestView& request) const override { return -request.remaining_load_s; }
};

class OldestFirstPolicy final : public Policy {
 public:
  const char* name() const override { return "oldest first"; }
  double ComputeKey(const RequestView& request) const override { return request.arrived_s; }
  double LoadKey(const RequestView& request) const override { return request.arrived_s; }
};

class TakeTurnsPolicy final : public Policy {
 public:
  const char* name() const override { return "take turns"; }
  double ComputeKey(const RequestView& request) const override {
    return static_cast<double>(request.computed_turn);
  }
  double LoadKey(const RequestView& request) const override {
    return static_cast<double>(request.loaded_turn);
  }
};

}  // namespace

std::unique_ptr<Policy> FinishFirst(double age_weight) {
  return std::make_unique<FinishFirstPolicy>(age_weight);
}
std::unique_ptr<Policy> AlgorithmOne() { return std::make_unique<AlgorithmOnePolicy>(); }
std::unique_ptr<Policy> OldestFirst() { return std::make_unique<OldestFirstPolicy>(); }
std::unique_ptr<Policy> TakeTurns() { return std::make_unique<TakeTurnsPolicy>(); }

}  // namespace larder
