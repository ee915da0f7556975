/* Strided copies, also used by gather, scatter and others. */
#ifndef RONDO_KERN_COPY_H
#define RONDO_KERN_COPY_H

#include "impl.h"

/* SHORT: rows of few bytes; FLIP: such, from the last element to the first; REPEAT: each element a few times; BLOCKS: rows that share lines of the source */
enum box_mode { BOX_RUN, BOX_SHORT, BOX_FLIP, BOX_TRANSPOSE, BOX_REPEAT, BOX_BLOCKS, BOX_STRIDED };
struct box {
	struct loop l;           /* stride[0] of the source, [1] of the destination */
	enum box_mode mode;
	int es, outer;           /* bytes of an element; dimensions walked outside */
	int64_t count;
	int64_t off_in, off_out; /* bytes, from the views */
	int64_t seg, nseg, units, per_tile, tiles;
};
void box_make(struct arena *a, struct box *b, const struct prog_view *in, const struct prog_view *out);
/* out, in: with off_out, off_in added. */
void box_run(const struct box *b, char *out, const char *in, int64_t t0, int64_t t1);

#endif
