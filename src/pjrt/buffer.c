/* Buffers: thin handles on the runtime's. */
#include <stdlib.h>

#include "impl.h"

static struct spare handles = SPARE(sizeof(struct pjrt_buffer));

bool pjrt_handles(size_t n, struct pjrt_buffer **out) { return spare_take_all(&handles, n, (void **)out); }
void pjrt_handle_drop(struct pjrt_buffer *b) { spare_give(&handles, b); }

/* b is taken, also on failure; NULL: there was no memory for it. */
static struct err *wrap(struct pjrt_memory *m, struct rt_buffer *b, struct pjrt_buffer **out)
{
	struct pjrt_buffer *p;
	if (!b || !pjrt_handles(1, &p)) {
		rt_buffer_unref(b);
		return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", sizeof *p);
	}
	*p = (struct pjrt_buffer){ b, m };
	*out = p;
	return NULL;
}

static struct err *shape_of(struct rt_shape *s, int type, const int64_t *dims, size_t rank)
{
	if (type <= 0 || type >= DT_COUNT || !dtype_info[type].name)
		return ERR(UNIMPLEMENTED, "buffers of element type %d", type);
	if (rank > NELEM(s->dim))
		return ERR(UNIMPLEMENTED, "arrays of rank %zu", rank);
	s->dtype = (enum dtype)type;
	s->rank = (int)rank;
	int64_t n = MAX(dtype_info[type].bytes, 1);
	for (size_t i = 0; i < rank; i++) {
		s->dim[i] = dims[i];
		if (dims[i] < 0 || (dims[i] && n > (INT64_MAX >> 1) / dims[i]))
			return ERR(INVALID, "dimension %zu of a buffer is %lld", i, (long long)dims[i]);
		n *= MAX(dims[i], 1);
	}
	return NULL;
}

/* Only dense row-major layouts: no tiles, dimensions from major to minor.  The inner struct_size may be
 * garbage, so it is not read. */
static struct err *check_layout(const struct pjrt_layout *l, size_t rank, const char *what)
{
	if (!l)
		return NULL;
	if (l->type != LAYOUT_TILED)
		return ERR(UNIMPLEMENTED, "%s with a layout given by strides", what);
	if (l->tiled.num_tiles)
		return ERR(UNIMPLEMENTED, "%s with a tiled layout", what);
	for (size_t i = 0; i < l->tiled.minor_to_major_size; i++)
		if (l->tiled.minor_to_major[i] != (int64_t)(rank - 1 - i))
			return ERR(UNIMPLEMENTED, "%s with a layout other than row-major", what);
	return NULL;
}

/* Arrays are made in memory of this process only. */
static struct err *place(struct pjrt_memory *m, struct pjrt_device *d, const char *what, struct pjrt_memory **out)
{
	*out = m = m ? m : d ? &d->memory[0] : NULL;
	if (!m)
		return ERR(INVALID, "neither a memory nor a device is given for %s", what);
	if (!m->device->rt)
		return ERR(INVALID, "%s cannot be made on device %d: it belongs to process %d", what, m->device->id, m->device->process);
	return NULL;
}

struct err *pjrt_Client_BufferFromHostBuffer(struct pjrt_Client_BufferFromHostBuffer *a)
{
	struct pjrt_memory *m;
	TRY(place(a->memory, a->device, "a buffer", &m));
	struct rt_shape s;
	TRY(shape_of(&s, a->type, a->dims, a->num_dims));
	TRY(check_layout(a->device_layout, a->num_dims, "a buffer"));
	if (a->num_byte_strides && a->num_byte_strides != a->num_dims)
		return ERR(INVALID, "%zu byte strides for %zu dimensions", a->num_byte_strides, a->num_dims);
	struct rt_buffer *b;
	TRY(rt_buffer_from_host(m->device->rt, m->mem, &s, a->data, a->num_byte_strides ? a->byte_strides : NULL, &b));
	/* The data has been copied, whatever the semantics asked for: the caller has it back. */
	a->done_with_host_buffer = rt_event_done();
	return wrap(m, b, &a->buffer);
}

struct err *pjrt_Client_CreateUninitializedBuffer(struct pjrt_Client_CreateUninitializedBuffer *a)
{
	struct pjrt_memory *m;
	TRY(place(a->memory, a->device, "a buffer", &m));
	struct rt_shape s;
	TRY(shape_of(&s, a->shape_element_type, a->shape_dims, a->shape_num_dims));
	TRY(check_layout(a->shape_layout, a->shape_num_dims, "a buffer"));
	struct rt_buffer *b;
	TRY(rt_buffer_uninit(m->device->rt, m->mem, &s, &b));
	return wrap(m, b, &a->buffer);
}

