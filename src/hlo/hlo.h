/* StableHLO portable bytecode (VHLO, MLIR bytecode version 6) with Shardy annotations -> ir.
 * Private functions are inlined or kept as call; composites are inlined but for those that are ops
 * (top_k, erf); regions' captures become operands; tuples are flattened. */
#ifndef RONDO_HLO_H
#define RONDO_HLO_H

#include "../base/base.h"
#include "../ir/ir.h"

/* The newest StableHLO that is read: jaxlib writes its bytecode for this version or for its own, whichever is older. */
enum { HLO_MAJOR = 1, HLO_MINOR = 20 };

/* Decode n bytes.  ERR_INVALID (with the byte offset) for what is malformed, ERR_UNIMPLEMENTED naming op,
 * type or attribute for what Rondo does not have.  Never crashes, whatever the bytes. */
struct err *hlo_read(const void *p, size_t n, struct ir_module **out);
/* The same, of a device's part of a program for so many partitions, whatever it says itself. */
struct err *hlo_read_part(const void *p, size_t n, int partitions, struct ir_module **out);

#endif
