// Options of one command, parsed by CLI11 with this program's error style.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/tensorcache/command.h"
#include "core/text.h"
#include "tensorcache/status.h"

namespace tensorcache::cli {

template <class T>
concept Number = (std::integral<T> || std::floating_point<T>) && !std::same_as<T, bool>;

// All of `text` as a number. Nothing if it is none, is not finite or does not fit.
template <Number T>
std::optional<T> ParseNumber(std::string_view text) {
  T value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return {};
  if constexpr (std::floating_point<T>) {
    if (!std::isfinite(value)) return {};
  }
  return value;
}

// The options of a command. Numbers are read strictly: by itself CLI11 takes "" for 0, -1 for a large unsigned number,
// nan for one that is in any range, and 64,,64 for two.
class Options : public CLI::App {
 public:
  using CLI::App::App;

  template <class T>
  CLI::Option* add_option(const std::string& name, T& variable, const std::string& help) {
    return CLI::App::add_option(name, variable, help);
  }
  template <Number T>
  CLI::Option* add_option(const std::string& name, T& variable, const std::string& help) {
    return AddNumber<T>(
        name, help, [&variable](T value) { variable = value; }, [&variable] { return fmt::format("{}", variable); });
  }
  template <Number T>
  CLI::Option* add_option(const std::string& name, std::optional<T>& variable, const std::string& help) {
    return AddNumber<T>(name, help, [&variable](T value) { variable = value; }, [] { return std::string(); });
  }
  // Numbers with commas between; the option may be repeated.
  template <Number T>
  CLI::Option* add_option(const std::string& name, std::vector<T>& variable, const std::string& help) {
    const auto read = [&variable, option = FirstName(name)](const CLI::results_t& texts) {
      variable.clear();
      for (const std::string& text : texts) {
        for (size_t begin = 0; begin <= text.size();) {
          const size_t end = std::min(text.find(',', begin), text.size());
          const std::optional<T> value = ParseNumber<T>(std::string_view(text).substr(begin, end - begin));
          if (!value) Refuse<T>(option, text, ", or several with commas between");
          variable.push_back(*value);
          begin = end + 1;
        }
      }
      return true;
    };
    const auto show = [&variable] { return CLI::detail::join(variable, ","); };
    return CLI::App::add_option(name, CLI::callback_t(read), help, false, show)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }

 private:
  static std::string FirstName(const std::string& names) { return names.substr(0, names.find(',')); }

  template <Number T>
  [[noreturn]] static void Refuse(const std::string& option, const std::string& text, const char* or_else) {
    constexpr auto kLargest = std::numeric_limits<T>::max();
    const std::string wanted = std::floating_point<T>    ? "a finite number"
                               : std::signed_integral<T> ? fmt::format("a whole number up to {}", kLargest)
                                                         : fmt::format("a whole number from 0 to {}", kLargest);
    throw CLI::ValidationError(fmt::format("{} is {}; give {}{}", option, Quoted(text), wanted, or_else));
  }

  template <Number T, class Set, class Show>
  CLI::Option* AddNumber(const std::string& name, const std::string& help, Set set, Show show) {
    const auto read = [set, option = FirstName(name)](const CLI::results_t& texts) {
      const std::optional<T> value = ParseNumber<T>(texts.front());
      if (!value) Refuse<T>(option, texts.front(), "");
      set(*value);
      return true;
    };
    return CLI::App::add_option(name, CLI::callback_t(read), help, false, show)->type_name(CLI::detail::type_name<T>());
  }
};

// Parses `line`'s arguments into the variables bound to `options`. False: help was asked for and printed, there is nothing
// to do. An unknown option is an error that names the nearest known one.
Result<bool> ParseOptions(Options& options, const CommandLine& line);

}  // namespace tensorcache::cli
