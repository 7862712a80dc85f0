/*
 * Serves a folder as a FUSE file system with minimal work of its own. What remains is needed by every server: the time of
 * the kernel, of waking processes, and of copying.
 *
 *     floor FOLDER MOUNTPOINT      mounts, daemonizes, and ends when it is unmounted; needs root
 *
 * Names and attributes are read before it mounts, so the folder must not change afterwards. It uses the kernel's protocol
 * without a library, and requests the same features as glassfs: no OPEN and no OPENDIR, attributes with every listing,
 * reads and read-ahead of up to 1 MiB, and caching for as long as the mount lasts.
 *
 * It has one thread. The kernel wakes several in turn, on whichever processor they sleep: two threads took 1.5 times as
 * long for random images, and were no faster for eight readers.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fuse.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096
#define LONGEST_READ (1 << 20)
#define LONGEST_REQUEST (64 << 10) /* the kernel wants room for 8 KiB at least, and for the longest write */
#define READ_AHEAD_KIB 1024
#define MAX_BACKGROUND 4096
#define DAY 86400 /* seconds */
#define MINOR 31  /* of the protocol: the first that has all that is asked for here */
#define ASKED_FOR (FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS | FUSE_DO_READDIRPLUS | FUSE_MAX_PAGES \
                   | FUSE_NO_OPEN_SUPPORT | FUSE_NO_OPENDIR_SUPPORT)
#define MOST_OPEN 512
#define NONE (-1)
#define OWN_ENTRIES 2 /* "." and "..", in front of the children */

/* A file or directory. Its place in `nodes` is its node id. */
struct node {
    const char *name;
    uint64_t size;
    struct timespec mtime;
    mode_t mode;
    uint32_t parent;
    uint32_t first, count; /* its children, which stand side by side */
    int descriptor;        /* NONE while the file is not open */
};

static struct node *nodes;
static uint32_t used = FUSE_ROOT_ID, room;

/* Node ids by parent and name, with open addressing; 0 where there is none. */
static uint32_t *table, mask;

static int folder, device;
static const char *mountpoint;

/* Request and reply, aligned to pages, as the kernel copies unaligned buffers slowly. */
static char request[LONGEST_REQUEST] __attribute__((aligned(PAGE)));
static char payload[LONGEST_READ] __attribute__((aligned(PAGE)));

static void *sure(void *memory)
{
    if (memory == NULL)
        err(1, "memory");
    return memory;
}

static void add(uint32_t parent, const char *name, int directory)
{
    struct stat found;

    if (fstatat(directory, name, &found, AT_SYMLINK_NOFOLLOW) != 0)
        err(1, "%s", name);
    if (!S_ISDIR(found.st_mode) && !S_ISREG(found.st_mode))
        errx(1, "%s: neither a file nor a directory", name);
    if (used >= room) {
        room = room ? 2 * room : 1024;
        nodes = sure(realloc(nodes, room * sizeof *nodes));
    }
    nodes[used++] = (struct node){
        .name = sure(strdup(name)), .size = found.st_size, .mtime = found.st_mtim, .mode = found.st_mode,
        .parent = parent, .descriptor = NONE,
    };
}

/* Opens what the node stands for. */
static int open_node(uint32_t id, int flags)
{
    static char path[PATH_MAX];
    char *start = path + sizeof path - 1; /* built from its end */

    for (; id != FUSE_ROOT_ID; id = nodes[id].parent) {
        size_t length = strlen(nodes[id].name);
        if (start - path < (ptrdiff_t)length + 2) {
            errno = ENAMETOOLONG;
            return NONE;
        }
        start -= length;
        memcpy(start, nodes[id].name, length);
        *--start = '/';
    }
    *--start = '.';
    return openat(folder, start, flags | O_RDONLY | O_CLOEXEC);
}

static uint32_t hash(uint32_t parent, const char *name)
{
    uint32_t value = 2166136261u ^ parent * 2654435761u; /* FNV-1a, the parents spread */

    while (*name)
        value = (value ^ (unsigned char)*name++) * 16777619u;
    return value ^ value >> 15;
}

/* Where in the table the name stands, or where it would. */
static uint32_t place_of(uint32_t parent, const char *name)
{
    uint32_t at = hash(parent, name) & mask;

    while (table[at] && (nodes[table[at]].parent != parent || strcmp(nodes[table[at]].name, name) != 0))
        at = (at + 1) & mask;
    return at;
}

static int by_name(const void *one, const void *other)
{
    return strcmp(((const struct node *)one)->name, ((const struct node *)other)->name);
}

