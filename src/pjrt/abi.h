/* The PJRT C API as declarations: what jaxlib calls and the structures it passes.
 *
 * Written from the interface's documented layout (version 0.112; a newer jaxlib looks at the table's version
 * and asks for no more); tests/unit/abi.c checks sizes and offsets.  A function takes one pointer to its arguments and returns an error (struct err, which is
 * PJRT_Error) or NULL.  What a function fills comes last in its struct, except where the interface grew.
 * Opaque objects are the plug-in's own types: PJRT_Event is struct rt_event, PJRT_Buffer is struct rt_buffer, PJRT_Executable and
 * PJRT_LoadedExecutable are both struct pjrt_exec, PJRT_DeviceDescription is struct pjrt_device and
 * PJRT_TopologyDescription struct pjrt_client. */
#ifndef RONDO_PJRT_ABI_H
#define RONDO_PJRT_ABI_H

#include "../base/base.h"
#include "../rt/rt.h"

enum { PJRT_MAJOR = 0, PJRT_MINOR = 112 };

struct pjrt_client; struct pjrt_device; struct pjrt_memory; struct pjrt_exec;

#define HEAD size_t struct_size; void *extension_start

/* --- structures inside arguments ---------------------------------------- */

enum { VALUE_STRING, VALUE_INT, VALUE_INTS, VALUE_FLOAT, VALUE_BOOL };
struct pjrt_value {                 /* PJRT_NamedValue */
	HEAD;
	const char *name; size_t name_size;
	int type;
	union { const char *s; int64_t i; const int64_t *is; float f; bool b; };
	size_t value_size;          /* characters of a string, entries of a list, else 1 */
};

struct pjrt_program { HEAD; char *code; size_t code_size; const char *format; size_t format_size; };

enum { LAYOUT_TILED, LAYOUT_STRIDES };
struct pjrt_layout {                /* PJRT_Buffer_MemoryLayout; the inner struct_size may be garbage */
	HEAD;
	union {
		struct { HEAD; const int64_t *minor_to_major; size_t minor_to_major_size;
		         const int64_t *tile_dims; const size_t *tile_dim_sizes; size_t num_tiles; } tiled;
		struct { HEAD; const int64_t *byte_strides; size_t num_byte_strides; } strides;
	};
	int type;
};

struct pjrt_execute_options {
	HEAD;
	void *send_callbacks, *recv_callbacks;
	size_t num_send_ops, num_recv_ops;
	int launch_id;
	const int64_t *non_donatable_input_indices; size_t num_non_donatable_input_indices;
	void *context;
	const char *call_location;
	size_t num_tasks;
	int *task_ids; int64_t *incarnation_ids;
	void *multi_slice_config;
	bool use_major_to_minor_data_layout_for_callbacks;
	void *hlo_output_callbacks; size_t num_hlo_output_callbacks;
};

struct pjrt_logical_id { int replica, partition; };
struct pjrt_shape_spec { HEAD; const int64_t *dims; size_t num_dims; int element_type; };
enum { PROCESS_LEFT = 2, PROCESS_CONNECTED, PROCESS_ERROR };
struct pjrt_process_info { size_t struct_size; int task_id; int64_t incarnation_id; int state, error_code;
                           const char *error_message; size_t error_message_size; };

/* --- arguments ----------------------------------------------------------- */

#define ARGS(name, ...) struct pjrt_##name { HEAD; __VA_ARGS__ };

ARGS(Error_Destroy, struct err *error;)
ARGS(Error_Message, struct err *error; const char *message; size_t message_size;)
ARGS(Error_GetCode, struct err *error; int code;)
struct pjrt_Plugin_Initialize { HEAD; };
ARGS(Plugin_Attributes, const struct pjrt_value *attributes; size_t num_attributes;)
ARGS(Event_Destroy, struct rt_event *event;)
ARGS(Event_IsReady, struct rt_event *event; bool is_ready;)
ARGS(Event_Error, struct rt_event *event;)
ARGS(Event_Await, struct rt_event *event;)
ARGS(Event_OnReady, struct rt_event *event; void (*callback)(struct err *, void *); void *user_arg;)
typedef struct err *pjrt_make_error(int code, const char *message, size_t size);
ARGS(kv_get, const char *key; size_t key_size; int timeout_in_ms; pjrt_make_error **callback_error; void *user_arg;
	char *value; size_t value_size; void (*value_deleter)(char *value);)
