/* Sizes, offsets and order of the interface to JAX, as version 0.112 of it has them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "pjrt/abi.h"
#include "pjrt/pjrt.h"

#define END(type, field) (offsetof(struct type, field) + sizeof ((struct type *)0)->field)

static void sizes(void **state)
{
	assert_int_equal(sizeof(struct pjrt_api), 1144);
	assert_int_equal(offsetof(struct pjrt_api, version), 16);
	assert_int_equal(offsetof(struct pjrt_api, Error_Destroy), 40);
	assert_int_equal(sizeof(struct pjrt_value), 56);
	assert_int_equal(offsetof(struct pjrt_value, s), 40);
	assert_int_equal(sizeof(struct pjrt_program), 48);
	assert_int_equal(sizeof(struct pjrt_layout), 80);
	assert_int_equal(offsetof(struct pjrt_layout, tiled), 16);
	assert_int_equal(sizeof(((struct pjrt_layout *)0)->tiled), 56);
	assert_int_equal(sizeof(((struct pjrt_layout *)0)->strides), 32);
	assert_int_equal(offsetof(struct pjrt_layout, type), 72);
	assert_int_equal(sizeof(struct pjrt_execute_options), 144);
	assert_int_equal(sizeof(struct pjrt_logical_id), 8);
	assert_int_equal(sizeof(struct pjrt_shape_spec), 40);
	assert_int_equal(sizeof(struct pjrt_process_info), 48);
}

static void arguments(void **state)
{
	assert_int_equal(END(pjrt_Client_Create, kv_try_get_user_arg), 88);
	assert_int_equal(sizeof(struct pjrt_kv_get), 80);
	assert_int_equal(sizeof(struct pjrt_kv_put), 64);
	assert_int_equal(END(pjrt_Client_Compile, executable), 56);
	assert_int_equal(END(pjrt_Client_BufferFromHostBuffer, buffer), 120);
	assert_int_equal(offsetof(struct pjrt_Client_BufferFromHostBuffer, memory), 88);
	assert_int_equal(END(pjrt_Buffer_ToHostBuffer, event), 56);
	assert_int_equal(END(pjrt_LoadedExecutable_Execute, execute_device), 80);
	assert_int_equal(END(pjrt_Device_MemoryStats, peak_pool_bytes_is_set), 185);
	assert_int_equal(END(pjrt_Device_MemoryStats, peak_allocated_bytes_is_set), 201);
	assert_int_equal(END(pjrt_Executable_GetCompiledMemoryStats, peak_unpadded_heap_bytes), 144);
	assert_int_equal(END(pjrt_Executable_DeserializeAndLoad, load_options), 72);
	assert_int_equal(END(pjrt_Client_LookupDevice, device), 40);
	assert_int_equal(END(pjrt_Event_OnReady, user_arg), 40);
	assert_int_equal(END(pjrt_Buffer_GetMemoryLayout, layout), 104);
	assert_int_equal(END(pjrt_Client_CreateViewOfDeviceBuffer, memory), 112);
}

static void extensions(void **state)
{
	assert_int_equal(sizeof(struct pjrt_extension), 24);
	assert_int_equal(sizeof(struct pjrt_shardings_args), 48);
	assert_int_equal(sizeof(struct pjrt_shardings_ext), 40);
	assert_int_equal(sizeof(struct pjrt_layouts_ext), 80);
	assert_int_equal(END(pjrt_layout_exec, layouts), 40);
	assert_int_equal(END(pjrt_layout_default, layout), 56);
	assert_int_equal(sizeof(struct pjrt_partitioner_ext), 40);
	assert_int_equal(sizeof(struct pjrt_register_partitioner), 32);
	assert_int_equal(sizeof(struct pjrt_profiler_ext), 40);
	assert_int_equal(sizeof(struct pjrt_profiler_api), 80);
	assert_int_equal(offsetof(struct pjrt_profiler_api, create), 40);
	assert_int_equal(END(pjrt_profiler_message, message_size), 40);
	assert_int_equal(END(pjrt_profiler_code, code), 28);
	assert_int_equal(END(pjrt_profiler_create, profiler), 32);
	assert_int_equal(offsetof(struct pjrt_profiler_collect, buffer), 16);
	assert_int_equal(END(pjrt_profiler_collect, buffer_size_in_bytes), 32);
	assert_int_equal(sizeof(struct pjrt_partitioner), 56);
	assert_int_equal(sizeof(struct pjrt_aval), 40);
	assert_int_equal(offsetof(struct pjrt_partition, nargs), 48);
	assert_int_equal(offsetof(struct pjrt_partition, config), 104);
	assert_int_equal(sizeof(struct pjrt_partition), 160);
	assert_int_equal(sizeof(struct pjrt_inspect), 40);
	assert_int_equal(sizeof(struct pjrt_inspector), 16);
}

/* Members by number, as the interface lists them. */
static void order(void **state)
{
	static const struct { int number; size_t offset; } m[] = {
#define AT(n, name) { n, offsetof(struct pjrt_api, name) }
		AT(0, Error_Destroy), AT(1, Error_Message), AT(2, Error_GetCode), AT(3, Plugin_Initialize),
		AT(5, Event_Destroy), AT(10, Client_Create), AT(20, Client_Compile), AT(22, Client_BufferFromHostBuffer),
		AT(23, DeviceDescription_Id), AT(29, Device_GetDescription), AT(35, Memory_Id), AT(40, Executable_Destroy),
		AT(50, LoadedExecutable_Destroy), AT(55, LoadedExecutable_Execute), AT(58, Buffer_Destroy),
		AT(70, Buffer_ToHostBuffer), AT(77, CopyToDeviceStream_Destroy), AT(82, TopologyDescription_Create),
		AT(89, Compile), AT(92, Buffer_CopyToMemory), AT(95, Client_TopologyDescription), AT(100, Buffer_CopyRawToHost),
		AT(103, Client_CreateBuffersForAsyncHostToDevice), AT(109, AsyncHostToDeviceTransferManager_AddMetadata),
		AT(113, Client_UpdateGlobalProcessInfo), AT(117, LoadedExecutable_GetDeviceAssignment),
		AT(124, Executable_GetCompileOptions), AT(128, Device_GetAttributes), AT(129, Client_Load),
		AT(130, LoadedExecutable_AddressableDeviceLogicalIds), AT(131, Buffer_Bitcast), AT(132, Error_ForEachPayload),
		AT(134, Executable_ParameterMemoryKinds), AT(137, TopologyDescription_GetMemorySpaceKindIds),
#undef AT
	};
	for (size_t i = 0; i < NELEM(m); i++)
		assert_int_equal(m[i].offset, 40 + 8 * m[i].number);
}

