# SPDX-License-Identifier: Apache-2.0
# Tests of kvspan::model, included by this folder's CMakeLists.txt. model_doubles holds what they
# share: a GGUF writer, random tiny models, the double-precision oracle, plain attention.
add_library(kvspan_model_doubles STATIC
  gguf_writer.cpp
  tiny_model.cpp
  oracle_transformer.cpp
  f32_attention.cpp)
# Attention in plain loops over 2,048 tokens takes minutes under a sanitizer, and it is no code of
# the product.
set_source_files_properties(f32_attention.cpp PROPERTIES COMPILE_OPTIONS "-O3;-fno-sanitize=all")
target_link_libraries(kvspan_model_doubles PUBLIC kvspan::model PRIVATE kvspan::warnings)

foreach(noun IN ITEMS gguf tensor tokenizer thread_team rope config)
  kvspan_add_test(model.${noun} SOURCES model_${noun}_test.cpp LINKS kvspan_model_doubles)
endforeach()
foreach(noun IN ITEMS matmul transformer)
  kvspan_add_test(model.${noun}
    SOURCES model_${noun}_test.cpp
    LINKS kvspan_model_doubles
    LABELS property)
endforeach()
kvspan_add_test(model.recall
  SOURCES model_recall_test.cpp
  LINKS kvspan_model_doubles
  LABELS e2e-small)
