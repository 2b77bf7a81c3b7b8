# cmake -DMUTANTS=mutants.json -DSOURCE_DIR=... -DFILE=runtime/stage/x.cc -DOUTPUT=... -P mutate.cmake
# Writes the source with the defects that the list has for it, each behind mutant("NAME"). A defect whose place is gone is left out: its
# test says so.
file(READ ${SOURCE_DIR}/${FILE} text)
file(READ ${MUTANTS} list)
string(JSON count LENGTH "${list}" mutants)
math(EXPR last "${count} - 1")
foreach(i RANGE ${last})
  string(JSON file GET "${list}" mutants ${i} file)
  string(JSON from GET "${list}" mutants ${i} from)
  if(file STREQUAL FILE AND NOT from STREQUAL "")
    string(JSON to GET "${list}" mutants ${i} to)
    string(REPLACE "${from}" "${to}" text "${text}")
  endif()
endforeach()
file(WRITE ${OUTPUT} "#include \"tests/mutants/mutant.h\"\n${text}")