struct err *pjrt_Client_CreateErrorBuffer(struct pjrt_Client_CreateErrorBuffer *a)
{
	struct pjrt_memory *m;
	TRY(place(a->memory, NULL, "a buffer", &m));
	if (a->error_code <= 0 || a->error_code > 16)
		return ERR(INVALID, "%d is no error code", a->error_code);
	struct rt_shape s;
	TRY(shape_of(&s, a->shape_element_type, a->shape_dims, a->shape_num_dims));
	struct err *e = err_new((enum err_code)a->error_code, __FILE__, __LINE__, "%.*s",
	                        (int)a->error_message_size, a->error_message);
	return wrap(m, rt_buffer_error(m->device->rt, m->mem, &s, e), &a->buffer);
}

/* A view of memory that somebody else owns becomes a copy, so that donation and deletion know only one
 * kind of storage; the owner has its memory back at once. */
struct err *pjrt_Client_CreateViewOfDeviceBuffer(struct pjrt_Client_CreateViewOfDeviceBuffer *a)
{
	bool has_memory = a->struct_size >= offsetof(struct pjrt_Client_CreateViewOfDeviceBuffer, memory) + sizeof a->memory;
	struct pjrt_memory *m;
	TRY(place(has_memory ? a->memory : NULL, a->device, "a view", &m));
	if (!m->device->client->host_memory)
		return ERR(UNIMPLEMENTED, "views of memory that the host cannot read");
	struct rt_shape s;
	TRY(shape_of(&s, a->element_type, a->dims, a->num_dims));
	TRY(check_layout(a->layout, a->num_dims, "a view"));
	struct rt_buffer *b;
	TRY(rt_buffer_from_host(m->device->rt, m->mem, &s, a->device_buffer_ptr, NULL, &b));
	TRY(wrap(m, b, &a->buffer));
	if (a->on_delete_callback)
		a->on_delete_callback(a->device_buffer_ptr, a->on_delete_callback_arg);
	return NULL;
}

struct err *pjrt_Buffer_Destroy(struct pjrt_Buffer_Destroy *a)
{
	if (!a->buffer)
		return NULL;
	rt_buffer_unref(a->buffer->rt);
	pjrt_handle_drop(a->buffer);
	return NULL;
}

struct err *pjrt_Buffer_ElementType(struct pjrt_Buffer_ElementType *a)
{
	a->type = rt_buffer_shape(a->buffer->rt)->dtype;
	return NULL;
}

struct err *pjrt_Buffer_Dimensions(struct pjrt_Buffer_Dimensions *a)
{
	const struct rt_shape *s = rt_buffer_shape(a->buffer->rt);
	a->dims = s->dim;
	a->num_dims = (size_t)s->rank;
	return NULL;
}

struct err *pjrt_Buffer_UnpaddedDimensions(struct pjrt_Buffer_UnpaddedDimensions *a)
{
	const struct rt_shape *s = rt_buffer_shape(a->buffer->rt);
	a->unpadded_dims = s->dim;
	a->num_dims = (size_t)s->rank;
	return NULL;
}

struct err *pjrt_Buffer_DynamicDimensionIndices(struct pjrt_Buffer_DynamicDimensionIndices *a)
{
	a->dynamic_dim_indices = NULL;
	a->num_dynamic_dims = 0;
	return NULL;
}

struct err *pjrt_Buffer_GetMemoryLayout(struct pjrt_Buffer_GetMemoryLayout *a)
{
	static const int64_t order[MAX_RANK] = { 63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48,
		47, 46, 45, 44, 43, 42, 41, 40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16,
		15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0 };
	int rank = rt_buffer_shape(a->buffer->rt)->rank;
	memset(&a->layout, 0, sizeof a->layout);
	a->layout.struct_size = sizeof a->layout;
	a->layout.type = LAYOUT_TILED;
	a->layout.tiled.struct_size = sizeof a->layout.tiled;
	a->layout.tiled.minor_to_major = order + NELEM(order) - rank;
	a->layout.tiled.minor_to_major_size = (size_t)rank;
	return NULL;
}

struct err *pjrt_Buffer_OnDeviceSizeInBytes(struct pjrt_Buffer_OnDeviceSizeInBytes *a)
{
	a->on_device_size_in_bytes = (size_t)rt_shape_bytes(rt_buffer_shape(a->buffer->rt));
	return NULL;
}

struct err *pjrt_Buffer_Device(struct pjrt_Buffer_Device *a)
{
	a->device = a->buffer->memory->device;
	return NULL;
}

struct err *pjrt_Buffer_Memory(struct pjrt_Buffer_Memory *a)
{
	a->memory = a->buffer->memory;
	return NULL;
}

struct err *pjrt_Buffer_Delete(struct pjrt_Buffer_Delete *a)
{
	rt_buffer_delete(a->buffer->rt);
	return NULL;
}

struct err *pjrt_Buffer_IsDeleted(struct pjrt_Buffer_IsDeleted *a)
{
	a->is_deleted = rt_buffer_deleted(a->buffer->rt);
	return NULL;
}

