/* The client, its devices and their memories.  A device's description is the device, and the topology of
 * a client is the client: all live as long as the client. */
#include <pthread.h>
#include <stdlib.h>

#include "impl.h"
#include "pjrt.h"

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pjrt_client *open_clients;

const char *const pjrt_mem_kind[NMEM] = { "device", "pinned_host", "unpinned_host" };

int pjrt_mem_by_kind(const char *kind)
{
	if (!kind || !*kind)
		return 0;
	for (int i = 0; i < NMEM; i++)
		if (!strcmp(kind, pjrt_mem_kind[i]))
			return i;
	return -1;
}

/* An option of the client: ours by name, or a setting of conf.def.  Those that come from JAX's
 * configuration string are always strings. */
static struct err *option(const struct pjrt_value *v, struct rt_opts *o, struct kv *job)
{
	char name[64], text[256];
	snprintf(name, sizeof name, "%.*s", (int)v->name_size, v->name);
	if (v->type == VALUE_STRING)
		snprintf(text, sizeof text, "%.*s", (int)v->value_size, v->s);
	else if (v->type == VALUE_INT)
		snprintf(text, sizeof text, "%lld", (long long)v->i);
	else if (v->type == VALUE_BOOL)
		snprintf(text, sizeof text, "%d", v->b);
	else if (v->type == VALUE_FLOAT)
		snprintf(text, sizeof text, "%g", v->f);
	else
		return ERR(INVALID, "client option '%s' cannot be a list", name);

	char *end;
	long n = strtol(text, &end, 10);
	bool integer = *text && !*end;
	if (!strcmp(name, "num_devices")) {
		if (!integer || n < 1 || n > 1024)
			return ERR(INVALID, "client option 'num_devices' is '%s', not a number of devices", text);
		o->ndev = (int)n;
	} else if (!strcmp(name, "num_nodes")) {
		if (!integer || n < 1 || n > 1 << 16)
			return ERR(INVALID, "client option 'num_nodes' is '%s', not a number of processes", text);
		job->nprocess = (int)n;
	} else if (!strcmp(name, "node_id")) {
		if (!integer || n < 0 || n > 1 << 16)
			return ERR(INVALID, "client option 'node_id' is '%s', not the number of a process", text);
		job->process = (int)n;
	} else if (!strcmp(name, "partition_index")) {
		/* Which processes share a fast network: found out, not told. */
	} else {
		return conf_set(name, text);
	}
	return NULL;
}

static void describe(struct pjrt_client *c, int i)
{
	const struct rt_place *p = rt_client_place(c->rt, i * c->parts);
	struct pjrt_device *d = &c->device[i];
	bool local = i >= c->first && i < c->first + c->nlocal;

	d->client = c;
	d->rt = local ? rt_client_device(c->rt, (i - c->first) * c->parts) : NULL;
	d->id = i;
	d->local = p->local / c->parts;
	d->process = p->process;
	d->self = d;
	for (int v = 0; v < c->parts && local; v++)
		rt_device_tag(rt_client_device(c->rt, (i - c->first) * c->parts + v), d);
	c->devices[i] = d;
	snprintf(d->kind, sizeof d->kind, "%s", p->kind);
	snprintf(d->text, sizeof d->text, "RondoDevice(id=%d)", d->id);
	snprintf(d->debug, sizeof d->debug, "rondo:%d", d->id);
	for (int k = 0; k < NMEM; k++) {
		struct pjrt_memory *m = &d->memory[k];
		m->device = d;
		m->mem = k;
		m->id = i * NMEM + k;
		snprintf(m->text, sizeof m->text, "rondo:%d %s", d->id, pjrt_mem_kind[k]);
		d->memories[k] = m;
		if (local)
			c->memories[(i - c->first) * NMEM + k] = m;
	}
	d->attr[0] = (struct pjrt_value){ .struct_size = sizeof(struct pjrt_value), .name = "cores", .name_size = 5,
		.type = VALUE_INT, .i = p->cores, .value_size = 1 };
	d->attr[1] = (struct pjrt_value){ .struct_size = sizeof(struct pjrt_value), .name = "device_type", .name_size = 11,
		.type = VALUE_STRING, .s = conf_str(CONF_DEVICE), .value_size = strlen(conf_str(CONF_DEVICE)) };
}

/* --- the store of jax.distributed --------------------------------------------------- */

static struct err *make_error(int code, const char *message, size_t size)
{
	return err_new((enum err_code)code, __FILE__, __LINE__, "%.*s", (int)size, message);
}
static pjrt_make_error *const error_maker = make_error;