ARGS(kv_put, const char *key; size_t key_size; const char *value; size_t value_size;
	pjrt_make_error **callback_error; void *user_arg;)
/* The callbacks are garbage unless the option num_nodes is given. */
ARGS(Client_Create, const struct pjrt_value *create_options; size_t num_options;
	struct err *(*kv_get_callback)(struct pjrt_kv_get *); void *kv_get_user_arg;
	struct err *(*kv_put_callback)(struct pjrt_kv_put *); void *kv_put_user_arg; struct pjrt_client *client;
	void *kv_try_get_callback; void *kv_try_get_user_arg;)
ARGS(Client_Destroy, struct pjrt_client *client;)
ARGS(Client_PlatformName, struct pjrt_client *client; const char *platform_name;
	size_t platform_name_size;)
ARGS(Client_ProcessIndex, struct pjrt_client *client; int process_index;)
ARGS(Client_PlatformVersion, struct pjrt_client *client; const char *platform_version;
	size_t platform_version_size;)
ARGS(Client_Devices, struct pjrt_client *client; struct pjrt_device *const *devices; size_t num_devices;)
ARGS(Client_AddressableDevices, struct pjrt_client *client;
	struct pjrt_device *const *addressable_devices; size_t num_addressable_devices;)
ARGS(Client_LookupDevice, struct pjrt_client *client; int id; struct pjrt_device *device;)
ARGS(Client_LookupAddressableDevice, struct pjrt_client *client; int local_hardware_id;
	struct pjrt_device *addressable_device;)
ARGS(Client_AddressableMemories, struct pjrt_client *client;
	struct pjrt_memory *const *addressable_memories; size_t num_addressable_memories;)
ARGS(Client_Compile, struct pjrt_client *client; struct pjrt_program *program;
	const char *compile_options; size_t compile_options_size; struct pjrt_exec *executable;)
ARGS(Client_DefaultDeviceAssignment, struct pjrt_client *client; int num_replicas, num_partitions;
	size_t default_assignment_size; int *default_assignment;)
ARGS(Client_BufferFromHostBuffer, struct pjrt_client *client; const void *data; int type;
	const int64_t *dims; size_t num_dims; const int64_t *byte_strides; size_t num_byte_strides;
	int host_buffer_semantics; struct pjrt_device *device; struct pjrt_memory *memory;
	const struct pjrt_layout *device_layout; struct rt_event *done_with_host_buffer;
	struct rt_buffer *buffer;)
ARGS(DeviceDescription_Id, struct pjrt_device *device_description; int id;)
ARGS(DeviceDescription_ProcessIndex, struct pjrt_device *device_description; int process_index;)
ARGS(DeviceDescription_Attributes, struct pjrt_device *device_description; size_t num_attributes;
	const struct pjrt_value *attributes;)
ARGS(DeviceDescription_Kind, struct pjrt_device *device_description; const char *device_kind;
	size_t device_kind_size;)
ARGS(DeviceDescription_DebugString, struct pjrt_device *device_description; const char *debug_string;
	size_t debug_string_size;)
ARGS(DeviceDescription_ToString, struct pjrt_device *device_description; const char *to_string;
	size_t to_string_size;)
ARGS(Device_GetDescription, struct pjrt_device *device; struct pjrt_device *device_description;)
ARGS(Device_IsAddressable, struct pjrt_device *device; bool is_addressable;)
ARGS(Device_LocalHardwareId, struct pjrt_device *device; int local_hardware_id;)
ARGS(Device_AddressableMemories, struct pjrt_device *device; struct pjrt_memory *const *memories;
	size_t num_memories;)
