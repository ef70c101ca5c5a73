#include "bench/harness/disk_node.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "storage/status_macros.h"

namespace larder::bench {

const BlockShape& Shape() { return ShapeNamed("1mib"); }

absl::StatusOr<Attachment> AttachTo(const Node& node, const std::string& engine_id) {
  SessionOptions options;
  options.engine_id = engine_id;
  return AttachBench(node.daemon->socket_dir(), Shape(), options);
}

absl::StatusOr<std::unique_ptr<Node>> StartNode(const NodeConfig& config) {
  std::vector<std::string> flags = config.flags;
  for (const std::string& flag : {std::string("--disk"), config.disk, std::string("--disk-limit"),
                                  config.limit, std::string("--lease-share"), std::string("1")}) {
    flags.push_back(flag);
  }
  auto node = std::make_unique<Node>();
  LARDER_ASSIGN_OR_RETURN(node->daemon,
                          DaemonProcess::Start({config.pool, flags, config.whole_pool}));
  LARDER_ASSIGN_OR_RETURN(node->engine, AttachTo(*node, "bench"));
  return node;
}

absl::Status WaitFor(const char* what, const std::function<absl::StatusOr<bool>()>& done) {
  for (const double until = SecondsNow() + kDiskWait_s; SecondsNow() < until;) {
    LARDER_ASSIGN_OR_RETURN(const bool now, done());
    if (now) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return absl::DeadlineExceededError(absl::StrCat("waited a minute without success for ", what));
}

absl::Status WaitForNode(const Node& node, const char* what,
                         const std::function<bool(const DaemonProcess::Holdings&)>& done) {
  return WaitFor(what, [&]() -> absl::StatusOr<bool> {
    LARDER_ASSIGN_OR_RETURN(const auto now, node.daemon->Stats());
    return done(now);
  });
}

absl::Status WaitForBlocks(const Node& node, uint64_t blocks) {
  return WaitForNode(node, "blocks in the index",
                     [&](const auto& now) { return now.blocks >= blocks; });
}

Writer::Writer(Attachment& engine, uint64_t part)
    : engine_(engine), nobody_(MakeNames(engine.seed, 0, 1).digests[0]), salt_(part << 20) {
  source_.FillRandom();
}

PutPlan Writer::Plan(const Names& names) {
  return PlanPuts(Shape(), names, source_.bytes(),
                  ShuffledOrder(source_.bytes().size() / Shape().bytes(), salt_));
}

absl::Status Writer::Put(const Names& names) {
  const PutPlan plan = Plan(names);
  return InBatches(plan.blocks,
                   [&](std::span<const PutBlock> batch) { return PutAll(engine_, batch, {}); });
}

absl::Status Writer::PutEach(const Names& names, const std::function<void(size_t)>& before) {
  const PutPlan plan = Plan(names);
  for (size_t i = 0; i < plan.blocks.size(); ++i) {
    before(i);
    LARDER_RETURN_IF_ERROR(PutAll(engine_, std::span(plan.blocks).subspan(i, 1), {}));
  }
  return absl::OkStatus();
}

absl::Status Writer::WaitDurable(uint64_t more) {
  durable_ += more;
  const double start = SecondsNow();
  while (engine_.session->counters().blocks_durable < durable_) {
    const double waited = SecondsNow() - start;
    if (waited > kDiskWait_s) {
      return absl::DeadlineExceededError(absl::StrCat(engine_.session->counters().blocks_durable,
                                                      " of ", durable_, " blocks are durable"));
    }
    LARDER_RETURN_IF_ERROR(Listen());
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::clamp(waited / 16, 50e-6, 1e-3)));
  }
  return absl::OkStatus();
}

// The daemon reports at once which blocks are durable, but an idle client library looks at these
// messages only every 40 ms.  While a call waits for its answer it looks at once, so this makes a
// call: it asks for a block that does not exist.
absl::Status Writer::Listen() {
  return engine_.session->Acquire(engine_.variant, {&nobody_, 1}).status();
}

absl::Status Writer::PutDurable(const Names& names) {
  LARDER_RETURN_IF_ERROR(Put(names));
  return WaitDurable(names.size());
}

absl::StatusOr<double> Writer::SpillRate(const Names& names) {
  const PutPlan plan = Plan(names);
  const double start = SecondsNow();
  size_t ahead = 0;
  const auto put = [&](std::span<const PutBlock> batch) {
    LARDER_RETURN_IF_ERROR(PutAll(engine_, batch, {}));
    ahead += batch.size();
    if (ahead <= kAheadBlocks) return absl::OkStatus();
    ahead -= batch.size();
    return WaitDurable(batch.size());
  };
  LARDER_RETURN_IF_ERROR(InBatches(plan.blocks, put));
  LARDER_RETURN_IF_ERROR(WaitDurable(ahead));
  return Mebibytes(names.size()) / (SecondsNow() - start);
}

uint64_t Writer::CountDropped(uint64_t put) {
  constexpr double kQuiet_s = 3;
  const uint64_t before = durable_;
  for (double since = SecondsNow(); SecondsNow() < since + kQuiet_s;) {
    const uint64_t now = engine_.session->counters().blocks_durable;
    if (now != durable_) since = SecondsNow();
    durable_ = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return before + put - durable_;
}

void History::Add(const Names& names) {
  const MutexLock lock(mu_);
  for (size_t at = 0; at < names.size(); at += kBatchBlocks) {
    const auto batch =
        std::span(names.digests).subspan(at, std::min(kBatchBlocks, names.size() - at));
    batches_.emplace_back(batch.begin(), batch.end());
  }
}

std::vector<Digest> History::Next(size_t from, size_t to) {
  const MutexLock lock(mu_);
  const auto before = [&](size_t blocks) LARDER_REQUIRES(mu_) {
    return batches_.size() - std::min(batches_.size(), blocks / kBatchBlocks);
  };
  if (next_ < before(to) || next_ >= before(from)) next_ = before(to);
  return batches_[next_++];
}

absl::Status PutAtRate(Writer& writer, double rate, const std::function<bool(size_t)>& go_on,
                       History* history) {
  const double period = Mebibytes(1) / rate;
  const double start = SecondsNow();
  for (size_t batch = 0; go_on(batch); ++batch) {
    const Names names = writer.Next(kBatchBlocks);
    LARDER_RETURN_IF_ERROR(writer.PutEach(names, [&](size_t i) {
      const double due = start + period * static_cast<double>(batch * kBatchBlocks + i);
      if (const double left = due - SecondsNow(); left > 0)
        std::this_thread::sleep_for(std::chrono::duration<double>(left));
    }));
    if (history != nullptr) history->Add(names);
  }
  return absl::OkStatus();
}

}  // namespace larder::bench
