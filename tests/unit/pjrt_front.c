/* The interface to JAX, played in C: client, buffers, copies, events, compile, execute, serialise. */
#include <setjmp.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "pjrt/abi.h"
#include "pjrt/pjrt.h"

static const struct pjrt_api *api;
static struct pjrt_client *client;
static struct pjrt_device *const *device;

#define CALL(name, ...) (&(struct pjrt_##name){ .struct_size = sizeof(struct pjrt_##name), __VA_ARGS__ })

static void ok(struct err *e)
{
	if (e)
		print_error("%s\n", e->msg);
	assert_null(e);
}

static void fails(struct err *e, int code, const char *text)
{
	assert_non_null(e);
	assert_int_equal(e->code, code);
	if (!strstr(e->msg, text))
		print_error("%s\n", e->msg);
	assert_non_null(strstr(e->msg, text));
	err_free(e);
}

static int setup(void **state)
{
	static const struct pjrt_value option = { .struct_size = sizeof option, .name = "num_devices", .name_size = 11,
		.type = VALUE_STRING, .s = "2", .value_size = 1 };
	conf_init();
	err_free(conf_set("CACHE", ""));
	api = GetPjrtApi();
	ok(api->Plugin_Initialize(CALL(Plugin_Initialize, 0)));
	struct pjrt_Client_Create c = { .struct_size = sizeof c, .create_options = &option, .num_options = 1 };
	ok(api->Client_Create(&c));
	client = c.client;
	struct pjrt_Client_Devices d = { .client = client };
	ok(api->Client_Devices(&d));
	assert_int_equal(d.num_devices, 2);
	device = d.devices;
	return 0;
}

static int teardown(void **state)
{
	ok(api->Client_Destroy(CALL(Client_Destroy, .client = client)));
	return 0;
}

static struct pjrt_memory *memory(struct pjrt_device *d, int k)
{
	struct pjrt_Device_AddressableMemories a = { .device = d };
	ok(api->Device_AddressableMemories(&a));
	assert_int_equal(a.num_memories, 3);
	return a.memories[k];
}

static struct rt_buffer *put(struct pjrt_device *d, const float *x, const int64_t *dims, size_t rank, const int64_t *strides)
{
	struct pjrt_Client_BufferFromHostBuffer a = { .struct_size = sizeof a, .client = client, .data = x, .type = 11,
		.dims = dims, .num_dims = rank, .byte_strides = strides, .num_byte_strides = strides ? rank : 0,
		.host_buffer_semantics = 2, .memory = memory(d, 0) };
	ok(api->Client_BufferFromHostBuffer(&a));
	assert_non_null(a.done_with_host_buffer);
	ok(api->Event_Await(CALL(Event_Await, .event = a.done_with_host_buffer)));
	ok(api->Event_Destroy(CALL(Event_Destroy, .event = a.done_with_host_buffer)));
	return a.buffer;
}

static void get(struct rt_buffer *b, float *out, size_t n)
{
	struct pjrt_Buffer_ToHostBuffer a = { .struct_size = sizeof a, .src = b };
	ok(api->Buffer_ToHostBuffer(&a));
	assert_int_equal(a.dst_size, n * sizeof *out);
	a.dst = out;
	ok(api->Buffer_ToHostBuffer(&a));
	ok(api->Event_Await(CALL(Event_Await, .event = a.event)));
	ok(api->Event_Destroy(CALL(Event_Destroy, .event = a.event)));
}

static void drop(struct rt_buffer *b)
{
	ok(api->Buffer_Destroy(CALL(Buffer_Destroy, .buffer = b)));
}

static bool deleted(struct rt_buffer *b)
{
	struct pjrt_Buffer_IsDeleted a = { .buffer = b };
	ok(api->Buffer_IsDeleted(&a));
	return a.is_deleted;
}

static const float six[6] = { 1, 2, 3, 4, 5, 6 };
static const int64_t two_three[2] = { 2, 3 }, three_two[2] = { 3, 2 };