ARGS(Device_DefaultMemory, struct pjrt_device *device; struct pjrt_memory *memory;)
ARGS(Device_MemoryStats, struct pjrt_device *device; int64_t bytes_in_use, peak_bytes_in_use;
	bool peak_bytes_in_use_is_set; int64_t num_allocs; bool num_allocs_is_set; int64_t largest_alloc_size;
	bool largest_alloc_size_is_set; int64_t bytes_limit; bool bytes_limit_is_set; int64_t bytes_reserved;
	bool bytes_reserved_is_set; int64_t peak_bytes_reserved; bool peak_bytes_reserved_is_set;
	int64_t bytes_reservable_limit; bool bytes_reservable_limit_is_set; int64_t largest_free_block_bytes;
	bool largest_free_block_bytes_is_set; int64_t pool_bytes; bool pool_bytes_is_set;
	int64_t peak_pool_bytes; bool peak_pool_bytes_is_set; int64_t peak_allocated_bytes;
	bool peak_allocated_bytes_is_set;)
ARGS(Memory_Id, struct pjrt_memory *memory; int id;)
ARGS(Memory_Kind, struct pjrt_memory *memory; const char *kind; size_t kind_size;)
ARGS(Memory_DebugString, struct pjrt_memory *memory; const char *debug_string; size_t debug_string_size;)
ARGS(Memory_ToString, struct pjrt_memory *memory; const char *to_string; size_t to_string_size;)
ARGS(Memory_AddressableByDevices, struct pjrt_memory *memory; struct pjrt_device *const *devices;
	size_t num_devices;)
ARGS(Executable_Destroy, struct pjrt_exec *executable;)
ARGS(Executable_Name, struct pjrt_exec *executable; const char *executable_name;
	size_t executable_name_size;)
ARGS(Executable_NumReplicas, struct pjrt_exec *executable; size_t num_replicas;)
ARGS(Executable_NumPartitions, struct pjrt_exec *executable; size_t num_partitions;)
ARGS(Executable_NumOutputs, struct pjrt_exec *executable; size_t num_outputs;)
ARGS(Executable_SizeOfGeneratedCodeInBytes, struct pjrt_exec *executable; int64_t size_in_bytes;)
ARGS(Executable_GetCostAnalysis, struct pjrt_exec *executable; size_t num_properties;
	const struct pjrt_value *properties;)
ARGS(Executable_OutputMemoryKinds, struct pjrt_exec *executable; size_t num_outputs;
	const char *const *memory_kinds; const size_t *memory_kind_sizes;)
ARGS(Executable_OptimizedProgram, struct pjrt_exec *executable; struct pjrt_program *program;)
ARGS(Executable_Serialize, struct pjrt_exec *executable; const char *serialized_bytes;
	size_t serialized_bytes_size; void *serialized_executable;
	void (*serialized_executable_deleter)(void *);)
ARGS(LoadedExecutable_Destroy, struct pjrt_exec *executable;)
ARGS(LoadedExecutable_GetExecutable, struct pjrt_exec *loaded_executable; struct pjrt_exec *executable;)
ARGS(LoadedExecutable_AddressableDevices, struct pjrt_exec *executable;
	struct pjrt_device *const *addressable_devices; size_t num_addressable_devices;)
ARGS(LoadedExecutable_Delete, struct pjrt_exec *executable;)
ARGS(LoadedExecutable_IsDeleted, struct pjrt_exec *executable; bool is_deleted;)
ARGS(LoadedExecutable_Execute, struct pjrt_exec *executable; struct pjrt_execute_options *options;
	struct rt_buffer *const *const *argument_lists; size_t num_devices, num_args;
	struct rt_buffer **const *output_lists; struct rt_event **device_complete_events;
	struct pjrt_device *execute_device;)
ARGS(Executable_DeserializeAndLoad, struct pjrt_client *client; const char *serialized_executable;
	size_t serialized_executable_size; struct pjrt_exec *loaded_executable;
	const char *overridden_serialized_compile_options; size_t overridden_serialized_compile_options_size;
	void *load_options;)
