/* Extensions: Shardings and Layouts. */
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
	a->size = strlen(a->layout->text);
	a->handle = NULL;              /* layouts live for ever */
	a->deleter = keep;
	return NULL;
}

static struct err *layout_default(struct pjrt_layout_default *a)
{
	if (a->num_dims > MAX_RANK)
		return ERR(UNIMPLEMENTED, "arrays of rank %zu", a->num_dims);
	a->layout = layout_of(NULL, (int)a->num_dims);
	return NULL;
}

static struct err *layout_buffer(struct pjrt_layout_buffer *a)
{
	a->layout = layout_of(rt_buffer_shape(a->buffer)->layout, rt_buffer_shape(a->buffer)->rank);
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
