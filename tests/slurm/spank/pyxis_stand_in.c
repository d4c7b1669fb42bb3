/*
 * A stand-in for pyxis on the test cluster. It is not pyxis and contains none of it.
 *
 * It takes pyxis' options, records them, fails in pyxis' words, and runs each task in a root of its own: a read-only
 * view of the host (overlayfs) with the mounts that were asked for. The words and their order are those of pyxis 0.24
 * with enroot 4.1 under Slurm 22.05; where they were not seen, a comment says "unconfirmed".
 *
 * What it does not do: read squashfs, ask a registry, keep named containers, save a container, run an entrypoint,
 * remap users, unshare more than mounts. An image is a text file whose lines NAME=value are the image's variables.
 * The host's programs and files are there in every image. /tmp and the job's working folder are the host's own, so
 * that a mount target that is made there is made on the host. Tasks do not share what they write elsewhere.
 *
 * Arguments in plugstack.conf:
 *   record=FOLDER        each containerised step, and batch script, adds a line of JSON to FOLDER/NODE.jsonl
 *   runtime_path=FOLDER  an empty folder of the host, on which the tasks' roots are mounted
 *   version=0.N          that pyxis' options, PYXIS_* variables and check of mount sources (0.24)
 *   sbatch_support=0     sbatch and salloc do not know the options (1)
 *   broken_node=NODE     on this node no image can be read
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1)

#define UNUSED __attribute__((unused))
#define MOST 256 /* mounts, and variables of an image */

/* X(symbol, N of the first pyxis 0.N that has it, name, its argument or NULL for a switch, help) */
// clang-format off
#define ALL_OPTIONS \
    X(IMAGE, 1, "container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "name in a registry or path on the node") \
    X(MOUNTS, 1, "container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "bind mounts; flags are divided by +") \
    X(WORKDIR, 1, "container-workdir", "PATH", "working directory inside the container") \
    X(NAME, 1, "container-name", "NAME", "recorded; nothing is kept under it") \
    X(SAVE, 7, "container-save", "PATH", "recorded only") \
    X(HOME, 3, "container-mount-home", NULL, "bind mount the home directory") \
    X(NO_HOME, 3, "no-container-mount-home", NULL, "do not mount the home directory") \
    X(REMAP, 4, "container-remap-root", NULL, "recorded only") \
    X(NO_REMAP, 4, "no-container-remap-root", NULL, "recorded only") \
    X(ENTRYPOINT, 8, "container-entrypoint", NULL, "recorded only") \
    X(NO_ENTRYPOINT, 8, "no-container-entrypoint", NULL, "recorded only") \
    X(ENTRYPOINT_LOG, 20, "container-entrypoint-log", NULL, "recorded only") \
    X(WRITABLE, 11, "container-writable", NULL, "the container can be written to") \
    X(READONLY, 11, "container-readonly", NULL, "the container cannot be written to, as by default") \
    X(ENV, 15, "container-env", "NAME[,NAME...]", "variables that the image must not change") \
    X(UNSHARE, 24, "container-unshare", "NS[,NS...]", "recorded only: net, ipc, uts")
// clang-format on

#define X(symbol, since, name, argument, help) symbol,
enum { ALL_OPTIONS OPTIONS };
#undef X
#define X(symbol, since, name, argument, help) {since, name, argument, "[pyxis] (stand-in) " help},
static const struct {
    unsigned since;
    char *name, *argument, *usage;
} known[] = {ALL_OPTIONS};
#undef X

/* Switches that exclude each other, in the order of the message. */
static const int opposites[][2] = {
    {HOME, NO_HOME}, {REMAP, NO_REMAP}, {ENTRYPOINT, NO_ENTRYPOINT}, {WRITABLE, READONLY}};

struct mount {
    char *source, *target, *flags;
    int source_fd;
};

static unsigned version = 24;
static bool sbatch_support = true;
static const char *record_folder, *runtime_path = "/run/pyxis", *broken_node = "";
static char *given[OPTIONS]; /* what was said; "" for a switch */
static struct mount mounts[MOST];
static int mount_count;

/* Like all that is allocated here, the result lives as long as the process. */
__attribute__((format(printf, 1, 2))) static char *text(const char *format, ...)
{
    char *result;
    va_list values;
    va_start(values, format);
    if (vasprintf(&result, format, values) < 0)
        abort();
    va_end(values);
    return result;
}

static bool is_path(const char *value) { return value[0] == '/' || value[0] == '.'; }