/* Where a process is, and that it is no more (src/sym/here.c), holds for each attempt; the first one's names are theirs. */
static void key_of(const struct pjrt_store *s, const char *key, char *out, size_t n)
{
	bool lasts = !strncmp(key, "here/", 5) || !strncmp(key, "gone/", 5);

	snprintf(out, n, "%d/%s", lasts ? 0 : s->attempt, key);
}

static struct err *store_put(void *user, const char *key, const void *value, size_t n)
{
	struct pjrt_store *s = user;
	char k[160];

	key_of(s, key, k, sizeof k);
	struct pjrt_kv_put a = { .struct_size = sizeof a, .key = k, .key_size = strlen(k), .value = value, .value_size = n,
		.callback_error = (pjrt_make_error **)(uintptr_t)&error_maker, .user_arg = s->put_arg };
	return err_wrap(s->put(&a), "writing '%s' to the store of jax.distributed", k);
}

static struct err *store_get(void *user, const char *key, int ms, struct str *out)
{
	struct pjrt_store *s = user;
	char k[160];

	key_of(s, key, k, sizeof k);
	struct pjrt_kv_get a = { .struct_size = sizeof a, .key = k, .key_size = strlen(k), .timeout_in_ms = ms,
		.callback_error = (pjrt_make_error **)(uintptr_t)&error_maker, .user_arg = s->get_arg };
	struct err *e = s->get(&a);
	if (e)
		return err_wrap(e, "reading '%s' from the store of jax.distributed", k);
	str_addn(out, a.value, a.value_size);
	if (a.value_deleter)
		a.value_deleter(a.value);
	return NULL;
}

enum { AFTER_S = 1 };

static bool awaited(void *client, char *text, size_t n)
{
	char what[128];
	bool any = rt_client_runs(client, what, sizeof what);

	if (any)
		snprintf(text, n, "waiting for %s to end", what);
	return any;
}

/* What is queued runs to its end, and who waits for the process is told. */
static void stop(struct pjrt_client *c)
{
	struct watch w;

	watch_open(&w, AFTER_S, awaited, c->rt);
	rt_client_stop(c->rt);
	watch_close(&w);
}

/* A client that something refers to until the end of the process (a view of an array, a mesh that was set) is not destroyed: what is queued
 * runs to its end all the same, and the others of its job hear that it left. */
static void end_all(void)
{
	for (struct pjrt_client *c = open_clients; c; c = c->next) {
		stop(c);
		rt_client_end(c->rt);
	}
}

static void end_at_exit(void) { atexit(end_all); }

static struct err *client_create(void *v)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct pjrt_Client_Create *a = v;
	static atomic_int attempts;
	struct rt_opts o = { 0 };
	struct pjrt_client *c = mem_alloc(sizeof *c);
	struct kv *job = &c->store.kv;
	struct err *e = NULL;

	for (size_t i = 0; i < a->num_options; i++)
		TRY_GOTO(e, option(&a->create_options[i], &o, job), out);
	if (job->nprocess > 1) {
		if (job->process >= job->nprocess) {
			e = ERR(INVALID, "client option 'node_id' is %d of %d processes", job->process, job->nprocess);
			goto out;
		}
		c->store.get = a->kv_get_callback;
		c->store.get_arg = a->kv_get_user_arg;
		c->store.put = a->kv_put_callback;
		c->store.put_arg = a->kv_put_user_arg;
		c->store.attempt = atomic_fetch_add(&attempts, 1);
		job->user = &c->store;
		job->put = store_put;
		job->get = store_get;
		o.boot = job;
	}
	o.parts = (int)conf_int(CONF_REPRO);
	TRY_GOTO(e, rt_client_new(&o, &c->rt), out);
	c->parts = rt_client_parts(c->rt);
	c->ndev = rt_client_nplace(c->rt) / c->parts;
	c->nlocal = rt_client_ndev(c->rt) / c->parts;
	c->first = rt_device_id(rt_client_device(c->rt, 0)) / c->parts;
	c->host_memory = !strcmp(conf_str(CONF_DEVICE), "cpu");
	c->device = mem_alloc(sizeof *c->device * (size_t)c->ndev);
	c->devices = mem_alloc(sizeof *c->devices * (size_t)c->ndev);
	c->memories = mem_alloc(sizeof *c->memories * (size_t)c->nlocal * NMEM);
	for (int i = 0; i < c->ndev; i++)
		describe(c, i);
	/* No word here may be the name of another platform: JAX's tests search the text for them. */
	char repro[40] = "";        /* JAX keeps compiled programs by this text */
	if (o.parts)
		snprintf(repro, sizeof repro, ", RONDO_REPRO=%d", o.parts);
	snprintf(c->version, sizeof c->version, "rondo " RONDO_RELEASE " (%s%s)", cpu_get()->name, repro);
	snprintf(c->topology, sizeof c->topology, "rondo %d x %s", c->ndev, cpu_get()->name);
	pthread_once(&once, end_at_exit);
	pthread_mutex_lock(&open_lock);
	c->next = open_clients;
	open_clients = c;
	pthread_mutex_unlock(&open_lock);
	a->client = c;
	return NULL;
