/* Shardings as arithmetic: which box of an array a device holds, and XLA's wire form of that. */
#include "impl.h"

/* The axis of size s is split as [pre, size, rest]. */
int64_t mesh_coordinate(const struct ir_mesh *m, int64_t position, struct ir_axis_ref r)
{
	for (int a = m->naxis - 1; a > r.axis; a--)
		position /= m->axis[a].size;
	int64_t s = m->axis[r.axis].size, c = position % s;
	return c / (s / (r.pre * r.size)) % r.size;
}

int64_t mesh_position(const struct ir_mesh *m, int64_t device)
{
	if (!m->id)
		return device;
	for (int64_t i = 0; i < m->ndev; i++)
		if (m->id[i] == device)
			return i;
	return 0;
}

int64_t mesh_index(const struct ir_mesh *m, int64_t device, struct axes l)
{
	int64_t pos = mesh_position(m, device), b = 0;
	for (int i = 0; i < l.n; i++)
		b = b * l.p[i].size + mesh_coordinate(m, pos, l.p[i]);
	return b;
}

/* Block number that the device holds along dimension d. */
static int64_t block(const struct ir_module *m, ir_shard h, int64_t device, int d)
{
	const struct ir_shard_info *s = &m->shard.p[h];
	return mesh_index(&m->mesh.p[s->mesh], device, (struct axes){ s->dim[d].naxis, s->dim[d].axis });
}

bool spmd_shard_box(const struct ir_module *m, ir_shard h, int device, int rank, const int64_t *dim,
                    int64_t *start, int64_t *size)
{
	bool even = true;
	for (int d = 0; d < rank; d++) {
		int64_t n = ir_shard_parts(m, h, d);
		even &= dim[d] % n == 0;
		size[d] = dim[d] / n;
		start[d] = n > 1 ? block(m, h, device, d) * size[d] : 0;
	}
	return even;
}

static void varint(struct str *s, uint64_t v)
{
	do {
		char c = (char)((v & 127) | (v > 127 ? 128 : 0));
		str_addn(s, &c, 1);
	} while (v >>= 7);
}

static void packed(struct str *s, int field, const int64_t *v, int64_t n)
{
	struct str body = {0};
	for (int64_t i = 0; i < n; i++)
		varint(&body, (uint64_t)v[i]);
	varint(s, (uint64_t)field << 3 | 2);
	varint(s, body.n);
	str_addn(s, body.p, body.n);
	str_free(&body);
}

enum { REPLICATED, MAXIMAL, TUPLE, OTHER, MANUAL };

void spmd_op_sharding_manual(struct str *s)
{
	varint(s, 1 << 3);
	varint(s, MANUAL);
}

/* xla.OpSharding (xla_data.proto): 1 type, 3 tile_assignment_dimensions, 4 tile_assignment_devices,
 * 6 replicate_on_last_tile_dim, or 8 last_tile_dims where a sum is still to be made. */
void spmd_op_sharding(struct str *s, const struct ir_module *m, ir_shard h, int rank, int ndev)
{
	varint(s, 1 << 3);
	if (h && m->mesh.p[m->shard.p[h].mesh].naxis == 0 && m->mesh.p[m->shard.p[h].mesh].id && ndev > 1) {
		varint(s, MAXIMAL);
		packed(s, 3, (int64_t[]){ 1 }, 1);
		packed(s, 4, m->mesh.p[m->shard.p[h].mesh].id, 1);
		return;
	}
	if (ndev <= 1 || !h || ir_shard_replicated(m, h)) {
		varint(s, REPLICATED);
		return;
	}
	varint(s, OTHER);
	const struct ir_shard_info *i = &m->shard.p[h];
	const struct ir_mesh *mesh = &m->mesh.p[i->mesh];
	int64_t dims[IR_MAX_RANK + 2], tiles = 1, sums = 1;
	for (int d = 0; d < rank; d++)
		tiles *= dims[d] = ir_shard_parts(m, h, d);
	for (int a = 0; a < i->npart; a++)
		sums *= i->part[a].size;
	int64_t copies = ndev / (tiles * sums);
	int n = rank;
	if (sums > 1)
		dims[n++] = sums;
	if (copies > 1)
		dims[n++] = copies;
	int64_t *dev = mem_alloc(sizeof *dev * (size_t)ndev), *have = mem_alloc(sizeof *have * (size_t)(tiles * sums));
	for (int64_t p = 0; p < ndev; p++) {       /* in mesh order, so copies of a tile are too */
		int64_t d = mesh->id ? mesh->id[p] : p, t = 0;
		for (int k = 0; k < rank; k++)
			t = t * dims[k] + (dims[k] > 1 ? block(m, h, d, k) : 0);
		for (int a = 0; a < i->npart; a++)
			t = t * i->part[a].size + mesh_coordinate(mesh, p, i->part[a]);
		dev[t * copies + have[t]++] = d;
	}
	packed(s, 3, dims, n);
	packed(s, 4, dev, ndev);
	if (sums > 1) {                            /* 8 last_tile_dims: UNREDUCED 6, REPLICATED 0 */
		packed(s, 8, (int64_t[]){ 6, 0 }, 1 + (copies > 1));
	} else if (copies > 1) {
		varint(s, 6 << 3);
		varint(s, 1);
	}
	free(dev);
	free(have);
}
