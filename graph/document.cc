#include "graph/document.h"

namespace pipewright {

void check_schema(JsonReader& reader, const std::string& expected) {
  const std::string begin = "A document of this kind starts with \"schema\": \"" + expected + "\".";
  if (!reader.has("schema")) reader.fail("schema", "missing; expected '" + expected + "'", begin);
  const std::string got = reader.string("schema");
  if (got == expected) return;
  const auto name = [](const std::string& schema) { return schema.substr(0, schema.rfind('/')); };
  if (name(got) == name(expected)) {
    reader.fail(
        "schema", "got " + in_quotes(got) + ", expected '" + expected + "': another version of the document",
        "Make the file again with this version of Pipewright, or read it with the version that wrote it.");
  }
  const bool ours = got.rfind("pipewright.", 0) == 0;
  reader.fail("schema", "got " + in_quotes(got) + ", expected '" + expected + "'",
              ours ? "This file is another kind of document; was it given to the wrong option?" : begin);
}

}  // namespace pipewright
