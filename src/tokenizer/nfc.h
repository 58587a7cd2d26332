// Unicode normalisation form C.
#pragma once

#include <string>
#include <string_view>

namespace tensorcache::tokenizer {

// `text` in form NFC: `text` itself if it already is, else a view of *storage, which is overwritten. Bytes that are not
// UTF-8 stay as they are. Linear, apart from sorting runs of combining marks.
std::string_view Nfc(std::string_view text, std::string* storage);

}  // namespace tensorcache::tokenizer