static void describe(void **state)
{
	struct pjrt_Client_PlatformName n = { .client = client };
	ok(api->Client_PlatformName(&n));
	assert_memory_equal(n.platform_name, "rondo", 5);
	struct pjrt_Client_LookupDevice l = { .client = client, .id = 1 };
	ok(api->Client_LookupDevice(&l));
	assert_ptr_equal(l.device, device[1]);
	l.id = 9;
	fails(api->Client_LookupDevice(&l), ERR_INVALID, "no device 9");
	struct pjrt_Memory_Kind k = { .memory = memory(device[0], 0) };
	ok(api->Memory_Kind(&k));
	assert_string_equal(k.kind, "device");
	struct pjrt_Device_MemoryStats s = { .struct_size = 185, .device = device[0], .peak_allocated_bytes = -7 };
	ok(api->Device_MemoryStats(&s));
	assert_true(s.bytes_limit > 0);
	assert_int_equal(s.peak_allocated_bytes, -7);        /* beyond an older caller's struct */
	struct pjrt_Client_DefaultDeviceAssignment d = { .client = client, .num_replicas = 1, .num_partitions = 2,
		.default_assignment_size = 2, .default_assignment = (int[2]){ 0 } };
	ok(api->Client_DefaultDeviceAssignment(&d));
	assert_int_equal(d.default_assignment[1], 1);
}

static void buffers(void **state)
{
	float r[6];
	static const int64_t strides[2] = { 4, 12 };         /* the transpose */
	struct rt_buffer *b = put(device[0], six, three_two, 2, strides);
	get(b, r, 6);
	assert_true(r[0] == 1 && r[1] == 4 && r[2] == 2 && r[5] == 6);
	struct pjrt_Buffer_CopyToMemory c = { .buffer = b, .dst_memory = memory(device[1], 1) };
	ok(api->Buffer_CopyToMemory(&c));
	struct pjrt_Buffer_Memory m = { .buffer = c.dst_buffer };
	ok(api->Buffer_Memory(&m));
	assert_ptr_equal(m.memory, memory(device[1], 1));
	drop(b);
	get(c.dst_buffer, r, 6);
	assert_true(r[1] == 4);
	ok(api->Buffer_IncreaseExternalReferenceCount(CALL(Buffer_IncreaseExternalReferenceCount, .buffer = c.dst_buffer)));
	ok(api->Buffer_DecreaseExternalReferenceCount(CALL(Buffer_DecreaseExternalReferenceCount, .buffer = c.dst_buffer)));
	assert_false(deleted(c.dst_buffer));
	ok(api->Buffer_Delete(CALL(Buffer_Delete, .buffer = c.dst_buffer)));
	ok(api->Buffer_Delete(CALL(Buffer_Delete, .buffer = c.dst_buffer)));
	assert_true(deleted(c.dst_buffer));
	drop(c.dst_buffer);
	drop(put(device[0], NULL, (int64_t[]){ 3, 0 }, 2, NULL));
	drop(put(device[0], six, NULL, 0, NULL));
}

static void refused(void **state)
{
	int64_t order[2] = { 0, 0 };
	struct pjrt_layout l = { .type = LAYOUT_TILED, .tiled = { .minor_to_major = order, .minor_to_major_size = 2 } };
	struct pjrt_Client_BufferFromHostBuffer a = { .struct_size = sizeof a, .client = client, .data = six, .type = 11,
		.dims = two_three, .num_dims = 2, .memory = memory(device[0], 0), .device_layout = &l };
	fails(api->Client_BufferFromHostBuffer(&a), ERR_INVALID, "does not order its dimensions");
	order[1] = 2;
	fails(api->Client_BufferFromHostBuffer(&a), ERR_INVALID, "does not order its dimensions");
	l.tiled.minor_to_major_size = 1;
	fails(api->Client_BufferFromHostBuffer(&a), ERR_INVALID, "does not order its dimensions");
	l.tiled.num_tiles = 1;
	fails(api->Client_BufferFromHostBuffer(&a), ERR_UNIMPLEMENTED, "tiled");
	l.type = LAYOUT_STRIDES;
	fails(api->Client_BufferFromHostBuffer(&a), ERR_UNIMPLEMENTED, "strides");
	a.device_layout = NULL;
	a.type = 99;
	fails(api->Client_BufferFromHostBuffer(&a), ERR_UNIMPLEMENTED, "99");
}

