// ICU's data of languages, 30 MB, is not linked: all that is asked of ICU here (categories of characters, small letters,
// canonical decompositions) it has in its code. This stands for the data; whatever else ICU looks up is an error.
#include <unicode/utypes.h>

extern "C" {
extern const char U_ICUDATA_ENTRY_POINT[64];
const char U_ICUDATA_ENTRY_POINT[64] = {};
}
