// Filters, tests and methods of strings and mappings.
#pragma once

#include <string>
#include <string_view>

#include "server/jinja/value.h"

namespace tensorcache::server::jinja {

// Each throws TemplateError for a name that does not exist and for arguments that cannot be.
Value ApplyFilter(std::string_view name, const Value& subject, const Arguments& arguments);
bool ApplyTest(std::string_view name, const Value& subject, const Arguments& arguments);
bool HasFilter(std::string_view name);
bool HasTest(std::string_view name);
// subject.name(arguments)
Value CallMethod(const Value& subject, std::string_view name, const Arguments& arguments);
bool HasMethod(const Value& subject, std::string_view name);

// What is below also serves operators.

// subject.name, or subject[name]: of a mapping.
Value MemberOf(const Value& subject, std::string_view name);
// `needle in haystack`
bool Contains(const Value& haystack, const Value& needle);

}  // namespace tensorcache::server::jinja