static atomic_int fired;
static void on_ready(struct err *e, void *user)
{
	err_free(e);
	atomic_fetch_add(&fired, 1);
}

/* An event that is destroyed before it is ready still calls back; an error buffer gives its error. */
static void events(void **state)
{
	struct pjrt_Client_CreateErrorBuffer c = { .client = client, .error_code = 13, .error_message = "broken", .error_message_size = 6,
		.shape_dims = two_three, .shape_num_dims = 2, .shape_element_type = 11, .memory = memory(device[0], 0) };
	ok(api->Client_CreateErrorBuffer(&c));
	struct pjrt_Buffer_ReadyEvent r = { .buffer = c.buffer };
	ok(api->Buffer_ReadyEvent(&r));
	fails(api->Event_Error(CALL(Event_Error, .event = r.event)), ERR_INTERNAL, "broken");
	atomic_store(&fired, 0);
	ok(api->Event_OnReady(CALL(Event_OnReady, .event = r.event, .callback = on_ready)));
	ok(api->Event_Destroy(CALL(Event_Destroy, .event = r.event)));
	assert_int_equal(atomic_load(&fired), 1);
	drop(c.buffer);
}

/* f(x, y) = x + y * 2 over f32[2,3], x donated: StableHLO 1.14.0. */
static char program[] = {
	77, 76, -17, 82, 13, 83, 116, 97, 98, 108, 101, 72, 76, 79, 95, 118, 49, 46, 49, 52, 46, 48, 0, 1, 31, 5, 1, 5,
	15, 1, 3, 11, 3, 13, 15, 19, 23, 27, 31, 35, 3, 95, 59, 17, 1, 31, 11, 15, 27, 11, 11, 11, 19, 19, 19, 19,
	19, 19, 19, 19, 19, 3, 29, 19, 19, 11, 15, 11, 11, 15, 19, 11, 11, 11, 11, 31, 15, 1, 3, 15, 3, 15, 23, 7,
	15, 7, 27, 19, 7, 2, -17, 5, 19, 17, 1, 5, 3, 5, 7, 3, 9, 3, 5, 21, 5, 23, 5, 25, 23, 1, 3, 3,
	23, 1, 5, 7, 23, 1, 5, 53, 23, 1, 5, -93, 23, 1, 7, 25, 23, 1, 9, 21, 23, 1, 11, 21, 23, 1, 13, 21,
	23, 1, 15, 11, 3, 5, 33, 39, 13, 3, 35, 37, 29, 27, 19, 9, 1, 13, 1, 35, 11, 3, 3, 45, 13, 3, 47, 49,
	29, 29, 29, 31, 29, 33, 29, 35, 31, 7, 9, 0, 0, 0, 64, 31, 13, 1, 1, 2, 2, 41, 5, 9, 13, 5, 9, 41,
	1, 5, 27, 17, 5, 3, 3, 3, 3, 41, 3, 1, 15, 29, 4, 127, 5, 1, 81, 13, 5, 1, 7, 4, 109, 3, 1, 5,
	3, 80, 15, 3, 7, 4, 89, 3, 13, 23, 5, 7, 17, 7, 19, 0, 5, 66, 21, 5, 3, 7, 7, 70, 23, 7, 3, 3,
	3, 5, 9, 6, 25, 3, 3, 5, 3, 7, 11, 6, 27, 3, 3, 5, 1, 9, 13, 4, 29, 3, 11, 6, 3, 1, 5, 1,
	0, 102, 3, 37, 15, 11, 21, 33, 39, 25, 37, 41, 5, 21, 15, 25, 41, 25, 17, 15, 11, 17, 98, 117, 105, 108, 116, 105,
	110, 0, 118, 104, 108, 111, 0, 109, 111, 100, 117, 108, 101, 0, 102, 117, 110, 99, 95, 118, 49, 0, 99, 111, 110, 115, 116, 97,
	110, 116, 95, 118, 49, 0, 98, 114, 111, 97, 100, 99, 97, 115, 116, 95, 105, 110, 95, 100, 105, 109, 95, 118, 49, 0, 109, 117,
	108, 116, 105, 112, 108, 121, 95, 118, 49, 0, 97, 100, 100, 95, 118, 49, 0, 114, 101, 116, 117, 114, 110, 95, 118, 49, 0, 45,
	0, 109, 104, 108, 111, 46, 110, 117, 109, 95, 112, 97, 114, 116, 105, 116, 105, 111, 110, 115, 0, 109, 104, 108, 111, 46, 110, 117,
	109, 95, 114, 101, 112, 108, 105, 99, 97, 115, 0, 106, 105, 116, 95, 95, 108, 97, 109, 98, 100, 97, 0, 116, 102, 46, 97, 108,
	105, 97, 115, 105, 110, 103, 95, 111, 117, 116, 112, 117, 116, 0, 106, 97, 120, 46, 114, 101, 115, 117, 108, 116, 95, 105, 110, 102,
	111, 0, 114, 101, 115, 117, 108, 116, 91, 48, 93, 0, 109, 97, 105, 110, 0, 112, 117, 98, 108, 105, 99, 0, 8, 29, 9, 5,
	23, 1, 11, 31, 41, 43, 51, 53, 3, 55, 3, 57,
};

