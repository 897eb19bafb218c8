#!/bin/sh
# keep_report.sh OBJECT COMMAND...: runs a compiler; for device code (.cu) what it says goes to OBJECT.ptxas as well,
# and to the terminal only when it failed. Called by the build (outrider_cuda_reports()).
object=$1
shift
case $object in
  *.cu.o) ;;
  *) exec "$@" ;;
esac
if "$@" >"$object.ptxas" 2>&1; then
  exit 0
fi
cat "$object.ptxas" >&2
rm -f "$object.ptxas"
exit 1
