/* npz files: a zip archive of .npy members (numpy.lib.format, version 1 to 3).  Only what numpy writes is
 * read: members stored or deflated, sizes from the central directory, zip64 where a size needs it. */
#include "tool.h"

#include <stdlib.h>
#include <zlib.h>

static uint64_t le(const uint8_t *p, int n)
{
	uint64_t v = 0;
	for (int i = n - 1; i >= 0; i--)
		v = v << 8 | p[i];
	return v;
}

static void put(struct str *s, uint64_t v, int n)
{
	for (int i = 0; i < n; i++, v >>= 8)
		str_addn(s, (char[]){(char)v}, 1);
}

/* The value of 'key': in the header's dict, or NULL. */
static const char *field(const char *head, const char *key)
{
	const char *p = strstr(head, key);
	if (!p)
		return NULL;
	p += strlen(key);
	return p + strspn(p, "': ");
}

/* Reverse the order of dimensions: numpy writes transposed arrays column-major. */
static void to_row_major(struct npy *a)
{
	char *out = mem_alloc(a->bytes);
	int64_t n = a->item ? (int64_t)(a->bytes / (size_t)a->item) : 0, at[32] = {0};
	for (int64_t i = 0; i < n; i++) {
		int64_t src = 0;
		for (int d = a->rank - 1; d >= 0; d--)
			src = src * a->dim[d] + at[d];
		memcpy(out + i * a->item, (char *)a->p + src * a->item, (size_t)a->item);
		for (int d = a->rank - 1; d >= 0 && ++at[d] == a->dim[d]; d--)
			at[d] = 0;
	}
	free(a->p);
	a->p = out;
}

/* data of n bytes, taken: becomes the array's elements. */
static struct err *npy_parse(struct npy *a, char *data, size_t n)
{
	const uint8_t *u = (const uint8_t *)data;
	a->p = data;
	if (n < 10 || memcmp(data, "\x93NUMPY", 6) != 0)
		return ERR(INVALID, "no .npy header");
	size_t at = u[6] == 1 ? 10 : 12, len = (size_t)le(u + 8, u[6] == 1 ? 2 : 4);
	if (n < at || len > n - at)
		return ERR(DATA_LOSS, "the .npy header is cut");
	char *head = mem_alloc(len + 1);
	memcpy(head, data + at, len);
	struct err *e = NULL;
	const char *descr = field(head, "'descr'"), *order = field(head, "'fortran_order'"), *shape = field(head, "'shape'");
	int64_t count = 1;
	bool fortran = order && *order == 'T';
	if (!descr || !order || !shape || *shape != '(' || !strchr("<|=>", *descr) || !strchr("biufcV", descr[1])) {
		e = ERR(UNIMPLEMENTED, "the .npy header '%.80s' describes no plain array", head);
		goto out;
	}
	a->kind = descr[1];
	a->item = atoi(descr + 2);
	if (*descr == '>' || a->item < 1 || a->item > 16) {
		e = ERR(UNIMPLEMENTED, "elements of type '%.6s'", descr);
		goto out;
	}
	for (const char *p = shape + 1; *p && *p != ')';) {
		char *end;
		long long d = strtoll(p, &end, 10);
		if (end == p || d < 0 || a->rank == 32 || __builtin_mul_overflow(count, (int64_t)d, &count)) {
			e = ERR(INVALID, "the shape '%.40s'", shape);
			goto out;
		}
		a->dim[a->rank++] = d;
		p = end + strspn(end, ", ");
	}
	size_t bytes;
	if (__builtin_mul_overflow((size_t)count, (size_t)a->item, &bytes) || bytes > n - at - len) {
		e = ERR(DATA_LOSS, "%zu bytes for a shape that needs more", n - at - len);
		goto out;
	}
	a->bytes = bytes;
	memmove(data, data + at + len, bytes);
	if (fortran && a->rank > 1)
		to_row_major(a);
out:
	free(head);
	return e;
}

