/* The table itself, errors, events, the plug-in's attributes, and what is not supported. */
#include <stdlib.h>

#include "../hlo/hlo.h"
#include "impl.h"
#include "pjrt.h"

void pjrt_Error_Destroy(struct pjrt_Error_Destroy *a)
{
	err_free(a->error);
}

void pjrt_Error_Message(struct pjrt_Error_Message *a)
{
	a->message = a->error->msg;
	a->message_size = strlen(a->error->msg);
}

struct err *pjrt_Error_GetCode(struct pjrt_Error_GetCode *a)
{
	a->code = a->error->code;
	return NULL;
}

struct err *pjrt_Error_ForEachPayload(struct pjrt_Error_ForEachPayload *a)
{
	return NULL;
}

struct err *pjrt_Plugin_Initialize(struct pjrt_Plugin_Initialize *a)
{
	conf_init();
	return NULL;
}

struct err *pjrt_Plugin_Attributes(struct pjrt_Plugin_Attributes *a)
{
	static const int64_t version[3] = { HLO_MAJOR, HLO_MINOR, 0 };
	static const struct pjrt_value attr[] = { {
		.struct_size = sizeof(struct pjrt_value), .name = "stablehlo_current_version", .name_size = 25,
		.type = VALUE_INTS, .is = version, .value_size = 3,
	} };
	a->attributes = attr;
	a->num_attributes = NELEM(attr);
	return NULL;
}

/* --- events: struct rt_event itself -------------------------------------- */

struct err *pjrt_Event_Destroy(struct pjrt_Event_Destroy *a)
{
	rt_event_unref(a->event);
	return NULL;
}

struct err *pjrt_Event_IsReady(struct pjrt_Event_IsReady *a)
{
	a->is_ready = rt_event_ready(a->event);
	return NULL;
}

struct err *pjrt_Event_Error(struct pjrt_Event_Error *a)
{
	return rt_event_error(a->event);
}

struct err *pjrt_Event_Await(struct pjrt_Event_Await *a)
{
	return rt_event_wait(a->event);
}

struct err *pjrt_Event_OnReady(struct pjrt_Event_OnReady *a)
{
	return rt_event_on_ready(a->event, a->callback, a->user_arg) ? NULL : ERR(EXHAUSTED, "out of host memory: a callback of an event");
}

/* --- not supported -------------------------------------------------------- */

#define NONE(name) \
	struct err *pjrt_##name(struct pjrt_##name *a) \
	{ return ERR(UNIMPLEMENTED, "PJRT_" #name " is not supported"); }

/* Host callbacks of TPUs: ours go through a custom call. */
NONE(CopyToDeviceStream_Destroy)
NONE(CopyToDeviceStream_AddChunk)
NONE(CopyToDeviceStream_TotalBytes)
NONE(CopyToDeviceStream_GranuleSize)
NONE(CopyToDeviceStream_CurrentBytes)
/* Compilation for a machine that is not here. */
NONE(TopologyDescription_Create)
NONE(TopologyDescription_Deserialize)
NONE(TopologyDescription_MakeCanonicalShapeForMemorySpace)
NONE(TopologyDescription_GetMemorySpaceKindIds)
NONE(ExecuteContext_Create)
NONE(ExecuteContext_Destroy)
/* Transfers in pieces. */
NONE(AsyncHostToDeviceTransferManager_Destroy)
NONE(AsyncHostToDeviceTransferManager_TransferData)
NONE(AsyncHostToDeviceTransferManager_RetrieveBuffer)
NONE(AsyncHostToDeviceTransferManager_Device)
NONE(AsyncHostToDeviceTransferManager_BufferCount)
NONE(AsyncHostToDeviceTransferManager_BufferSize)
NONE(AsyncHostToDeviceTransferManager_SetBufferError)
NONE(AsyncHostToDeviceTransferManager_AddMetadata)
NONE(AsyncHostToDeviceTransferManager_TransferLiteral)
NONE(Client_CreateBuffersForAsyncHostToDevice)
NONE(Client_DmaMap)
NONE(Client_DmaUnmap)
NONE(Client_CreateAliasBuffer)
NONE(Client_FulfillAliasBuffer)
NONE(Buffer_CopyRawToHostFuture)
NONE(Buffer_DonateWithControlDependency)
NONE(Device_PoisonExecution)
NONE(Device_CreateAsyncTrackingEvent)
NONE(AsyncTrackingEvent_Destroy)
NONE(Event_Create)
NONE(Event_Set)

/* --- the table ------------------------------------------------------------ */

__attribute__((visibility("default"))) const struct pjrt_api *GetPjrtApi(void)
{
	static const struct pjrt_api api = {
		.struct_size = sizeof api,
		.extension_start = &pjrt_shardings.base,
		.version = { .struct_size = sizeof api.version, .major = PJRT_MAJOR, .minor = PJRT_MINOR },
		.Error_Destroy = pjrt_Error_Destroy,
		.Error_Message = pjrt_Error_Message,
#define API(name) .name = pjrt_##name,
		PJRT_MEMBERS(API)
#undef API
	};
	return &api;
}
