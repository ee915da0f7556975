/* Buffers: those of the runtime. */
#include <time.h>

#include "impl.h"
#include "pjrt.h"

/* l: NULL is row-major.  The inner struct_size may be garbage, so it is not read. */
static struct err *read_layout(const struct pjrt_layout *l, size_t rank, const char *what, const struct layout **out)
{
	*out = NULL;
	if (!l)
		return NULL;
	if (l->type != LAYOUT_TILED)
		return ERR(UNIMPLEMENTED, "%s with a layout given by strides", what);
	if (l->tiled.num_tiles)
		return ERR(UNIMPLEMENTED, "%s with a tiled layout", what);
	if (l->tiled.minor_to_major_size != rank || !layout_new((int)rank, l->tiled.minor_to_major, out))
		return ERR(INVALID, "%s of rank %zu with a layout that does not order its dimensions", what, rank);
	return NULL;
}

static struct err *shape_of(struct rt_shape *s, int type, const int64_t *dims, size_t rank, const struct pjrt_layout *layout, const char *what)
{
	if (type <= 0 || type >= DT_COUNT || !dtype_info[type].name)
		return ERR(UNIMPLEMENTED, "%s of element type %d", what, type);
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
	return read_layout(layout, rank, what, &s->layout);
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
	TRY(shape_of(&s, a->type, a->dims, a->num_dims, a->device_layout, "a buffer"));
	if (a->num_byte_strides && a->num_byte_strides != a->num_dims)
		return ERR(INVALID, "%zu byte strides for %zu dimensions", a->num_byte_strides, a->num_dims);
	TRY(rt_buffer_from_host(m->device->rt, m->mem, &s, a->data, a->num_byte_strides ? a->byte_strides : NULL, &a->buffer));
	/* The data has been copied, whatever the semantics asked for: the caller has it back. */
	a->done_with_host_buffer = rt_event_done();
	return NULL;
}

struct err *pjrt_Client_CreateUninitializedBuffer(struct pjrt_Client_CreateUninitializedBuffer *a)
{
	struct pjrt_memory *m;
	TRY(place(a->memory, a->device, "a buffer", &m));
	struct rt_shape s;
	TRY(shape_of(&s, a->shape_element_type, a->shape_dims, a->shape_num_dims, a->shape_layout, "a buffer"));
	return rt_buffer_uninit(m->device->rt, m->mem, &s, &a->buffer);
}

struct err *pjrt_Client_CreateErrorBuffer(struct pjrt_Client_CreateErrorBuffer *a)
{
	struct pjrt_memory *m;
	TRY(place(a->memory, NULL, "a buffer", &m));
	if (a->error_code <= 0 || a->error_code > 16)
		return ERR(INVALID, "%d is no error code", a->error_code);
	struct rt_shape s;
	TRY(shape_of(&s, a->shape_element_type, a->shape_dims, a->shape_num_dims, a->shape_layout, "a buffer"));
	struct err *e = err_new((enum err_code)a->error_code, __FILE__, __LINE__, "%.*s",
	                        (int)a->error_message_size, a->error_message);
	a->buffer = rt_buffer_error(m->device->rt, m->mem, &s, e);
	return a->buffer ? NULL : ERR(EXHAUSTED, "out of host memory for a buffer");
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
	int64_t stride[MAX_RANK];
	TRY(shape_of(&s, a->element_type, a->dims, a->num_dims, a->layout, "a view"));
	rt_shape_strides(&s, stride);
	TRY(rt_buffer_from_host(m->device->rt, m->mem, &s, a->device_buffer_ptr, stride, &a->buffer));
	if (a->on_delete_callback)
		a->on_delete_callback(a->device_buffer_ptr, a->on_delete_callback_arg);
	return NULL;
}

struct err *pjrt_Buffer_Destroy(struct pjrt_Buffer_Destroy *a)
{
	rt_buffer_unref(a->buffer);
	return NULL;
}

struct err *pjrt_Buffer_ElementType(struct pjrt_Buffer_ElementType *a)
{
	a->type = rt_buffer_shape(a->buffer)->dtype;
	return NULL;
}

struct err *pjrt_Buffer_Dimensions(struct pjrt_Buffer_Dimensions *a)
{
	const struct rt_shape *s = rt_buffer_shape(a->buffer);
	a->dims = s->dim;
	a->num_dims = (size_t)s->rank;
	return NULL;
}

struct err *pjrt_Buffer_UnpaddedDimensions(struct pjrt_Buffer_UnpaddedDimensions *a)
{
	const struct rt_shape *s = rt_buffer_shape(a->buffer);
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
	const struct rt_shape *s = rt_buffer_shape(a->buffer);
	memset(&a->layout, 0, sizeof a->layout);
	a->layout.struct_size = sizeof a->layout;
	a->layout.type = LAYOUT_TILED;
	a->layout.tiled.struct_size = sizeof a->layout.tiled;
	a->layout.tiled.minor_to_major = layout_of(s->layout, s->rank)->minor;
	a->layout.tiled.minor_to_major_size = (size_t)s->rank;
	return NULL;
}

struct err *pjrt_Buffer_OnDeviceSizeInBytes(struct pjrt_Buffer_OnDeviceSizeInBytes *a)
{
	a->on_device_size_in_bytes = (size_t)rt_shape_bytes(rt_buffer_shape(a->buffer));
	return NULL;
}

struct err *pjrt_Buffer_Device(struct pjrt_Buffer_Device *a)
{
	a->device = pjrt_memory_of(a->buffer)->device;
	return NULL;
}

struct err *pjrt_Buffer_Memory(struct pjrt_Buffer_Memory *a)
{
	a->memory = pjrt_memory_of(a->buffer);
	return NULL;
}

