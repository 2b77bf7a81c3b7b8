// What every document type has in common. A document type D offers
//   static constexpr const char* kSchema      "pipewright.NAME/1"
//   D D::from_json(JsonReader&)               strict; the schema line is checked here, not by D
//   Json D::to_json() const                   without the schema line
//   void D::validate(where)                   rules across keys; called after reading; throws InputError
// and, once keys of an earlier version have other names now,
//   static void D::upgrade(Json& json)        makes a document of an earlier version one of this; leaves what
//                                             is wrong with it to be found by reading
#pragma once

#include <filesystem>
#include <string>

#include "graph/error.h"
#include "graph/json.h"

namespace pipewright {

/// Throws InputError if `schema` is another document or another version of it, saying which.
void check_schema(JsonReader& reader, const std::string& expected);

template <typename Document>
Document parse_document(const std::string& text, const std::string& where) {
  Json json = parse_json(text, where);
  if constexpr (requires { Document::upgrade(json); }) Document::upgrade(json);
  JsonReader reader(json, where);
  check_schema(reader, Document::kSchema);
  Document document = Document::from_json(reader);
  reader.finish();
  document.validate(where);
  return document;
}

template <typename Document>
Document read_document(const std::filesystem::path& file) {
  return parse_document<Document>(read_file(file), file.string());
}

/// Byte-stable: equal documents give equal texts.
template <typename Document>
std::string document_text(const Document& document) {
  Json json;
  json["schema"] = Document::kSchema;
  const Json body = document.to_json();
  for (const auto& [key, value] : body.items()) json[key] = value;
  return json_text(json);
}

template <typename Document>
void write_document(const std::filesystem::path& file, const Document& document) {
  write_file(file, document_text(document));
}

template <typename Document>
std::string document_digest(const Document& document) {
  return digest_of(document_text(document));
}

}  // namespace pipewright
