#include "server/jinja/template.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <map>
#include <optional>

#include "core/no_throw.h"
#include "server/jinja/functions.h"
#include "server/jinja/syntax.h"

namespace tensorcache::server::jinja {
namespace {

// Of statements, expressions and macros inside each other, while they run.
constexpr int kDeepest = 400;
constexpr int64_t kLongestRange = 100'000;
// That are copied in the time of a step.
constexpr int64_t kValuesPerStep = 64, kBytesPerStep = 1024;

using Scope = std::map<std::string, Value, std::less<>>;

class Renderer {
 public:
  Renderer(const Dict& variables, const TemplateLimits& limits) : steps_left_(limits.steps) {
    Scope globals;
    globals["range"] = Value::Of(Function([](Arguments& a) { return Range(a); }));
    globals["namespace"] = Value::Of(Function([](Arguments& a) { return Value::OfNamespace(NamedOf(a)); }));
    globals["dict"] = Value::Of(Function([](Arguments& a) { return Value::Of(NamedOf(a)); }));
    globals["raise_exception"] =
        Value::Of(Function([](Arguments& a) -> Value { throw TemplateError(a.Get(0, "message").Str().bytes); }));
    globals["strftime_now"] =
        Value::Of(Function([](Arguments& a) { return Now(a.Get(0, "format").String("strftime_now").bytes); }));
    for (const auto& [key, value] : variables.items()) globals[key.bytes] = value;
    scopes_.push_back(std::move(globals));
  }

  Text Run(const Block& block) {
    Text out;
    RunBlock(block, &out);
    return out;
  }

 private:
  enum class Flow { kGoOn, kBreak, kContinue };

  class Depth {
   public:
    explicit Depth(Renderer& renderer) : renderer_(renderer) {
      if (++renderer_.depth_ > kDeepest) throw TemplateError("calls are nested too deeply");
    }
    ~Depth() { --renderer_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    Renderer& renderer_;
  };

  void Spend(int64_t steps) {
    steps_left_ -= steps;
    if (steps_left_ < 0) throw TemplateError("the template takes too long");
  }
  // What it takes to look at a value, or to copy it.
  void SpendOn(const Value& value) {
    if (const Text* text = value.text()) Spend(static_cast<int64_t>(text->size()) / kBytesPerStep);
    if (const List* list = value.list()) Spend(std::ssize(*list) / kValuesPerStep);
    if (const Dict* dict = value.dict()) Spend(std::ssize(dict->items()) / kValuesPerStep);
  }

  // ----- functions ----------------------------------------------------------------------------------------------------

  static Value Range(const Arguments& a) {
    int64_t begin = 0, step = 1, end = a.Get(0, "").Integer();
    if (a.positional.size() > 1) {
      begin = end;
      end = a.positional[1].Integer();
    }
    if (a.positional.size() > 2) step = a.positional[2].Integer();
    if (step == 0) throw TemplateError("range: the step is 0");
    List list;
    for (double at = static_cast<double>(begin);
         step > 0 ? at < static_cast<double>(end) : at > static_cast<double>(end); at += static_cast<double>(step)) {
      if (std::ssize(list) == kLongestRange) throw TemplateError("range: too long");
      list.push_back(Value::Of(static_cast<int64_t>(at)));
    }
    return Value::Of(std::move(list));
  }
  static Dict NamedOf(const Arguments& a) {
    Dict dict;
    if (!a.positional.empty() && a.positional[0].is_dict()) {
      for (const auto& [key, value] : a.positional[0].dict()->items()) dict.Set(key, value);
    }
    for (const auto& [key, value] : a.named) dict.Set(Text(key), value);
    for (const auto& [key, value] : dict.items()) {
      if (value.depth() >= Value::kTooDeep) throw TemplateError("a namespace cannot be kept inside of something");
    }
    return dict;
  }
  static Value Now(const std::string& format) {
    const std::time_t now = std::time(nullptr);
    std::tm parts = {};
    localtime_r(&now, &parts);
    char text[256];
    return Value::Of(std::string_view(text, std::strftime(text, sizeof(text), format.c_str(), &parts)));
  }

  // ----- statements ---------------------------------------------------------------------------------------------------

  Flow RunBlock(const Block& block, Text* out) {
    const Depth depth(*this);
    for (const auto& statement : block) {
      Spend(1);
      const Flow flow = RunStatement(*statement, out);
      if (flow != Flow::kGoOn) return flow;
    }
    return Flow::kGoOn;
  }