out:
	free(c);
	return e;
}

static bool any_awaited(void *none, char *text, size_t n)
{
	bool any = false;

	pthread_mutex_lock(&open_lock);
	for (struct pjrt_client *c = open_clients; c && !any; c = c->next)
		any = awaited(c->rt, text, n);
	pthread_mutex_unlock(&open_lock);
	return any;
}

__attribute__((visibility("default"))) void rondo_await(int begins)
{
	static struct watch w;

	if (begins)
		watch_open(&w, AFTER_S, any_awaited, NULL);
	else
		watch_close(&w);
}

__attribute__((visibility("default"))) int rondo_runs(void)
{
	char text[128];

	return any_awaited(NULL, text, sizeof text);
}

__attribute__((visibility("default"))) int rondo_viewed(void) { return pjrt_viewed(); }

__attribute__((visibility("default"))) void rondo_give_up(void)
{
	pthread_mutex_lock(&open_lock);
	for (struct pjrt_client *c = open_clients; c; c = c->next)
		rt_client_give_up(c->rt, NULL);
	pthread_mutex_unlock(&open_lock);
}

/* What a client that could not be made has begun stays: its threads may know it. */
struct err *pjrt_Client_Create(struct pjrt_Client_Create *a)
{
	return mem_guard(client_create, a, false);
}

struct err *pjrt_Client_Destroy(struct pjrt_Client_Destroy *a)
{
	struct pjrt_client *c = a->client;
	if (!c)
		return NULL;
	pthread_mutex_lock(&open_lock);
	struct pjrt_client **at = &open_clients;
	while (*at && *at != c)
		at = &(*at)->next;
	if (*at)
		*at = c->next;
	pthread_mutex_unlock(&open_lock);
	stop(c);
	rt_client_free(c->rt);
	free(c->memories);
	free(c->devices);
	free(c->device);
	free(c);
	return NULL;
}

struct err *pjrt_Client_PlatformName(struct pjrt_Client_PlatformName *a)
{
	a->platform_name = "rondo";
	a->platform_name_size = 5;
	return NULL;
}

struct err *pjrt_Client_ProcessIndex(struct pjrt_Client_ProcessIndex *a)
{
	a->process_index = rt_client_process(a->client->rt);
	return NULL;
}

struct err *pjrt_Client_PlatformVersion(struct pjrt_Client_PlatformVersion *a)
{
	a->platform_version = a->client->version;
	a->platform_version_size = strlen(a->client->version);
	return NULL;
}

struct err *pjrt_Client_Devices(struct pjrt_Client_Devices *a)
{
	a->devices = a->client->devices;
	a->num_devices = (size_t)a->client->ndev;
	return NULL;
}

struct err *pjrt_Client_AddressableDevices(struct pjrt_Client_AddressableDevices *a)
{
	a->addressable_devices = a->client->devices + a->client->first;
	a->num_addressable_devices = (size_t)a->client->nlocal;
	return NULL;
}

struct err *pjrt_Client_LookupDevice(struct pjrt_Client_LookupDevice *a)
{
	if (a->id < 0 || a->id >= a->client->ndev)
		return ERR(INVALID, "there is no device %d", a->id);
	a->device = &a->client->device[a->id];
	return NULL;
}

struct err *pjrt_Client_LookupAddressableDevice(struct pjrt_Client_LookupAddressableDevice *a)
{
	if (a->local_hardware_id < 0 || a->local_hardware_id >= a->client->nlocal)
		return ERR(INVALID, "there is no local device %d", a->local_hardware_id);
	a->addressable_device = &a->client->device[a->client->first + a->local_hardware_id];
	return NULL;
}

