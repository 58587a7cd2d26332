// Any text as a chat template, rendered for a conversation whose texts are the rest of the input.
#include "server/chat_template.h"
#include "tests/fuzz/driver.h"

namespace tensorcache::fuzz {

using namespace tensorcache::server;  // NOLINT(google-build-using-namespace)

// The input is a template, then, after zero bytes, the texts of two messages.
void Run(std::string_view input) {
  const auto parts = Split(input, 3);
  const auto parsed = jinja::Template::Parse(parts[0]);
  if (!parsed.ok()) return CheckMessage(parsed.status());
  jinja::List messages;
  for (const auto& [role, content] : {std::pair("user", parts[1]), {"assistant", parts[2]}}) {
    jinja::Dict message;
    message.Set(jinja::Text("role"), jinja::Value::Of(role));
    message.Set(jinja::Text("content"), jinja::Value::Of(jinja::Text(content, jinja::Text::kOutside)));
    messages.push_back(jinja::Value::Of(std::move(message)));
  }
  jinja::Dict variables;
  variables.Set(jinja::Text("messages"), jinja::Value::Of(std::move(messages)));
  variables.Set(jinja::Text("add_generation_prompt"), jinja::Value::Of(true));
  const auto text = parsed->Render(variables, {.steps = 2000});
  if (!text.ok()) return;  // its message may hold what the template makes of anything
  TC_CHECK(text->bytes.size() == text->marks.size());
}

std::vector<std::string> Seeds() {
  return {Join({"{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m.content | trim }}{% if loop.last %}!{% endif "
                "%}{% endfor %}",
                "a", "b"}),
          Join({"{%- set ns = namespace(x=1) -%}{% for i in range(3) if i is odd %}{% set ns.x = ns.x * 2 %}{% endfor "
                "%}{{ ns.x | string ~ messages | tojson(indent=2) }}",
                "", ""}),
          Join({"{% macro f(a, b=[1, 2][::-1]) %}{{ a ~ b }}{% endmacro %}{{ f(messages[0].content[1:-1].split(' ') | "
                "join(',')) if messages is defined else none }}",
                "a b", ""}),
          Join({"{{ messages | selectattr('role', 'eq', 'user') | map(attribute='content') | list | sort | unique | "
                "list }}{# c #}{% raw %}{{{% endraw %}",
                "x", "y"})};
}

std::vector<std::string> Words() {
  return {"{%",      "%}",       "{{",        "}}",       "{#",       "#}",         "{%-",
          "-%}",     " for ",    " in ",      " if ",     " else ",   "endfor",     "endif",
          "elif",    " set ",    "endset",    "macro",    "endmacro", "namespace(", "range(",
          "loop.",   " is ",     "not ",      "defined",  "messages", ".content",   "['role']",
          "|trim",   "|length",  "|replace(", "|join",    ".split(",  "[::-1]",     " ~ ",
          "//",      "**",       "break",     "continue", "raw",      "endraw",     "raise_exception(",
          "|tojson", "|indent(", "|map(",     "'",        "\\u00e9"};
}

}  // namespace tensorcache::fuzz