/* 3: { 4: 1 replica, 5: 1 partition, 9: { 1: 1, 2: 1, 3: { 1: [1] } } }: on device 1. */
static char options[] = { 3 << 3 | 2, 15, 4 << 3, 1, 5 << 3, 1, 9 << 3 | 2, 9, 1 << 3, 1, 2 << 3, 1, 3 << 3 | 2, 3, 1 << 3 | 2, 1, 1 };

static struct pjrt_exec *compile(void)
{
	struct pjrt_program p = { .struct_size = sizeof p, .code = program, .code_size = sizeof program, .format = "mlir", .format_size = 4 };
	struct pjrt_Client_Compile c = { .struct_size = sizeof c, .client = client, .program = &p,
		.compile_options = options, .compile_options_size = sizeof options };
	ok(api->Client_Compile(&c));
	return c.executable;
}

static struct rt_buffer *run(struct pjrt_exec *x, struct rt_buffer *a, struct rt_buffer *b)
{
	struct rt_buffer *args[2] = { a, b }, *out[1], **outs[1] = { out };
	struct rt_buffer *const *lists[1] = { args };
	struct rt_event *done[1];
	struct pjrt_execute_options o = { .struct_size = sizeof o };
	struct pjrt_LoadedExecutable_Execute e = { .struct_size = sizeof e, .executable = x, .options = &o, .argument_lists = lists,
		.num_devices = 1, .num_args = 2, .output_lists = outs, .device_complete_events = done };
	ok(api->LoadedExecutable_Execute(&e));
	atomic_store(&fired, 0);
	ok(api->Event_OnReady(CALL(Event_OnReady, .event = done[0], .callback = on_ready)));
	ok(api->Event_Destroy(CALL(Event_Destroy, .event = done[0])));
	return out[0];
}

static void check_run(struct pjrt_exec *x)
{
	float r[6];
	struct rt_buffer *a = put(device[1], six, two_three, 2, NULL), *b = put(device[1], six, two_three, 2, NULL);
	struct rt_buffer *c = run(x, a, b);
	assert_true(deleted(a));
	assert_false(deleted(b));
	get(c, r, 6);
	for (int i = 0; i < 6; i++)
		assert_true(r[i] == six[i] * 3);
	/* Seen from outside: the donation is declined, and the view keeps its values. */
	ok(api->Buffer_IncreaseExternalReferenceCount(CALL(Buffer_IncreaseExternalReferenceCount, .buffer = b)));
	struct pjrt_Buffer_OpaqueDeviceMemoryDataPointer p = { .buffer = b };
	ok(api->Buffer_OpaqueDeviceMemoryDataPointer(&p));
	struct rt_buffer *d = run(x, b, c);
	get(d, r, 6);
	assert_true(r[5] == 42 && ((float *)p.device_memory_ptr)[5] == 6);
	ok(api->Buffer_DecreaseExternalReferenceCount(CALL(Buffer_DecreaseExternalReferenceCount, .buffer = b)));
	/* The same buffer twice, once donated. */
	struct rt_buffer *e = run(x, d, d);
	get(e, r, 6);
	assert_true(r[5] == 126);
	drop(a), drop(b), drop(c), drop(d), drop(e);
}