struct err *pjrt_Client_AddressableMemories(struct pjrt_Client_AddressableMemories *a)
{
	a->addressable_memories = a->client->memories;
	a->num_addressable_memories = (size_t)a->client->nlocal * NMEM;
	return NULL;
}

struct err *pjrt_Client_DefaultDeviceAssignment(struct pjrt_Client_DefaultDeviceAssignment *a)
{
	int64_t n = (int64_t)a->num_replicas * a->num_partitions;
	if (n < 0 || n > a->client->ndev || (size_t)n > a->default_assignment_size)
		return ERR(INVALID, "%d x %d devices asked for, there are %d", a->num_replicas, a->num_partitions, a->client->ndev);
	for (int64_t i = 0; i < n; i++)
		a->default_assignment[i] = a->client->device[i].id;
	return NULL;
}

/* What the coordination service thinks of the processes: it hears of a death long after the runtime has. */
struct err *pjrt_Client_UpdateGlobalProcessInfo(struct pjrt_Client_UpdateGlobalProcessInfo *a)
{
	for (size_t i = 0; i < a->num_process_infos; i++)
		if (a->process_infos[i].state == PROCESS_ERROR)
			log_line(LOG_INFO, "jax.distributed says that process %d has failed: %.*s", a->process_infos[i].task_id,
			         (int)a->process_infos[i].error_message_size, a->process_infos[i].error_message);
	return NULL;
}

/* --- devices -------------------------------------------------------------- */

struct err *pjrt_DeviceDescription_Id(struct pjrt_DeviceDescription_Id *a)
{
	a->id = a->device_description->id;
	return NULL;
}

struct err *pjrt_DeviceDescription_ProcessIndex(struct pjrt_DeviceDescription_ProcessIndex *a)
{
	a->process_index = a->device_description->process;
	return NULL;
}

struct err *pjrt_DeviceDescription_Attributes(struct pjrt_DeviceDescription_Attributes *a)
{
	a->attributes = a->device_description->attr;
	a->num_attributes = NELEM(a->device_description->attr);
	return NULL;
}

struct err *pjrt_DeviceDescription_Kind(struct pjrt_DeviceDescription_Kind *a)
{
	a->device_kind = a->device_description->kind;
	a->device_kind_size = strlen(a->device_kind);
	return NULL;
}

struct err *pjrt_DeviceDescription_DebugString(struct pjrt_DeviceDescription_DebugString *a)
{
	a->debug_string = a->device_description->debug;
	a->debug_string_size = strlen(a->debug_string);
	return NULL;
}

struct err *pjrt_DeviceDescription_ToString(struct pjrt_DeviceDescription_ToString *a)
{
	a->to_string = a->device_description->text;
	a->to_string_size = strlen(a->to_string);
	return NULL;
}

struct err *pjrt_Device_GetDescription(struct pjrt_Device_GetDescription *a)
{
	a->device_description = a->device;
	return NULL;
}

struct err *pjrt_Device_IsAddressable(struct pjrt_Device_IsAddressable *a)
{
	a->is_addressable = a->device->rt != NULL;
	return NULL;
}

struct err *pjrt_Device_LocalHardwareId(struct pjrt_Device_LocalHardwareId *a)
{
	a->local_hardware_id = a->device->local;
	return NULL;
}

struct err *pjrt_Device_AddressableMemories(struct pjrt_Device_AddressableMemories *a)
{
	a->memories = a->device->memories;
	a->num_memories = NMEM;
	return NULL;
}

struct err *pjrt_Device_DefaultMemory(struct pjrt_Device_DefaultMemory *a)
{
	a->memory = &a->device->memory[0];
	return NULL;
}

struct err *pjrt_Device_MemoryStats(struct pjrt_Device_MemoryStats *a)
{
	if (!a->device->rt)
		return ERR(INVALID, "the memory of device %d is known to process %d only", a->device->id, a->device->process);
	struct pjrt_client *c = a->device->client;
	struct rt_stats s = { 0 };
	for (int v = 0; v < c->parts; v++) {
		struct rt_stats t = rt_device_stats(rt_client_device(c->rt, (a->device->id - c->first) * c->parts + v));
		s.in_use += t.in_use;
		s.peak += t.peak;
		s.allocs += t.allocs;
		s.largest_alloc = MAX(s.largest_alloc, t.largest_alloc);
		s.limit += t.limit;
		s.reserved += t.reserved;
	}
	size_t head = offsetof(struct pjrt_Device_MemoryStats, bytes_in_use);
	size_t end = MIN(a->struct_size, sizeof *a);
	if (end > head)      /* the caller's struct may be an older, shorter one: nothing beyond it is touched */
		memset((char *)a + head, 0, end - head);
	a->bytes_in_use = s.in_use;
	a->peak_bytes_in_use = s.peak;
	a->num_allocs = s.allocs;
	a->largest_alloc_size = s.largest_alloc;
	a->bytes_limit = s.limit;
	a->bytes_reserved = s.reserved;
	a->peak_bytes_in_use_is_set = a->num_allocs_is_set = a->largest_alloc_size_is_set = true;
	a->bytes_limit_is_set = a->bytes_reserved_is_set = true;
	return NULL;
}

