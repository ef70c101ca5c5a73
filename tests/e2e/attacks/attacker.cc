// A process of another user that may connect to the daemon's data.sock and sideband.sock, and that
// behaves like a hostile, leaking or crashing client.
//
//   attacker NAME SOCKET_DIR SECONDS UID
//   attacker --list
//
// It first becomes the user, attacks for SECONDS, prints one line about what it did, and ends
// without releasing anything.  Controls: "nothing" does nothing; "spin" takes a core and sends
// nothing, as any process may.
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tests/e2e/attacks/attacker_tools.h"
#include "tests/e2e/support/other_user.h"

namespace larder::e2e {
namespace {

void Nothing(Attack&) {}
void Spin(Attack& attack) {
  for (uint64_t i = 0;; ++i) {
    if (i % 10'000'000 == 0) attack.tally.Done();
  }
}

std::vector<NamedAttack> AllAttacks() {
  std::vector<NamedAttack> all = {{"nothing", Nothing}, {"spin", Spin}};
  for (const auto& some :
       {SocketAttacks(), SessionAttacks(), StreamAttacks(), NameAttacks(), CostAttacks()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

int RunAttack(const std::string& name, const std::string& dir, double seconds, uid_t uid) {
  const std::vector<NamedAttack> all = AllAttacks();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const NamedAttack& one) { return one.name == name; });
  if (found == all.end()) {
    std::fprintf(stderr, "there is no attack %s; --list has them\n", name.c_str());
    return 2;
  }
  BecomeUser(uid, static_cast<gid_t>(uid));
  std::signal(SIGPIPE, SIG_IGN);
  static Attack attack;
  attack.dir = dir;
  std::thread([found] { found->function(attack); }).detach();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  std::printf("%s\n", attack.tally.Text().c_str());
  std::fflush(stdout);
  // SIGKILL, so that no destructor releases anything.
  kill(getpid(), SIGKILL);
  return 1;
}

}  // namespace
}  // namespace larder::e2e

int main(int argc, char** argv) {
  using namespace larder::e2e;
  if (argc == 2 && std::string(argv[1]) == "--list") {
    for (const NamedAttack& one : AllAttacks()) std::printf("%s\n", one.name);
    return 0;
  }
  if (argc != 5) {
    std::fprintf(stderr, "attacker NAME SOCKET_DIR SECONDS UID\n");
    return 2;
  }
  return RunAttack(argv[1], argv[2], std::atof(argv[3]), static_cast<uid_t>(std::atoi(argv[4])));
}