/* Whether one of the words of a list is this word. */
static bool lists(const char *list, const char *separator, const char *word)
{
    char *rest = list ? strdup(list) : NULL, *next;
    while ((next = strsep(&rest, separator)))
        if (!strcmp(next, word))
            return true;
    return false;
}

/* ---- options ---------------------------------------------------------------------------------------------------- */

static int add_mount(const char *entry)
{
    char *rest = strdup(entry), *source = strsep(&rest, ":"), *target = strsep(&rest, ":");
    if (!target)
        target = source;
    if (!*source || !*target || mount_count == MOST) { /* what pyxis says this of: unconfirmed */
        slurm_error("pyxis: --container-mounts: invalid format: %s", entry);
        return -1;
    }
    if (!is_path(source) && strcmp(source, "tmpfs") && strcmp(source, "umount"))
        slurm_error("pyxis: mount source must be a relative path, an absolute path, \"tmpfs\" or \"umount\"");
    else if (!is_path(target))
        slurm_error("pyxis: mount target must be a relative path or an absolute path");
    else {
        if (!lists(given[MOUNTS], ",", entry)) { /* Slurm may bring the same option twice: see take_option */
            given[MOUNTS] = given[MOUNTS] ? text("%s,%s", given[MOUNTS], entry) : strdup(entry);
            mounts[mount_count++] = (struct mount){source, target, rest, -1};
        }
        return 0;
    }
    slurm_error("pyxis: could not add mount entry: %s:%s", source, target);
    return -1;
}

static int check_namespace(const char *word)
{
    if (lists("net,ipc,uts", ",", word))
        return 0;
    slurm_error("pyxis: --container-unshare: unknown namespace '%s'", word);
    return -1;
}

static int for_each(const char *list, int (*take)(const char *))
{
    char *rest = strdup(list), *word;
    while ((word = strsep(&rest, ",")))
        if (take(word))
            return -1;
    return 0;
}

static int take_switch(int option)
{
    given[option] = "";
    for (int i = 0; i < 4; i++) {
        int yes = opposites[i][0], no = opposites[i][1];
        if (!given[yes] || !given[no])
            continue;
        slurm_error("pyxis: both --%s and --%s were specified", known[yes].name, known[no].name);
        return -1;
    }
    return 0;
}

/*
 * Slurm calls this for each option of the command. On a node it calls it once for each with its last value alone, and
 * again for what the job was submitted with, be it by sbatch, salloc or the same srun.
 */
static int take_option(int option, const char *value, int remote UNUSED)
{
    if (!known[option].argument)
        return take_switch(option);
    if (!value || !*value) {
        slurm_error("pyxis: --%s: argument required", known[option].name);
        return -1;
    }
    if (option == MOUNTS)
        return for_each(value, add_mount);
    if (given[option] && strcmp(given[option], value)) { /* more of the message than these words: unconfirmed */
        slurm_error("pyxis: --%s specified multiple times", known[option].name);
        return -1;
    }
    given[option] = strdup(value);
    return option == UNSHARE ? for_each(value, check_namespace) : 0;
}

int slurm_spank_init(spank_t sp, int ac, char **av)
{
    for (int i = 0; i < ac; i++) {
        sscanf(av[i], "version=0.%u", &version);
        if (!strncmp(av[i], "record=", 7))
            record_folder = av[i] + 7;
        else if (!strncmp(av[i], "runtime_path=", 13))
            runtime_path = av[i] + 13;
        else if (!strncmp(av[i], "broken_node=", 12))
            broken_node = av[i] + 12;
        else if (!strcmp(av[i], "sbatch_support=0"))
            sbatch_support = false;
    }
    spank_context_t here = spank_context();
    if (here != S_CTX_LOCAL && here != S_CTX_REMOTE && !(here == S_CTX_ALLOCATOR && sbatch_support))
        return 0;
    for (int i = 0; i < OPTIONS; i++) {
        struct spank_option option = {.name = known[i].name, .arginfo = known[i].argument, .usage = known[i].usage};
        option.has_arg = known[i].argument != NULL;
        option.val = i;
        option.cb = take_option;
        if (known[i].since <= version && spank_option_register(sp, &option) != ESPANK_SUCCESS)
            return -1;
    }
    return 0;
}