/* No slot is empty: callers do not check. */
static void filled(void **state)
{
	const struct pjrt_api *api = GetPjrtApi();
	assert_int_equal(api->struct_size, sizeof *api);
	assert_int_equal(api->version.major, 0);
	assert_int_equal(api->version.minor, 112);
	void *slot[138];
	memcpy(slot, (const char *)api + 40, sizeof slot);
	for (size_t i = 0; i < NELEM(slot); i++)
		assert_non_null(slot[i]);
	int types[8], n = 0;
	for (const struct pjrt_extension *e = api->extension_start; e; e = e->next)
		types[n++] = e->type;
	assert_int_equal(n, 4);
	assert_int_equal(types[0], EXT_SHARDINGS);
	assert_int_equal(types[1], EXT_LAYOUTS);
	assert_int_equal(types[2], EXT_PARTITIONER);
	assert_int_equal(types[3], EXT_PROFILER);
}

/* What is not supported says its name. */
static void unsupported(void **state)
{
	const struct pjrt_api *api = GetPjrtApi();
	struct err *e = api->Client_DmaMap(NULL);
	assert_non_null(e);
	struct pjrt_Error_Message m = { .error = e };
	api->Error_Message(&m);
	assert_non_null(strstr(m.message, "PJRT_Client_DmaMap"));
	struct pjrt_Error_GetCode c = { .error = e };
	assert_null(api->Error_GetCode(&c));
	assert_int_equal(c.code, 12);
	api->Error_Destroy(&(struct pjrt_Error_Destroy){ .error = e });
	api->Error_Destroy(&(struct pjrt_Error_Destroy){ .error = NULL });
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes), cmocka_unit_test(arguments), cmocka_unit_test(extensions),
		cmocka_unit_test(order), cmocka_unit_test(filled), cmocka_unit_test(unsupported),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