  Flow RunStatement(const Statement& statement, Text* out) {
    switch (statement.kind) {
      case Statement::Kind::kText: *out += Text(statement.text); break;
      case Statement::Kind::kOutput: *out += Evaluate(*statement.expression).Str(); break;
      case Statement::Kind::kIf:
        return RunBlock(Evaluate(*statement.expression).Truth() ? statement.body : statement.otherwise, out);
      case Statement::Kind::kFor: return RunFor(statement, out);
      case Statement::Kind::kSet: RunSet(statement); break;
      case Statement::Kind::kSetBlock: {
        Text text;
        RunBlock(statement.body, &text);
        Value value = Value::Of(std::move(text));
        if (statement.expression) value = EvaluateFilters(*statement.expression, value);
        scopes_.back()[statement.names[0]] = value;
        break;
      }
      case Statement::Kind::kMacro: scopes_.back()[statement.names[0]] = MakeMacro(statement); break;
      case Statement::Kind::kBlock: return RunBlock(statement.body, out);
      case Statement::Kind::kBreak: return Flow::kBreak;
      case Statement::Kind::kContinue: return Flow::kContinue;
    }
    return Flow::kGoOn;
  }

  void Assign(const std::vector<std::string>& names, const Value& value, Scope* scope) {
    if (names.size() == 1) {
      (*scope)[names[0]] = value;
      return;
    }
    const List items = value.Items();
    if (items.size() != names.size()) {
      throw TemplateError(fmt::format("{} values for {} names", items.size(), names.size()));
    }
    for (size_t i = 0; i < names.size(); ++i) (*scope)[names[i]] = items[i];
  }

  void RunSet(const Statement& statement) {
    const Value value = Evaluate(*statement.expression);
    if (statement.attribute.empty()) return Assign(statement.names, value, &scopes_.back());
    Dict* space = Lookup(statement.names[0]).name_space();
    if (space == nullptr) throw TemplateError(fmt::format("'{}' is no namespace", statement.names[0]));
    if (value.depth() >= Value::kTooDeep) throw TemplateError("a namespace cannot be kept inside of something");
    space->Set(Text(statement.attribute), value);
  }

  Flow RunFor(const Statement& statement, Text* out) {
    const Value of = Evaluate(*statement.expression);
    SpendOn(of);
    List items = of.Items();
    if (statement.condition) {
      List kept;
      for (Value& item : items) {
        scopes_.emplace_back();
        Assign(statement.names, item, &scopes_.back());
        const bool keep = Evaluate(*statement.condition).Truth();
        scopes_.pop_back();
        if (keep) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) return RunBlock(statement.otherwise, out);
    for (size_t i = 0; i < items.size(); ++i) {
      Spend(1);
      scopes_.emplace_back();
      Assign(statement.names, items[i], &scopes_.back());
      scopes_.back()["loop"] = LoopOf(items, i);
      const Flow flow = RunBlock(statement.body, out);
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
    }
    return Flow::kGoOn;
  }

  static Value LoopOf(const List& items, size_t i) {
    const auto at = static_cast<int64_t>(i), count = std::ssize(items);
    Dict loop;
    const auto set = [&](const char* name, Value value) { loop.Set(Text(name), std::move(value)); };
    set("index", Value::Of(at + 1));
    set("index0", Value::Of(at));
    set("revindex", Value::Of(count - at));
    set("revindex0", Value::Of(count - at - 1));
    set("first", Value::Of(i == 0));
    set("last", Value::Of(at + 1 == count));
    set("length", Value::Of(count));
    const auto set_neighbour = [&](const char* name, bool is_there, size_t place) {
      // Left out where it would make the loop itself too deep to be a value.
      if (is_there && items[place].depth() + 2 < Value::kTooDeep) set(name, items[place]);
    };
    set_neighbour("previtem", i > 0, i - 1);
    set_neighbour("nextitem", at + 1 < count, i + 1);
    set("cycle", Value::Of(Function([i](Arguments& a) {
          if (a.positional.empty()) throw TemplateError("cycle: there is nothing to choose from");
          return a.positional[i % a.positional.size()];
        })));
    return Value::Of(std::move(loop));
  }

  // A macro sees what is set outside of all loops and macros, and its arguments.
  Value MakeMacro(const Statement& statement) {
    return Value::Of(Function([this, &statement](Arguments& arguments) {
      Scope scope;
      if (arguments.positional.size() > statement.parameters.size()) {
        throw TemplateError(fmt::format("'{}' takes {} arguments", statement.names[0], statement.parameters.size()));
      }
      for (size_t i = 0; i < statement.parameters.size(); ++i) {
        const auto& [name, otherwise] = statement.parameters[i];
        Value value = arguments.Get(i, name);
        if (value.is_undefined() && otherwise) value = Evaluate(*otherwise);
        scope[name] = std::move(value);
      }
      std::vector<Scope> outside(scopes_.begin() + 1, scopes_.end());
      scopes_.resize(1);
      scopes_.push_back(std::move(scope));
      Text out;
      RunBlock(statement.body, &out);
      scopes_.resize(1);
      scopes_.insert(scopes_.end(), std::make_move_iterator(outside.begin()), std::make_move_iterator(outside.end()));
      return Value::Of(std::move(out));
    }));
  }

  // ----- expressions --------------------------------------------------------------------------------------------------

  Value Lookup(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->find(name); found != scope->end()) return found->second;
    }
    return Value(Undefined{name});
  }

