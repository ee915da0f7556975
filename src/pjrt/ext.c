/* Extensions: Shardings and Layouts.  Every array is dense row-major, so a layout is its rank. */
#include "impl.h"

/* --- shardings -------------------------------------------------------------- */

/* The bytes of an empty message say "replicated".  A program without outputs must have exactly one. */
static struct err *parameters(struct pjrt_shardings_args *a)
{
	a->n = a->executable->arg.n;
	a->bytes = a->executable->arg.sharding;
	a->size = a->executable->arg.sharding_size;
	return NULL;
}

static struct err *outputs(struct pjrt_shardings_args *a)
{
	a->n = MAX(a->executable->res.n, 1);
	a->bytes = a->executable->res.sharding;
	a->size = a->executable->res.sharding_size;
	return NULL;
}

struct pjrt_shardings_ext pjrt_shardings = {
	.base = { .struct_size = sizeof pjrt_shardings, .type = EXT_SHARDINGS, .next = &pjrt_layouts.base },
	.parameters = parameters,
	.outputs = outputs,
};

/* --- layouts ---------------------------------------------------------------- */

struct pjrt_layout_text { const char *text; size_t n; };
#define L(s) { s, sizeof s - 1 }
static struct pjrt_layout_text layout[MAX_RANK + 1] = {
	L("{}"), L("{0}"), L("{1,0}"), L("{2,1,0}"), L("{3,2,1,0}"), L("{4,3,2,1,0}"), L("{5,4,3,2,1,0}"),
	L("{6,5,4,3,2,1,0}"), L("{7,6,5,4,3,2,1,0}"), L("{8,7,6,5,4,3,2,1,0}"),
#define T9 "9,8,7,6,5,4,3,2,1,0}"
	L("{" T9), L("{10," T9), L("{11,10," T9), L("{12,11,10," T9), L("{13,12,11,10," T9),
#define T14 "14,13,12,11,10," T9
	L("{" T14), L("{15," T14), L("{16,15," T14), L("{17,16,15," T14), L("{18,17,16,15," T14),
#define T19 "19,18,17,16,15," T14
	L("{" T19), L("{20," T19), L("{21,20," T19), L("{22,21,20," T19), L("{23,22,21,20," T19),
#define T24 "24,23,22,21,20," T19
	L("{" T24), L("{25," T24), L("{26,25," T24), L("{27,26,25," T24), L("{28,27,26,25," T24),
#define T29 "29,28,27,26,25," T24
	L("{" T29), L("{30," T29), L("{31,30," T29), L("{32,31,30," T29), L("{33,32,31,30," T29),
#define T34 "34,33,32,31,30," T29
	L("{" T34), L("{35," T34), L("{36,35," T34), L("{37,36,35," T34), L("{38,37,36,35," T34),
#define T39 "39,38,37,36,35," T34
	L("{" T39), L("{40," T39), L("{41,40," T39), L("{42,41,40," T39), L("{43,42,41,40," T39),
#define T44 "44,43,42,41,40," T39
	L("{" T44), L("{45," T44), L("{46,45," T44), L("{47,46,45," T44), L("{48,47,46,45," T44),
#define T49 "49,48,47,46,45," T44
	L("{" T49), L("{50," T49), L("{51,50," T49), L("{52,51,50," T49), L("{53,52,51,50," T49),
#define T54 "54,53,52,51,50," T49
	L("{" T54), L("{55," T54), L("{56,55," T54), L("{57,56,55," T54), L("{58,57,56,55," T54),
#define T59 "59,58,57,56,55," T54
	L("{" T59), L("{60," T59), L("{61,60," T59), L("{62,61,60," T59), L("{63,62,61,60," T59),
};

struct pjrt_layout_text *pjrt_layout_of(int rank)
{
	return &layout[rank];
}

static struct err *layout_destroy(struct pjrt_layout_destroy *a)
{
	return NULL;
}

static void keep(void *p)
{
}

static struct err *layout_serialize(struct pjrt_layout_serialize *a)
{
	a->bytes = a->layout->text;
	a->size = a->layout->n;
	a->handle = a->layout;
	a->deleter = keep;
	return NULL;
}

static struct err *layout_default(struct pjrt_layout_default *a)
{
	if (a->num_dims >= NELEM(layout))
		return ERR(UNIMPLEMENTED, "arrays of rank %zu", a->num_dims);
	a->layout = &layout[a->num_dims];
	return NULL;
}

static struct err *layout_buffer(struct pjrt_layout_buffer *a)
{
	a->layout = &layout[rt_buffer_shape(a->buffer)->rank];
	return NULL;
}

static struct err *layout_outputs(struct pjrt_layout_exec *a)
{
	a->n = a->executable->res.n;
	a->layouts = a->executable->res.layout;
	return NULL;
}

static struct err *layout_parameters(struct pjrt_layout_exec *a)
{
	a->n = a->executable->arg.n;
	a->layouts = a->executable->arg.layout;
	return NULL;
}

struct pjrt_layouts_ext pjrt_layouts = {
	.base = { .struct_size = sizeof pjrt_layouts, .type = EXT_LAYOUTS, .next = &pjrt_partitioners.base },
	.destroy = layout_destroy,
	.serialize = layout_serialize,
	.client_default = layout_default,
	.buffer = layout_buffer,
	.topology_default = layout_default,
	.outputs = layout_outputs,
	.parameters = layout_parameters,
};
