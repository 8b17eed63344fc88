// A c10d store of which only processes with a secret can use the keys, on top of a store that any program may be able
// to reach. The name of a key is the MAC of the caller's key, and before each value stands the MAC of key and value.
// Counters have no MAC, because the server computes them.
//
// Without the secret, a program cannot find out the name of a key that does not exist yet, such as that of a failure
// record, and a value that it writes to an existing key is refused. It can still delete or replay existing values.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "launch/c10d_store.h"
#include "launch/secret.h"
#include "launch/store.h"

namespace orthant {
namespace {

constexpr size_t kMacBytes = 32;
using Bytes = std::vector<uint8_t>;

class AuthenticatedStore : public c10d::Store {
 public:
  AuthenticatedStore(c10::intrusive_ptr<c10d::Store> store, std::string secret)
      : store_(std::move(store)), secret_(std::move(secret)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<AuthenticatedStore>(store_->clone(), secret_);
  }

  using c10d::Store::set;
  void set(const std::string& key, const Bytes& value) override { store_->set(name_of(key), seal(key, value)); }

  using c10d::Store::compareSet;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    const Bytes found =
        store_->compareSet(name_of(key), expected.empty() ? expected : seal(key, expected), seal(key, desired));
    return found.empty() ? found : open(key, found);
  }

  Bytes get(const std::string& key) override { return open(key, store_->get(name_of(key))); }
  int64_t add(const std::string& key, int64_t value) override { return store_->add(name_of(key), value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(name_of(key)); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(names_of(keys)); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }

  void wait(const std::vector<std::string>& keys) override { store_->wait(names_of(keys)); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    store_->wait(names_of(keys), timeout);
  }
  const std::chrono::milliseconds& getTimeout() const noexcept override { return store_->getTimeout(); }
  void setTimeout(const std::chrono::milliseconds& timeout) override { store_->setTimeout(timeout); }

  bool hasExtendedApi() const override { return store_->hasExtendedApi(); }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override {
    std::vector<Bytes> values = store_->multiGet(names_of(keys));
    for (size_t i = 0; i < values.size(); ++i) values[i] = open(keys[i], values[i]);
    return values;
  }
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override {
    std::vector<Bytes> sealed;
    for (size_t i = 0; i < values.size(); ++i) sealed.push_back(seal(keys[i], values[i]));
    store_->multiSet(names_of(keys), sealed);
  }

 private:
  std::string name_of(const std::string& key) const { return to_hex(hmac_sha256(secret_, "key " + key)); }

  std::vector<std::string> names_of(const std::vector<std::string>& keys) const {
    std::vector<std::string> names;
    for (const auto& key : keys) names.push_back(name_of(key));
    return names;
  }

  std::string mac_of(const std::string& key, const std::string& value) const {
    return hmac_sha256(secret_, fmt::format("value {} {}{}", key.size(), key, value));
  }

  Bytes seal(const std::string& key, const Bytes& value) const {
    const std::string mac = mac_of(key, {value.begin(), value.end()});
    Bytes sealed(mac.begin(), mac.end());
    sealed.insert(sealed.end(), value.begin(), value.end());
    return sealed;
  }

  Bytes open(const std::string& key, const Bytes& sealed) const {
    const std::string text(sealed.begin(), sealed.end());
    if (text.size() < kMacBytes || !are_equal_macs(mac_of(key, text.substr(kMacBytes)), text.substr(0, kMacBytes))) {
      throw ForgedValue(
          fmt::format("a program without the secret of this run has changed the value of \"{}\" in its store: start "
                      "the run again on another MASTER_PORT, and keep other programs away from it with a firewall",
                      key));
    }
    return {sealed.begin() + kMacBytes, sealed.end()};
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string secret_;
};

}  // namespace

Store Store::authenticated(const std::string& secret) const {
  if (secret.empty()) return *this;
  auto store = c10::make_intrusive<AuthenticatedStore>(handle_->store, secret);
  return with(std::make_shared<StoreHandle>(StoreHandle{std::move(store)}));
}

}  // namespace orthant