/* Reads the tree directory by directory, so that the children of each stand side by side; by name, as the peers do. */
static void read_tree(void)
{
    add(FUSE_ROOT_ID, ".", folder);
    for (uint32_t id = FUSE_ROOT_ID; id < used; id++) {
        if (!S_ISDIR(nodes[id].mode))
            continue;
        int descriptor = open_node(id, O_DIRECTORY);
        DIR *directory = descriptor == NONE ? NULL : fdopendir(descriptor);
        if (directory == NULL)
            err(1, "%s", nodes[id].name);
        uint32_t first = used;
        for (struct dirent *found; (found = readdir(directory)) != NULL;)
            if (strcmp(found->d_name, ".") != 0 && strcmp(found->d_name, "..") != 0)
                add(id, found->d_name, descriptor);
        qsort(&nodes[first], used - first, sizeof *nodes, by_name);
        nodes[id].first = first;
        nodes[id].count = used - first;
        closedir(directory);
    }
    for (mask = 1; mask < 2 * used; mask = 2 * mask + 1)
        ;
    table = sure(calloc((size_t)mask + 1, sizeof *table));
    for (uint32_t id = FUSE_ROOT_ID + 1; id < used; id++)
        table[place_of(nodes[id].parent, nodes[id].name)] = id;
}

static struct fuse_attr attributes(uint32_t id)
{
    const struct node *node = &nodes[id];

    return (struct fuse_attr){
        .ino = id, .size = node->size, .blocks = (node->size + 511) / 512, .mode = node->mode,
        .nlink = S_ISDIR(node->mode) ? 2 : 1, .blksize = PAGE,
        .atime = node->mtime.tv_sec, .mtime = node->mtime.tv_sec, .ctime = node->mtime.tv_sec,
        .atimensec = node->mtime.tv_nsec, .mtimensec = node->mtime.tv_nsec, .ctimensec = node->mtime.tv_nsec,
    };
}

static struct fuse_entry_out entry(uint32_t id)
{
    return (struct fuse_entry_out){.nodeid = id, .entry_valid = DAY, .attr_valid = DAY, .attr = attributes(id)};
}

/* The descriptor of a file. The one that was opened MOST_OPEN files ago is closed for it. */
static int opened(uint32_t id)
{
    static uint32_t open_ones[MOST_OPEN], next; /* 0 is no node, and never open */
    uint32_t *oldest = &open_ones[next];

    if (nodes[id].descriptor != NONE)
        return nodes[id].descriptor;
    nodes[id].descriptor = open_node(id, O_NOATIME);
    if (nodes[id].descriptor != NONE) {
        if (*oldest != 0) {
            close(nodes[*oldest].descriptor);
            nodes[*oldest].descriptor = NONE;
        }
        *oldest = id;
        next = (next + 1) % MOST_OPEN;
    }
    return nodes[id].descriptor;
}

/* The functions below answer into `payload`, and give its length or an errno, negative. */

static int agree(const struct fuse_init_in *asked)
{
    *(struct fuse_init_out *)payload = (struct fuse_init_out){
        .major = FUSE_KERNEL_VERSION, .minor = MINOR, .flags = asked->flags & ASKED_FOR,
        .max_readahead = asked->max_readahead, .max_background = MAX_BACKGROUND,
        .congestion_threshold = MAX_BACKGROUND * 3 / 4, .max_write = PAGE, .max_pages = LONGEST_READ / PAGE,
        .time_gran = 1,
    };
    return sizeof(struct fuse_init_out);
}

static int look_up(uint32_t parent, const char *name)
{
    uint32_t id = table[place_of(parent, name)];

    if (id == 0)
        return -ENOENT;
    *(struct fuse_entry_out *)payload = entry(id);
    return sizeof(struct fuse_entry_out);
}

static int get_attributes(uint32_t id)
{
    *(struct fuse_attr_out *)payload = (struct fuse_attr_out){.attr_valid = DAY, .attr = attributes(id)};
    return sizeof(struct fuse_attr_out);
}

static size_t wanted(const struct fuse_read_in *asked)
{
    return asked->size < LONGEST_READ ? asked->size : LONGEST_READ;
}