static void execute(void **state)
{
	struct pjrt_exec *x = compile();
	struct pjrt_Executable_NumOutputs n = { .executable = x };
	ok(api->Executable_NumOutputs(&n));
	assert_int_equal(n.num_outputs, 1);
	struct pjrt_LoadedExecutable_AddressableDevices d = { .executable = x };
	ok(api->LoadedExecutable_AddressableDevices(&d));
	assert_ptr_equal(d.addressable_devices[0], device[1]);
	check_run(x);

	struct rt_buffer *a = put(device[0], six, two_three, 2, NULL);
	struct rt_buffer *args[2] = { a, a }, *out[1], **outs[1] = { out };
	struct rt_buffer *const *lists[1] = { args };
	struct pjrt_execute_options o = { .struct_size = sizeof o };
	struct pjrt_LoadedExecutable_Execute e = { .struct_size = sizeof e, .executable = x, .options = &o, .argument_lists = lists,
		.num_devices = 1, .num_args = 2, .output_lists = outs };
	fails(api->LoadedExecutable_Execute(&e), ERR_INVALID, "not on device 1");
	drop(a);

	struct pjrt_Executable_Serialize s = { .executable = x };
	ok(api->Executable_Serialize(&s));
	struct pjrt_Executable_DeserializeAndLoad l = { .struct_size = sizeof l, .client = client,
		.serialized_executable = s.serialized_bytes, .serialized_executable_size = s.serialized_bytes_size };
	ok(api->Executable_DeserializeAndLoad(&l));
	l.serialized_executable_size -= 5;
	struct pjrt_exec *again = l.loaded_executable;
	struct err *bad = api->Executable_DeserializeAndLoad(&l);
	assert_non_null(bad);
	err_free(bad);
	/* Wherever a byte is damaged. */
	char *b = mem_new(s.serialized_bytes_size);
	memcpy(b, s.serialized_bytes, s.serialized_bytes_size);
	l.serialized_executable = b;
	l.serialized_executable_size += 5;
	for (size_t i = 0; i < s.serialized_bytes_size; i++)
		for (int k = 0; k < 3; k++) {
			char was = b[i];
			b[i] = k == 0 ? (char)(was ^ 1) : k == 1 ? (char)(was ^ 64) : (char)~was;
			bad = api->Executable_DeserializeAndLoad(&l);
			b[i] = was;
			assert_non_null(bad);
			err_free(bad);
		}
	mem_free(b);
	s.serialized_executable_deleter(s.serialized_executable);
	ok(api->LoadedExecutable_Destroy(CALL(LoadedExecutable_Destroy, .executable = x)));
	check_run(again);
	ok(api->LoadedExecutable_Destroy(CALL(LoadedExecutable_Destroy, .executable = again)));
}

static void options_refused(void **state)
{
	struct pjrt_program p = { .struct_size = sizeof p, .code = program, .code_size = sizeof program, .format = "mlir", .format_size = 4 };
	struct pjrt_Client_Compile c = { .struct_size = sizeof c, .client = client, .program = &p, .compile_options = options };
	for (size_t n = 1; n < sizeof options; n++) {
		c.compile_options_size = n;
		struct err *e = api->Client_Compile(&c);
		if (!e)
			ok(api->LoadedExecutable_Destroy(CALL(LoadedExecutable_Destroy, .executable = c.executable)));
		err_free(e);
	}
	c.compile_options_size = sizeof options;
	options[16] = 7;
	fails(api->Client_Compile(&c), ERR_INVALID, "device 7");
	options[16] = 1;
	p.format = "hlo!";
	fails(api->Client_Compile(&c), ERR_UNIMPLEMENTED, "hlo!");
}