ARGS(LoadedExecutable_Fingerprint, struct pjrt_exec *executable; const char *executable_fingerprint;
	size_t executable_fingerprint_size;)
ARGS(Buffer_Destroy, struct rt_buffer *buffer;)
ARGS(Buffer_ElementType, struct rt_buffer *buffer; int type;)
ARGS(Buffer_Dimensions, struct rt_buffer *buffer; const int64_t *dims; size_t num_dims;)
ARGS(Buffer_UnpaddedDimensions, struct rt_buffer *buffer; const int64_t *unpadded_dims;
	size_t num_dims;)
ARGS(Buffer_DynamicDimensionIndices, struct rt_buffer *buffer; const size_t *dynamic_dim_indices;
	size_t num_dynamic_dims;)
ARGS(Buffer_GetMemoryLayout, struct rt_buffer *buffer; struct pjrt_layout layout;)
ARGS(Buffer_OnDeviceSizeInBytes, struct rt_buffer *buffer; size_t on_device_size_in_bytes;)
ARGS(Buffer_Device, struct rt_buffer *buffer; struct pjrt_device *device;)
ARGS(Buffer_Memory, struct rt_buffer *buffer; struct pjrt_memory *memory;)
ARGS(Buffer_Delete, struct rt_buffer *buffer;)
ARGS(Buffer_IsDeleted, struct rt_buffer *buffer; bool is_deleted;)
ARGS(Buffer_CopyToDevice, struct rt_buffer *buffer; struct pjrt_device *dst_device;
	struct rt_buffer *dst_buffer;)
ARGS(Buffer_ToHostBuffer, struct rt_buffer *src; const struct pjrt_layout *host_layout; void *dst;
	size_t dst_size; struct rt_event *event;)
ARGS(Buffer_IsOnCpu, struct rt_buffer *buffer; bool is_on_cpu;)
ARGS(Buffer_ReadyEvent, struct rt_buffer *buffer; struct rt_event *event;)
ARGS(Buffer_UnsafePointer, struct rt_buffer *buffer; size_t buffer_pointer;)
ARGS(Buffer_IncreaseExternalReferenceCount, struct rt_buffer *buffer;)
ARGS(Buffer_DecreaseExternalReferenceCount, struct rt_buffer *buffer;)
ARGS(Buffer_OpaqueDeviceMemoryDataPointer, struct rt_buffer *buffer; void *device_memory_ptr;)
ARGS(TopologyDescription_Create, const char *topology_name; size_t topology_name_size;
	const struct pjrt_value *create_options; size_t num_options; struct pjrt_client *topology;)
ARGS(TopologyDescription_Destroy, struct pjrt_client *topology;)
ARGS(TopologyDescription_PlatformName, struct pjrt_client *topology; const char *platform_name;
	size_t platform_name_size;)
ARGS(TopologyDescription_PlatformVersion, struct pjrt_client *topology; const char *platform_version;
	size_t platform_version_size;)
ARGS(TopologyDescription_GetDeviceDescriptions, struct pjrt_client *topology;
	struct pjrt_device *const *descriptions; size_t num_descriptions;)
ARGS(TopologyDescription_Serialize, struct pjrt_client *topology; const char *serialized_bytes;
	size_t serialized_bytes_size; void *serialized_topology; void (*serialized_topology_deleter)(void *);)
ARGS(TopologyDescription_Attributes, struct pjrt_client *topology; const struct pjrt_value *attributes;
	size_t num_attributes;)
ARGS(Compile, struct pjrt_client *topology; struct pjrt_program *program; const char *compile_options;
	size_t compile_options_size; struct pjrt_client *client; struct pjrt_exec *executable;)
ARGS(Executable_OutputElementTypes, struct pjrt_exec *executable; int *output_types;
	size_t num_output_types;)
ARGS(Executable_OutputDimensions, struct pjrt_exec *executable; size_t num_outputs; const int64_t *dims;
	const size_t *dim_sizes;)
ARGS(Buffer_CopyToMemory, struct rt_buffer *buffer; struct pjrt_memory *dst_memory;
	struct rt_buffer *dst_buffer;)