  Value Evaluate(const Expression& e) {
    const Depth depth(*this);
    Spend(1);
    switch (e.kind) {
      case Expression::Kind::kLiteral: return e.value;
      case Expression::Kind::kName: return Lookup(e.name);
      case Expression::Kind::kList: {
        List list;
        for (const auto& part : e.parts) list.push_back(Evaluate(*part));
        return Value::Of(std::move(list));
      }
      case Expression::Kind::kDict: {
        Dict dict;
        for (size_t i = 0; i < e.parts.size(); i += 2) {
          const Value key = Evaluate(*e.parts[i]);
          dict.Set(key.String("a mapping's key"), Evaluate(*e.parts[i + 1]));
        }
        return Value::Of(std::move(dict));
      }
      case Expression::Kind::kAttribute: return MemberOf(Evaluate(*e.parts[0]), e.name);
      case Expression::Kind::kItem: return ItemOf(Evaluate(*e.parts[0]), Evaluate(*e.parts[1]));
      case Expression::Kind::kSlice: return SliceOf(e);
      case Expression::Kind::kCall: return Call(e);
      case Expression::Kind::kFilter: return EvaluateFilters(e, Value());
      case Expression::Kind::kTest: {
        const Value subject = Evaluate(*e.parts[0]);
        return Value::Of(ApplyTest(e.name, subject, ArgumentsOf(e)) != e.negated);
      }
      case Expression::Kind::kUnary: return Unary(e.name, Evaluate(*e.parts[0]));
      case Expression::Kind::kBinary: return Binary(e);
      case Expression::Kind::kIf:
        if (Evaluate(*e.parts[0]).Truth()) return Evaluate(*e.parts[1]);
        return e.parts[2] ? Evaluate(*e.parts[2]) : Value();
    }
    return Value();
  }

  // A filter, of which the innermost subject may be missing: `innermost` then.
  Value EvaluateFilters(const Expression& e, const Value& innermost) {
    Value subject = innermost;
    if (e.parts[0] != nullptr) {
      const bool is_filter = e.parts[0]->kind == Expression::Kind::kFilter;
      const Depth depth(*this);
      subject = is_filter ? EvaluateFilters(*e.parts[0], innermost) : Evaluate(*e.parts[0]);
    }
    SpendOn(subject);
    Value value = ApplyFilter(e.name, subject, ArgumentsOf(e));
    SpendOn(value);
    return value;
  }

  Arguments ArgumentsOf(const Expression& e) {
    Arguments arguments;
    for (size_t i = 1; i < e.parts.size(); ++i) arguments.positional.push_back(Evaluate(*e.parts[i]));
    for (const auto& [name, value] : e.named) arguments.named.emplace_back(name, Evaluate(*value));
    return arguments;
  }