/* PYXIS_CONTAINER_... for options that were not given. Not read: switches, whose spelling there is unconfirmed. */
static int take_defaults(spank_t sp)
{
    for (int i = 0; i < OPTIONS && version >= 21; i++) {
        char value[8192];
        if (given[i] || !known[i].argument || known[i].since > version)
            continue;
        char *variable = text("PYXIS_%s", known[i].name);
        for (char *c = variable; *c; c++)
            *c = *c == '-' ? '_' : toupper(*c);
        const char *found = getenv(variable); /* srun's own; slurmstepd has the job's beside its own */
        if (spank_remote(sp))
            found = spank_getenv(sp, variable, value, sizeof(value)) == ESPANK_SUCCESS ? value : NULL;
        if (found && *found && take_option(i, found, 0))
            return -1;
    }
    return 0;
}

/* ---- on the node: what goes wrong, in pyxis' words -------------------------------------------------------------- */

static bool contained;        /* this step has an image */
static bool failed;           /* its setup went wrong, which pyxis tells the tasks only in task_init */
static bool batch;            /* a batch script that was given an image: recorded only */
static char *variables[MOST]; /* the image's, NAME=value */
static int variable_count;

int slurm_spank_init_post_opt(spank_t sp, int ac UNUSED, char **av UNUSED)
{
    spank_context_t here = spank_context();
    if (here != S_CTX_LOCAL && here != S_CTX_REMOTE && !(here == S_CTX_ALLOCATOR && sbatch_support))
        return 0;
    if (take_defaults(sp))
        return -1;
    bool asked = given[IMAGE] || given[NAME];
    for (int i = 0; i < OPTIONS && !asked && here != S_CTX_REMOTE; i++)
        if (given[i])
            slurm_error("pyxis: ignoring --%s because neither --container-image nor --container-name is set",
                        known[i].name);
    uint32_t step = NO_VAL;
    if (asked && here == S_CTX_REMOTE)
        spank_get_item(sp, S_JOB_STEPID, &step);
    contained = step <= SLURM_MAX_NORMAL_STEP_ID;
    batch = step == SLURM_BATCH_SCRIPT && sbatch_support;
    return 0;
}

static int show_log(char *log)
{
    slurm_error("pyxis: printing enroot log file:");
    for (char *line; (line = strsep(&log, "\n"));)
        slurm_error("pyxis:     %s", line);
    return -1;
}

static int no_import(spank_t sp, const char *image)
{
    uint32_t tasks = 0;
    spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &tasks);
    if (tasks <= 1)
        slurm_spank_log("pyxis: importing docker image: %s", image);
    const char *scheme = strstr(image, "://");
    char *rest = strdup(scheme ? scheme + 3 : image), *host = strsep(&rest, "#"), *user = strchr(host, '@');
    host = !rest ? "registry.example" : user ? user + 1 : host;
    slurm_error("pyxis: child %d failed with error code: 6", (int)getpid());
    slurm_error("pyxis: failed to import docker image: %s", image);
    return show_log(text("[INFO] Querying registry for permission grant\ncurl: (6) Could not resolve host: %s", host));
}

static int no_filesystem(const char *image, const char *why, const char *path)
{
    slurm_error("pyxis: child %d failed with error code: 1", (int)getpid());
    slurm_error("pyxis: failed to create container filesystem for image: %s", image);
    return show_log(text("[ERROR] %s: %s", why, path));
}

/* By the step's list of nodes, as Slurm does not name this node before its tasks begin. */
static bool is_broken_node(spank_t sp)
{
    uint32_t node = 0;
    char list[8192];
    if (!*broken_node || spank_get_item(sp, S_JOB_NODEID, &node) != ESPANK_SUCCESS ||
        spank_getenv(sp, "SLURM_STEP_NODELIST", list, sizeof(list)) != ESPANK_SUCCESS)
        return false;
    hostlist_t nodes = slurm_hostlist_create(list);
    int found = slurm_hostlist_find(nodes, broken_node);
    slurm_hostlist_destroy(nodes);
    return found == (int)node;
}

static int read_image(spank_t sp, const char *image)
{
    const char *path = image, *relative = strncmp(image, "./", 2) ? image : image + 2;
    if (*image != '/')
        path = text("%s/%s", getcwd(NULL, 0), relative);
    struct stat found;
    if (stat(path, &found) || !S_ISREG(found.st_mode))
        return no_filesystem(image, "No such file or directory", path);
    FILE *file = fopen(path, "re");
    bool good = file != NULL && !is_broken_node(sp); /* what pyxis says of a file that may not be read: unconfirmed */
    char *line = NULL;
    for (size_t size = 0; good && getline(&line, &size, file) > 0;) {
        line[strcspn(line, "\n")] = 0;
        good = (!*line || strchr(line, '=') > line) && variable_count < MOST;
        if (good && *line)
            variables[variable_count++] = strdup(line);
    }
    if (file)
        fclose(file);
    return good ? 0 : no_filesystem(image, "Invalid image format", path);
}

