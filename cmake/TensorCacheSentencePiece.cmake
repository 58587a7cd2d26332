# SentencePiece, for tokenizer.model: target TensorCache::sentencepiece.
# Installed with the package, so that a consumer of the static library finds its own the same way.
if(TARGET TensorCache::sentencepiece)
  return()
endif()

find_path(TENSORCACHE_SENTENCEPIECE_INCLUDE_DIR sentencepiece_processor.h)
find_library(TENSORCACHE_SENTENCEPIECE_LIBRARY NAMES sentencepiece)
if(NOT TENSORCACHE_SENTENCEPIECE_INCLUDE_DIR OR NOT TENSORCACHE_SENTENCEPIECE_LIBRARY)
  message(FATAL_ERROR "TensorCache needs SentencePiece; install libsentencepiece-dev, or set "
                      "TENSORCACHE_SENTENCEPIECE_INCLUDE_DIR and TENSORCACHE_SENTENCEPIECE_LIBRARY")
endif()

add_library(TensorCache::sentencepiece INTERFACE IMPORTED GLOBAL)
target_include_directories(TensorCache::sentencepiece INTERFACE ${TENSORCACHE_SENTENCEPIECE_INCLUDE_DIR})
target_link_libraries(TensorCache::sentencepiece INTERFACE ${TENSORCACHE_SENTENCEPIECE_LIBRARY})