/* The runtime holds the destination until the copy has run: the caller may destroy it before. */
struct err *pjrt_Buffer_CopyToMemory(struct pjrt_Buffer_CopyToMemory *a)
{
	struct pjrt_memory *m;
	struct rt_buffer *b;
	TRY(place(a->dst_memory, NULL, "a copy", &m));
	TRY(rt_buffer_copy(a->buffer->rt, m->device->rt, m->mem, &b));
	return wrap(m, b, &a->dst_buffer);
}

struct err *pjrt_Buffer_CopyToDevice(struct pjrt_Buffer_CopyToDevice *a)
{
	struct pjrt_memory *m;
	struct rt_buffer *b;
	TRY(place(NULL, a->dst_device, "a copy", &m));
	TRY(rt_buffer_copy(a->buffer->rt, m->device->rt, m->mem, &b));
	return wrap(m, b, &a->dst_buffer);
}

struct err *pjrt_Buffer_ToHostBuffer(struct pjrt_Buffer_ToHostBuffer *a)
{
	const struct rt_shape *s = rt_buffer_shape(a->src->rt);
	int64_t n = rt_shape_bytes(s);
	if (!a->dst) {
		a->dst_size = (size_t)n;
		return NULL;
	}
	TRY(check_layout(a->host_layout, (size_t)s->rank, "a copy to the host"));
	if (a->dst_size < (size_t)n)
		return ERR(INVALID, "destination of %zu bytes for an array of %lld", a->dst_size, (long long)n);
	a->event = rt_buffer_to_host(a->src->rt, 0, n, a->dst);
	return NULL;
}

struct err *pjrt_Buffer_CopyRawToHost(struct pjrt_Buffer_CopyRawToHost *a)
{
	int64_t n = rt_shape_bytes(rt_buffer_shape(a->buffer->rt));
	if (a->offset < 0 || a->transfer_size < 0 || a->offset > n || a->transfer_size > n - a->offset)
		return ERR(INVALID, "bytes %lld + %lld of an array of %lld", (long long)a->offset, (long long)a->transfer_size, (long long)n);
	a->event = rt_buffer_to_host(a->buffer->rt, a->offset, a->transfer_size, a->dst);
	return NULL;
}

struct err *pjrt_Buffer_IsOnCpu(struct pjrt_Buffer_IsOnCpu *a)
{
	a->is_on_cpu = a->buffer->memory->device->client->host_memory;
	return NULL;
}

struct err *pjrt_Buffer_ReadyEvent(struct pjrt_Buffer_ReadyEvent *a)
{
	a->event = rt_event_ref(rt_buffer_ready(a->buffer->rt));
	rt_event_ask(a->event);
	return NULL;
}

static struct err *await(struct pjrt_buffer *b)
{
	struct rt_event *e = rt_buffer_ready(b->rt);
	return rt_event_ready(e) ? rt_event_error(e) : rt_event_wait(e);
}

struct err *pjrt_Buffer_UnsafePointer(struct pjrt_Buffer_UnsafePointer *a)
{
	TRY(await(a->buffer));
	a->buffer_pointer = (uintptr_t)rt_buffer_addr(a->buffer->rt);
	return NULL;
}

/* The start of a view without a copy: from here on the storage is never donated, and the view may be
 * read at once, so this waits for the array. */
struct err *pjrt_Buffer_IncreaseExternalReferenceCount(struct pjrt_Buffer_IncreaseExternalReferenceCount *a)
{
	TRY(await(a->buffer));
	rt_buffer_hold(a->buffer->rt);
	return NULL;
}

struct err *pjrt_Buffer_DecreaseExternalReferenceCount(struct pjrt_Buffer_DecreaseExternalReferenceCount *a)
{
	rt_buffer_release(a->buffer->rt);
	return NULL;
}

struct err *pjrt_Buffer_OpaqueDeviceMemoryDataPointer(struct pjrt_Buffer_OpaqueDeviceMemoryDataPointer *a)
{
	TRY(await(a->buffer));
	if (rt_buffer_deleted(a->buffer->rt))
		return ERR(INVALID, "the array has been deleted or donated");
	a->device_memory_ptr = (void *)(uintptr_t)rt_buffer_addr(a->buffer->rt);
	return NULL;
}

struct err *pjrt_Buffer_Bitcast(struct pjrt_Buffer_Bitcast *a)
{
	struct rt_shape s;
	TRY(shape_of(&s, a->element_type, a->dims, a->num_dims));
	TRY(check_layout(a->device_layout, a->num_dims, "a buffer"));
	struct rt_buffer *b;
	TRY(rt_buffer_bitcast(a->buffer->rt, &s, &b));
	return wrap(a->buffer->memory, b, &a->out_buffer);
}