static int check_sources(void)
{
    struct stat found;
    for (int i = 0; i < mount_count && version >= 24; i++) {
        if (!is_path(mounts[i].source) || !stat(mounts[i].source, &found))
            continue;
        slurm_error("pyxis: --container-mounts: source path does not exist: %s", mounts[i].source);
        slurm_error("pyxis: couldn't create enroot start configuration script");
        show_log(strdup("[INFO] Extracting squashfs filesystem..."));
        slurm_error("pyxis: container was not started successfully by another task");
        return -1;
    }
    return 0;
}

static int no_container(spank_t sp, const char *name)
{
    uint32_t job = 0;
    spank_get_item(sp, S_JOB_ID, &job);
    char *full = text("pyxis_%u_%.*s", job, (int)strcspn(name, ":"), name);
    slurm_error("pyxis: error: a container with name \"%s\" does not exist, and --container-image is not set", full);
    return -1;
}

/* Once per node, as the user. */
int slurm_spank_user_init(spank_t sp, int ac UNUSED, char **av UNUSED)
{
    const char *image = given[IMAGE];
    if (contained && !image)
        failed = no_container(sp, given[NAME]);
    else if (contained)
        failed = is_path(image) ? read_image(sp, image) || check_sources() : no_import(sp, image);
    return 0;
}

/* ---- on the node: the root of one task -------------------------------------------------------------------------- */

static int record_fd = -1;

static int cannot(const char *source, const char *target)
{
    char *log = text("enroot-mount: failed to mount: %s at %s/%s: %m", source, runtime_path, target + (*target == '/'));
    slurm_error("pyxis: container start failed with error code: 1");
    show_log(log);
    slurm_error("pyxis: couldn't start container");
    return -1;
}

/* Makes the target, and the folders above it, where there is none; whether it then is there. */
static bool make_target(char *path, bool folder)
{
    for (char *slash = path + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0755);
    }
    return !access(path, F_OK) || (folder ? !mkdir(path, 0755) : !mknod(path, S_IFREG | 0644, 0));
}

static int apply(const struct mount *entry)
{
    const char *source = entry->source, *target = entry->target;
    struct stat found = {.st_mode = S_IFDIR};
    if (entry->source_fd >= 0)
        fstat(entry->source_fd, &found);
    bool done;
    if (!strcmp(source, "umount"))
        done = !umount2(target, MNT_DETACH);
    else if (!make_target(entry->target, S_ISDIR(found.st_mode)))
        done = false;
    else if (!strcmp(source, "tmpfs"))
        done = !mount("tmpfs", target, "tmpfs", 0, NULL);
    else /* the host's paths cannot be named any more, what was opened before still can */
        done = !mount(text("/proc/self/fd/%d", entry->source_fd), target, NULL, MS_BIND | MS_REC, NULL);
    if (done && lists(entry->flags, "+", "ro"))
        done = !mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
    return done ? 0 : cannot(source, target);
}

/* The paths of the host's mounts, each after the one that it lies on. */
static int host_mounts(char *paths[MOST])
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    int count = 0;
    char *line = NULL;
    for (size_t size = 0; file && count < MOST && getline(&line, &size, file) > 0;)
        count += sscanf(line, "%*d %*d %*s %*s %ms", &paths[count]) == 1;
    return count;
}

/* An overlay shows what lies on the host's own root; what is mounted on that is bound path by path. */
static int make_root(void)
{
    char *paths[MOST + 2] = {"/tmp", getcwd(NULL, 0)};
    int count = 2 + host_mounts(paths + 2);
    char *root = text("%s/root", runtime_path), *upper = text("%s/upper", runtime_path);
    char *work = text("%s/work", runtime_path), *layers = text("lowerdir=/,upperdir=%s,workdir=%s", upper, work);
    if (mount("tmpfs", runtime_path, "tmpfs", 0, "mode=755") || mkdir(root, 0755) || mkdir(upper, 0755) ||
        mkdir(work, 0755) || mount("overlay", root, "overlay", 0, layers))
        return cannot("overlay", "/");
    /* No harm where one fails: it was itself mounted over, so that nobody could reach it. */
    for (int i = 0; i < count; i++)
        if (paths[i] && strcmp(paths[i], "/"))
            mount(paths[i], text("%s%s", root, paths[i]), NULL, MS_BIND, NULL);
    return chdir(root) || chroot(".") ? cannot("overlay", "/") : 0;
}