/* --- nonsense from outside -------------------------------------------------------------- */

static struct err *try_compile(char *code, size_t n, const char *o, size_t no, struct pjrt_exec **out)
{
	struct pjrt_program p = { .struct_size = sizeof p, .code = code, .code_size = n, .format = "mlir", .format_size = 4 };
	struct pjrt_Client_Compile c = { .struct_size = sizeof c, .client = client, .program = &p, .compile_options = o, .compile_options_size = no };
	struct err *e = api->Client_Compile(&c);
	*out = c.executable;
	return e;
}

static void end(struct pjrt_exec *x)
{
	ok(api->LoadedExecutable_Destroy(CALL(LoadedExecutable_Destroy, .executable = x)));
}

/* Every prefix of a program, every byte of the options changed: an error with a text, or an executable. */
static void nonsense(void **state)
{
	static const int other[] = { 0, 1, 3, 7, 8, 127, 128, 255 };
	struct pjrt_exec *x;
	for (size_t n = 0; n < sizeof program; n++) {
		struct err *e = try_compile(program, n, options, sizeof options, &x);
		assert_true(e && strlen(e->msg) > 8);
		err_free(e);
	}
	for (size_t i = 0; i < sizeof options; i++)
		for (size_t k = 0; k < NELEM(other); k++) {
			char o[sizeof options];
			memcpy(o, options, sizeof o);
			o[i] = (char)other[k];
			struct err *e = try_compile(program, sizeof program, o, sizeof o, &x);
			if (!e)
				end(x);
			err_free(e);
		}
	/* An assignment of one device, then two partitions; 2^16 replicas of 2^16 computations. */
	static const char two[] = { 3 << 3 | 2, 15, 4 << 3, 1, 5 << 3, 1, 9 << 3 | 2, 9, 1 << 3, 1, 2 << 3, 1, 3 << 3 | 2, 3, 1 << 3 | 2, 1, 1, 3 << 3 | 2, 2, 5 << 3, 2 };
	fails(try_compile(program, sizeof program, two, sizeof two, &x), ERR_INVALID, "1 devices for 1 replicas of 2");
	static const char many[] = { 3 << 3 | 2, 10, 9 << 3 | 2, 8, 1 << 3, (char)0x80, (char)0x80, 4, 2 << 3, (char)0x80, (char)0x80, 4 };
	fails(try_compile(program, sizeof program, many, sizeof many, &x), ERR_INVALID, "malformed device assignment");
	fails(try_compile(program, sizeof program, (char[]){ 3 << 3 | 2, 2, 5 << 3, 0 }, 4, &x), ERR_INVALID, "0 partitions");
}

static struct err *launch(struct pjrt_exec *x, struct rt_buffer *a, struct rt_buffer *b, struct rt_buffer **out)
{
	struct rt_buffer *args[2] = { a, b }, **outs[1] = { out };
	struct rt_buffer *const *lists[1] = { args };
	struct pjrt_execute_options o = { .struct_size = sizeof o };
	struct pjrt_LoadedExecutable_Execute e = { .struct_size = sizeof e, .executable = x, .options = &o, .argument_lists = lists,
		.num_devices = 1, .num_args = 2, .output_lists = outs };
	return api->LoadedExecutable_Execute(&e);
}

static void wrong_arguments(void **state)
{
	struct pjrt_exec *x = compile();
	struct rt_buffer *a = put(device[1], six, two_three, 2, NULL), *b = put(device[1], six, three_two, 2, NULL), *c;
	fails(launch(x, a, b, &c), ERR_INVALID, "parameter 1 of 'jit__lambda' has another shape");
	assert_false(deleted(a));
	ok(api->Buffer_Delete(CALL(Buffer_Delete, .buffer = b)));
	fails(launch(x, a, b, &c), ERR_INVALID, "parameter 1 of 'jit__lambda' has been deleted");
	assert_false(deleted(a));
	ok(launch(x, a, a, &c));                              /* donated, and read by the same call */
	drop(c);
	struct pjrt_Buffer_ToHostBuffer t = { .struct_size = sizeof t, .src = b, .dst = (float[6]){ 0 }, .dst_size = 24 };
	ok(api->Buffer_ToHostBuffer(&t));
	fails(api->Event_Await(CALL(Event_Await, .event = t.event)), ERR_INVALID, "deleted");
	ok(api->Event_Destroy(CALL(Event_Destroy, .event = t.event)));
	t.src = a;
	t.dst_size = 23;
	fails(api->Buffer_ToHostBuffer(&t), ERR_INVALID, "23 bytes");
	drop(a), drop(b);
	end(x);
}