ARGS(Client_CreateViewOfDeviceBuffer, struct pjrt_client *client; void *device_buffer_ptr;
	const int64_t *dims; size_t num_dims; int element_type; const struct pjrt_layout *layout;
	struct pjrt_device *device; void (*on_delete_callback)(void *, void *); void *on_delete_callback_arg;
	size_t stream; struct rt_buffer *buffer; struct pjrt_memory *memory;)
ARGS(Executable_Fingerprint, struct pjrt_exec *executable; const char *executable_fingerprint;
	size_t executable_fingerprint_size;)
ARGS(Client_TopologyDescription, struct pjrt_client *client; struct pjrt_client *topology;)
ARGS(Executable_GetCompiledMemoryStats, struct pjrt_exec *executable;
	int64_t generated_code_size_in_bytes, argument_size_in_bytes, output_size_in_bytes, alias_size_in_bytes, temp_size_in_bytes, host_generated_code_size_in_bytes, host_argument_size_in_bytes, host_output_size_in_bytes, host_alias_size_in_bytes, host_temp_size_in_bytes, peak_memory_in_bytes, total_size_in_bytes, total_allocation_bytes, indefinite_allocations, peak_unpadded_heap_bytes;)
ARGS(Memory_Kind_Id, struct pjrt_memory *memory; int kind_id;)
ARGS(Buffer_CopyRawToHost, struct rt_buffer *buffer; void *dst; int64_t offset, transfer_size;
	struct rt_event *event;)
ARGS(Client_CreateBuffersForAsyncHostToDevice, struct pjrt_client *client;
	const struct pjrt_shape_spec *shape_specs; size_t num_shape_specs;
	const struct pjrt_layout *const *device_layouts; size_t num_device_layouts; struct pjrt_memory *memory;
	void *transfer_manager;)
ARGS(Client_CreateUninitializedBuffer, struct pjrt_client *client; const int64_t *shape_dims;
	size_t shape_num_dims; int shape_element_type; const struct pjrt_layout *shape_layout;
	struct pjrt_device *device; struct pjrt_memory *memory; struct rt_buffer *buffer;)
ARGS(Client_UpdateGlobalProcessInfo, struct pjrt_client *client;
	const struct pjrt_process_info *process_infos; size_t num_process_infos;)
ARGS(TopologyDescription_Deserialize, const char *serialized_topology; size_t serialized_topology_size;
	struct pjrt_client *topology;)
ARGS(LoadedExecutable_GetDeviceAssignment, struct pjrt_exec *executable; const char *serialized_bytes;
	size_t serialized_bytes_size; void *serialized_device_assignment;
	void (*serialized_device_assignment_deleter)(void *);)
ARGS(Client_CreateErrorBuffer, struct pjrt_client *client; int error_code; const char *error_message;
	size_t error_message_size; const int64_t *shape_dims; size_t shape_num_dims; int shape_element_type;
	const struct pjrt_layout *shape_layout; struct pjrt_memory *memory; struct rt_buffer *buffer;
	void *payload; size_t num_payload;)
ARGS(Executable_GetCompileOptions, struct pjrt_exec *executable; const char *serialized_bytes;
	size_t serialized_bytes_size; void *serialized_compile_options;
	void (*serialized_compile_options_deleter)(void *);)
ARGS(Device_GetAttributes, struct pjrt_device *device; const struct pjrt_value *attributes;
	size_t num_attributes; void *device_attributes; void (*attributes_deleter)(void *);)
ARGS(Client_Load, struct pjrt_client *client; struct pjrt_exec *executable; const char *compile_options;
	size_t compile_options_size; struct pjrt_exec *loaded_executable;)
ARGS(LoadedExecutable_AddressableDeviceLogicalIds, struct pjrt_exec *executable;
	const struct pjrt_logical_id *addressable_device_logical_ids;
	size_t num_addressable_device_logical_ids;)
ARGS(Buffer_Bitcast, struct rt_buffer *buffer; int element_type; const int64_t *dims; size_t num_dims;
	const struct pjrt_layout *device_layout; struct rt_buffer *out_buffer;)