static int enter_root(spank_t sp)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return cannot("overlay", "/");
    char home[PATH_MAX];
    if (given[HOME] && mount_count < MOST && spank_getenv(sp, "HOME", home, sizeof(home)) == ESPANK_SUCCESS)
        mounts[mount_count++] = (struct mount){strdup(home), strdup(home), NULL, -1};
    for (int i = 0; i < mount_count; i++)
        if (is_path(mounts[i].source) && (mounts[i].source_fd = open(mounts[i].source, O_PATH | O_CLOEXEC)) < 0)
            return cannot(mounts[i].source, mounts[i].target);
    if (make_root())
        return -1;
    for (int i = 0; i < mount_count; i++)
        if (apply(&mounts[i]))
            return -1;
    if (!given[WRITABLE] && mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))
        return cannot("overlay", "/");
    return 0;
}

/* In each task, as root. */
int slurm_spank_task_init_privileged(spank_t sp, int ac UNUSED, char **av UNUSED)
{
    if (record_folder && (contained || batch)) /* in the task's root there may be no way to it */
        record_fd = open(record_folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (contained && !failed)
        failed = enter_root(sp);
    return 0;
}

/* ---- in each task, as the user ---------------------------------------------------------------------------------- */

static void put_string(FILE *out, const char *value)
{
    fputc('"', out);
    for (; *value; value++)
        fprintf(out, *value == '"' || *value == '\\' || (*value > 0 && *value < ' ') ? "\\u%04x" : "%c", *value);
    fputc('"', out);
}

/* By the first task of a node; earlier Slurm does not say which node this is. */
static void put_record(spank_t sp)
{
    uint32_t job = 0, step = 0;
    char node[256] = "unknown", *line;
    size_t size;
    spank_get_item(sp, S_JOB_ID, &job);
    spank_get_item(sp, S_JOB_STEPID, &step);
    spank_getenv(sp, "SLURMD_NODENAME", node, sizeof(node));
    FILE *out = open_memstream(&line, &size);
    fprintf(out, "{\"job\": %u, \"step\": %u, \"batch\": %s, \"node\": ", job, step, batch ? "true" : "false");
    put_string(out, node);
    for (int i = 0; i < OPTIONS; i++) {
        fprintf(out, ", \"%s\": %s", known[i].name, !given[i] ? "null" : known[i].argument ? "" : "true");
        if (given[i] && known[i].argument)
            put_string(out, given[i]);
    }
    fputs("}\n", out);
    fclose(out);
    int file = openat(record_fd, text("%s.jsonl", node), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || write(file, line, size) != (ssize_t)size) /* one write: steps that start at once do not mix */
        slurm_error("pyxis: stand-in: cannot write the record: %m");
    fchmod(file, 0666); /* the next job may be another user's */
    close(file);
}

/* The image's variables win over the job's, unless --container-env lists them. */
static void set_environment(spank_t sp, int local_rank)
{
    const char *never_passed[] = {"LANG", "LANGUAGE", "LC_ALL"};
    for (int i = 0; i < 3; i++)
        if (!lists(given[ENV], ",", never_passed[i]))
            spank_unsetenv(sp, never_passed[i]);
    bool pytorch = false;
    for (int i = 0; i < variable_count; i++) {
        char *value = strdup(variables[i]), *name = strsep(&value, "=");
        spank_setenv(sp, name, value, !lists(given[ENV], ",", name));
        pytorch |= !strcmp(name, "PYTORCH_VERSION");
    }
    uint32_t rank = 0;
    spank_get_item(sp, S_TASK_GLOBAL_ID, &rank);
    if (pytorch) {
        spank_setenv(sp, "RANK", text("%u", rank), 1);
        spank_setenv(sp, "LOCAL_RANK", text("%d", local_rank), 1);
    }
}

int slurm_spank_task_init(spank_t sp, int ac UNUSED, char **av UNUSED)
{
    int task = 0;
    char home[PATH_MAX] = "/";
    spank_get_item(sp, S_TASK_ID, &task);
    if (record_fd >= 0 && task == 0)
        put_record(sp);
    if (!contained || failed)
        return failed ? -1 : 0;
    set_environment(sp, task);
    if (given[WORKDIR] && chdir(given[WORKDIR])) {
        slurm_error("pyxis: couldn't chdir to %s: %m", given[WORKDIR]);
        return -1;
    }
    /* An image without a working directory of its own starts at home. */
    spank_getenv(sp, "HOME", home, sizeof(home));
    return given[WORKDIR] || !chdir(home) ? 0 : chdir("/");
}
