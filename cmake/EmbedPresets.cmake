# tc_embed_presets(OUTPUT): writes a C++ file with the text of every configs/*.json, so that the program knows its presets
# wherever it is installed.
function(tc_embed_presets output)
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/configs/*.json)
  set(entries "")
  foreach(file IN LISTS files)
    cmake_path(GET file STEM name)
    file(READ ${file} text)
    string(APPEND entries "    {\"${name}\", R\"json(${text})json\"},\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  file(
    CONFIGURE
    OUTPUT ${output}
    CONTENT
      "// Made from configs/*.json.\n#include \"train/presets.h\"\n\nnamespace tensorcache::train {\n\nstd::span<const Preset> Presets() {\n  static constexpr Preset kPresets[] = {\n@entries@  };\n  return kPresets;\n}\n\n}  // namespace tensorcache::train\n"
    @ONLY)
endfunction()
