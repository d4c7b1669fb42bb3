/*
 * A stand-in for pyxis on the test cluster. It is not pyxis and contains no code of pyxis.
 *
 * It accepts the options of pyxis, records them, prints the error messages of pyxis, and runs the tasks of a step on a
 * node in one root file system: a read-only view of the host (overlayfs) with an empty /tmp and the requested mounts.
 * Messages and their order are those of pyxis 0.24 with enroot 4.1 under Slurm 22.05.
 *
 * Like pyxis, it writes the mounts into a shell script as `echo "SOURCE TARGET FLAGS"` and runs that script on the node
 * as the user of the job. The lines that the script prints are mounted. `$` and backticks in a mount are executed.
 *
 * It does not read squashfs, ask a registry, keep named containers, save a container, run an entrypoint, remap users,
 * or unshare more than mounts. An image is a text file of lines NAME=value, which are the variables of the image. Each
 * image contains the programs and files of the host, except /tmp. An ordinary user does not own these files, so
 * --container-writable lets only root change them.
 *
 * Arguments in plugstack.conf:
 *   record=FOLDER        each containerised step, and batch script, adds a line of JSON to FOLDER/NODE.jsonl
 *   runtime_path=FOLDER  an empty folder of the host, on which the root file systems are mounted
 *   version=0.N          version of pyxis: options, PYXIS_* variables, messages (0.24)
 *   sbatch_support=0     sbatch and salloc do not know the options (1)
 *   broken_node=NODE     on this node no image can be read
 *   shown_in=FOLDER      a task without a container ends only after its message is in a file of this folder, because
 *                        srun loses the last lines of a task if it ends the other tasks
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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
};

static unsigned version = 24;
static bool sbatch_support = true;
static const char *broken_node = "", *shown_in = "";
static const char *record_folder, *runtime_path = "/run/pyxis";
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

/* ---- options ----------------------------------------------------------------------------------------------------- */

static int add_mount(const char *entry)
{
    char *rest = strdup(entry), *source = strsep(&rest, ":"), *target = strsep(&rest, ":");
    if (!target)
        target = source;
    if (!*source || !*target || mount_count == MOST) {
        slurm_error("pyxis: --container-mounts: invalid format: %s", entry);
        return -1;
    }
    const char *flags = is_path(source)             ? "x-create=auto,rbind"
                        : !strcmp(source, "tmpfs")  ? "x-create=dir"
                        : !strcmp(source, "umount") ? "x-detach"
                                                    : NULL;
    for (char *c = rest; c && *c; c++)
        *c = *c == '+' ? ',' : *c;
    if (!flags)
        slurm_error("pyxis: mount source must be a relative path, an absolute path, \"tmpfs\" or \"umount\"");
    else if (!is_path(target))
        slurm_error("pyxis: mount target must be a relative path or an absolute path");
    else {
        if (!lists(given[MOUNTS], ",", entry)) { /* Slurm may bring the same option twice: see take_option */
            given[MOUNTS] = given[MOUNTS] ? text("%s,%s", given[MOUNTS], entry) : strdup(entry);
            mounts[mount_count++] =
                (struct mount){source, target, rest && *rest ? text("%s,%s", flags, rest) : strdup(flags)};
        }
        return 0;
    }
    slurm_error("pyxis: could not add mount entry: %s:%s", source, target);
    return -1;
}