static struct err *inflate_to(const uint8_t *in, size_t nin, char *out, size_t nout)
{
	z_stream z = {.next_in = (Bytef *)in, .avail_in = (uInt)MIN(nin, UINT32_MAX), .next_out = (Bytef *)out};
	if (inflateInit2(&z, -15) != Z_OK)
		return ERR(INTERNAL, "zlib does not start");
	int rc = Z_OK;
	size_t done = 0;
	while (rc == Z_OK && done < nout) {
		z.avail_out = (uInt)MIN(nout - done, 1u << 30);
		uInt room = z.avail_out;
		rc = inflate(&z, Z_NO_FLUSH);
		done += room - z.avail_out;
		if (room == z.avail_out)
			break;
	}
	inflateEnd(&z);
	return done == nout ? NULL : ERR(DATA_LOSS, "its compressed data is broken");
}

/* The member whose central directory entry starts at d (46 bytes and more, inside the file). */
static struct err *member(const uint8_t *f, size_t n, const uint8_t *d, struct npy *a)
{
	unsigned method = (unsigned)le(d + 10, 2), nname = (unsigned)le(d + 28, 2), nextra = (unsigned)le(d + 30, 2);
	uint64_t crc = le(d + 16, 4), packed = le(d + 20, 4), size = le(d + 24, 4), local = le(d + 42, 4);
	const uint8_t *x = d + 46 + nname, *xend = x + nextra;
	while (xend - x >= 4) {
		uint64_t id = le(x, 2), len = le(x + 2, 2);
		const uint8_t *v = x + 4;
		if (len > (uint64_t)(xend - v))
			break;
		x = v + len;
		if (id != 1)
			continue;
		uint64_t *want[] = {&size, &packed, &local};
		for (int i = 0; i < 3; i++)
			if (*want[i] == 0xffffffff && x - v >= 8) {
				*want[i] = le(v, 8);
				v += 8;
			}
	}
	if (local > n || n - local < 30 || le(f + local, 4) != 0x04034b50)
		return ERR(DATA_LOSS, "its data is not where the directory says");
	uint64_t at = local + 30 + le(f + local + 26, 2) + le(f + local + 28, 2);
	if (at > n || packed > n - at || size > ((uint64_t)1 << 40) || (method == 0 && size != packed) || (method == 8 && size > packed * 1100 + 1024))
		return ERR(DATA_LOSS, "its size is impossible");
	if (method != 0 && method != 8)
		return ERR(UNIMPLEMENTED, "compression method %u", method);
	char *data = mem_alloc(size + 1);
	struct err *e = NULL;
	if (method == 0)
		memcpy(data, f + at, size);
	else
		e = inflate_to(f + at, packed, data, size);
	if (!e && crc32_z(0, (Bytef *)data, size) != crc)
		e = ERR(DATA_LOSS, "its checksum differs");
	if (e) {
		free(data);
		return e;
	}
	return npy_parse(a, data, size);
}

struct err *npz_read(const char *path, struct npz *out)
{
	struct str s = {0};
	*out = (struct npz){0};
	TRY(str_read_file(&s, path));
	const uint8_t *f = (const uint8_t *)s.p;
	size_t n = s.n, end = n;
	struct err *e = NULL;
	for (size_t i = n < 22 ? 0 : n - 21; i-- > 0 && n - i < 22 + 65536 && end == n;)
		if (le(f + i, 4) == 0x06054b50)
			end = i;
	if (end == n) {
		e = ERR(INVALID, "'%s' is no npz file", path);
	} else {
		uint64_t count = le(f + end + 10, 2), at = le(f + end + 16, 4);
		if (at == 0xffffffff && end >= 20 && le(f + end - 20, 4) == 0x07064b50) {
			uint64_t far = le(f + end - 12, 8);
			if (far <= n && n - far >= 56 && le(f + far, 4) == 0x06064b50)
				count = le(f + far + 32, 8), at = le(f + far + 48, 8);
		}
		for (uint64_t i = 0; i < count && !e; i++) {
			if (at > n || n - at < 46 || le(f + at, 4) != 0x02014b50 || n - at - 46 < le(f + at + 28, 2) + le(f + at + 30, 2) + le(f + at + 32, 2)) {
				e = ERR(DATA_LOSS, "the directory of '%s' is broken", path);
				break;
			}
			size_t len = (size_t)le(f + at + 28, 2);
			struct npy a = {.name = mem_alloc(len + 1)};
			memcpy(a.name, f + at + 46, len);
			if (len > 4 && strcmp(a.name + len - 4, ".npy") == 0)
				a.name[len - 4] = 0;
			e = err_wrap(member(f, n, f + at, &a), "'%s', member '%s'", path, a.name);
			arr_push(&out->a, a);
			at += 46 + len + le(f + at + 30, 2) + le(f + at + 32, 2);
		}
	}
	str_free(&s);
	if (e)
		npz_free(out);
	return e;
}