ARGS(Error_ForEachPayload, struct err *error; void *visitor; void *user_arg;)
ARGS(TopologyDescription_Fingerprint, struct pjrt_client *topology; int64_t fingerprint;)
ARGS(Executable_ParameterMemoryKinds, struct pjrt_exec *executable; size_t num_parameters;
	const char *const *memory_kinds; const size_t *memory_kind_sizes;)
ARGS(Device_ClearMemoryStats, struct pjrt_device *device;)

/* --- the table ----------------------------------------------------------- */

/* All members in order.  The first two return nothing. */
#define PJRT_MEMBERS(API) \
	API(Error_GetCode) API(Plugin_Initialize) API(Plugin_Attributes) API(Event_Destroy) \
	API(Event_IsReady) API(Event_Error) API(Event_Await) API(Event_OnReady) API(Client_Create) \
	API(Client_Destroy) API(Client_PlatformName) API(Client_ProcessIndex) API(Client_PlatformVersion) \
	API(Client_Devices) API(Client_AddressableDevices) API(Client_LookupDevice) \
	API(Client_LookupAddressableDevice) API(Client_AddressableMemories) API(Client_Compile) \
	API(Client_DefaultDeviceAssignment) API(Client_BufferFromHostBuffer) API(DeviceDescription_Id) \
	API(DeviceDescription_ProcessIndex) API(DeviceDescription_Attributes) API(DeviceDescription_Kind) \
	API(DeviceDescription_DebugString) API(DeviceDescription_ToString) API(Device_GetDescription) \
	API(Device_IsAddressable) API(Device_LocalHardwareId) API(Device_AddressableMemories) \
	API(Device_DefaultMemory) API(Device_MemoryStats) API(Memory_Id) API(Memory_Kind) \
	API(Memory_DebugString) API(Memory_ToString) API(Memory_AddressableByDevices) \
	API(Executable_Destroy) API(Executable_Name) API(Executable_NumReplicas) \
	API(Executable_NumPartitions) API(Executable_NumOutputs) API(Executable_SizeOfGeneratedCodeInBytes) \
	API(Executable_GetCostAnalysis) API(Executable_OutputMemoryKinds) API(Executable_OptimizedProgram) \
	API(Executable_Serialize) API(LoadedExecutable_Destroy) API(LoadedExecutable_GetExecutable) \
	API(LoadedExecutable_AddressableDevices) API(LoadedExecutable_Delete) \
	API(LoadedExecutable_IsDeleted) API(LoadedExecutable_Execute) API(Executable_DeserializeAndLoad) \
	API(LoadedExecutable_Fingerprint) API(Buffer_Destroy) API(Buffer_ElementType) \
	API(Buffer_Dimensions) API(Buffer_UnpaddedDimensions) API(Buffer_DynamicDimensionIndices) \
	API(Buffer_GetMemoryLayout) API(Buffer_OnDeviceSizeInBytes) API(Buffer_Device) API(Buffer_Memory) \
	API(Buffer_Delete) API(Buffer_IsDeleted) API(Buffer_CopyToDevice) API(Buffer_ToHostBuffer) \
	API(Buffer_IsOnCpu) API(Buffer_ReadyEvent) API(Buffer_UnsafePointer) \
	API(Buffer_IncreaseExternalReferenceCount) API(Buffer_DecreaseExternalReferenceCount) \
	API(Buffer_OpaqueDeviceMemoryDataPointer) API(CopyToDeviceStream_Destroy) \
	API(CopyToDeviceStream_AddChunk) API(CopyToDeviceStream_TotalBytes) \
	API(CopyToDeviceStream_GranuleSize) API(CopyToDeviceStream_CurrentBytes) \
	API(TopologyDescription_Create) API(TopologyDescription_Destroy) \
	API(TopologyDescription_PlatformName) API(TopologyDescription_PlatformVersion) \
	API(TopologyDescription_GetDeviceDescriptions) API(TopologyDescription_Serialize) \
	API(TopologyDescription_Attributes) API(Compile) API(Executable_OutputElementTypes) \
	API(Executable_OutputDimensions) API(Buffer_CopyToMemory) API(Client_CreateViewOfDeviceBuffer) \
	API(Executable_Fingerprint) API(Client_TopologyDescription) API(Executable_GetCompiledMemoryStats) \
	API(Memory_Kind_Id) API(ExecuteContext_Create) API(ExecuteContext_Destroy) \
	API(Buffer_CopyRawToHost) API(AsyncHostToDeviceTransferManager_Destroy) \
	API(AsyncHostToDeviceTransferManager_TransferData) API(Client_CreateBuffersForAsyncHostToDevice) \
	API(AsyncHostToDeviceTransferManager_RetrieveBuffer) API(AsyncHostToDeviceTransferManager_Device) \
	API(AsyncHostToDeviceTransferManager_BufferCount) API(AsyncHostToDeviceTransferManager_BufferSize) \
	API(AsyncHostToDeviceTransferManager_SetBufferError) \
	API(AsyncHostToDeviceTransferManager_AddMetadata) API(Client_DmaMap) API(Client_DmaUnmap) \
	API(Client_CreateUninitializedBuffer) API(Client_UpdateGlobalProcessInfo) \
	API(TopologyDescription_Deserialize) API(Client_CreateAliasBuffer) API(Client_FulfillAliasBuffer) \
	API(LoadedExecutable_GetDeviceAssignment) API(Client_CreateErrorBuffer) \
	API(AsyncHostToDeviceTransferManager_TransferLiteral) API(Buffer_CopyRawToHostFuture) \
	API(Device_PoisonExecution) API(Device_CreateAsyncTrackingEvent) API(AsyncTrackingEvent_Destroy) \
	API(Executable_GetCompileOptions) API(Buffer_DonateWithControlDependency) API(Event_Create) \
	API(Event_Set) API(Device_GetAttributes) API(Client_Load) \
	API(LoadedExecutable_AddressableDeviceLogicalIds) API(Buffer_Bitcast) API(Error_ForEachPayload) \
	API(TopologyDescription_Fingerprint) API(Executable_ParameterMemoryKinds) \
	API(Device_ClearMemoryStats) API(TopologyDescription_MakeCanonicalShapeForMemorySpace) \
	API(TopologyDescription_GetMemorySpaceKindIds) \