static int check_name(const char *value)
{
    const char *flag = strchr(value, ':');
    if (*value == ':') {
        slurm_error("pyxis: --container-name: empty name");
        return -1;
    }
    if (!flag || !flag[1] || lists("auto,create,exec,no_exec", ",", flag + 1))
        return 0;
    slurm_error("pyxis: --container-name: flag must be \"auto\", \"create\", \"exec\" or \"no_exec\"");
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
    if (given[option] && strcmp(given[option], value)) {
        slurm_error("pyxis: --%s specified multiple times", known[option].name);
        return -1;
    }
    if (option == NAME && check_name(value))
        return -1;
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
        else if (!strcmp(av[i], "sbatch_support=0"))
            sbatch_support = false;
        else if (!strncmp(av[i], "broken_node=", 12))
            broken_node = av[i] + 12;
        else if (!strncmp(av[i], "shown_in=", 9))
            shown_in = av[i] + 9;
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

/* Return the value of the option's PYXIS_CONTAINER_... variable, or NULL. */
static const char *default_of(spank_t sp, int option)
{
    static char value[8192];
    if (known[option].since > version)
        return NULL;
    char *variable = text("PYXIS_%s", known[option].name);
    for (char *c = variable; *c; c++)
        *c = *c == '-' ? '_' : toupper(*c);
    if (!spank_remote(sp)) /* slurmstepd has variables of its own beside those of the job */
        return getenv(variable);
    return spank_getenv(sp, variable, value, sizeof(value)) == ESPANK_SUCCESS ? value : NULL;
}

/* Switches take a boolean. pyxis ignores any other value. */
static void take_default_switch(spank_t sp, int option, int if_true, int if_false)
{
    const char *value = default_of(sp, option);
    if (!value || given[if_true] || (if_false < OPTIONS && given[if_false]))
        return;
    if (lists("1,true,yes,y", ",", value))
        given[if_true] = "";
    else if (if_false < OPTIONS && lists("0,false,no,n", ",", value))
        given[if_false] = "";
}

/* Read the PYXIS_CONTAINER_... variables of the options that the command does not set. */
static int take_defaults(spank_t sp)
{
    if (version < 21)
        return 0;
    for (int i = 0; i < OPTIONS; i++) {
        const char *value = known[i].argument && !given[i] ? default_of(sp, i) : NULL;
        if (value && *value && take_option(i, value, 0))
            return -1;
    }
    for (int i = 0; i < 4; i++)
        take_default_switch(sp, opposites[i][0], opposites[i][0], opposites[i][1]);
    take_default_switch(sp, READONLY, READONLY, WRITABLE);
    take_default_switch(sp, ENTRYPOINT_LOG, ENTRYPOINT_LOG, OPTIONS);
    return 0;
}

/* ---- on the node: one container for all tasks of a step ---------------------------------------------------------- */

static bool contained;        /* this step has an image */
static bool failed;           /* the setup went wrong; pyxis reports it to Slurm only in task_init */
static bool batch;            /* a batch script that was given an image: recorded only */
static int record_fd = -1;    /* the folder of the records */
static int namespace_fd;      /* the mount namespace of the container */
static char *variables[MOST]; /* the image's, NAME=value */
static int variable_count;

/* Shared by slurmstepd and the tasks of the step. */
static struct container {
    pthread_mutex_t mutex;
    unsigned started_tasks, ended_tasks;
    bool created; /* its file system exists */
    bool running;
} *container;

/* Return a descriptor of a new mount namespace, which lives as long as the descriptor is open; -1 on failure. */
static int new_namespace(void)
{
    int ends[2], found = -1;
    pid_t child;
    char byte;
    if (pipe2(ends, O_CLOEXEC) || (child = fork()) < 0)
        return -1;
    if (!child) {
        if (unshare(CLONE_NEWNS) || write(ends[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    if (read(ends[0], &byte, 1) == 1)
        found = open(text("/proc/%d/ns/mnt", child), O_RDONLY | O_CLOEXEC);
    close(ends[0]);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return found;
}

/* In slurmstepd, as root. */
static int prepare(void)
{
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST); /* a task may be killed while it holds the lock */
    container = mmap(NULL, sizeof(*container), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (container == MAP_FAILED || pthread_mutex_init(&container->mutex, &shared) ||
        (namespace_fd = new_namespace()) < 0) {
        slurm_error("pyxis: stand-in: cannot make a mount namespace: %m");
        return -1;
    }
    return 0;
}

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
    return contained ? prepare() : 0;
}

static int no_container(spank_t sp, const char *name)
{
    uint32_t job = 0;
    spank_get_item(sp, S_JOB_ID, &job);
    size_t length = strcspn(name, ":");
    if (!strcmp(name + length, ":exec"))
        slurm_error("pyxis: error: \"exec\" flag was passed to --container-name but the container is not running");
    else
        slurm_error("pyxis: error: a container with name \"pyxis_%u_%.*s\" does not exist, and --container-image is "
                    "not set",
                    job, (int)length, name);
    return -1;
}

/* In slurmstepd, as the user. */
int slurm_spank_user_init(spank_t sp, int ac UNUSED, char **av UNUSED)
{
    const char *name = contained ? given[NAME] : NULL, *flag = name ? strchr(name, ':') : NULL;
    if (name && (!given[IMAGE] || (flag && !strcmp(flag, ":exec"))))
        failed = no_container(sp, name);
    return 0;
}

/* ---- creation of the container, by the first task of a node ------------------------------------------------------ */

static int show_log(char *log)
{
    size_t length = strlen(log);
    if (length && log[length - 1] == '\n')
        log[length - 1] = 0;
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
    char *rest = strdup(scheme ? scheme + 3 : image), *host = strsep(&rest, "#"), *at = strchr(host, '@');
    host = !rest ? "registry.example" : at ? at + 1 : host;
    slurm_error("pyxis: child %d failed with error code: 6", (int)getpid());
    slurm_error("pyxis: failed to import docker image: %s", image);
    return show_log(text("[INFO] Querying registry for permission grant\ncurl: (6) Could not resolve host: %s", host));
}

/* Return the path as `readlink -f` prints it: the last component need not exist. */
static const char *resolved(const char *path)
{
    char *real = realpath(path, NULL), *slash = strrchr(path, '/');
    if (real || errno != ENOENT || !slash)
        return real ? real : path;
    char *folder = realpath(slash == path ? "/" : text("%.*s", (int)(slash - path), path), NULL);
    return folder ? text("%s/%s", strcmp(folder, "/") ? folder : "", slash + 1) : path;
}

/* Read the variables of the image. Return NULL, or enroot's reason why it is no image. */
static const char *read_image(const char *path)
{
    struct stat found;
    if (stat(path, &found) || !S_ISREG(found.st_mode))
        return "No such file or directory";
    FILE *file = fopen(path, "re");
    bool good = file != NULL;
    char *line = NULL;
    for (size_t size = 0; good && getline(&line, &size, file) > 0;) {
        line[strcspn(line, "\n")] = 0;
        good = (!*line || strchr(line, '=') > line) && variable_count < MOST;
        if (good && *line)
            variables[variable_count++] = strdup(line);
    }
    if (file)
        fclose(file);
    return good ? NULL : "Invalid image format";
}

/* Whether this is the node of the step's list on which no image can be read. */
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

static int create_container(spank_t sp)
{
    const char *image = given[IMAGE];
    if (!is_path(image))
        return no_import(sp, image);
    const char *path = resolved(image);
    const char *reason = is_broken_node(sp) ? "Invalid image format" : read_image(path);
    if (!reason)
        return 0;
    slurm_error("pyxis: child %d failed with error code: 1", (int)getpid());
    slurm_error("pyxis: failed to create container filesystem for image: %s", image);
    return show_log(text("[ERROR] %s: %s", reason, path));
}

/* ---- its mounts, from the script that pyxis writes and enroot runs ----------------------------------------------- */

static int check_sources(void)
{
    struct stat found;
    for (int i = 0; i < mount_count && version >= 24; i++) {
        if (*mounts[i].source != '/' || !stat(mounts[i].source, &found) || (errno != ENOENT && errno != ENOTDIR))
            continue;
        slurm_error("pyxis: --container-mounts: source path does not exist: %s", mounts[i].source);
        slurm_error("pyxis: couldn't create enroot start configuration script");
        return show_log(strdup("[INFO] Extracting squashfs filesystem...\n"
                               "Parallel unsquashfs: Using 2 processors\n"
                               "2 inodes (1 blocks) to write\n"
                               "\n"
                               "\n"
                               "created 1 file\n"
                               "created 1 directory\n"
                               "created 1 symlink\n"
                               "created 0 devices\n"
                               "created 0 fifos\n"
                               "created 0 sockets\n"
                               "created 0 hardlinks\n"));
    }
    return 0;
}

static int start_failed(int code, char *log)
{
    slurm_error("pyxis: container start failed with error code: %d", code);
    return show_log(log);
}

/* Write the characters that divide the fields of fstab as its octal escapes, which pyxis 0.24 began to do. */
static void put_field(FILE *out, const char *value)
{
    for (; *value; value++)
        fprintf(out, version >= 24 && strchr(" \t\n\\", *value) ? "\\%03o" : "%c", *value);
}

static void write_script(FILE *out)
{
    fputs("mounts() {\n:\n", out);
    for (int i = 0; i < mount_count; i++) {
        fputs("\techo \"", out);
        put_field(out, mounts[i].source);
        fputc(' ', out);
        put_field(out, mounts[i].target);
        fprintf(out, " %s\"\n", mounts[i].flags);
    }
    fputs("}\nenviron() {\n:\n", out);
    char *rest = given[ENV] ? strdup(given[ENV]) : NULL, *name;
    while ((name = strsep(&rest, ",")))
        fprintf(out, "\t[ -n \"${%s-}\" ] && echo \"%s=${%s}\" || :\n", name, name, name);
    fputs("}\n", out);
}

static char *contents(int file)
{
    off_t size = lseek(file, 0, SEEK_END);
    char *all = calloc(1, size + 1);
    if (pread(file, all, size, 0) != size)
        abort();
    return all;
}

/* Replace this process by the shell that runs the script; its environment is that of the job, but not PATH. */
static void run_script(char **environment, const char *path, int output, int log)
{
    const char *never_passed[] = {"PATH=", "LD_LIBRARY_PATH=", "LD_PRELOAD="};
    char *bash[] = {"bash", "-c", "set -euo pipefail; source \"$1\"; environ >/dev/null; mounts", "enroot",
                    (char *)path, NULL};
    char *found = getenv("PATH"), *own = found ? strdup(found) : NULL;
    clearenv();
    for (; environment && *environment; environment++) {
        bool passed = true;
        for (int i = 0; i < 3; i++)
            passed &= strncmp(*environment, never_passed[i], strlen(never_passed[i])) != 0;
        if (passed)
            putenv(*environment);
    }
    int null = open("/dev/null", O_RDONLY);
    if ((own && setenv("PATH", own, 1)) || dup2(null, 0) < 0 || dup2(output, 1) < 0 || dup2(log, 2) < 0)
        _exit(1);
    execvp(*bash, bash);
    _exit(1);
}

/* Return the lines that the script prints, each `SOURCE TARGET FLAGS`; NULL when it fails, which is reported. */
static char *evaluate_mounts(spank_t sp)
{
    char path[] = "/tmp/.enroot_config_XXXXXX", **environment = NULL;
    int script = mkstemp(path), output = memfd_create("output", MFD_CLOEXEC), log = memfd_create("log", MFD_CLOEXEC);
    FILE *out = fdopen(script, "w");
    if (!out || output < 0 || log < 0)
        abort();
    write_script(out);
    fclose(out);
    spank_get_item(sp, S_JOB_ENV, &environment);
    int status = 0;
    pid_t child = fork();
    if (!child)
        run_script(environment, path, output, log);
    waitpid(child, &status, 0);
    unlink(path);
    if (!status)
        return contents(output);
    start_failed(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), contents(log));
    return NULL;
}

/* Undo the octal escapes of fstab in place. */
static char *unescape(char *field)
{
    char *out = field;
    for (char *in = field; *in; out++) {
        unsigned code;
        bool escaped = *in == '\\' && sscanf(in + 1, "%3o", &code) == 1;
        *out = escaped ? (char)code : *in;
        in += escaped ? 4 : 1;
    }
    *out = 0;
    return field;
}

/* Return the number of mounts in these lines. A line without a target or flags has enroot's defaults. */
static int parse_mounts(char *lines, struct mount found[MOST])
{
    int count = 0;
    for (char *line; count < MOST && (line = strsep(&lines, "\n"));) {
        char *words[3] = {0}, *rest = line, *word;
        for (int i = 0; i < 3 && (word = strsep(&rest, " \t"));)
            if (*word)
                words[i++] = word;
        if (!words[0])
            continue;
        char *target = unescape(strdup(words[1] ? words[1] : words[0]));
        found[count++] = (struct mount){unescape(words[0]), target, words[2] ? words[2] : "rbind,x-create=auto"};
    }
    return count;
}

/* ---- its root file system ---------------------------------------------------------------------------------------- */

/* Use the capabilities that this process kept from root, or only the rights of the user. */
static void elevate(bool yes)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    if (!getuid())
        return;
    if (syscall(SYS_capget, &header, sets))
        abort();
    for (int i = 0; i < 2; i++)
        sets[i].effective = yes ? sets[i].permitted : 0;
    if (syscall(SYS_capset, &header, sets))
        abort();
}

static int cannot(const char *what, const char *source, const char *target)
{
    const char *reason = strerror(errno);
    const char *at = *source ? " at " : "";
    return start_failed(1, text("enroot-mount: failed to %s: %s%s%s/%s: %s", what, source, at, runtime_path,
                                target + (*target == '/'), reason));
}

/* Whether this folder belongs to the image, and not to a mount. */
static bool is_in_image(const char *folder)
{
    struct stat found, root;
    return !stat(folder, &found) && !stat("/", &root) && found.st_dev == root.st_dev;
}

/* Make a file or folder with the rights of the user; in the image with any, since users own all of a real image. */
static bool make_entry(const char *path, bool folder)
{
    const char *slash = strrchr(path, '/');
    const char *parent = !slash ? "." : slash == path ? "/" : text("%.*s", (int)(slash - path), path);
    elevate(is_in_image(parent));
    bool made = folder ? !mkdir(path, 0755) : !mknod(path, S_IFREG | 0644, 0);
    elevate(true);
    return made;
}

/* Make the target, and the folders above it, where there is none. Return whether it then exists. */
static bool make_target(char *path, bool folder)
{
    bool there = true;
    for (char *slash = path + 1; there && (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        there = !access(path, F_OK) || make_entry(path, true);
    }
    return there && (!access(path, F_OK) || make_entry(path, folder));
}

static int apply(const struct mount *entry, int source_fd)
{
    const char *source = entry->source, *target = entry->target;
    struct stat found = {.st_mode = S_IFDIR};
    if (source_fd >= 0)
        fstat(source_fd, &found);
    bool folder = S_ISDIR(found.st_mode), done;
    if (lists(entry->flags, ",", "x-detach"))
        return umount2(target, MNT_DETACH) ? cannot("unmount", source, target) : 0;
    if (!make_target(entry->target, folder))
        return cannot(folder ? "create directory" : "create file", "", target);
    if (!strcmp(source, "tmpfs"))
        done = !mount("tmpfs", target, "tmpfs", 0, NULL);
    else /* the host's paths cannot be named any more, but what was opened before can be */
        done = !mount(text("/proc/self/fd/%d", source_fd), target, NULL, MS_BIND | MS_REC, NULL);
    if (done && lists(entry->flags, ",", "ro"))
        done = !mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
    return done ? 0 : cannot("mount", source, target);
}

static bool is_below(const char *path, const char *folder)
{
    size_t length = strlen(folder);
    return !strncmp(path, folder, length) && (!path[length] || path[length] == '/');
}

/* List the paths of the host's mounts, each after the mount that it lies on. */
static int host_mounts(char *paths[MOST])
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    int count = 0;
    char *line = NULL;
    for (size_t size = 0; file && count < MOST && getline(&line, &size, file) > 0;)
        count += sscanf(line, "%*d %*d %*s %*s %ms", &paths[count]) == 1;
    return count;
}

/* Make the root and enter it: an overlay of the host's root, and on it the other mounts of the host except /tmp. */
static int make_root(void)
{
    char *paths[MOST];
    int count = host_mounts(paths);
    char *root = text("%s/root", runtime_path), *upper = text("%s/upper", runtime_path);
    char *work = text("%s/work", runtime_path), *layers = text("lowerdir=/,upperdir=%s,workdir=%s", upper, work);
    if (mount("tmpfs", runtime_path, "tmpfs", 0, "mode=755") || mkdir(root, 0755) || mkdir(upper, 0755) ||
        mkdir(work, 0755) || mount("overlay", root, "overlay", 0, layers))
        return cannot("mount", "overlay", "/");
    /* A mount that another one hides cannot be reached on the host either, so that a failure does no harm. */
    for (int i = 0; i < count; i++) {
        const char *path = text("%s%s", root, paths[i]);
        bool writable = is_below(paths[i], "/proc") || is_below(paths[i], "/dev");
        if (!strcmp(paths[i], "/") || is_below(paths[i], "/tmp") || mount(paths[i], path, NULL, MS_BIND, NULL))
            continue;
        if (!writable && mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))
            return cannot("mount", paths[i], paths[i]);
    }
    if (mount("tmpfs", text("%s/tmp", root), "tmpfs", MS_NOSUID | MS_NODEV,
              "mode=755"))
        return cannot("mount", "tmpfs", "/tmp");
    return chdir(root) || chroot(".") ? cannot("mount", "overlay", "/") : 0;
}

/* Whether a switch is on: by its option, else by the variable of enroot that the job's environment hands on. */
static bool is_on(spank_t sp, int yes, int no, const char *variable)
{
    char value[64];
    if (given[yes] || given[no])
        return given[yes];
    return spank_getenv(sp, variable, value, sizeof(value)) == ESPANK_SUCCESS && lists("y,yes,true,1", ",", value);
}

static int fill_namespace(spank_t sp, struct mount *entries, int count)
{
    char home[PATH_MAX], *folder = getcwd(NULL, 0);
    int sources[MOST];
    bool mounts_home = is_on(sp, HOME, NO_HOME, "ENROOT_MOUNT_HOME");
    if (mounts_home && count < MOST && spank_getenv(sp, "HOME", home, sizeof(home)) == ESPANK_SUCCESS)
        entries[count++] = (struct mount){strdup(home), strdup(home), "x-create=dir,bind"};
    if (setns(namespace_fd, CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return cannot("mount", "overlay", "/");
    elevate(false);
    bool all = !folder || !chdir(folder);
    int i = 0;
    for (; i < count && all; i++) {
        sources[i] = is_path(entries[i].source) ? open(entries[i].source, O_PATH | O_CLOEXEC) : -1;
        all = sources[i] >= 0 || !is_path(entries[i].source);
    }
    elevate(true);
    if (!all)
        return i ? cannot("mount", entries[i - 1].source, entries[i - 1].target) : cannot("mount", "overlay", "/");
    if (make_root())
        return -1;
    for (i = 0; i < count; i++)
        if (apply(&entries[i], sources[i]))
            return -1;
    bool is_writable = is_on(sp, WRITABLE, READONLY, "ENROOT_ROOTFS_WRITABLE");
    if (!is_writable && mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))
        return cannot("mount", "overlay", "/");
    return 0;
}

static int start_container(spank_t sp)
{
    struct mount entries[MOST];
    char *lines = check_sources() ? NULL : evaluate_mounts(sp);
    if (!lines)
        return -1;
    mode_t mask = umask(022);
    elevate(true);
    int result = fill_namespace(sp, entries, parse_mounts(lines, entries));
    elevate(false);
    umask(mask);
    return result;
}

/* ---- in each task, as the user ----------------------------------------------------------------------------------- */

static int join_container(void)
{
    read_image(resolved(given[IMAGE]));
    elevate(true);
    int result = setns(namespace_fd, CLONE_NEWNS) || chdir(text("%s/root", runtime_path)) || chroot(".") ? -1 : 0;
    elevate(false);
    if (result)
        slurm_error("pyxis: couldn't join mount namespace: %m");
    return result;
}

static void wait_until_shown(const char *message)
{
    char *command = text("grep -rqsF -e \"%s\" \"%s\"", message, shown_in);
    while (system(command))
        usleep(100000);
}

/* The first task of a node creates and starts the container. Only that task reports why this fails. */
static int start_once(spank_t sp)
{
    bool first, failed_to_create = false;
    if (pthread_mutex_lock(&container->mutex) == EOWNERDEAD) {
        pthread_mutex_consistent(&container->mutex);
        slurm_error("pyxis: a previous task terminated unexpectedly during container setup");
    }
    first = !container->started_tasks++;
    if (first) {
        container->created = !create_container(sp);
        container->running = container->created && !start_container(sp);
        failed_to_create = !container->created;
    }
    bool running = container->running;
    if (!running && version < 24)
        slurm_error("pyxis: couldn't start container");
    else if (!running && !failed_to_create)
        slurm_error("pyxis: container was not started successfully by another task");
    pthread_mutex_unlock(&container->mutex);
    if (!running && *shown_in)
        wait_until_shown(version < 24 ? "couldn't start container" : "[ERROR]");
    return !running ? -1 : first ? 0 : join_container();
}

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

/* As root, before Slurm makes this process the user's. */
int slurm_spank_task_init_privileged(spank_t sp UNUSED, int ac UNUSED, char **av UNUSED)
{
    if (record_folder && (contained || batch)) /* in the container there may be no way to it */
        record_fd = open(record_folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (contained && prctl(PR_SET_KEEPCAPS, 1)) /* until the task's program starts */
        abort();
    return 0;
}

int slurm_spank_task_init(spank_t sp, int ac UNUSED, char **av UNUSED)
{
    int task = 0;
    char home[PATH_MAX] = "/";
    spank_get_item(sp, S_TASK_ID, &task);
    if (record_fd >= 0 && task == 0)
        put_record(sp);
    if (!contained)
        return 0;
    if (failed || start_once(sp))
        return -1;
    set_environment(sp, task);
    if (given[WORKDIR] && chdir(given[WORKDIR])) {
        slurm_error("pyxis: couldn't chdir to %s: %m", given[WORKDIR]);
        return -1;
    }
    /* An image without a working directory of its own starts at home. */
    spank_getenv(sp, "HOME", home, sizeof(home));
    return given[WORKDIR] || !chdir(home) ? 0 : chdir("/");
}

/* In slurmstepd, for each task. After the last one pyxis removes the container, also where it was never created. */
int slurm_spank_task_exit(spank_t sp, int ac UNUSED, char **av UNUSED)
{
    uint32_t tasks = 0;
    if (!contained || failed)
        return 0;
    spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &tasks);
    if (++container->ended_tasks == tasks && !container->created)
        slurm_error("pyxis: child %d failed with error code: 1", (int)getpid());
    return 0;
}