struct err *npz_write(const char *path, const struct npz *z)
{
	struct str f = {0}, dir = {0};
	for (size_t i = 0; i < z->a.n; i++) {
		const struct npy *a = &z->a.p[i];
		struct str m = {0}, head = {0};
		str_addf(&head, "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (", a->item == 1 ? '|' : '<', a->kind, a->item);
		for (int d = 0; d < a->rank; d++)
			str_addf(&head, "%ld,%s", (long)a->dim[d], d + 1 < a->rank ? " " : "");
		str_add(&head, "), }");
		while ((10 + head.n + 1) % 64)
			str_add(&head, " ");
		str_add(&head, "\n");
		str_addn(&m, "\x93NUMPY\x01\x00", 8);
		put(&m, head.n, 2);
		str_addn(&m, head.p, head.n);
		str_addn(&m, a->p, a->bytes);
		uint64_t crc = crc32_z(0, (Bytef *)m.p, m.n), at = f.n;
		if (m.n >= 0xffffffff || at >= 0xffffffff) {
			str_free(&m), str_free(&head), str_free(&f), str_free(&dir);
			return ERR(UNIMPLEMENTED, "'%s' would need more than 4 GB", path);
		}
		struct str *side[] = {&f, &dir};
		for (int k = 0; k < 2; k++) {
			struct str *s = side[k];
			put(s, k ? 0x02014b50 : 0x04034b50, 4);
			if (k)
				put(s, 20, 2);
			put(s, 20, 2);          /* version */
			put(s, 0, 2);           /* flags */
			put(s, 0, 2);           /* stored */
			put(s, 0x00210000, 4);  /* 1980-01-01 */
			put(s, crc, 4);
			put(s, m.n, 4);
			put(s, m.n, 4);
			put(s, strlen(a->name) + 4, 2);
			put(s, 0, 2);
			if (k) {
				put(s, 0, 2 + 2 + 2 + 4);
				put(s, at, 4);
			}
			str_addf(s, "%s.npy", a->name);
		}
		str_addn(&f, m.p, m.n);
		str_free(&m);
		str_free(&head);
	}
	uint64_t at = f.n;
	str_addn(&f, dir.p ? dir.p : "", dir.n);
	put(&f, 0x06054b50, 4);
	put(&f, 0, 4);
	put(&f, z->a.n, 2);
	put(&f, z->a.n, 2);
	put(&f, dir.n, 4);
	put(&f, at, 4);
	put(&f, 0, 2);
	struct err *e = str_write_file(path, f.p, f.n);
	str_free(&f);
	str_free(&dir);
	return e;
}

void npz_free(struct npz *z)
{
	for (size_t i = 0; i < z->a.n; i++) {
		free(z->a.p[i].name);
		free(z->a.p[i].p);
	}
	arr_free(&z->a);
}

const struct npy *npz_get(const struct npz *z, const char *name)
{
	for (size_t i = 0; i < z->a.n; i++)
		if (strcmp(z->a.p[i].name, name) == 0)
			return &z->a.p[i];
	return NULL;
}

void npz_add(struct npz *z, const char *name, enum dtype dt, int rank, const int64_t *dim, const void *p, size_t n)
{
	/* What numpy has no name for travels as its bits. */
	static const char kinds[] = {[DT_PRED] = 'b', [DT_INT] = 'i', [DT_UINT] = 'u', [DT_FLOAT] = 'f', [DT_COMPLEX] = 'c'};
	bool bits = (dtype_info[dt].cls == DT_FLOAT && dt != DT_f16 && dt != DT_f32 && dt != DT_f64) || (dtype_info[dt].bits < 8 && dt != DT_pred);
	struct npy a = {.name = mem_alloc(strlen(name) + 1), .kind = bits ? 'u' : kinds[dtype_info[dt].cls], .item = dtype_info[dt].bytes,
	                .rank = rank, .p = mem_alloc(n), .bytes = n};
	memcpy(a.name, name, strlen(name));
	for (int d = 0; d < rank; d++)
		a.dim[d] = dim[d];
	if (n)
		memcpy(a.p, p, n);
	arr_push(&z->a, a);
}