static int list(uint32_t id, const struct fuse_read_in *asked)
{
    size_t filled = 0;

    for (uint64_t at = asked->offset; at < nodes[id].count + (uint64_t)OWN_ENTRIES; at++) {
        bool is_own = at < OWN_ENTRIES;
        uint32_t child = is_own ? id : nodes[id].first + (uint32_t)(at - OWN_ENTRIES);
        const char *name = !is_own ? nodes[child].name : at == 0 ? "." : "..";
        size_t length = strlen(name), size = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET_DIRENTPLUS + length);
        struct fuse_direntplus *found = (struct fuse_direntplus *)(payload + filled);

        if (filled + size > wanted(asked))
            break;
        /* The kernel takes nothing of "." and ".." but the name. */
        found->entry_out = is_own ? (struct fuse_entry_out){.nodeid = 0} : entry(child);
        found->dirent = (struct fuse_dirent){
            .ino = child, .off = at + 1, .namelen = length, .type = nodes[child].mode >> 12,
        };
        memcpy(found->dirent.name, name, length);
        memset(found->dirent.name + length, 0, size - FUSE_NAME_OFFSET_DIRENTPLUS - length);
        filled += size;
    }
    return filled;
}

static int read_file(uint32_t id, const struct fuse_read_in *asked)
{
    int descriptor = opened(id);
    ssize_t count = descriptor == NONE ? -1 : pread(descriptor, payload, wanted(asked), asked->offset);

    return count < 0 ? -errno : count;
}

static int get_usage(void)
{
    *(struct fuse_statfs_out *)payload = (struct fuse_statfs_out){
        .st = {.files = used, .bsize = PAGE, .frsize = PAGE, .namelen = NAME_MAX},
    };
    return sizeof(struct fuse_statfs_out);
}

static int answer(const struct fuse_in_header *asked, const void *more)
{
    switch (asked->opcode) {
    case FUSE_INIT: return agree(more);
    case FUSE_LOOKUP: return look_up(asked->nodeid, more);
    case FUSE_GETATTR: return get_attributes(asked->nodeid);
    case FUSE_READDIRPLUS: return list(asked->nodeid, more);
    case FUSE_READ: return read_file(asked->nodeid, more);
    case FUSE_STATFS: return get_usage();
    case FUSE_GETXATTR: return -EOPNOTSUPP; /* ls asks once then; after ENOSYS it would ask the kernel for each file */
    default: return -ENOSYS; /* of OPEN, OPENDIR and most others the kernel asks only once then */
    }
}

/* Sets the read-ahead of the mount, which is 128 KiB unless it is raised here. */
static void raise_read_ahead(void)
{
    struct statx found;
    char path[64];

    /* Without asking the file system: that would be asking ourselves. */
    if (statx(AT_FDCWD, mountpoint, AT_STATX_DONT_SYNC, 0, &found) != 0)
        return;
    snprintf(path, sizeof path, "/sys/class/bdi/%u:%u/read_ahead_kb", found.stx_dev_major, found.stx_dev_minor);
    FILE *file = fopen(path, "w");
    if (file != NULL) {
        fprintf(file, "%d\n", READ_AHEAD_KIB);
        fclose(file);
    }
}

static void serve(void)
{
    const struct fuse_in_header *asked = (struct fuse_in_header *)request;

    for (;;) {
        if (read(device, request, sizeof request) < 0) {
            if (errno == EINTR || errno == EAGAIN || errno == ENOENT) /* the last: given up before it was read */
                continue;
            return; /* ENODEV: unmounted */
        }
        if (asked->opcode == FUSE_FORGET || asked->opcode == FUSE_BATCH_FORGET || asked->opcode == FUSE_INTERRUPT)
            continue; /* they want no answer, and no node ever goes */
        int length = answer(asked, asked + 1);
        struct fuse_out_header head = {.unique = asked->unique, .error = length < 0 ? length : 0};
        struct iovec parts[] = {{&head, sizeof head}, {payload, length < 0 ? 0 : length}};
        head.len = parts[0].iov_len + parts[1].iov_len;
        if (writev(device, parts, 2) < 0 && errno != ENOENT)
            return;
        if (asked->opcode == FUSE_INIT)
            raise_read_ahead(); /* the kernel sets its own when it hears the answer */
    }
}

int main(int count, char **words)
{
    char options[128];

    if (count != 3)
        errx(2, "usage: floor FOLDER MOUNTPOINT");
    mountpoint = words[2];
    folder = open(words[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        err(1, "%s", words[1]);
    read_tree();
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0)
        err(1, "/dev/fuse");
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions", device);
    if (mount("floor", mountpoint, "fuse.floor", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, options) != 0)
        err(1, "%s", mountpoint);
    if (daemon(1, 0) != 0) { /* in the folder where it was started, from which the paths may go */
        umount2(mountpoint, MNT_DETACH);
        err(1, "daemon");
    }
    serve();
    return 0;
}