struct err *pjrt_Buffer_Delete(struct pjrt_Buffer_Delete *a)
{
	rt_buffer_delete(a->buffer);
	return NULL;
}

struct err *pjrt_Buffer_IsDeleted(struct pjrt_Buffer_IsDeleted *a)
{
	a->is_deleted = rt_buffer_deleted(a->buffer);
	return NULL;
}

/* The runtime holds the destination until the copy has run: the caller may destroy it before. */
struct err *pjrt_Buffer_CopyToMemory(struct pjrt_Buffer_CopyToMemory *a)
{
	struct pjrt_memory *m;
	TRY(place(a->dst_memory, NULL, "a copy", &m));
	return rt_buffer_copy(a->buffer, m->device->rt, m->mem, &a->dst_buffer);
}

struct err *pjrt_Buffer_CopyToDevice(struct pjrt_Buffer_CopyToDevice *a)
{
	struct pjrt_memory *m;
	TRY(place(NULL, a->dst_device, "a copy", &m));
	return rt_buffer_copy(a->buffer, m->device->rt, m->mem, &a->dst_buffer);
}

struct err *pjrt_Buffer_ToHostBuffer(struct pjrt_Buffer_ToHostBuffer *a)
{
	const struct rt_shape *s = rt_buffer_shape(a->src);
	int64_t n = rt_shape_bytes(s);
	if (!a->dst) {
		a->dst_size = (size_t)n;
		return NULL;
	}
	const struct layout *wanted;
	TRY(read_layout(a->host_layout, (size_t)s->rank, "a copy to the host", &wanted));
	if (a->dst_size < (size_t)n)
		return ERR(INVALID, "destination of %zu bytes for an array of %lld", a->dst_size, (long long)n);
	a->event = rt_buffer_read(a->src, wanted, a->dst);
	return NULL;
}

struct err *pjrt_Buffer_CopyRawToHost(struct pjrt_Buffer_CopyRawToHost *a)
{
	int64_t n = rt_shape_bytes(rt_buffer_shape(a->buffer));
	if (a->offset < 0 || a->transfer_size < 0 || a->offset > n || a->transfer_size > n - a->offset)
		return ERR(INVALID, "bytes %lld + %lld of an array of %lld", (long long)a->offset, (long long)a->transfer_size, (long long)n);
	a->event = rt_buffer_to_host(a->buffer, a->offset, a->transfer_size, a->dst);
	return NULL;
}

struct err *pjrt_Buffer_IsOnCpu(struct pjrt_Buffer_IsOnCpu *a)
{
	a->is_on_cpu = pjrt_memory_of(a->buffer)->device->client->host_memory;
	return NULL;
}

struct err *pjrt_Buffer_ReadyEvent(struct pjrt_Buffer_ReadyEvent *a)
{
	a->event = rt_event_ref(rt_buffer_ready(a->buffer));
	rt_event_ask(a->event);
	return NULL;
}

static struct err *await(struct rt_buffer *b)
{
	struct rt_event *e = rt_buffer_ready(b);
	return rt_event_ready(e) ? rt_event_error(e) : rt_event_wait(e);
}

/* Where it lies, or will, which is known when its program begins: the caller may hold what a callback waits for that it is made behind. */
struct err *pjrt_Buffer_UnsafePointer(struct pjrt_Buffer_UnsafePointer *a)
{
	enum { MOST_S = 5 };
	struct rt_event *e = rt_buffer_ready(a->buffer);
	uint64_t at = 0;

	for (double t = clock_s(); !rt_event_ready(e) && !(at = rt_buffer_addr(a->buffer));) {
		if (rondo_calling() && clock_s() - t > MOST_S)
			return ERR(UNAVAILABLE, "where this array will lie is not known before its program begins, which waits for a host callback, as that may for this call: call block_until_ready() first");
		nanosleep(&(struct timespec){ 0, 50000 }, NULL);
	}
	if (!at)
		TRY(rt_event_error(e));
	a->buffer_pointer = (uintptr_t)(at ? at : rt_buffer_addr(a->buffer));
	return NULL;
}

static atomic_llong views;          /* without a copy, that are there */

bool pjrt_viewed(void) { return atomic_load_explicit(&views, memory_order_relaxed) > 0; }

/* The start of a view without a copy: from here on the storage is never donated, and the view may be
 * read at once, so this waits for the array. */
struct err *pjrt_Buffer_IncreaseExternalReferenceCount(struct pjrt_Buffer_IncreaseExternalReferenceCount *a)
{
	TRY(await(a->buffer));
	rt_buffer_hold(a->buffer);
	atomic_fetch_add_explicit(&views, 1, memory_order_relaxed);
	return NULL;
}

struct err *pjrt_Buffer_DecreaseExternalReferenceCount(struct pjrt_Buffer_DecreaseExternalReferenceCount *a)
{
	rt_buffer_release(a->buffer);
	atomic_fetch_sub_explicit(&views, 1, memory_order_relaxed);
	return NULL;
}

struct err *pjrt_Buffer_OpaqueDeviceMemoryDataPointer(struct pjrt_Buffer_OpaqueDeviceMemoryDataPointer *a)
{
	TRY(await(a->buffer));
	if (rt_buffer_deleted(a->buffer))
		return ERR(INVALID, "the array has been deleted or donated");
	a->device_memory_ptr = (void *)(uintptr_t)rt_buffer_addr(a->buffer);
	return NULL;
}

struct err *pjrt_Buffer_Bitcast(struct pjrt_Buffer_Bitcast *a)
{
	struct rt_shape s;
	TRY(shape_of(&s, a->element_type, a->dims, a->num_dims, a->device_layout, "a buffer"));
	return rt_buffer_bitcast(a->buffer, &s, &a->out_buffer);
}