  Value Call(const Expression& e) {
    const Expression& callee = *e.parts[0];
    Value function;
    if (callee.kind == Expression::Kind::kAttribute) {
      const Value subject = Evaluate(*callee.parts[0]);
      if (HasMethod(subject, callee.name)) {
        SpendOn(subject);
        Value value = CallMethod(subject, callee.name, ArgumentsOf(e));
        SpendOn(value);
        return value;
      }
      function = MemberOf(subject, callee.name);
    } else {
      function = Evaluate(callee);
    }
    if (function.function() == nullptr) {
      throw TemplateError(
          fmt::format("line {}: {} cannot be called", e.line, callee.name.empty() ? function.TypeName() : callee.name));
    }
    Arguments arguments = ArgumentsOf(e);
    Value value = (*function.function())(arguments);
    SpendOn(value);
    return value;
  }

  Value ItemOf(const Value& subject, const Value& key) {
    if (subject.is_undefined() || subject.is_dict()) {
      return key.is_string() ? MemberOf(subject, key.text()->bytes) : MemberOf(subject, "");
    }
    if (!subject.is_list() && !subject.is_string()) return Value();
    if (!key.is_number()) return Value(Undefined{key.is_string() ? key.text()->bytes : ""});
    if (subject.is_string()) Spend(std::ssize(subject.text()->bytes) / kValuesPerStep);
    const List items = subject.is_string() ? subject.Items() : List();
    const List& list = subject.is_list() ? *subject.list() : items;
    const int64_t place = key.Integer() < 0 ? key.Integer() + std::ssize(list) : key.Integer();
    return place < 0 || place >= std::ssize(list) ? Value() : list[static_cast<size_t>(place)];
  }

  // As Python has it: places from the end are negative, and nothing is out of range.
  Value SliceOf(const Expression& e) {
    const Value subject = Evaluate(*e.parts[0]);
    SpendOn(subject);
    if (subject.is_string()) Spend(std::ssize(subject.text()->bytes) / kValuesPerStep);  // taken apart
    const List items = subject.Items();
    const int64_t count = std::ssize(items);
    std::optional<int64_t> given[3];
    for (size_t i = 0; i < 3; ++i) {
      const Value part = e.parts[i + 1] ? Evaluate(*e.parts[i + 1]) : Value::OfNone();
      if (!part.is_none()) given[i] = part.Integer();
    }
    const int64_t step = given[2].value_or(1);
    if (step == 0) throw TemplateError("a slice has step 0");
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? count : count - 1;
    const auto place = [&](const std::optional<int64_t>& of, int64_t otherwise) {
      if (!of) return otherwise;
      return std::clamp(*of < 0 ? *of + count : *of, low, high);
    };
    List out;
    const int64_t end = place(given[1], step > 0 ? high : low);
    const int64_t begin = place(given[0], step > 0 ? low : high);
    for (int64_t at = begin; step > 0 ? at < end : at > end;) {
      out.push_back(items[static_cast<size_t>(at)]);
      if (step > count || step < -count) break;
      at += step;
    }
    if (!subject.is_string()) return Value::Of(std::move(out));
    Text text;
    for (const Value& character : out) text += *character.text();
    return Value::Of(std::move(text));
  }

  static Value Unary(const std::string& name, const Value& value) {
    if (name == "not") return Value::Of(!value.Truth());
    if (value.is_float()) return Value::Of(name == "-" ? -value.Number() : value.Number());
    return name == "-" ? Arithmetic("-", Value::Of(int64_t{0}), value) : Value::Of(value.Integer());
  }

  Value Binary(const Expression& e) {
    const std::string& name = e.name;
    const Value a = Evaluate(*e.parts[0]);
    if (name == "and") return a.Truth() ? Evaluate(*e.parts[1]) : a;
    if (name == "or") return a.Truth() ? a : Evaluate(*e.parts[1]);
    const Value b = Evaluate(*e.parts[1]);
    SpendOn(a);
    SpendOn(b);
    if (name == "==") return Value::Of(Equal(a, b));
    if (name == "!=") return Value::Of(!Equal(a, b));
    if (name == "<") return Value::Of(Less(a, b));
    if (name == ">") return Value::Of(Less(b, a));
    if (name == "<=") return Value::Of(!Less(b, a));
    if (name == ">=") return Value::Of(!Less(a, b));
    if (name == "in") return Value::Of(Contains(b, a));
    if (name == "not in") return Value::Of(!Contains(b, a));
    if (name == "~" || (name == "+" && a.is_string() && b.is_string())) {
      Text text = a.Str();
      text += b.Str();
      return Value::Of(std::move(text));
    }
    if (name == "+" && a.is_list() && b.is_list()) {
      List list = *a.list();
      list.insert(list.end(), b.list()->begin(), b.list()->end());
      return Value::Of(std::move(list));
    }
    if (name == "*" && a.is_string() && b.is_integer()) {
      Text text;
      for (int64_t i = 0; i < b.Integer() && a.text()->size() > 0; ++i) text += *a.text();
      return Value::Of(std::move(text));
    }
    return Arithmetic(name, a, b);
  }