struct err *pjrt_Device_ClearMemoryStats(struct pjrt_Device_ClearMemoryStats *a)
{
	struct pjrt_client *c = a->device->client;
	for (int v = 0; v < c->parts && a->device->rt; v++)
		rt_device_clear_stats(rt_client_device(c->rt, (a->device->id - c->first) * c->parts + v));
	return NULL;
}

static void keep(void *p)
{
}

struct err *pjrt_Device_GetAttributes(struct pjrt_Device_GetAttributes *a)
{
	a->attributes = a->device->attr;
	a->num_attributes = NELEM(a->device->attr);
	a->device_attributes = a->device;
	a->attributes_deleter = keep;
	return NULL;
}

/* --- memories ------------------------------------------------------------- */

struct err *pjrt_Memory_Id(struct pjrt_Memory_Id *a)
{
	a->id = a->memory->id;
	return NULL;
}

struct err *pjrt_Memory_Kind(struct pjrt_Memory_Kind *a)
{
	a->kind = pjrt_mem_kind[a->memory->mem];
	a->kind_size = strlen(a->kind);
	return NULL;
}

struct err *pjrt_Memory_Kind_Id(struct pjrt_Memory_Kind_Id *a)
{
	a->kind_id = a->memory->mem;
	return NULL;
}

struct err *pjrt_Memory_DebugString(struct pjrt_Memory_DebugString *a)
{
	a->debug_string = a->memory->text;
	a->debug_string_size = strlen(a->debug_string);
	return NULL;
}

struct err *pjrt_Memory_ToString(struct pjrt_Memory_ToString *a)
{
	a->to_string = a->memory->text;
	a->to_string_size = strlen(a->to_string);
	return NULL;
}

struct err *pjrt_Memory_AddressableByDevices(struct pjrt_Memory_AddressableByDevices *a)
{
	a->devices = &a->memory->device->self;
	a->num_devices = 1;
	return NULL;
}

/* --- topology ------------------------------------------------------------- */

struct err *pjrt_Client_TopologyDescription(struct pjrt_Client_TopologyDescription *a)
{
	a->topology = a->client;
	return NULL;
}

struct err *pjrt_TopologyDescription_Destroy(struct pjrt_TopologyDescription_Destroy *a)
{
	return NULL;
}

struct err *pjrt_TopologyDescription_PlatformName(struct pjrt_TopologyDescription_PlatformName *a)
{
	a->platform_name = "rondo";
	a->platform_name_size = 5;
	return NULL;
}

struct err *pjrt_TopologyDescription_PlatformVersion(struct pjrt_TopologyDescription_PlatformVersion *a)
{
	a->platform_version = a->topology->version;
	a->platform_version_size = strlen(a->topology->version);
	return NULL;
}

struct err *pjrt_TopologyDescription_GetDeviceDescriptions(struct pjrt_TopologyDescription_GetDeviceDescriptions *a)
{
	a->descriptions = a->topology->devices;
	a->num_descriptions = (size_t)a->topology->ndev;
	return NULL;
}

struct err *pjrt_TopologyDescription_Serialize(struct pjrt_TopologyDescription_Serialize *a)
{
	a->serialized_bytes = a->topology->topology;
	a->serialized_bytes_size = strlen(a->topology->topology);
	a->serialized_topology = a->topology;
	a->serialized_topology_deleter = keep;
	return NULL;
}

struct err *pjrt_TopologyDescription_Attributes(struct pjrt_TopologyDescription_Attributes *a)
{
	a->attributes = NULL;
	a->num_attributes = 0;
	return NULL;
}

struct err *pjrt_TopologyDescription_Fingerprint(struct pjrt_TopologyDescription_Fingerprint *a)
{
	const char *s = a->topology->topology;
	a->fingerprint = (int64_t)hash_bytes(s, strlen(s), 0);
	return NULL;
}