#define API(name) struct pjrt_##name;
PJRT_MEMBERS(API)
#undef API

struct pjrt_extension { size_t struct_size; int type; struct pjrt_extension *next; };
enum { EXT_PROFILER = 1, EXT_PARTITIONER = 2, EXT_LAYOUTS = 4, EXT_SHARDINGS = 19 };

struct pjrt_api {
	size_t struct_size;
	struct pjrt_extension *extension_start;
	struct { HEAD; int major, minor; } version;
	void (*Error_Destroy)(struct pjrt_Error_Destroy *);
	void (*Error_Message)(struct pjrt_Error_Message *);
#define API(name) struct err *(*name)(struct pjrt_##name *);
	PJRT_MEMBERS(API)
#undef API
};

/* --- extensions ---------------------------------------------------------- */

struct pjrt_shardings_args { HEAD; struct pjrt_exec *executable; size_t n; const char *const *bytes; const size_t *size; };
struct pjrt_shardings_ext {
	struct pjrt_extension base;
	struct err *(*parameters)(struct pjrt_shardings_args *);
	struct err *(*outputs)(struct pjrt_shardings_args *);
};

ARGS(layout_destroy, const struct layout *layout;)
ARGS(layout_serialize, const struct layout *layout; const char *bytes; size_t size; void *handle;
	void (*deleter)(void *);)
