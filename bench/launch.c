/* What a launch takes at the interface to JAX, without JAX: Execute of a program whose parameters are all donated, each call on the results
 * of the call before, and the end of the handles that the call has used up.
 *
 *     launch PLUGIN PROGRAM OPTIONS DEVICES PARAMETERS ELEMENTS CALLS ROUNDS
 *
 * PROGRAM: StableHLO bytecode, OPTIONS: CompileOptionsProto; each device has ELEMENTS f32 of each parameter.  Rounds of calls as they are take
 * turns with rounds in which one array was shown by another before each call, so that all are looked at one by one.  A line for each two rounds:
 * us of a launch (all devices, calls one after the other without waiting) and us of those within Execute, then the same of the other kind. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../src/pjrt/abi.h"
#include "../src/pjrt/pjrt.h"

#undef malloc                         /* the C library's */
#undef calloc

#define CALL(name, ...) (&(struct pjrt_##name){ .struct_size = sizeof(struct pjrt_##name), __VA_ARGS__ })

static void ok(struct err *e)
{
	if (e) {
		fprintf(stderr, "launch: %s\n", e->msg);
		exit(1);
	}
}

static char *file(const char *path, size_t *n)
{
	FILE *f = fopen(path, "rb");
	char *p = malloc(1 << 24);

	if (!f || !p || (*n = fread(p, 1, 1 << 24, f)) == 1 << 24) {
		perror(path);
		exit(1);
	}
	fclose(f);
	return p;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

int main(int argc, char **argv)
{
	if (argc != 9)
		return fprintf(stderr, "launch PLUGIN PROGRAM OPTIONS DEVICES PARAMETERS ELEMENTS CALLS ROUNDS\n"), 2;
	void *plugin = dlopen(argv[1], RTLD_NOW);
	union { void *p; const struct pjrt_api *(*get)(void); } entry = { plugin ? dlsym(plugin, "GetPjrtApi") : NULL };
	if (!entry.p)
		return fprintf(stderr, "%s\n", dlerror()), 1;
	const struct pjrt_api *api = entry.get();
	size_t ncode, noptions, ndev = strtoul(argv[4], NULL, 10), narg = strtoul(argv[5], NULL, 10);
	char *code = file(argv[2], &ncode), *options = file(argv[3], &noptions);
	int64_t elements = atoll(argv[6]);
	int calls = atoi(argv[7]), rounds = atoi(argv[8]);

	ok(api->Plugin_Initialize(CALL(Plugin_Initialize, 0)));
	const struct pjrt_value devices = { .struct_size = sizeof devices, .name = "num_devices", .name_size = 11, .type = VALUE_STRING, .s = argv[4], .value_size = 1 };
	struct pjrt_Client_Create c = { .struct_size = sizeof c, .create_options = &devices, .num_options = 1 };
	ok(api->Client_Create(&c));
	struct pjrt_Client_Devices d = { .client = c.client };
	ok(api->Client_Devices(&d));
	struct pjrt_program p = { .struct_size = sizeof p, .code = code, .code_size = ncode, .format = "mlir", .format_size = 4 };
	struct pjrt_Client_Compile k = { .struct_size = sizeof k, .client = c.client, .program = &p, .compile_options = options, .compile_options_size = noptions };
	ok(api->Client_Compile(&k));

	struct rt_buffer ***in = calloc(ndev, sizeof *in), ***out = calloc(ndev, sizeof *out);
	struct rt_event **done = calloc(ndev, sizeof *done);
	float *data = calloc((size_t)elements, sizeof *data);
	for (size_t i = 0; i < ndev; i++) {
		in[i] = calloc(narg, sizeof **in);
		out[i] = calloc(narg, sizeof **out);
		for (size_t j = 0; j < narg; j++) {
			struct pjrt_Client_BufferFromHostBuffer b = { .struct_size = sizeof b, .client = c.client, .data = data, .type = 11, .dims = &elements, .num_dims = 1, .device = d.devices[i] };
			ok(api->Client_BufferFromHostBuffer(&b));
			ok(api->Event_Destroy(CALL(Event_Destroy, .event = b.done_with_host_buffer)));
			in[i][j] = b.buffer;
		}
	}
	struct pjrt_execute_options o = { .struct_size = sizeof o };
	for (int r = 0; r < 2 * rounds + 2; r++) {        /* the first two warm up */
		double start = now(), within = 0;
		for (int n = 0; n < calls; n++) {
			for (size_t i = 0; i < ndev && r % 2; i++) {
				struct pjrt_Buffer_Bitcast b = { .struct_size = sizeof b, .buffer = in[i][0], .element_type = 11, .dims = &elements, .num_dims = 1 };
				double t = now();
				ok(api->Buffer_Bitcast(&b));
				ok(api->Buffer_Destroy(CALL(Buffer_Destroy, .buffer = b.out_buffer)));
				start += now() - t;
			}
			struct pjrt_LoadedExecutable_Execute e = { .struct_size = sizeof e, .executable = k.executable, .options = &o, .argument_lists = (void *)in,
				.num_devices = ndev, .num_args = narg, .output_lists = (void *)out, .device_complete_events = n == calls - 1 ? done : NULL };
			double t = now();
			ok(api->LoadedExecutable_Execute(&e));
			within += now() - t;
			for (size_t i = 0; i < ndev; i++) {
				for (size_t j = 0; j < narg; j++)
					ok(api->Buffer_Destroy(CALL(Buffer_Destroy, .buffer = in[i][j])));
				struct rt_buffer **was = in[i];
				in[i] = out[i];
				out[i] = was;
			}
		}
		for (size_t i = 0; i < ndev; i++) {
			ok(api->Event_Await(CALL(Event_Await, .event = done[i])));
			ok(api->Event_Destroy(CALL(Event_Destroy, .event = done[i])));
		}
		if (r > 1)
			printf("%.3f %.3f%c", (now() - start) / calls, within / calls, r % 2 ? '\n' : ' ');
	}
	return 0;
}