/* --- no memory ------------------------------------------------------------------------------ */

static atomic_long count, first;

static bool refuse(size_t n)
{
	return atomic_fetch_add(&count, 1) + 1 == atomic_load(&first);
}

/* All of the front door that one array and one program need; an error if a part of it had no memory. */
static struct err *journey(void)
{
	struct pjrt_exec *x = NULL, *y = NULL;
	struct rt_buffer *a = NULL, *b = NULL, *c = NULL;
	struct rt_event *done = NULL;
	struct err *e = try_compile(program, sizeof program, options, sizeof options, &x);
	if (e)
		return e;
	struct pjrt_Executable_Serialize s = { .executable = x };
	struct pjrt_Executable_DeserializeAndLoad l = { .struct_size = sizeof l, .client = client };
	struct pjrt_Client_BufferFromHostBuffer h = { .struct_size = sizeof h, .client = client, .data = six, .type = 11,
		.dims = two_three, .num_dims = 2, .memory = memory(device[1], 0) };
	struct pjrt_Buffer_CopyToMemory m = { .dst_memory = memory(device[1], 1) };
	struct pjrt_Buffer_ToHostBuffer t = { .struct_size = sizeof t, .dst = (float[6]){ 0 }, .dst_size = 24 };
	TRY_GOTO(e, api->Executable_Serialize(&s), out);
	l.serialized_executable = s.serialized_bytes;
	l.serialized_executable_size = s.serialized_bytes_size;
	e = api->Executable_DeserializeAndLoad(&l);
	s.serialized_executable_deleter(s.serialized_executable);
	if (e)
		goto out;
	y = l.loaded_executable;
	TRY_GOTO(e, api->Client_BufferFromHostBuffer(&h), out);
	a = h.buffer;
	ok(api->Event_Destroy(CALL(Event_Destroy, .event = h.done_with_host_buffer)));
	m.buffer = a;
	TRY_GOTO(e, api->Buffer_CopyToMemory(&m), out);
	b = m.dst_buffer;
	e = launch(y, a, a, &c);
	if (e) {
		c = NULL;
		assert_false(deleted(a));             /* nothing is lost */
		goto out;
	}
	t.src = c;
	TRY_GOTO(e, api->Buffer_ToHostBuffer(&t), out);
	done = t.event;
	TRY_GOTO(e, api->Event_Await(CALL(Event_Await, .event = done)), out);
	assert_true(((float *)t.dst)[5] == 18);
out:
	ok(api->Event_Destroy(CALL(Event_Destroy, .event = done)));
	if (a)
		drop(a);
	if (b)
		drop(b);
	if (c)
		drop(c);
	if (y)
		end(y);
	end(x);
	return e;
}

static void no_memory(void **state)
{
	for (long k = 1;; k++) {
		atomic_store(&count, 0);
		atomic_store(&first, k);
		mem_refuse(refuse);
		struct err *e = journey();
		mem_refuse(NULL);
		bool whole = atomic_load(&count) < k;
		if (!e && whole) {
			assert_true(k > 100);
			return;
		}
		if (e)
			fails(e, ERR_EXHAUSTED, "memory");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(describe), cmocka_unit_test(buffers), cmocka_unit_test(refused), cmocka_unit_test(events),
		cmocka_unit_test(execute), cmocka_unit_test(options_refused),
		cmocka_unit_test(nonsense), cmocka_unit_test(wrong_arguments), cmocka_unit_test(no_memory),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