ARGS(layout_default, void *owner; int type; const int64_t *dims; size_t num_dims; const struct layout *layout;)
ARGS(layout_buffer, struct rt_buffer *buffer; const struct layout *layout;)
ARGS(layout_exec, struct pjrt_exec *executable; size_t n; const struct layout *const *layouts;)
struct pjrt_layouts_ext {
	struct pjrt_extension base;
	struct err *(*destroy)(struct pjrt_layout_destroy *);
	struct err *(*serialize)(struct pjrt_layout_serialize *);
	struct err *(*client_default)(struct pjrt_layout_default *);
	struct err *(*buffer)(struct pjrt_layout_buffer *);
	struct err *(*topology_default)(struct pjrt_layout_default *);
	struct err *(*outputs)(struct pjrt_layout_exec *);
	struct err *(*parameters)(struct pjrt_layout_exec *);
};

/* Custom calls whose maker says how they are cut.  Shapes are xla.ShapeProto, shardings xla.OpSharding, as bytes.  What a call answers lives
 * until cleanup(data). */
struct pjrt_bytes { const char *p; size_t n; };
struct pjrt_aval { struct pjrt_bytes shape; bool has_sharding; struct pjrt_bytes sharding; };
struct pjrt_partition {
	int64_t version;
	void *data;
	void (*cleanup)(void *data);
	bool has_error;
	int code;
	struct pjrt_bytes error;
	size_t nargs;
	struct pjrt_aval *args, result;
	struct pjrt_bytes config, module, *args_sharding, result_sharding;      /* from module on answered */
};
struct pjrt_partitioner {
	int64_t version;
	void *data;
	void (*destroy)(struct pjrt_partitioner *);
	void (*partition)(struct pjrt_partitioner *, struct pjrt_partition *);
	void (*infer_sharding)(struct pjrt_partitioner *, void *);              /* only without Shardy */
	void (*propagate_user_sharding)(struct pjrt_partitioner *, void *);     /* likewise */
	bool replicated_effects;
};
struct pjrt_register_partitioner { size_t struct_size; const char *name; size_t name_size; struct pjrt_partitioner *partitioner; };
struct pjrt_register_batches { size_t struct_size; const char *name; size_t name_size; };
struct pjrt_partitioner_ext {
	struct pjrt_extension base;
	struct err *(*partitioner)(struct pjrt_register_partitioner *);
	struct err *(*batches)(struct pjrt_register_batches *);
};

/* The configuration of a call "InspectSharding" is a pjrt_inspector. */
struct pjrt_inspect { const char *sharding; size_t size; const char *error; void *scratch; void (*free_error)(struct pjrt_inspect *); };
struct pjrt_inspector { void (*call)(void *data, struct pjrt_inspect *); void *data; };

/* PLUGIN_Profiler: a table of its own, whose errors are struct err as well. */
struct pjrt_profiler;
struct pjrt_profiler_destroy_error { size_t struct_size; void *priv; struct err *error; };
struct pjrt_profiler_message { size_t struct_size; void *priv; const struct err *error; const char *message; size_t message_size; };
struct pjrt_profiler_code { size_t struct_size; void *priv; const struct err *error; int code; };
struct pjrt_profiler_create { size_t struct_size; const char *options; size_t options_size; struct pjrt_profiler *profiler; };
struct pjrt_profiler_args { size_t struct_size; struct pjrt_profiler *profiler; };
/* Without a buffer: size, and a buffer that the profiler keeps.  The next call may be with one of that size, to be filled. */
struct pjrt_profiler_collect { size_t struct_size; struct pjrt_profiler *profiler; uint8_t *buffer; size_t buffer_size_in_bytes; };
struct pjrt_profiler_api {
	size_t struct_size;
	void *priv;
	void (*error_destroy)(struct pjrt_profiler_destroy_error *);
	void (*error_message)(struct pjrt_profiler_message *);
	struct err *(*error_code)(struct pjrt_profiler_code *);
	struct err *(*create)(struct pjrt_profiler_create *);
	struct err *(*destroy)(struct pjrt_profiler_args *);
	struct err *(*start)(struct pjrt_profiler_args *);
	struct err *(*stop)(struct pjrt_profiler_args *);
	struct err *(*collect)(struct pjrt_profiler_collect *);
};
struct pjrt_profiler_ext { struct pjrt_extension base; const struct pjrt_profiler_api *api; int64_t context; };

#undef ARGS
#undef HEAD
#endif