  static Value Arithmetic(const std::string& name, const Value& a, const Value& b) {
    if (!a.is_number() || !b.is_number()) {
      throw TemplateError(fmt::format("{} {} {} is not possible", a.TypeName(), name, b.TypeName()));
    }
    const double x = a.Number(), y = b.Number();
    if ((name == "/" || name == "//" || name == "%") && y == 0) throw TemplateError("a division by 0");
    if (name == "/") return Value::Of(x / y);
    if (a.is_float() || b.is_float() || (name == "**" && y < 0)) {
      if (name == "+") return Value::Of(x + y);
      if (name == "-") return Value::Of(x - y);
      if (name == "*") return Value::Of(x * y);
      if (name == "//") return Value::Of(std::floor(x / y));
      if (name == "**") return Value::Of(std::pow(x, y));
      return Value::Of(x - std::floor(x / y) * y);
    }
    const int64_t i = a.Integer(), j = b.Integer();
    int64_t result = 0;
    bool overflows = false;
    if (name == "+") {
      overflows = __builtin_add_overflow(i, j, &result);
    } else if (name == "-") {
      overflows = __builtin_sub_overflow(i, j, &result);
    } else if (name == "*") {
      overflows = __builtin_mul_overflow(i, j, &result);
    } else if (name == "**") {
      const double power = std::pow(x, y);
      overflows = !(std::abs(power) < 9e15);
      result = overflows ? 0 : static_cast<int64_t>(power);
    } else {
      overflows = i == INT64_MIN && j == -1;
      const int64_t quotient = overflows ? 0 : i / j, rest = overflows ? 0 : i % j;
      const bool down = rest != 0 && (rest < 0) != (j < 0);  // Python rounds towards minus infinity
      result = name == "//" ? quotient - (down ? 1 : 0) : rest + (down ? j : 0);
    }
    if (overflows) throw TemplateError("a whole number is too large");
    return Value::Of(result);
  }

  std::vector<Scope> scopes_;
  int64_t steps_left_;
  int depth_ = 0;
};

// Names of filters and tests that do not exist, before anything runs.
void CheckNames(const Expression* e) {
  if (e == nullptr) return;
  if (e->kind == Expression::Kind::kFilter && !HasFilter(e->name)) {
    throw TemplateError(fmt::format("line {}: there is no filter '{}'", e->line, e->name));
  }
  if (e->kind == Expression::Kind::kTest && !HasTest(e->name)) {
    throw TemplateError(fmt::format("line {}: there is no test '{}'", e->line, e->name));
  }
  for (const auto& part : e->parts) CheckNames(part.get());
  for (const auto& [name, part] : e->named) CheckNames(part.get());
}

void CheckNames(const Block& block) {
  for (const auto& statement : block) {
    CheckNames(statement->expression.get());
    CheckNames(statement->condition.get());
    for (const auto& [name, otherwise] : statement->parameters) CheckNames(otherwise.get());
    CheckNames(statement->body);
    CheckNames(statement->otherwise);
  }
}

}  // namespace

struct Template::Impl {
  Block block;
};

Template::Template(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Result<Template> Template::Parse(std::string_view source) {
  return NoThrow("read a chat template", [&]() -> Result<Template> {
    try {
      auto impl = std::make_unique<Impl>();
      impl->block = ParseTemplate(source);
      CheckNames(impl->block);
      return Template(std::move(impl));
    } catch (const TemplateError& error) {
      return InvalidArgument(fmt::format("the chat template: {}", error.what()));
    }
  });
}

Result<Text> Template::Render(const Dict& variables, const TemplateLimits& limits) const {
  return NoThrow("render a chat template", [&]() -> Result<Text> {
    try {
      return Renderer(variables, limits).Run(impl_->block);
    } catch (const TemplateError& error) {
      return InvalidArgument(fmt::format("the chat template: {}", error.what()));
    }
  });
}

}  // namespace tensorcache::server::jinja
