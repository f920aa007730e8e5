#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <string>

#include "manyhead/kv_cache.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

template <class... Parts>
Status Refuse(std::string_view text, const Parts&... parts) {
  return InvalidArgument("ParseKvPolicy", "'", Printable(text), "': ", parts...);
}

/// One part, "name(value)" or "name".
struct Part {
  std::string_view name;
  std::optional<std::int64_t> value;
};

std::optional<Part> ParsePart(std::string_view text) {
  const std::size_t open = text.find('(');
  if (open == text.npos) return Part{text, std::nullopt};
  if (!text.ends_with(')')) return std::nullopt;
  const std::string_view digits = text.substr(open + 1, text.size() - open - 2);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0)
    return std::nullopt;
  return Part{text.substr(0, open), value};
}

/// The values of a policy's parts.
struct Parts {
  std::optional<std::int64_t> window, sink, recent, budget, margin;
  bool full = false, off = false;

  /// Returns the member for the value of a part; null for an unknown name.
  std::optional<std::int64_t>* ValueOf(std::string_view name) {
    if (name == "window") return &window;
    if (name == "sink") return &sink;
    if (name == "recent") return &recent;
    if (name == "budget") return &budget;
    if (name == "margin") return &margin;
    return nullptr;
  }
  int count() const {
    return window.has_value() + sink.has_value() + recent.has_value() + budget.has_value() +
           margin.has_value() + full + off;
  }
};

Status ReadParts(std::string_view text, Parts* parts) {
  for (std::string_view rest = text;;) {
    const std::size_t plus = rest.find('+');
    const std::string_view name = rest.substr(0, plus);
    const std::optional<Part> part = ParsePart(name);
    const auto wrong = [&](const char* expected) {
      return Refuse(text, "part '", Printable(name), "'; expected ", expected);
    };
    if (!part) return wrong("a name and a whole number in brackets, as in window(512)");
    if (part->name == "full" || part->name == "off") {
      if (part->value) return wrong("no number");
      (part->name == "full" ? parts->full : parts->off) = true;
    } else {
      std::optional<std::int64_t>* value = parts->ValueOf(part->name);
      if (value == nullptr)
        return wrong("full, window(n), sink(n), recent(n), margin(n), budget(n) or off");
      if (!part->value) return wrong("a number in brackets");
      if (value->has_value()) return wrong("each part once");
      *value = part->value;
    }
    if (plus == rest.npos) return Status();
    rest.remove_prefix(plus + 1);
  }
}

}  // namespace

std::string FormatKvPolicy(const KvPolicy& policy) {
  std::ostringstream text;
  switch (policy.kind) {
    case KvPolicyKind::kFull:
      return "full";
    case KvPolicyKind::kOff:
      return "off";
    case KvPolicyKind::kWindow:
      text << "window(" << policy.recent << ")";
      break;
    case KvPolicyKind::kSinkRecent:
      text << "sink(" << policy.sink << ")+recent(" << policy.recent << ")";
      break;
    case KvPolicyKind::kBudget:
      text << "budget(" << policy.budget << ")";
      if (policy.sink > 0) text << "+sink(" << policy.sink << ")";
      text << "+recent(" << policy.recent << ")";
      break;
  }
  if (policy.margin != 0) text << "+margin(" << policy.margin << ")";
  return text.str();
}

Result<KvPolicy> ParseKvPolicy(std::string_view text) {
  Parts parts;
  if (Status status = ReadParts(text, &parts); !status.ok()) return status;
  const bool alone = parts.count() == 1;
  if (parts.full && alone) return KvPolicy::Full();
  if (parts.off && alone) return KvPolicy::Off();
  const std::int64_t margin = parts.margin.value_or(0);
  if (parts.window && parts.count() == 1 + parts.margin.has_value()) {
    if (*parts.window == 0) return Refuse(text, "window(0); expected at least 1");
    return KvPolicy::Window(*parts.window, margin);
  }
  if (parts.full || parts.off || parts.window)
    return Refuse(text, "full, window(n) and off stand alone, but for window(n)+margin(m)");
  const std::int64_t sink = parts.sink.value_or(0);
  if (parts.budget) {
    if (parts.margin)
      return Refuse(text, "margin(n) goes with window(n) or recent(n), not a budget");
    constexpr std::int64_t kLeast = 32;
    const std::int64_t recent =
        parts.recent.value_or(std::min(*parts.budget / 2, *parts.budget - sink - kLeast));
    if (sink > *parts.budget || recent < 0 || recent > *parts.budget - sink - kLeast)
      return Refuse(text, "a budget is at least sink + recent + 32");
    return KvPolicy::Budget(*parts.budget, recent, sink);
  }
  if (!parts.recent || *parts.recent == 0)
    return Refuse(text, "sink(n) goes with recent(n) of at least 1");
  return KvPolicy::SinkRecent(sink, *parts.recent, margin);
}

}  // namespace manyhead
